"""Clients that ask for much and take little of it, or nothing: they cost little memory, and others are served."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.chaos.aftermath import Standing, check_aftermath, standing
from tests.chaos.arena import Arena, arena
from tests.chaos.rude import Rude, request, visit
from tests.chaos.storm import in_full_only, rounds, storm
from tests.chaos.table import Row, Table
from tests.fakes.worker import fake_worker_command
from tests.support.real_server import Api, api_of
from tests.support.served import until

pytestmark = pytest.mark.chaos

CLIENTS = 100
PIECE_BYTES = 2**15
PIECES = 400
"""Of one answer of a stub: 13 MB, of which the system's own buffers take a part."""
STALL_S = 5.0
RECEIVE_BYTES = 4096
OWN_CONNECTIONS = 10
"""Of the tests themselves."""
MAX_GROWTH_BYTES = CLIENTS * 2 * 2**20
"""Of the router and of a worker: two megabytes for each client, where an answer has thirteen."""
OTHERS = ("stream", "whole", "chat", "messages", "embedding")


async def take_little(client: Rude) -> None:
    """Read a byte a second."""
    while await client.read(1):  # noqa: ASYNC110 - it is in no hurry
        await asyncio.sleep(1)


def num_connected(field: Arena) -> int:
    """Return how many connections of clients the router has.

    Who does not read is not told that it was cut off: what the system has of the answer comes first.
    """
    ends = psutil.Process(field.router_pid).net_connections("tcp")
    return sum(bool(end.raddr) for end in ends)


async def stall(url: str, num: int, *requests: bytes) -> list[Rude]:
    """Return so many clients that have asked and do not read; every other one takes a byte a second."""
    clients = [await visit(url, receive_bytes=RECEIVE_BYTES) for _ in range(num)]
    await asyncio.gather(*(client.send(requests[number % len(requests)]) for number, client in enumerate(clients)))
    return clients


async def until_cut(field: Arena, clients: list[Rude], within_s: float) -> None:
    """All of them are cut off, though every other one reads a byte a second. Raises: AssertionError."""
    reading = [asyncio.create_task(take_little(client)) for client in clients[::2]]

    def are_cut() -> bool:
        return num_connected(field) < min(len(clients) / 2, OWN_CONNECTIONS)

    try:
        await until(lambda: num_connected(field) >= len(clients), what="all connections")
        await until(are_cut, within_s=within_s, what=f"the cut of {len(clients)} clients")
    finally:
        for task in reading:
            task.cancel()
        for client in clients:
            client.leave()


def stub_arena_models() -> dict[str, dict[str, Any]]:
    """Return two models that answer alike, because one has 64 slots at most."""
    return {"text": {"slots": CLIENTS // 2 + 10}, "embed": {"slots": CLIENTS // 2 + 10, "model": "./text.gguf"}}


async def generated(api: Api) -> list[int]:
    """Return how far the answers are."""
    return [slot["generated"] for slot in await api.get("/slots") if slot["is_processing"]]


async def test_answers_that_nobody_takes_wait_in_their_slots_in_little_memory_and_end(
    tmp_path: Path, table: Table
) -> None:
    env = {"CORRAL_WORKER_COMMAND": json.dumps(fake_worker_command()), "CORRAL_MAX_CLIENT_STALL_S": str(STALL_S)}
    row = Row(f"{CLIENTS} clients do not read (stub)", 0, 0, 0)
    table.add(row)
    fake = {"tokens": PIECES, "text": "x" * PIECE_BYTES}
    fields = {"prompt": "much", "stream": True, "max_tokens": PIECES, "fake": fake}
    much = [request(fields | {"model": model}) for model in ("text", "text", "embed", "embed")]
    with arena(tmp_path, env=env, models=stub_arena_models()) as field:
        async with api_of(field.server) as api:
            assert (await api.complete("text", "hello", 4)).status == 200
            before = await standing(field)
            for _ in range(rounds(3, 1)):
                row.injected += CLIENTS
                clients = await stall(field.url, CLIENTS, *much)
                cutting = asyncio.create_task(until_cut(field, clients, within_s=STALL_S + 20))
                await _check_held(field, api, before)
                for _ in range(10):
                    start_s = time.monotonic()
                    row.in_flight += 1
                    row.lost += (await api.complete("text", "hello", 4)).status != 200
                    row.recovery_s.append(time.monotonic() - start_s)
                await cutting
            assert row.lost == 0
            assert max(row.recovery_s) < 2, row.recovery_s
            # The allocator keeps what it had at the height of it, but no more with every round.
            await check_aftermath(field, replace(before, router_rss=before.router_rss + MAX_GROWTH_BYTES // 2))


async def _check_held(field: Arena, api: Api, before: Standing) -> None:
    """The answers stand still before they are complete, and hardly anything of them is in memory."""

    async def stand_still() -> bool:
        first = await generated(api)
        await asyncio.sleep(1.2)  # a stub tells how far it is once a second
        return len(first) == CLIENTS and await generated(api) == first

    await until(stand_still, within_s=STALL_S + 10, what="the back-pressure")
    assert max(await generated(api)) < PIECES
    grown = psutil.Process(field.router_pid).memory_info().rss - before.router_rss
    assert grown < MAX_GROWTH_BYTES, f"the router has {grown / 2**20:.0f} MiB more"
    for model, rss in before.worker_rss.items():
        (pid,) = field.server.worker_pids(model)
        grown = psutil.Process(pid).memory_info().rss - rss
        assert grown < MAX_GROWTH_BYTES, f"the worker of {model} has {grown / 2**20:.0f} MiB more"


@in_full_only  # the short form has a hundred of them before a stub
async def test_clients_that_do_not_read_are_cut_off_and_cost_no_other_request(tmp_path: Path, table: Table) -> None:
    """With real workers, whose engine waits for nobody."""
    num = rounds(20, 4)
    fields = {"model": "text", "prompt": "much", "max_tokens": 450, "ignore_eos": True, "logprobs": 20}
    much = request(fields | {"stream": True})
    with arena(tmp_path, env={"CORRAL_MAX_CLIENT_STALL_S": "1"}) as field:

        async def do_not_read() -> None:
            it.row.injected += num - 1
            ends_before = await num_ended(api)
            clients = await stall(field.url, num, much)

            async def are_over() -> bool:
                return await num_ended(api) >= ends_before + num

            await until(are_over, within_s=60, what="the end of all answers that nobody reads")
            for client in clients:
                client.leave()

        async with (
            api_of(field.server) as api,
            storm(field, table, f"{num} clients do not read", num_clients=4, kinds=OTHERS) as it,
        ):
            for _ in range(rounds(6, 1)):
                await it.strike(do_not_read)


@in_full_only  # it takes long; what decides it has tests of its own
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
            await asyncio.gather(
                *(api.complete("text", "hello", 1, fake=fake) for _ in range(num))
            )  # connections are kept
            before = await standing(field)
            clients = await stall(field.url, num, big)
            await until_cut(field, clients, within_s=30)
            await check_aftermath(field, before)


async def num_ended(api: Api) -> float:
    return await api.metric("corral_requests_total", route="/v1/completions")
