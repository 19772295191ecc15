"""What is understood of another server's responses: tokens, how they ended, that they failed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.reply_reader import MAX_LINE_BYTES
from router.responses_reader import ResponsesReader

USAGE = {
    "input_tokens": 7,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 10,
}
TOLD = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 4},
}


def response(status: str = "completed", **more: Any) -> dict[str, Any]:
    return {"id": "r", "object": "response", "status": status, "error": None, "usage": USAGE} | more


def event(type_: str, **more: Any) -> bytes:
    return f"event: {type_}\ndata: {json.dumps({'type': type_} | more)}\n\n".encode()


STREAM = (
    event("response.created", response=response("in_progress", usage=None))
    + event("response.output_text.delta", delta='an {"type":"error"} in words')
    + event("response.completed", response=response())
)


def test_a_whole_response_tells_its_tokens_and_its_status() -> None:
    reader = ResponsesReader()
    assert reader.read_whole(json.dumps(response("incomplete")).encode())
    assert (reader.usage, reader.finish_reasons, reader.error) == (TOLD, ("incomplete",), None)
    assert reader.tokens == {"prompt_tokens": 7, "cached_tokens": 4, "generated_tokens": 3}


def test_a_count_tells_its_tokens() -> None:
    reader = ResponsesReader()
    assert reader.read_whole(b'{"object":"response.input_tokens","input_tokens":5}')
    assert reader.tokens["prompt_tokens"] == 5


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_stream_is_understood_however_it_is_cut(size: int) -> None:
    reader = ResponsesReader()
    for start in range(0, len(STREAM), size):
        assert not reader.is_done
        reader.feed(STREAM[start : start + size])
    assert reader.is_done
    assert (reader.usage, reader.finish_reasons, reader.error) == (TOLD, ("completed",), None)


def test_a_stream_is_not_over_before_the_end_of_its_last_event() -> None:
    reader = ResponsesReader()
    reader.feed(STREAM[:-1])
    assert not reader.is_done
    reader.feed(STREAM[-1:])
    assert reader.is_done


def test_a_stream_without_names_of_events_ends_all_the_same() -> None:
    reader = ResponsesReader()
    reader.feed(b"data: " + json.dumps({"type": "response.completed", "response": response()}).encode() + b"\r\n\r\n")
    assert reader.is_done


def test_a_last_event_that_is_too_long_to_be_read_ends_the_stream() -> None:
    reader = ResponsesReader()
    reader.feed(event("response.completed", response=response(instructions="x" * MAX_LINE_BYTES)))
    assert reader.is_done


def test_failures_are_understood_in_every_form() -> None:
    failure = {"code": "server_error", "message": "no"}
    for told in (
        event("response.failed", response=response("failed", error=failure)),
        event("error", **failure, param=None, sequence_number=3),
        event("error", error=failure | {"type": "server_error", "param": None}),
    ):
        reader = ResponsesReader()
        reader.feed(told)
        assert reader.error is not None
        assert (reader.error.code, reader.error.message) == ("server_error", "no")
    reader = ResponsesReader()
    reader.read_whole(json.dumps({"error": failure}).encode())
    assert reader.error is not None


@pytest.mark.parametrize("body", [b"[]", b"5", b"{}", b'{"object":"response","usage":{"input_tokens":-1}}'])
def test_strange_replies_tell_nothing(body: bytes) -> None:
    reader = ResponsesReader()
    assert reader.read_whole(body)
    assert reader.tokens == {"prompt_tokens": 0, "cached_tokens": 0, "generated_tokens": 0}
    assert not ResponsesReader().read_whole(b"junk")
