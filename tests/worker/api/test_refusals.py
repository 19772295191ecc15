"""Honour a field or refuse it: nothing that is known and not honoured gets through."""

from __future__ import annotations

import pytest

from worker.api.refusals import refuse_unsupported, show
from worker.api.refused_everywhere import FORMATS
from worker.api.refused_openai import CHAT, COMPLETIONS
from worker.api.refused_responses import RESPONSES
from worker.errors import UnsupportedParameter

MEANT = [
    ("store", True),
    ("service_tier", "flex"),
    ("n_probs", 5),
    ("structural_tag", {}),
    ("stop_token_ids", [1]),
]
HARMLESS = [
    ("store", False),
    ("service_tier", "auto"),
    ("service_tier", "default"),
    ("mirostat", 2),
    ("typical_p", 0.9),
    ("dry_multiplier", 0.8),
    ("samplers", ["top_k"]),
    ("repetition_penalty", 1.2),
    ("user", "me"),
    ("metadata", {"a": "b"}),
    ("safety_identifier", "x"),
    ("prompt_cache_key", "x"),
    ("something_new", 1),
]


@pytest.mark.parametrize("table", [CHAT, COMPLETIONS], ids=["chat", "completions"])
@pytest.mark.parametrize(("name", "value"), MEANT)
def test_a_field_that_asks_for_what_is_missing_is_refused_by_name(table: dict, name: str, value: object) -> None:
    words = f"'{name}' is .* not available in this release"
    with pytest.raises(UnsupportedParameter, match=words) as caught:
        refuse_unsupported({name: value}, table)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "unsupported_parameter", name)


@pytest.mark.parametrize("table", [CHAT, COMPLETIONS], ids=["chat", "completions"])
@pytest.mark.parametrize(("name", "value"), HARMLESS)
def test_a_value_that_promises_nothing_is_accepted(table: dict, name: str, value: object) -> None:
    refuse_unsupported({name: value}, table)


@pytest.mark.parametrize("table", [CHAT, COMPLETIONS], ids=["chat", "completions"])
def test_null_is_accepted_for_every_field(table: dict) -> None:
    refuse_unsupported(dict.fromkeys(table), table)


@pytest.mark.parametrize(
    ("name", "refused", "accepted"),
    [
        ("grammar_string", "root ::= [0-9]", ""),
        ("think", True, None),
        ("reasoning", {"effort": "low"}, {}),
        ("modalities", ["text", "audio"], ["text"]),
        ("audio", {"voice": "x"}, None),
        ("verbosity", "low", "medium"),
        ("prediction", {"type": "content", "content": ""}, None),
        ("web_search_options", {}, None),
    ],
)
def test_chat_has_refusals_of_its_own(name: str, refused: object, accepted: object) -> None:
    with pytest.raises(UnsupportedParameter):
        refuse_unsupported({name: refused}, CHAT)
    refuse_unsupported({name: accepted}, CHAT)


def test_completions_have_refusals_of_their_own() -> None:
    with pytest.raises(UnsupportedParameter):
        refuse_unsupported({"input_extra": [{"text": "x"}]}, COMPLETIONS)
    refuse_unsupported({"input_extra": []}, COMPLETIONS)


def test_a_form_of_the_answer_under_the_name_of_another_dialect_is_told_the_right_field() -> None:
    with pytest.raises(UnsupportedParameter, match=r"'format' is not read here. Use 'response_format' instead."):
        refuse_unsupported({"format": "json"}, CHAT)
    for table in (CHAT, COMPLETIONS):
        for name in ("text", "output_config", "output_format"):
            with pytest.raises(
                UnsupportedParameter, match=f"'{name}' is not read here. Use 'response_format' instead."
            ):
                refuse_unsupported({name: {"format": {"type": "json_object"}}}, table)
        with pytest.raises(UnsupportedParameter, match="Use 'json_schema' instead"):
            refuse_unsupported({"response_schema": {"type": "object"}}, table)
        with pytest.raises(UnsupportedParameter, match="at the top of the body"):
            refuse_unsupported({"extra_body": {"regex": "a"}}, table)
        refuse_unsupported({"extra_body": {}, "text": None}, table)
    with pytest.raises(UnsupportedParameter, match=r"'regex' is not read here. Use 'text.format' instead."):
        refuse_unsupported({"regex": "a"}, RESPONSES)
    with pytest.raises(UnsupportedParameter, match=r"(?s)Use the field that this route has.*drop: \[lark\]"):
        refuse_unsupported({"lark": "start: x"}, FORMATS)
    refuse_unsupported({"regex": "", "response_format": {"type": "text"}, "grammar": ""}, FORMATS)


def test_a_refusal_names_what_to_use_instead_where_there_is_something() -> None:
    with pytest.raises(UnsupportedParameter, match="Use 'stop' instead"):
        refuse_unsupported({"stop_token_ids": [7]}, CHAT)
    with pytest.raises(UnsupportedParameter, match="Use 'logprobs' instead"):
        refuse_unsupported({"n_probs": 3}, COMPLETIONS)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ("é", '"é"'),
        ([], "an empty list"),
        ({"a": 1}, "an object"),
        ([1], "a list"),
    ],
)
def test_values_are_shown_as_the_client_wrote_them(value: object, shown: str) -> None:
    assert show(value) == shown
