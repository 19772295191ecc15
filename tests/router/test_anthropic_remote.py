"""Models on other servers, asked in Anthropic's dialect."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from router.messages_reader import MessagesReader
from tests.support.far_side import far_side

MESSAGES = "/v1/messages"
ASK: dict[str, Any] = {"model": "big", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}


def event(type_: str, **fields: Any) -> bytes:
    return f"event: {type_}\ndata: {json.dumps({'type': type_, **fields})}\n\n".encode()


USAGE = {"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2, "output_tokens": 1}
EVENTS = (
    event("message_start", message={"id": "m", "content": [], "usage": USAGE}),
    event("ping"),
    event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    event("content_block_delta", index=0, delta={"type": "text_delta", "text": 'say "stop_reason": "x", "usage": {'}),
    event("content_block_stop", index=0),
    event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 6}),
    event("message_stop"),
)
TOKENS = {"prompt_tokens": 9, "cached_tokens": 4, "generated_tokens": 6}


@given(st.lists(st.integers(0, sum(map(len, EVENTS))), max_size=20))
def test_a_stream_tells_the_same_however_it_is_cut(cuts: list[int]) -> None:
    whole = b"".join(EVENTS)
    ends = sorted({0, *cuts, len(whole)})
    reader = MessagesReader()
    for start, end in itertools.pairwise(ends):
        reader.feed(whole[start:end])
    assert reader.tokens == TOKENS
    assert (reader.finish_reasons, reader.is_done, reader.error) == (("end_turn",), True, None)


def test_a_whole_message_and_a_count_are_read() -> None:
    reader = MessagesReader()
    assert reader.read_whole(json.dumps({"type": "message", "stop_reason": "max_tokens", "usage": USAGE}).encode())
    assert (reader.tokens["prompt_tokens"], reader.finish_reasons) == (9, ("max_tokens",))
    counting = MessagesReader()
    assert counting.read_whole(b'{"input_tokens": 12}')
    assert counting.tokens == {"prompt_tokens": 12, "cached_tokens": 0, "generated_tokens": 0}


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"type": "message", "usage": [1]}', b'{"input_tokens": "9"}', b"{}"])
def test_whatever_another_server_sends_nothing_breaks(body: bytes) -> None:
    reader = MessagesReader()
    assert reader.read_whole(body) == (body != b"{")
    reader.feed(b"data: " + body + b"\n\ndata: [DONE]\n\n")
    assert set(reader.tokens.values()) == {0}
    assert not reader.is_done


async def test_a_stream_passes_byte_for_byte_and_is_counted() -> None:
    async with far_side() as (side, other):

        async def answer(request: web.Request) -> web.StreamResponse:
            return await other.stream(request, *EVENTS)

        other.script = answer
        headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "some-beta", "x-api-key": "sk-theirs"}
        reply = await side.client.post(f"{MESSAGES}?beta=true", json=ASK | {"stream": True}, headers=headers)
        assert await reply.read() == b"".join(EVENTS)
        (asked,) = other.asked
        assert (asked.path, asked.body["model"]) == (MESSAGES, "other-name")
        sent = {name.lower(): value for name, value in asked.headers.items()}
        assert (sent["anthropic-version"], sent["anthropic-beta"]) == ("2023-06-01", "some-beta")
        assert "x-api-key" not in sent, "keys of ours are not for others"
        assert side.num_requests(outcome="ok", model="big") == 1


async def test_a_stream_that_ends_too_early_is_an_error_event() -> None:
    async with far_side() as (side, other):

        async def answer(request: web.Request) -> web.StreamResponse:
            return await other.stream(request, *EVENTS[:5])

        other.script = answer
        text = (await (await side.client.post(MESSAGES, json=ASK | {"stream": True})).read()).decode()
        last = text.split("\n\n")[-2]
        assert last.startswith('event: error\ndata: {"type": "error"')
        assert "message_stop" not in text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "no such route", "type": "not_found", "code": 404}}, "no such route"),
        ({"detail": "Not Found"}, "Not Found"),
    ],
)
async def test_an_error_in_another_dialect_is_told_in_this_one(body: dict[str, Any], message: str) -> None:
    async with far_side() as (side, other):

        async def answer(_: web.Request) -> web.StreamResponse:
            return web.json_response(body, status=404)

        other.script = answer
        reply = await side.client.post(MESSAGES, json=ASK)
        told = await reply.json()
        assert (reply.status, told["type"], told["error"]["type"]) == (404, "error", "not_found_error")
        assert told["error"]["message"] == message


async def test_an_error_in_this_dialect_passes_as_it_is() -> None:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "theirs"}
    async with far_side() as (side, other):

        async def answer(_: web.Request) -> web.StreamResponse:
            return web.json_response(body, status=529)

        other.script = answer
        reply = await side.client.post(MESSAGES, json=ASK)
        assert (reply.status, await reply.json()) == (529, body)
