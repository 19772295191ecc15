"""A reply that goes on: a slow reader costs itself something, and nobody else anything."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from router.errors import TooManyRequests
from router.live_streams import LiveStreams, Outbox


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
        streams.open(left_out=None),
        pytest.raises(TooManyRequests, match="1 clients already"),
        streams.open(left_out=None),
    ):
        pass
    with streams.open(left_out=None) as box:
        assert not box.is_closed


async def test_stop_of_the_server_ends_all_streams() -> None:
    streams = LiveStreams()
    with streams.open(left_out=None) as box:
        taking = asyncio.create_task(box.take(30))
        await asyncio.sleep(0)
        await streams.end_all(web.Application())
        assert await asyncio.wait_for(taking, 10) == b""
        assert box.is_closed
