"""Readers of other servers' replies: what they note depends on the bytes alone, never on where a network cut them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import orjson

from router import messages_reader, reply_reader
from router.messages_reader import MessagesReader
from router.reply_reader import ReplyReader, read_error
from router.responses_reader import ResponsesReader
from tests.fuzz.parsers.subject import Subject, cuts_of
from worker.contract import ErrorPayload

_READERS = (ReplyReader, MessagesReader, ResponsesReader)
_SHORT_LINE = 150


def check(data: bytes) -> None:
    for reader in _READERS:
        _check_cuts(reader, data)
        with _short_lines():
            _check_cuts(reader, data)
        whole = reader()
        whole.read_whole(data)
        _noted(whole)
    messages_reader.is_error(data)
    _check_error(read_error(500, data))


def _check_cuts(make: type[ReplyReader], data: bytes) -> None:
    whole = make()
    whole.feed(data)
    noted = _noted(whole)
    for pieces in cuts_of(data, data):
        reader = make()
        for piece in pieces:
            reader.feed(piece)
        assert _noted(reader) == noted, pieces


def _noted(reader: ReplyReader) -> object:
    assert all(type(count) is int and count >= 0 for count in reader.tokens.values()), reader.tokens
    assert all(isinstance(reason, str) and len(reason) <= 40 for reason in reader.finish_reasons)
    assert len(reader.finish_reasons) <= 16
    _check_error(reader.error)
    orjson.dumps(reader.usage)
    return reader.tokens, reader.usage, reader.finish_reasons, reader.error, reader.is_done


def _check_error(error: ErrorPayload | None) -> None:
    if error is not None:
        assert error.message
        assert ErrorPayload.from_json(error.to_json()) == error


@contextmanager
def _short_lines() -> Iterator[None]:
    before = reply_reader.MAX_LINE_BYTES
    reply_reader.MAX_LINE_BYTES = _SHORT_LINE
    try:
        yield
    finally:
        reply_reader.MAX_LINE_BYTES = before


def seeds() -> Iterator[bytes]:
    yield (
        b'data: {"choices": [{"delta": {"content": "hi"}, "finish_reason": null}]}\n\n'
        b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\r\n\r\n'
        b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5,'
        b' "prompt_tokens_details": {"cached_tokens": 1}}}\n\ndata: [DONE]\n\n'
    )
    yield b'data: {"error": {"message": "bad", "code": "x", "param": null}}\n\n'
    yield b'{"error": {"message": {"a": [1, 2.5]}, "code": 5, "param": "p"}}'
    yield b'{"detail": "no"}'
    yield (
        b'event: message_start\ndata: {"type": "message_start", "message": {"usage": {"input_tokens": 5,'
        b' "cache_read_input_tokens": 2, "output_tokens": 1}}}\n\nevent: message_delta\n'
        b'data: {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}}\n\n'
        b'event: message_stop\ndata: {"type": "message_stop"}\n\n'
    )
    yield b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}\n\n'
    yield (
        b'event: response.completed\ndata: {"type": "response.completed", "response": {"status": "completed",'
        b' "usage": {"input_tokens": 4, "output_tokens": 6, "input_tokens_details": {"cached_tokens": 2}}}}\n\n'
    )
    yield (
        b'event: response.failed\ndata: {"type":"response.failed","response":{"status":"failed",'
        b'"error":{"code":"x","message":"m"}}}\n\n'
    )
    yield b'{"object": "response.input_tokens", "input_tokens": 11}'
    yield b": comment\n\nid: 1\nretry: 5\ndata: a\ndata: b\n\n"


SUBJECT = Subject(
    "events",
    check,
    seeds,
    (
        *(
            b"data: ",
            b"data:",
            b"event: ",
            b"\n",
            b"\r\n",
            b"\n\n",
            b"[DONE]",
            b"{",
            b"}",
            b"[",
            b"]",
            b":",
            b",",
            b'"',
        ),
        *(
            b'"usage": {',
            b'"error": {',
            b'"error": "',
            b'"finish_reason": "',
            b'"type": "',
            b'"message": ',
            b'"response": {',
        ),
        *(b'"status": "failed"', b'"prompt_tokens": ', b'"completion_tokens": ', b'"cached_tokens": ', b'"choices": ['),
        *(
            b"response.completed",
            b"response.failed",
            b"message_stop",
            b"message_delta",
            b"null",
            b"true",
            b"-1",
            b"1e400",
        ),
        *(b"\\ud800", b"\xff", b"x" * 150, b"99999999999999999999999", b'"input_tokens": ', b'"stop_reason": "'),
    ),
    max_size=1200,
)
