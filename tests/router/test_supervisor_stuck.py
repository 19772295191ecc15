"""Workers that never finish are unloaded all the same, by a deadline, and hold up nobody else meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from router.catalog import Catalog
from router.lifecycle import WorkerState
from router.supervisor import Supervisor
from router.worker_session import ConnectionCut
from tests.support.stub_world import World, ask, eventually, open_world
from worker.contract import FrameType

DRAIN_S = 0.5
STUBBORN = {"IGNORE_TERM": "1", "GRANDCHILD": "1"}


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with open_world(tmp_path, monkeypatch) as opened:
        usual = Catalog.fleet_limits
        monkeypatch.setattr(Catalog, "fleet_limits", lambda catalog: replace(usual(catalog), drain_timeout_s=DRAIN_S))
        yield opened


def state(supervisor: Supervisor, model: str) -> WorkerState:
    return supervisor.snapshot().models[model].state


async def test_unload_of_a_worker_that_never_finishes_holds_up_no_load_and_ends_at_its_deadline(world: World) -> None:
    stuck, other = world.model("a", env=STUBBORN), world.model("b")
    supervisor = await world.serve(stuck, other)
    async with supervisor.lease(stuck) as lease:
        answer = asyncio.ensure_future(ask(lease, fake={"hold": str(world.path / "never")}))
        await eventually(lambda: world.events("generating"))
        supervisor.unload("a")
        start_s = time.monotonic()
        asked = asyncio.ensure_future(supervisor.lease(other).__aenter__())
        await asyncio.sleep(0)
        assert state(supervisor, "a") is WorkerState.DRAINING
        assert state(supervisor, "b") is WorkerState.STARTING, "it does not wait for the other one's end"
        assert (await ask(await asked))[-1][0] is FrameType.END
        with pytest.raises(ConnectionCut):
            await answer
        assert time.monotonic() - start_s >= DRAIN_S
    await eventually(lambda: state(supervisor, "a") is WorkerState.UNLOADED)
    (grandchild,) = world.events("grandchild")
    assert not [pid for pid in (world.pids()[0], grandchild["child"]) if is_alive(pid)]
    assert state(supervisor, "b") is WorkerState.READY


async def test_with_room_for_one_an_unload_of_a_stuck_worker_gives_its_place_away_at_the_deadline(world: World) -> None:
    stuck, other = world.model("a", env=STUBBORN), world.model("b")
    supervisor = await world.serve(stuck, other, max_loaded=1)
    async with supervisor.lease(stuck) as lease:
        answer = asyncio.ensure_future(ask(lease, fake={"hold": str(world.path / "never")}))
        await eventually(lambda: world.events("generating"))
        supervisor.unload("a")
        async with asyncio.timeout(10), supervisor.lease(other) as served:
            await ask(served)
        with pytest.raises(ConnectionCut):
            await answer
    assert not is_alive(world.pids()[0])


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
