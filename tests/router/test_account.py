"""Every end of a request is one outcome of the closed set."""

from __future__ import annotations

import pytest

from router import errors
from router.account import Account, Outcome, outcome_of
from worker.contract import ErrorPayload


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (errors.BadRequest("x"), Outcome.REJECTED),
        (errors.Unauthorized("x"), Outcome.REJECTED),
        (errors.ModelNotFound("x"), Outcome.REJECTED),
        (errors.TooManyRequests("x"), Outcome.REJECTED),
        (errors.ShuttingDown("x"), Outcome.REJECTED),
        (errors.QueueTimeout("x"), Outcome.TIMEOUT),
        (errors.RequestTimeout("x"), Outcome.TIMEOUT),
        (errors.WorkerDied("x"), Outcome.WORKER_DIED),
        (errors.ModelUnavailable("x"), Outcome.ERROR),
        (errors.NotAvailableYet("x"), Outcome.REJECTED),
        (errors.RouterError("x"), Outcome.ERROR),
        (errors.WorkerRefused(ErrorPayload(400, "c", "m")), Outcome.REJECTED),
        (errors.WorkerRefused(ErrorPayload(500, "c", "m")), Outcome.ERROR),
    ],
)
def test_error_has_its_outcome(error: errors.RouterError, outcome: Outcome) -> None:
    assert outcome_of(error) is outcome


def test_refusal_after_half_an_answer_is_an_error() -> None:
    account = Account("id", "/v1/completions", 0.0, first_byte_at_s=1.0)
    account.note_error(errors.WorkerRefused(ErrorPayload(400, "c", "m")))
    assert account.outcome is Outcome.ERROR


def test_log_fields_without_a_value_are_left_out() -> None:
    account = Account("id", "/v1/completions", accepted_at_s=10.0, first_byte_at_s=10.5, is_stream=True)
    fields = account.log_fields(now_s=12.0)
    assert (fields["ttft_s"], fields["total_s"]) == (0.5, 2.0)
    assert not {"model", "alias", "key", "code", "prompt_tokens", "finish"} & fields.keys()
    assert None not in fields.values()


def test_an_answer_that_is_sent_whole_has_no_time_to_its_first_token() -> None:
    account = Account("id", "/v1/completions", accepted_at_s=10.0, first_byte_at_s=11.9)
    assert "ttft_s" not in account.log_fields(now_s=12.0)


def test_the_name_that_was_asked_for_is_told_only_when_there_is_no_such_model() -> None:
    account = Account("id", "/v1/completions", accepted_at_s=10.0)
    assert "asked" not in account.log_fields(now_s=12.0)
    account.asked = "gtp-4\r\n\x1b[2J" + "x" * 1000
    shown = account.log_fields(now_s=12.0)["asked"]
    assert shown.startswith("gtp-4\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}[2J")
    assert len(shown) == 80
    account.model = "smol"
    assert "asked" not in account.log_fields(now_s=12.0)


def test_the_field_that_was_refused_is_told_without_names_of_the_clients_own() -> None:
    account = Account("id", "/v1/completions", accepted_at_s=10.0)
    param = "response_format.json_schema.schema.properties.secret"
    account.note_error(errors.WorkerRefused(ErrorPayload(400, "c", "m", param)))
    assert account.log_fields(now_s=12.0)["param"] == "response_format.json_schema"
    account.note_error(errors.WorkerRefused(ErrorPayload(400, "c", "m", "messages[3].content[0].text")))
    assert account.log_fields(now_s=12.0)["param"] == "messages[3].content[0]"
    account.note_error(errors.BadRequest("m", param="X-Corral-Conversation"))
    assert account.log_fields(now_s=12.0)["param"] == "X-Corral-Conversation"
    account.note_error(errors.WorkerRefused(ErrorPayload(400, "c", "m", "$.forged\nline")))
    assert "param" not in account.log_fields(now_s=12.0)
