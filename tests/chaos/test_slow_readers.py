"""Clients that ask for much and take little of it, or nothing: memory is bounded, they are cut off, others are served."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.chaos.aftermath import check_aftermath, standing
from tests.chaos.arena import Arena, arena
from tests.chaos.rude import Rude, request, visit
from tests.chaos.storm import rounds, storm
from tests.chaos.table import Row, Table
from tests.fakes.worker import fake_worker_command
from tests.support.real_server import Api, api_of
from tests.support.served import until

pytestmark = pytest.mark.chaos

CLIENTS = 100
PIECE_BYTES = 2**15
PIECES = 400
"""Of one answer of a stub: 13 MB, of which the system's own buffers take a part."""
STALL_S = 6.0
RECEIVE_BYTES = 4096
_ESTABLISHED = 1
"""The state of a connection, as the system numbers it."""
MAX_GROWTH_BYTES = CLIENTS * 2**20
"""Of the router and of the worker: a megabyte for each client, where an answer has thirteen."""
OTHERS = ("stream", "whole", "chat", "messages", "embedding")


async def take_little(client: Rude, is_deaf: bool) -> None:
    """Read a byte a second, or nothing, until the server has closed the connection."""
    sock = client.writer.get_extra_info("socket")
    while not client.writer.transport.is_closing() and _is_connected(sock):
        if not is_deaf:
            await client.read(1)
        await asyncio.sleep(1)


def _is_connected(sock: Any) -> bool:
    """Return whether the server has not ended the connection: who does not read is not told by anything else."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED


async def stall(url: str, num: int, data: bytes) -> list[Rude]:
    """Return so many clients that have asked and do not read; every other one takes a byte a second."""
    clients = [await visit(url, receive_bytes=RECEIVE_BYTES) for _ in range(num)]
    await asyncio.gather(*(client.send(data) for client in clients))
    return clients


async def until_cut(clients: list[Rude], within_s: float) -> None:
    """All of them are cut off. Raises: AssertionError."""
    reading = [asyncio.create_task(take_little(client, number % 2 == 0)) for number, client in enumerate(clients)]
    _, still = await asyncio.wait(reading, timeout=within_s)
    for task in still:
        task.cancel()
    for client in clients:
        client.leave()
    assert not still, f"{len(still)} of {len(clients)} are not cut off after {within_s:g} s"


def stub_arena_models() -> dict[str, dict[str, Any]]:
    return {"text": {"slots": CLIENTS + 10}, "embed": {"model": "./text.gguf"}}


async def generated(api: Api) -> list[int]:
    """Return how far the answers are."""
    return [slot["generated"] for slot in await api.slots("text") if slot["is_processing"]]


async def test_answers_that_nobody_takes_wait_in_their_slots_in_little_memory_and_end(
    tmp_path: Path, table: Table
) -> None:
    env = {"CORRAL_WORKER_COMMAND": json.dumps(fake_worker_command()), "CORRAL_MAX_CLIENT_STALL_S": str(STALL_S)}
    row = Row(f"{CLIENTS} clients do not read (stub)", 0, 0, 0)
    table.add(row)
    fake = {"tokens": PIECES, "text": "x" * PIECE_BYTES}
    big = request({"model": "text", "prompt": "much", "stream": True, "max_tokens": PIECES, "fake": fake})
    with arena(tmp_path, env=env, models=stub_arena_models()) as field:
        async with api_of(field.server) as api:
            assert (await api.complete("text", "hello", 4)).status == 200
            before = await standing(field)
            for _ in range(rounds(3, 1)):
                row.injected += CLIENTS
                clients = await stall(field.url, CLIENTS, big)
                cutting = asyncio.create_task(until_cut(clients, within_s=STALL_S + 20))
                await _check_held(field, api, before.router_rss, before.worker_rss["text"])
                for _ in range(10):
                    start_s = time.monotonic()
                    row.in_flight += 1
                    row.lost += (await api.complete("text", "hello", 4)).status != 200
                    row.recovery_s.append(time.monotonic() - start_s)
                await cutting
            assert row.lost == 0
            assert max(row.recovery_s) < 2, row.recovery_s
            await check_aftermath(field, before)


async def _check_held(field: Arena, api: Api, router_rss: int, worker_rss: int) -> None:
    """The answers stand still before they are complete, and hardly anything of them is in memory."""

    async def stand_still() -> bool:
        first = await generated(api)
        await asyncio.sleep(1.2)  # a stub tells how far it is once a second
        return len(first) == CLIENTS and await generated(api) == first

    await until(stand_still, within_s=STALL_S + 10, what="the back-pressure")
    (pid,) = field.server.worker_pids("text")
    assert max(await generated(api)) < PIECES
    grown = psutil.Process(field.router_pid).memory_info().rss - router_rss
    assert grown < MAX_GROWTH_BYTES, f"the router has {grown / 2**20:.0f} MiB more"
    grown = psutil.Process(pid).memory_info().rss - worker_rss
    assert grown < MAX_GROWTH_BYTES, f"the worker has {grown / 2**20:.0f} MiB more"


async def test_clients_that_do_not_read_are_cut_off_and_cost_no_other_request(tmp_path: Path, table: Table) -> None:
    """With real workers, whose engine waits for nobody."""
    num = 10
    fields = {"model": "text", "prompt": "much", "max_tokens": 450, "ignore_eos": True, "logprobs": 20}
    much = request(fields | {"stream": True})
    with arena(tmp_path, env={"CORRAL_MAX_CLIENT_STALL_S": "1"}) as field:

        async def do_not_read() -> None:
            it.row.injected += num - 1
            await until_cut(await stall(field.url, num, much), within_s=60)

        async with api_of(field.server) as api:
            async with storm(field, table, f"{num} clients do not read", num_clients=4, kinds=OTHERS) as it:
                for _ in range(rounds(6, 1)):
                    await it.strike(do_not_read)
            assert await api.metric("corral_requests_total", outcome="client_gone") == it.row.injected


async def test_whole_answers_that_nobody_takes_do_not_stay_in_memory(tmp_path: Path, table: Table) -> None:
    """No slot waits for these; but what is written for a client that does not read is memory all the same."""
    num = 50
    row = Row(f"{num} clients do not read whole answers (stub)", num, 0, 0)
    table.add(row)
    env = {"CORRAL_WORKER_COMMAND": json.dumps(fake_worker_command()), "CORRAL_MAX_CLIENT_STALL_S": "2"}
    fake = {"tokens": 1, "text": "x" * 2**22}
    big = request({"model": "text", "prompt": "much", "max_tokens": 1, "fake": fake})
    with arena(tmp_path, env=env, models=stub_arena_models()) as field:
        async with api_of(field.server) as api:
            assert (await api.complete("text", "hello", 4)).status == 200
            before = await standing(field)
            clients = await stall(field.url, num, big)
            await until_cut(clients, within_s=30)
            await check_aftermath(field, before)
