"""Errors and pings are what an OpenAI client expects."""

from __future__ import annotations

import json

import pytest

from router.dialects import Dialect, error_body, error_event, ping
from worker.contract import ErrorPayload


@pytest.mark.parametrize(
    ("status", "type_"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "invalid_request_error"),
        (413, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (501, "server_error"),
        (503, "server_error"),
    ],
)
def test_error_has_openais_four_fields(status: int, type_: str) -> None:
    body = json.loads(error_body(Dialect.OPENAI, ErrorPayload(status, "a_code", "words", "model")))
    assert body == {"error": {"message": "words", "type": type_, "param": "model", "code": "a_code"}}


def test_error_event_is_one_event_with_the_same_body() -> None:
    error = ErrorPayload(503, "worker_died", "two\nlines")
    event = error_event(Dialect.OPENAI, error)
    assert event == b"data: " + error_body(Dialect.OPENAI, error) + b"\n\n"
    assert event.count(b"\n") == 2


def test_message_with_half_a_surrogate_pair_is_still_valid_utf8() -> None:
    body = error_body(Dialect.OPENAI, ErrorPayload(400, "x", "bad \ud800 text é"))
    assert json.loads(body.decode("utf-8"))["error"]["message"] == "bad ? text é"


def test_ping_is_a_comment_that_ends() -> None:
    assert ping(Dialect.OPENAI).startswith(b":")
    assert ping(Dialect.OPENAI).endswith(b"\n\n")
