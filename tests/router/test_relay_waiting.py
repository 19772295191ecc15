"""Requests that wait show signs of life, and clients that leave free their places."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from router.errors import ModelUnavailable, QueueTimeout, TooManyRequests
from tests.fakes.supervisor import EVENTS, Received, Sender
from tests.support.http_side import CHAT, HttpSide, http_side, make_catalog, make_spec
from tests.support.openai_stream import payloads_of
from worker.contract import FrameType, Header, encode_frame

HELLO = {"model": "smol", "messages": [{"role": "user", "content": "hi"}]}
STREAM = HELLO | {"stream": True}


# --- waiting ---


async def test_silent_stream_is_opened_and_pinged_until_the_answer_comes() -> None:
    async with http_side(stream_open_after_s=0, ping_interval_s=0.01) as side:
        side.supervisor.gate = asyncio.Event()
        reply = await side.client.post(CHAT, json=STREAM)
        assert reply.status == 200
        for _ in range(3):
            assert await reply.content.readuntil(b"\n\n") == b": ping\n\n"
        side.supervisor.gate.set()
        rest = (await reply.content.read()).decode()
        assert payloads_of(rest) == [{"n": 1}, "[DONE]"]


async def test_failure_after_a_ping_is_an_event() -> None:
    async with http_side(stream_open_after_s=0) as side:
        side.supervisor.gate = asyncio.Event()
        side.supervisor.refusal = ModelUnavailable("the file is cut off")
        reply = await side.client.post(CHAT, json=STREAM)
        assert await reply.content.readuntil(b"\n\n") == b": ping\n\n"
        side.supervisor.gate.set()
        (event,) = payloads_of((await reply.content.read()).decode())
        assert event["error"]["code"] == "model_unavailable"
        assert event["error"]["message"] == "the file is cut off"


async def test_pings_never_split_an_event() -> None:
    release = asyncio.Event()

    async def half(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = EVENTS
        await sender.data(b'data: {"n":')
        await release.wait()
        await sender.data(b"1}\n\n")
        await sender.end()

    async with http_side(stream_open_after_s=0, ping_interval_s=0.01) as side:
        side.worker.script = half
        reply = await side.client.post(CHAT, json=STREAM)
        await reply.content.readuntil(b'"n":')
        asyncio.get_running_loop().call_later(0.05, release.set)
        assert await reply.content.readuntil(b"\n\n") == b"1}\n\n"


async def test_whole_answer_waits_without_a_byte() -> None:
    async with http_side(stream_open_after_s=0, ping_interval_s=0.01) as side:
        side.supervisor.gate = asyncio.Event()
        pending = asyncio.ensure_future(side.client.post(CHAT, json=HELLO))
        await side.supervisor.waiting.wait()
        asyncio.get_running_loop().call_later(0.05, side.supervisor.gate.set)
        reply = await pending
        assert await reply.json() == {"text": "hello"}


@pytest.mark.parametrize(
    ("refusal", "status", "outcome"),
    [
        (TooManyRequests("256 wait", retry_after_s=3), 429, "rejected"),
        (QueueTimeout("waited 300 s"), 503, "timeout"),
        (ModelUnavailable("bad file", retry_after_s=9), 503, "error"),
    ],
)
async def test_refused_lease_is_answered_with_its_own_status(refusal: Any, status: int, outcome: str) -> None:
    async with http_side() as side:
        side.supervisor.refusal = refusal
        reply = await side.client.post(CHAT, json=STREAM)
        assert reply.status == status
        assert (await reply.json())["error"]["code"] == refusal.code
        assert reply.headers.get("Retry-After") == (str(refusal.retry_after_s) if refusal.retry_after_s else None)
        assert side.num_requests(model="smol", outcome=outcome) == 1


async def _never_end(received: Received, sender: Sender) -> None:
    sender.headers[Header.CONTENT_TYPE] = EVENTS if received.body.get("stream") else "application/json"
    await sender.data(b"data: 1\n\n")
    await asyncio.Event().wait()


async def test_answer_that_takes_too_long_is_cut_off_with_an_error_and_the_worker_is_told() -> None:
    catalog = make_catalog(make_spec("smol", request_timeout_s=0.1))
    async with http_side(catalog) as side:
        side.worker.script = _never_end
        reply = await side.client.post(CHAT, json=STREAM)
        events = (await reply.text()).split("\n\n")
        assert json.loads(events[1].removeprefix("data: "))["error"]["code"] == "request_timeout"
        await side.worker.aborted.wait()
        whole = await side.client.post(CHAT, json=HELLO)
        assert whole.status == 503
        assert "request_timeout_s" in (await whole.json())["error"]["message"]
        assert side.num_requests(outcome="timeout") == 2
        assert side.supervisor.num_leases == 0


@pytest.mark.parametrize("body", [HELLO, STREAM])
async def test_time_limit_of_an_answer_holds_when_only_its_headers_have_come(body: dict[str, Any]) -> None:
    async def say_nothing(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = EVENTS if "stream" in received.body else "application/json"
        await sender.start()
        await asyncio.Event().wait()

    async with http_side(make_catalog(make_spec("smol", request_timeout_s=0.1))) as side:
        side.worker.script = say_nothing
        reply = await side.client.post(CHAT, json=body)
        assert (reply.status, (await reply.json())["error"]["code"]) == (503, "request_timeout")
        await side.worker.aborted.wait()
        assert len(side.worker.received) == 1


# --- clients that leave ---


async def _leave(side: HttpSide, body: dict[str, Any], when: asyncio.Event) -> None:
    task = asyncio.ensure_future(side.client.post(CHAT, json=body))
    await when.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("body", [HELLO, STREAM])
async def test_client_that_leaves_while_the_worker_answers_frees_its_place(body: dict[str, Any]) -> None:
    async def silent(received: Received, sender: Sender) -> None:
        await sender.start()
        await asyncio.Event().wait()

    async with http_side() as side:
        side.worker.script = silent
        await _leave(side, body, side.worker.arrived)
        await asyncio.wait_for(side.worker.aborted.wait(), 5)
        assert side.supervisor.num_leases == 0
        assert side.num_requests(outcome="client_gone") == 1
        assert side.body_memory.num_bytes == 0


async def test_client_that_leaves_the_queue_frees_its_place() -> None:
    async with http_side() as side:
        side.supervisor.gate = asyncio.Event()
        await _leave(side, HELLO, side.supervisor.waiting)
        await asyncio.wait_for(_until_counted(side, "client_gone"), 5)
        assert side.supervisor.num_leases == 0
        assert side.worker.received == []


async def test_client_that_closes_after_the_last_event_was_answered() -> None:
    async def tell_all_but_do_not_close(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = EVENTS
        end = encode_frame(FrameType.END, b'{"outcome": "ok"}')
        await sender.raw(encode_frame(FrameType.DATA, b"data: [DONE]\n\n") + end)
        await asyncio.Event().wait()

    async with http_side() as side:
        side.worker.script = tell_all_but_do_not_close
        reply = await side.client.post(CHAT, json=STREAM)
        assert await reply.content.readuntil(b"\n\n") == b"data: [DONE]\n\n"
        reply.close()
        await asyncio.wait_for(_until_counted(side, "ok"), 5)
        assert side.num_requests(outcome="client_gone") == 0
        assert side.supervisor.num_leases == 0


async def _until_counted(side: HttpSide, outcome: str) -> None:
    while not side.num_requests(outcome=outcome):  # noqa: ASYNC110 - the count is the event
        await asyncio.sleep(0)


async def test_slow_client_holds_the_worker_back_instead_of_filling_memory() -> None:
    num_sent = 0
    block = b"data: " + b"x" * 2**16 + b"\n\n"

    async def flood(received: Received, sender: Sender) -> None:
        nonlocal num_sent
        sender.headers[Header.CONTENT_TYPE] = EVENTS
        for _ in range(2000):
            await sender.data(block)
            num_sent += 1
        await sender.end()

    async with http_side() as side:
        side.worker.script = flood
        reader, writer = await asyncio.open_connection(side.client.server.host, side.client.server.port, limit=2**10)
        body = json.dumps(STREAM).encode()
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await reader.readuntil(b"\r\n\r\n")
        seen = -1
        while num_sent != seen:  # until nothing moves any more
            seen = num_sent
            await asyncio.sleep(0.2)
        assert 0 < num_sent < 1000
        writer.close()
        await asyncio.wait_for(side.worker.aborted.wait(), 5)
