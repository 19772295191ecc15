"""Thousands of connections at the same time, most of which ask for nothing: it stays quick and gets all back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.chaos.aftermath import MORE_FILES, MORE_RSS, MORE_RSS_BYTES
from tests.chaos.rude import Rude, need_files, request, visit
from tests.chaos.storm import rounds
from tests.chaos.table import Row, Table
from tests.support.served import Served, served, until

pytestmark = pytest.mark.chaos

IDLE = 2000
STREAMS = 500
MODELS = 8
SLOTS = 64
TOKENS = 5
EVERY_S = 1.0
AT_ONCE = 100
HEALTH_WITHIN_S = 1.0
GET_HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def become_idle(url: str) -> Rude:
    """Return a connection that has had an answer and is kept for more."""
    client = await visit(url)
    await client.send(GET_HEALTH)
    assert await client.read_until(b"}", within_s=30)
    assert client.statuses() == [200], client.got
    return client


async def stream(url: str, model: str) -> Rude:
    """Return a connection on which an answer has begun to come."""
    client = await visit(url)
    fake = {"tokens": TOKENS, "delay_s": EVERY_S}
    await client.send(request({"model": model, "prompt": "hi", "stream": True, "fake": fake}))
    assert await client.read_until(b"data: ", within_s=30), client.got
    return client


async def health_s(server: Served) -> float:
    """Return how long a new client has waited for `/health`."""
    start_s = time.monotonic()
    (await become_idle(server.url)).leave()
    return time.monotonic() - start_s


async def is_quiet(server: Served) -> bool:
    status = await server.get("/status")
    held = sum(model["running_requests"] + model["queue_length"] for model in status["models"])
    return not held and await server.busy_slots() == 0


async def have_come_back(server: Served, router: psutil.Process, files: int) -> bool:
    """Return whether no client is connected, nothing is asked, and the router has about so many descriptors."""
    clients = sum(bool(end.raddr) for end in router.net_connections("tcp"))
    return clients <= MORE_FILES and router.num_fds() <= files + MORE_FILES and await is_quiet(server)


async def test_thousands_of_connections_leave_the_server_quick_and_give_all_back(tmp_path: Path, table: Table) -> None:
    need_files(IDLE + STREAMS + 500)
    row = Row(f"{IDLE} idle connections, {STREAMS} streams (stub)", 0, 0, 0)
    table.add(row)
    models = {f"m{number}": {"slots": SLOTS, "preload": True, "idle_unload_s": 0} for number in range(MODELS)}
    async with served(tmp_path, dict(models)) as server:
        for model in models:
            assert (await server.chat(model)).status == 200
        router = psutil.Process(server.process.pid)
        files = router.num_fds() + STREAMS  # connections to workers are kept, one for each answer at a time
        first_rss = 0
        for number in range(rounds(4, 1)):
            row.injected, row.in_flight = row.injected + IDLE, row.in_flight + STREAMS
            await _one_round(server, row)
            are_back = partial(have_come_back, server, router, files)
            await until(are_back, within_s=30, what="that all descriptors are back")
            files = min(files, router.num_fds())
            rss = router.memory_info().rss
            first_rss = first_rss or rss
            assert rss <= first_rss * (1 + MORE_RSS) + MORE_RSS_BYTES, f"round {number}: {rss / 2**20:.0f} MiB"
        assert row.lost == 0
        assert max(row.recovery_s) < HEALTH_WITHIN_S, row.recovery_s


async def _one_round(server: Served, row: Row) -> None:
    async with contextlib.AsyncExitStack() as left:
        idle: list[Rude] = []
        for _ in range(IDLE // AT_ONCE):
            idle += await asyncio.gather(*(become_idle(server.url) for _ in range(AT_ONCE)))
        for client in idle:
            left.callback(client.leave)
        streams = await asyncio.gather(*(stream(server.url, f"m{number % MODELS}") for number in range(STREAMS)))
        for client in streams:
            left.callback(client.leave)
        running = [asyncio.create_task(client.read_until(b"[DONE]", within_s=60)) for client in streams]
        assert await server.busy_slots() == STREAMS, "all of them run at the same time"
        for number in range(10):
            row.recovery_s.append(await health_s(server))
            reply = await server.chat(f"m{number % MODELS}", tokens=2)
            row.lost += reply.status != 200
            await asyncio.sleep(0.1)
        for client, is_whole in zip(streams, await asyncio.gather(*running), strict=True):
            pieces = client.got.count(b'"text": "w')
            row.lost += not is_whole or pieces != TOKENS
        for client in idle[:AT_ONCE]:  # they are of use still
            client.got = b""
            await client.send(GET_HEALTH)
            row.lost += not await client.read_until(b"}", within_s=10)
            assert json.loads(client.got.split(b"\r\n\r\n")[1])["status"] == "ok"
