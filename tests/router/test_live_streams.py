"""A reply that goes on: a slow reader costs itself something, and nobody else anything."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from router.auth import ALL_SCOPES, Grant, Scope
from router.errors import TooManyRequests
from router.live_streams import LAST_PIECES_S, Kind, LiveStreams, Outbox, write_until_left
from tests.support.served import until

ADMIN = Grant("admin", ALL_SCOPES)


async def test_everything_that_waits_is_taken_at_once_and_in_order() -> None:
    box = Outbox(left_out=None)
    for piece in (b"a", b"b", b"c"):
        box.push(piece)
    assert await box.take(10) == b"abc"


async def test_reader_is_woken_by_the_next_piece() -> None:
    box = Outbox(left_out=None)
    taking = asyncio.create_task(box.take(30))
    await asyncio.sleep(0)
    box.push(b"a")
    assert await asyncio.wait_for(taking, 10) == b"a"


async def test_nothing_comes_when_nothing_is_pushed_in_time() -> None:
    assert await Outbox(left_out=None).take(0.001) == b""


async def test_slow_reader_loses_the_oldest_pieces_and_is_told_how_many() -> None:
    box = Outbox(left_out="[{} left out]\n", max_bytes=30)
    for number in range(10):
        box.push(b"line %d....\n" % number)  # 12 bytes
    assert await box.take(10) == b"[8 left out]\nline 8....\nline 9....\n"
    box.push(b"on time\n")
    assert await box.take(10) == b"on time\n"


async def test_a_piece_longer_than_the_bound_is_kept_if_it_is_alone() -> None:
    box = Outbox(left_out=None, max_bytes=10)
    box.push(b"x" * 100)
    assert not box.is_closed
    assert len(await box.take(10)) == 100


async def test_slow_reader_that_needs_every_piece_is_cut_off() -> None:
    box = Outbox(left_out=None, max_bytes=10)
    box.push(b"x" * 8)
    box.push(b"x" * 8)
    assert box.is_closed
    assert await box.take(10) == b""


async def test_number_of_streams_is_bounded_and_places_come_back() -> None:
    streams = LiveStreams(max_streams=1)
    with (
        streams.open(Kind.EVENTS, ADMIN, left_out=None),
        pytest.raises(TooManyRequests, match="1 clients already that follow events"),
        streams.open(Kind.EVENTS, ADMIN, left_out=None),
    ):
        pass
    with streams.open(Kind.EVENTS, ADMIN, left_out=None) as box:
        assert not box.is_closed


async def test_one_key_takes_no_more_than_a_quarter_of_the_places_unless_it_is_an_administrators() -> None:
    streams = LiveStreams(max_streams=8)
    first, second = (Grant(name, frozenset({Scope.INFERENCE})) for name in ("first", "second"))
    with ExitStack() as stack:
        for grant in (first, first, second, *[ADMIN] * 3):
            stack.enter_context(streams.open(Kind.EVENTS, grant, left_out=None))
        with pytest.raises(TooManyRequests, match="2 clients with this API key"):
            stack.enter_context(streams.open(Kind.EVENTS, first, left_out=None))
        stack.enter_context(streams.open(Kind.EVENTS, second, left_out=None))


async def test_those_who_follow_events_lock_nobody_out_of_the_logs() -> None:
    streams = LiveStreams(max_streams=1)
    with (
        streams.open(Kind.EVENTS, ADMIN, left_out=None),
        streams.open(Kind.LOGS, ADMIN, left_out=None) as box,
    ):
        assert not box.is_closed


async def test_stop_of_the_server_ends_all_streams() -> None:
    streams = LiveStreams()
    with streams.open(Kind.EVENTS, ADMIN, left_out=None) as box:
        taking = asyncio.create_task(box.take(30))
        await asyncio.sleep(0)
        await streams.end_all(web.Application())
        assert await asyncio.wait_for(taking, 10) == b""
        assert box.is_closed


async def test_streams_end_after_what_waits_when_the_stop_begins_and_later_ones_may_stay() -> None:
    streams = LiveStreams()
    with streams.open(Kind.EVENTS, ADMIN, left_out=None) as box:
        box.push(b"draining")
        streams.dismiss(for_good=False)
        assert not box.is_over
        assert await box.take(30) == b"draining"
        assert box.is_over
    with streams.open(Kind.EVENTS, ADMIN, left_out=None) as box:
        assert not box.is_ending


async def test_reader_that_waits_for_nothing_is_woken_when_the_stop_begins() -> None:
    streams = LiveStreams()
    with streams.open(Kind.EVENTS, ADMIN, left_out=None) as box:
        taking = asyncio.create_task(box.take(30))
        await asyncio.sleep(0)
        streams.dismiss(for_good=False)
        assert await asyncio.wait_for(taking, 10) == b""


async def test_streams_that_begin_after_the_last_stop_tell_what_is_and_end() -> None:
    streams = LiveStreams()
    streams.dismiss(for_good=True)
    with streams.open(Kind.EVENTS, ADMIN, left_out=None) as box:
        box.push(b"what is")
        assert await box.take(30) == b"what is"
        assert box.is_over


# --- clients that read nothing ----------------------------------------------------------------------------


@asynccontextmanager
async def deaf_client(box: Outbox, max_stall_s: float | None = None) -> AsyncIterator[asyncio.Future[None]]:
    """A client that has asked and reads nothing; yields what ends with its reply, which fills every buffer."""
    ended = asyncio.get_running_loop().create_future()

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await write_until_left(request, box, "text/plain", max_stall_s=max_stall_s)
        finally:
            ended.set_result(None)

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app) as server:
        client = socket.create_connection((server.host, server.port))
        with client:
            client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            box.push(b"x" * 50_000_000)
            waiting = asyncio.ensure_future(asyncio.shield(ended))
            await until(lambda: box._num_bytes == 0, what="the handler takes what waits")
            await asyncio.sleep(0)
            assert not waiting.done()
            yield waiting


async def test_client_that_reads_nothing_is_cut_off_once_too_much_waits_for_it() -> None:
    box = Outbox(left_out=None)
    async with deaf_client(box) as ended:
        box.push(b"y" * 200_000)
        assert not ended.done()
        box.push(b"y" * 200_000)
        assert box.is_closed
        await asyncio.wait_for(ended, 10)


async def test_client_that_reads_nothing_is_cut_off_after_a_while_where_that_is_wanted() -> None:
    box = Outbox(left_out=None)
    async with deaf_client(box, max_stall_s=1.0) as ended:
        await asyncio.wait_for(ended, 10)
        assert box.is_closed


async def test_stop_waits_for_no_client_that_reads_nothing() -> None:
    streams = LiveStreams()
    with streams.open(Kind.LOGS, ADMIN, left_out="{}") as box:
        async with deaf_client(box) as ended:
            await streams.end_all(web.Application())
            await asyncio.wait_for(ended, 10)


async def test_client_that_reads_nothing_gets_a_second_for_its_last_pieces() -> None:
    box = Outbox(left_out=None)
    async with deaf_client(box) as ended:
        box.end()
        assert not ended.done()
        await asyncio.wait_for(ended, LAST_PIECES_S + 10)
        assert box.is_closed


async def test_newer_state_of_a_thing_takes_the_place_of_one_that_waits() -> None:
    box = Outbox(left_out=None, max_bytes=10)
    for number in range(5):
        box.push(b"a is %d;" % number, state_of="a")
    box.push(b"b;", state_of="b")
    assert await box.take(10) == b"a is 4;b;"
    box.push(b"a is 9;", state_of="a")
    assert await box.take(10) == b"a is 9;"


async def test_newer_state_comes_behind_what_has_been_pushed_meanwhile() -> None:
    box = Outbox(left_out=None)
    box.push(b"1", state_of="a")
    box.push(b"2")
    box.push(b"3", state_of="a")
    assert await box.take(10) == b"23"
