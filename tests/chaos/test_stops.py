"""Workers and routers that stand still: for a while, which costs time alone, or for ever, which ends a worker."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.chaos.arena import Arena, arena
from tests.chaos.odd_server import BLOCK_S
from tests.chaos.storm import Storm, in_full_only, rounds, storm
from tests.chaos.table import Table
from tests.support.real_server import api_of
from tests.support.served import is_running, until

pytestmark = pytest.mark.chaos

STOP_S = 10.0
ROUTER_STOP_S = float(rounds(10, 6))
"""Longer than workers may be silent, either way."""
PATIENT = {"text": {"hang_timeout_s": 60}}


async def test_worker_that_is_stopped_for_ten_seconds_goes_on_where_it_was(tmp_path: Path, table: Table) -> None:
    async def stop_and_go(it: Storm) -> None:
        pid = await it.signal(signal.SIGSTOP)
        await asyncio.sleep(STOP_S)
        os.kill(pid, signal.SIGCONT)

    with arena(tmp_path, models=PATIENT) as field:
        before = field.server.worker_pids("text")
        async with storm(field, table, "SIGSTOP for 10 s") as it:
            for _ in range(rounds(3, 1)):
                await it.strike(lambda: stop_and_go(it))
        assert field.server.worker_pids("text") == before, "it was not replaced"


@in_full_only  # the short form has a pass that never ends
async def test_worker_that_is_stopped_for_ever_is_killed_and_costs_no_request(field: Arena, table: Table) -> None:
    async def stop(it: Storm) -> None:
        pid = await it.signal(signal.SIGSTOP)
        await until(lambda: not is_running(pid), within_s=60, what="the end of the stopped worker")

    async with storm(field, table, "SIGSTOP for ever") as it:
        for _ in range(rounds(3, 1)):
            await it.strike(lambda: stop(it))
    await check_hung(field)


async def test_pass_that_never_ends_ends_its_worker_and_costs_no_request(field: Arena, table: Table) -> None:
    async def hang(it: Storm) -> None:
        (pid,) = field.server.worker_pids("text")
        await it.order("decode", "hang")
        await until(lambda: not is_running(pid), within_s=60, what="the end of the worker that hangs")

    async with storm(field, table, "a pass that never ends") as it:
        for _ in range(rounds(3, 1)):
            await it.strike(lambda: hang(it))
    await check_hung(field)


async def check_hung(field: Arena) -> None:
    async with api_of(field.server) as api:
        assert (await api.get("/v1/models/text"))["last_exit"]["reason"] == "hung"


async def test_router_whose_event_loop_stands_still_loses_nothing_and_blames_nobody(field: Arena, table: Table) -> None:
    """Workers go on meanwhile, and must not be thought silent afterwards."""

    async def block() -> None:
        os.kill(field.router_pid, signal.SIGUSR1)

    before = field.server.worker_pids("text")
    async with storm(field, table, f"the router's loop blocked for {BLOCK_S:g} s") as it:
        for _ in range(rounds(5, 1)):
            await it.strike(block)
    assert min(it.row.recovery_s) >= BLOCK_S * 0.9, "it did stand still"
    assert field.server.worker_pids("text") == before


async def test_router_that_is_stopped_for_seconds_loses_nothing_and_blames_nobody(field: Arena, table: Table) -> None:
    """As when the machine is suspended."""

    async def stop_and_go() -> None:
        os.kill(field.router_pid, signal.SIGSTOP)
        await asyncio.sleep(ROUTER_STOP_S)
        os.kill(field.router_pid, signal.SIGCONT)

    before = field.server.worker_pids("text")
    async with storm(field, table, f"the router stopped for {ROUTER_STOP_S:g} s") as it:
        for _ in range(rounds(2, 1)):
            await it.strike(stop_and_go)
    assert field.server.worker_pids("text") == before


async def test_clock_of_the_wall_that_jumps_is_not_noticed(tmp_path: Path, table: Table) -> None:
    """Neither timeouts nor idle times nor signs of life hang on it."""
    clock = tmp_path / "clock"

    async def jump(by_s: float) -> None:
        clock.write_text(str(by_s))

    with arena(tmp_path, models={"text": {"idle_unload_s": 600}}, env={"CHAOS_CLOCK": str(clock)}) as field:
        before = field.server.worker_pids("text")
        async with storm(field, table, "the wall clock jumps") as it:
            for by_s in (86_400.0, -86_400.0, 3e8, 0.0)[: rounds(4, 4)]:
                await it.strike(lambda by_s=by_s: jump(by_s))
                if by_s == 3e8:
                    async with api_of(field.server) as api:
                        assert (await api.complete("text", "hello", 1)).body["created"] > 2e9, "it has jumped"
        assert field.server.worker_pids("text") == before
