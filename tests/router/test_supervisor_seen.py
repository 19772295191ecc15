"""What a supervisor tells operators of its workers and its queue, and how it takes their pins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from router.events import WorkerId
from router.lifecycle import WorkerState
from tests.support.stub_world import World, eventually, open_world


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with open_world(tmp_path, monkeypatch) as opened:
        yield opened


async def test_pinned_model_is_not_unloaded_by_idleness_until_it_is_given_back(world: World) -> None:
    supervisor = await world.serve(world.model(idle_unload_s=0.05))
    supervisor.load("a")
    supervisor.pin("a", True)
    await eventually(lambda: supervisor.snapshot().models["a"].state is WorkerState.READY)
    (resident,) = supervisor.snapshot().models["a"].residents
    assert resident.idle_unload_at_s is None
    supervisor.pin("a", None)
    await eventually(lambda: supervisor.snapshot().models["a"].state is WorkerState.UNLOADED)


async def test_request_that_waits_is_shown_under_its_id(world: World) -> None:
    model = world.model()
    supervisor = await world.serve(model)

    async def wait_for_a_place() -> None:
        async with supervisor.lease(model, request_id="r1", key_id="k", priority=1):
            pass

    asking = asyncio.create_task(wait_for_a_place())
    await asyncio.sleep(0)
    (waiter,) = supervisor.waiters()
    assert (waiter.request_id, waiter.model, waiter.key_id, waiter.priority) == ("r1", "a", "k", 1)
    await asking
    assert supervisor.waiters() == []


async def test_worker_that_is_not_there_has_said_nothing(world: World) -> None:
    supervisor = await world.serve(world.model())
    nobody = WorkerId("a", 0, 1)
    assert (supervisor.status(nobody), supervisor.earlier_status(nobody)) == (None, None)
