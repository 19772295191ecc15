"""What is read along with another server's reply, however its bytes are cut."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.reply_reader import MAX_LINE_BYTES, ReplyReader, read_error
from tests.fakes.other_server import EVENTS, USAGE


def read(*chunks: bytes) -> ReplyReader:
    reader = ReplyReader()
    for chunk in chunks:
        reader.feed(chunk)
    return reader


@given(st.lists(st.integers(0, sum(map(len, EVENTS))), max_size=20))
def test_a_stream_tells_the_same_however_it_is_cut(cuts: list[int]) -> None:
    whole = b"".join(EVENTS)
    ends = sorted({0, *cuts, len(whole)})
    reader = read(*(whole[start:end] for start, end in itertools.pairwise(ends)))
    assert reader.usage == {name: USAGE[name] for name in reader.usage}
    assert reader.tokens == {"prompt_tokens": 7, "cached_tokens": 4, "generated_tokens": 3}
    assert (reader.finish_reasons, reader.is_done, reader.error) == (("stop",), True, None)


def test_the_last_usage_counts() -> None:
    reader = read(
        b'data: {"usage":{"prompt_tokens":1}}\n\ndata: {"usage":{"prompt_tokens":1,"completion_tokens":9}}\n\n'
    )
    assert reader.tokens == {"prompt_tokens": 1, "cached_tokens": 0, "generated_tokens": 9}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_both_line_ends_and_missing_spaces_are_understood(end: str) -> None:
    reader = read(f'data:{{"usage": {{"prompt_tokens": 2}}}}{end}{end}data:[DONE]{end}{end}'.encode())
    assert (reader.tokens["prompt_tokens"], reader.is_done) == (2, True)


def test_text_that_looks_like_the_end_or_like_an_error_is_text() -> None:
    content = 'data: [DONE]\n"usage": {"prompt_tokens": 5} "error": {"message": "no"}'
    chunk = {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}]}
    reader = read(b"data: " + json.dumps(chunk).encode() + b"\n\n: data: [DONE]\n\nevent: error\n\n")
    assert (reader.usage, reader.is_done, reader.error, reader.finish_reasons) == ({}, False, None, ())


@pytest.mark.parametrize(
    "body",
    [
        {"usage": None},
        {"usage": [1]},
        {"usage": {"prompt_tokens": "7", "completion_tokens": -1, "prompt_tokens_details": 3}},
        {"usage": {"prompt_tokens": 1.5, "completion_tokens": True, "prompt_tokens_details": {"cached_tokens": "x"}}},
        {"choices": 7},
        {"choices": [7, {"finish_reason": 7}]},
        [1],
        "text",
        None,
    ],
)
def test_nonsense_counts_nothing(body: Any) -> None:
    raw = json.dumps(body).encode()
    for reader in (read(b"data: " + raw + b"\n\n"), ReplyReader()):
        reader.read_whole(raw)
        assert reader.tokens == {"prompt_tokens": 0, "cached_tokens": 0, "generated_tokens": 0}
        assert reader.finish_reasons == ()


def test_what_is_no_json_is_passed_over() -> None:
    reader = read(b'data: {"usage":{"prompt_tokens":\n\ndata: \xff"error":{\n\n')
    reader.read_whole(b"\xff{")
    assert (reader.usage, reader.error) == ({}, None)


def test_a_line_without_end_takes_no_memory_and_the_next_one_is_read() -> None:
    reader = ReplyReader()
    started = time.perf_counter()
    for _ in range(200):
        reader.feed(b"x" * 65536)
    assert time.perf_counter() - started < 1
    assert len(reader._line) <= MAX_LINE_BYTES
    reader.feed(b'"usage":{"prompt_tokens":1}\ndata: [DONE]\n')
    assert (reader.usage, reader.is_done) == ({}, True)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"error": {"message": "m", "code": "c", "param": "p"}}, ("c", "m", "p")),
        ({"error": {"message": "m", "code": 7, "param": 7}}, ("remote_error", "m", None)),
        ({"error": "m"}, ("remote_error", "m", None)),
        ({"message": "m"}, ("remote_error", "m", None)),
        ({"detail": [{"loc": ["body"], "msg": "m"}]}, ("remote_error", '[{"loc":["body"],"msg":"m"}]', None)),
    ],
)
def test_errors_of_every_usual_form_are_understood(body: Any, told: tuple[str, str, str | None]) -> None:
    error = read_error(418, json.dumps(body).encode())
    assert error is not None
    assert (error.status, error.code, error.message, error.param) == (418, *told)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"error":{}}', b'{"error":7}', b'"x"'])
def test_what_is_no_error_is_told_apart(body: bytes) -> None:
    assert read_error(500, body) is None


@pytest.mark.parametrize("size", [100, 2 * MAX_LINE_BYTES])
def test_a_line_that_is_too_long_is_not_read_however_it_comes(size: int) -> None:
    line = b'data: {"usage": {"prompt_tokens": 1}, "x": "' + b"x" * MAX_LINE_BYTES + b'"}\n'
    reader = ReplyReader()
    for at in range(0, len(line), size):
        reader.feed(line[at : at + size])
    assert reader.usage == {}
    reader.feed(b'data: {"usage": {"prompt_tokens": 2}}\n')
    assert reader.tokens["prompt_tokens"] == 2
