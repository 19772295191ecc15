"""The engine's heartbeat is a sign of progress: it beats with every pass and every errand, and with nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from tests.fakes.backend import FakeBackend
from worker.contract import EngineOptions
from worker.engine.batch import StepPlan
from worker.engine.engine import Engine
from worker.engine.request import GenerationRequest, Output


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine(FakeBackend(), EngineOptions(context=128))
    engine.start()
    yield engine
    engine.stop()


async def test_every_pass_is_a_beat(engine: Engine) -> None:
    ended = asyncio.Event()

    def sink(output: Output) -> None:
        if output.finish is not None:
            ended.set()

    before = engine.snapshot()
    engine.submit(GenerationRequest((1, 2, 3), 10), sink)
    await asyncio.wait_for(ended.wait(), 30)
    await engine.call(lambda: None)
    after = engine.snapshot()
    assert after.step - before.step >= after.counters.forwards == 10
    assert after.step_at_s > before.step_at_s


async def test_errand_is_a_beat_so_that_embedding_is_one(engine: Engine) -> None:
    before = engine.snapshot().step
    for _ in range(3):
        await engine.call(lambda: None)
    assert engine.snapshot().step >= before + 2, "the last one may be counted a moment after its result is out"


async def test_engine_that_turns_on_the_spot_does_not_beat(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that has work and plans nothing would keep a processor busy for ever, and look alive."""
    turned = threading.Event()
    num_plans = 0

    def nothing(*_: object) -> StepPlan:
        nonlocal num_plans
        num_plans += 1
        if num_plans > 100:
            turned.set()
        return StepPlan((), ())

    monkeypatch.setattr(engine._core.scheduler, "plan", nothing)
    request_id = engine.submit(GenerationRequest((1, 2, 3), 10), lambda _: None)
    before = engine.snapshot()
    assert before.has_work
    assert await asyncio.to_thread(turned.wait, 30)
    after = engine.snapshot()
    assert (after.step, after.step_at_s) == (before.step, before.step_at_s)
    engine.abort(request_id)


async def test_work_that_stands_still_is_seen_as_work(engine: Engine) -> None:
    may_end = threading.Event()
    standing = engine.call(lambda: may_end.wait(30))
    first, second = engine.snapshot(), engine.snapshot()
    assert first.has_work
    assert first.step_at_s == second.step_at_s
    may_end.set()
    await standing
