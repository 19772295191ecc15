"""How errors and signs of life look in each API dialect.

Owns bytes only. Must not decide what an error means (`errors.py` does) or write to a client (`reply.py` does).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from worker.contract import ErrorPayload

EVENT_STREAM = "text/event-stream"
NDJSON = "application/x-ndjson"


class Dialect(StrEnum):
    """The API family that a client speaks."""

    OPENAI = "openai"
    RESPONSES = "responses"
    """OpenAI's Responses API: as the rest of OpenAI's, but for its streams."""
    ANTHROPIC = "anthropic"
    OLLAMA = "ollama"
    LLAMA = "llama"
    """llama-server's own routes."""


def guess_dialect(path: str, headers: Mapping[str, str]) -> Dialect:
    """Return what a client most likely speaks whose address belongs to no route."""
    if path.startswith("/api/"):
        return Dialect.OLLAMA
    if path.startswith("/v1/messages") or "anthropic-version" in headers:
        return Dialect.ANTHROPIC
    return Dialect.OPENAI


def stream_type(dialect: Dialect) -> str:
    """Return the `Content-Type` of a streamed reply."""
    return NDJSON if dialect is Dialect.OLLAMA else EVENT_STREAM


def event_end(dialect: Dialect) -> bytes:
    """Return what every event of a stream ends with."""
    return b"\n" if dialect is Dialect.OLLAMA else b"\n\n"


def error_body(dialect: Dialect, error: ErrorPayload, request_id: str | None = None) -> bytes:
    """Return the JSON body of an HTTP error."""
    match dialect:
        case Dialect.OPENAI | Dialect.RESPONSES:
            return _json(_openai_error(error))
        case Dialect.ANTHROPIC:
            return _json(_anthropic_error(error, request_id))
        case Dialect.OLLAMA:
            return _json({"error": error.message})
        case Dialect.LLAMA:
            return _json(_llama_error(error))


def error_event(dialect: Dialect, error: ErrorPayload, request_id: str | None = None, *, num_events: int = 0) -> bytes:
    """Return the last event of a stream that failed after its HTTP status had gone out, and after `num_events`."""
    body = error_body(dialect, error, request_id)
    match dialect:
        case Dialect.OPENAI | Dialect.LLAMA:
            return b"data: " + body + b"\n\n"
        case Dialect.RESPONSES:
            return b"event: error\ndata: " + _json(_response_error(error, num_events)) + b"\n\n"
        case Dialect.ANTHROPIC:
            return b"event: error\ndata: " + body + b"\n\n"
        case Dialect.OLLAMA:
            return body + b"\n"


def ping(dialect: Dialect) -> bytes | None:
    """Return bytes that keep a silent stream open and that every client of the dialect skips; None = there are none."""
    match dialect:
        case Dialect.OPENAI | Dialect.RESPONSES | Dialect.LLAMA:
            return b": ping\n\n"
        case Dialect.ANTHROPIC:
            return b'event: ping\ndata: {"type":"ping"}\n\n'
        case Dialect.OLLAMA:
            return None  # lines of JSON have no comments


def _json(body: Mapping[str, Any]) -> bytes:
    # A message may quote half a surrogate pair from somebody's text; the reply must still be valid UTF-8.
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _openai_error(error: ErrorPayload) -> dict[str, Any]:
    return {
        "error": {
            "message": error.message,
            "type": _type(_OPENAI_TYPES, error.status, fault="server_error"),
            "param": error.param,
            "code": error.code,
        }
    }


def _response_error(error: ErrorPayload, num_events: int) -> dict[str, Any]:
    """Return the event as it is documented, with the error in an object besides: clients raise what they find there."""
    told = {"code": error.code, "message": error.message, "param": error.param}
    return {"type": "error", **told, "sequence_number": num_events, **_openai_error(error)}


def _llama_error(error: ErrorPayload) -> dict[str, Any]:
    """Return what llama-server's clients read: there `code` is the HTTP status."""
    kind = (
        "exceed_context_size_error"
        if error.code == "context_length_exceeded"
        else _type(_LLAMA_TYPES, error.status, fault="server_error")
    )
    body = {"code": error.status, "message": error.message, "type": kind}
    return {"error": body if error.param is None else body | {"param": error.param}}


def _anthropic_error(error: ErrorPayload, request_id: str | None) -> dict[str, Any]:
    body = {
        "type": "error",
        "error": {"type": _type(_ANTHROPIC_TYPES, error.status, fault="api_error"), "message": error.message},
    }
    return body | {"request_id": request_id}


_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_LLAMA_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def _type(types: Mapping[int, str], status: int, *, fault: str) -> str:
    """Return the word for a status; of a status without one, by whose fault it is."""
    return types.get(status, "invalid_request_error" if status < 500 else fault)
