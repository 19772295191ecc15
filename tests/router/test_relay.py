"""Requests reach a worker as they are, and its frames reach the client as they come."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from router.worker_session import WorkerSession
from tests.fakes.supervisor import EVENTS, Received, Sender
from tests.support.http_side import CHAT, HttpSide, http_side
from worker.contract import FrameType, Header, encode_frame

HELLO = {"model": "smol", "messages": [{"role": "user", "content": "hi"}]}
STREAM = HELLO | {"stream": True}


async def test_whole_answer_comes_with_its_length_and_names_the_model() -> None:
    async with http_side() as side:
        reply = await side.client.post(CHAT, json=HELLO)
        assert reply.status == 200
        assert await reply.json() == {"text": "hello"}
        assert reply.headers["Content-Type"] == "application/json"
        assert reply.headers["Content-Length"] == str(len('{"text":"hello"}'))
        assert reply.headers["X-Corral-Model"] == "smol"
        assert "X-Corral-Alias" not in reply.headers
        assert len(reply.headers["X-Request-Id"]) == 24


async def test_stream_passes_untouched_with_headers_that_stop_proxies_from_buffering() -> None:
    async with http_side() as side:
        reply = await side.client.post(CHAT, json=STREAM)
        assert reply.status == 200
        assert await reply.read() == b'data: {"n":1}\n\ndata: [DONE]\n\n'
        for name, value in {
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }.items():
            assert reply.headers.getall(name) == [value]


async def test_alias_is_resolved_and_shown_in_a_header() -> None:
    async with http_side() as side:
        reply = await side.client.post(CHAT, json=HELLO | {"model": "org/smol:fast"})
        assert reply.headers["X-Corral-Model"] == "smol"
        assert reply.headers["X-Corral-Alias"] == "org/smol:fast"
        assert side.supervisor.granted == [("smol", 0, None)]


async def test_first_bytes_arrive_while_the_worker_still_generates() -> None:
    release = asyncio.Event()

    async def slow(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = EVENTS
        await sender.data(b"data: 1\n\n")
        await release.wait()
        await sender.data(b"data: [DONE]\n\n")
        await sender.end()

    async with http_side() as side:
        side.worker.script = slow
        reply = await side.client.post(CHAT, json=STREAM)
        assert await reply.content.readuntil(b"\n\n") == b"data: 1\n\n"
        release.set()
        assert await reply.content.read() == b"data: [DONE]\n\n"


async def test_worker_gets_only_headers_that_the_router_sets() -> None:
    sent = {
        "Authorization": "Bearer k",
        "Cookie": "a=b",
        "X-Forwarded-For": "10.0.0.1",
        "X-Corral-Seed": "1",
        "X-Corral-Resume": "evil",
        "Accept-Encoding": "gzip",
        "User-Agent": "me",
        "x-stainless-os": "Linux",
    }
    async with http_side(keys={"api_keys": "k"}) as side:
        reply = await side.client.post(CHAT, json=HELLO | {"cache_salt": "a\nb", "priority": -3}, headers=sent)
        assert reply.status == 200
        headers = side.worker.received[0].headers
        assert set(headers) == {
            "Host",
            "Content-Type",
            "Content-Length",
            Header.REQUEST_ID,
            Header.KEY_ID,
            Header.OWNER,
            Header.PRIORITY,
            Header.CREATED,
            Header.SEED,
            Header.CACHE_SALT,
        }
        assert headers[Header.REQUEST_ID] == reply.headers["X-Request-Id"]
        assert headers[Header.KEY_ID] == "env-1"
        assert headers[Header.PRIORITY] == "-3"
        assert int(headers[Header.SEED]) != 1
        assert headers[Header.CACHE_SALT].isalnum()
        assert side.supervisor.granted == [("smol", -3, "env-1")]


async def test_each_request_gets_a_seed_of_its_own() -> None:
    async with http_side() as side:
        for _ in range(3):
            await side.client.post(CHAT, json=HELLO)
        seeds = {received.headers[Header.SEED] for received in side.worker.received}
        assert len(seeds) == 3
        assert all(0 <= int(seed) < 2**63 for seed in seeds)


async def test_headers_that_a_worker_sets_do_not_reach_the_client() -> None:
    async def chatty(received: Received, sender: Sender) -> None:
        sender.headers["Set-Cookie"] = "a=b"
        sender.headers["Access-Control-Allow-Origin"] = "*"
        await sender.data(b"{}")
        await sender.end()

    async with http_side() as side:
        side.worker.script = chatty
        reply = await side.client.post(CHAT, json=HELLO)
        assert "Set-Cookie" not in reply.headers
        assert "Access-Control-Allow-Origin" not in reply.headers
        assert Header.CONTENT_TYPE not in reply.headers
        assert reply.headers["Server"] == "corral"


async def test_body_passes_as_the_bytes_it_came_as() -> None:
    body = b'{ "model" : "smol",\n "x": 1.50, "messages":[] }'
    async with http_side() as side:
        await side.client.post(CHAT, data=body, headers={"Content-Type": "application/json"})
        assert side.worker.received[0].raw == body


# --- bookkeeping ---


async def test_each_request_leaves_one_log_line_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "router.requests")
    async with http_side() as side:
        await side.client.post(CHAT, json=STREAM | {"model": "gpt", "messages": [{"role": "user", "content": "hush"}]})
        (record,) = (record for record in caplog.records if record.name == "router.requests")
        fields = vars(record)
        assert fields["model"] == "smol"
        assert fields["alias"] == "gpt"
        assert fields["outcome"] == "ok"
        assert (fields["queue_s"], fields["load_s"]) == (0.25, 0.5)
        assert fields["ttft_s"] >= 0
        assert (fields["prompt_tokens"], fields["completion_tokens"]) == (3, 2)
        assert "hush" not in json.dumps(fields, default=str)


async def test_unknown_names_do_not_become_metric_labels() -> None:
    async with http_side() as side:
        await side.client.post(CHAT, json=HELLO | {"model": "made-up"})
        await side.client.get("/made/up")
        page = side.metrics.render()[0].decode()
        assert "made-up" not in page
        assert "/made" not in page
        assert side.num_requests(model="", route=CHAT, outcome="rejected") == 1
        assert side.num_requests(model="", route="other", outcome="rejected") == 1


async def test_frames_split_at_any_byte_are_put_together_again() -> None:
    whole = encode_frame(FrameType.DATA, b'{"a":1}') + encode_frame(FrameType.END, b'{"outcome":"ok"}')

    async def drip(received: Received, sender: Sender) -> None:
        for byte in whole:
            await sender.raw(bytes([byte]))

    async with http_side() as side:
        side.worker.script = drip
        assert await (await side.client.post(CHAT, json=HELLO)).json() == {"a": 1}


async def test_progress_and_other_inner_frames_stay_inside() -> None:
    async def inner(received: Received, sender: Sender) -> None:
        await sender.raw(encode_frame(FrameType.PROGRESS, b'{"processed":1}'))
        await sender.data(b'{"a":1}')
        await sender.raw(encode_frame(FrameType.RESUME, b'{"token_ids":[1]}'))
        await sender.raw(encode_frame(FrameType.STORE, b"{}"))
        await sender.end()

    async with http_side() as side:
        side.worker.script = inner
        assert await (await side.client.post(CHAT, json=HELLO)).json() == {"a": 1}


async def test_connection_to_the_worker_is_used_again() -> None:
    async with http_side() as side:
        session = WorkerSession(side.worker.socket_path)
        await _use_session(side, session)
        for _ in range(3):
            await side.client.post(CHAT, json=HELLO)
        assert session.num_connections == 1
        await session.close()


async def _use_session(side: HttpSide, session: WorkerSession) -> None:
    from contextlib import asynccontextmanager

    from router.events import WorkerId
    from tests.fakes.supervisor import FakeLease

    @asynccontextmanager
    async def lease(spec: Any, **_: Any) -> Any:
        yield FakeLease(WorkerId(spec.name, 0, 1), session)

    side.supervisor.lease = lease  # type: ignore[method-assign]
