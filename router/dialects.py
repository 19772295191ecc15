"""How errors and signs of life look in each API dialect.

Owns bytes only. Must not decide what an error means (`errors.py` does) or write to a client (`reply.py` does).
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, assert_never

from worker.contract import ErrorPayload


class Dialect(StrEnum):
    """The API family that a client speaks; the value goes to the worker in `X-Corral-Dialect`."""

    OPENAI = "openai"


def error_body(dialect: Dialect, error: ErrorPayload) -> bytes:
    """Return the JSON body of an HTTP error."""
    match dialect:
        case Dialect.OPENAI:
            return _openai_error(error)
        case _:
            assert_never(dialect)


def error_event(dialect: Dialect, error: ErrorPayload) -> bytes:
    """Return the last event of a stream that failed after its HTTP status had gone out."""
    match dialect:
        case Dialect.OPENAI:
            return b"data: " + _openai_error(error) + b"\n\n"
        case _:
            assert_never(dialect)


def ping(dialect: Dialect) -> bytes:
    """Return bytes that keep a silent stream open and that every client of the dialect skips."""
    match dialect:
        case Dialect.OPENAI:
            return b": ping\n\n"
        case _:
            assert_never(dialect)


def _openai_error(error: ErrorPayload) -> bytes:
    body: dict[str, Any] = {
        "error": {
            "message": error.message,
            "type": _openai_type(error.status),
            "param": error.param,
            "code": error.code,
        }
    }
    # A message may quote half a surrogate pair from somebody's text; the reply must still be valid UTF-8.
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _openai_type(status: int) -> str:
    match status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case 429:
            return "rate_limit_error"
        case _ if status < 500:
            return "invalid_request_error"
        case _:
            return "server_error"
