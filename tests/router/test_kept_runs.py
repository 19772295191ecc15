"""Replies that outlive their connection: every kind is made to its end, and read on where a client was."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from aiohttp import web

from router.kept_runs import OFFSET
from router.kept_streams import CONVERSATION
from tests.fakes.other_server import EVENTS as FAR_EVENTS
from tests.fakes.supervisor import EVENTS, JSON, Received, Sender
from tests.support.far_side import far_side
from tests.support.http_side import CHAT, http_side
from tests.support.kept_replies import ALL, ASK, ID, PIECES, Talk, headers, leave, left, read_half, read_on, store_of
from tests.support.served import until
from worker.contract import ErrorPayload

# --- going on without the client --------------------------------------------------------------------------


async def test_a_client_that_lost_its_connection_reads_on_where_it_was() -> None:
    async with left() as (side, talk, got):
        reading = asyncio.ensure_future(read_on(side, len(got)))
        await until(lambda: store_of(side).counts()["attached"] == 1)
        talk.may_go_on.set()
        assert await reading == (200, ALL[len(got) :])
        assert side.worker.num_aborted == 0


async def test_the_answer_is_made_to_its_end_while_nobody_reads_it() -> None:
    async with left() as (side, talk, got):
        talk.may_go_on.set()
        await until(lambda: store_of(side).counts()["finished"] == 1)
        assert side.supervisor.num_leases == 0
        for offset in (0, 1, len(got), len(ALL)):  # as often as it likes
            reply = await side.client.get(f"/v1/streams/{ID}?from={offset}")
            assert await reply.read() == ALL[offset:]
            assert (reply.content_type, reply.headers["X-Corral-Model"]) == (EVENTS, "smol")
            assert (reply.headers[CONVERSATION], reply.headers[OFFSET]) == (ID, str(offset))


async def test_it_is_one_request_in_the_metrics_and_that_ends_when_the_answer_does() -> None:
    async with left() as (side, talk, _):
        assert side.num_requests() == 0
        talk.may_go_on.set()
        await until(lambda: store_of(side).counts()["finished"] == 1)
        await read_on(side)
        assert side.num_requests() == side.num_requests(outcome="ok", model="smol", route=CHAT) == 1


async def test_a_client_that_stays_gets_the_same_bytes_as_without_the_header() -> None:
    async with http_side() as side:
        side.worker.script = talk = Talk()
        talk.may_go_on.set()
        plain = await side.client.post(CHAT, json=ASK)
        kept = await side.client.post(CHAT, json=ASK, headers=headers())
        assert await plain.read() == await kept.read() == ALL
        assert kept.headers["Content-Type"] == plain.headers["Content-Type"]
        assert CONVERSATION not in plain.headers
        assert side.num_requests(outcome="ok") == 2


async def test_without_the_header_the_answer_ends_with_its_client() -> None:
    async with http_side() as side:
        side.worker.script = Talk()
        reply = await side.client.post(CHAT, json=ASK)
        await read_half(reply)
        leave(reply)
        await asyncio.wait_for(side.worker.aborted.wait(), 5)
        assert sum(store_of(side).counts().values()) == 0


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/v1/messages", "/api/chat", "/completion"])
async def test_every_dialect_is_kept_in_its_own_form(path: str) -> None:
    pieces = [b'{"n":1}\n', b'{"n":2}\n'] if path == "/api/chat" else PIECES
    kind = "application/x-ndjson" if path == "/api/chat" else EVENTS
    async with http_side() as side:
        side.worker.script = talk = Talk(pieces, kind)
        reply = await side.client.post(path, json=ASK | {"prompt": "hi"}, headers=headers())
        got = await read_half(reply, pieces)
        leave(reply)
        talk.may_go_on.set()
        reply = await side.client.get(f"/v1/streams/{ID}?from={len(got)}")
        assert (reply.content_type, got + await reply.read()) == (kind, b"".join(pieces))


async def test_a_reply_of_another_server_is_kept_too() -> None:
    async with far_side() as (side, other):

        async def talk(request: web.Request) -> web.StreamResponse:
            response = await other.stream(request, FAR_EVENTS[0])
            await other.go_on.wait()
            for event in FAR_EVENTS[1:]:
                await response.write(event)
            return response

        other.script = talk
        reply = await side.client.post(CHAT, json=ASK | {"model": "big"}, headers=headers())
        first = await reply.content.readuntil(b"\n\n")
        leave(reply)
        await until(lambda: store_of(side).counts()["detached"] == 1)
        other.go_on.set()
        assert (first, await read_on(side, len(first))) == (FAR_EVENTS[0], (200, b"".join(FAR_EVENTS[1:])))
        await until(lambda: side.num_requests(model="big", outcome="ok") == 1)


async def test_a_whole_reply_is_kept_and_can_be_fetched_again() -> None:
    async with http_side() as side:
        side.worker.script = talk = Talk([b'{"a":', b"1}"], JSON)
        waiting = asyncio.ensure_future(side.client.post(CHAT, json=ASK | {"stream": False}, headers=headers()))
        await side.worker.arrived.wait()
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        await until(lambda: store_of(side).counts()["detached"] == 1)
        talk.may_go_on.set()
        reply = await side.client.get(f"/v1/streams/{ID}")
        assert (reply.status, reply.content_type, await reply.read()) == (200, JSON, b'{"a":1}')


async def test_a_whole_reply_that_is_longer_than_what_is_kept_reaches_the_client_that_asked() -> None:
    async with http_side(kept_stream_max_bytes=2**16) as side:
        side.worker.script = talk = Talk([b"x" * 50_000] * 2, JSON)
        talk.may_go_on.set()
        reply = await side.client.post(CHAT, json=ASK | {"stream": False}, headers=headers())
        assert await reply.read() == b"x" * 100_000
        reply = await side.client.get(f"/v1/streams/{ID}")
        assert (reply.status, reply.headers[OFFSET]) == (410, str(100_000 - 2**16))
        assert (await reply.json())["error"]["code"] == "offset_gone"


async def test_a_failure_is_kept_as_it_was_answered() -> None:
    async def fail(received: Received, sender: Sender) -> None:
        await sender.error(ErrorPayload(400, "context_length_exceeded", "too long"))
        await sender.end("error")

    async with http_side() as side:
        side.worker.script = fail
        first = await side.client.post(CHAT, json=ASK, headers=headers())
        status, body = await read_on(side)
        assert (first.status, status, await first.read()) == (400, 400, body)
        assert side.num_requests(outcome="rejected") == side.num_requests() == 1


async def test_a_request_that_is_refused_before_it_runs_keeps_nothing() -> None:
    async with http_side() as side:
        assert (await side.client.post(CHAT, json=ASK | {"model": "none"}, headers=headers())).status == 404
        assert (await read_on(side))[0] == 404
        assert side.num_requests() == 1


async def test_pings_are_bytes_of_the_reply_like_any_other() -> None:
    async with http_side(stream_open_after_s=0, ping_interval_s=0.05) as side:
        side.worker.script = talk = Talk()
        side.supervisor.gate = asyncio.Event()
        reply = await side.client.post(CHAT, json=ASK, headers=headers())
        got = await reply.content.readexactly(len(b": ping\n\n"))
        leave(reply)
        side.supervisor.gate.set()
        talk.may_go_on.set()
        _, rest = await read_on(side, len(got))
        assert (got + rest).startswith(b": ping\n\n")
        assert (got + rest).replace(b": ping\n\n", b"") == ALL


async def test_offset_beyond_the_end_is_refused_without_telling_where_to_go_on() -> None:
    async with left() as (side, talk, _):
        talk.may_go_on.set()
        await until(lambda: store_of(side).counts()["finished"] == 1)
        refused = await side.client.get(f"/v1/streams/{ID}?from={len(ALL) + 1}")
        assert (refused.status, OFFSET in refused.headers) == (400, False)
