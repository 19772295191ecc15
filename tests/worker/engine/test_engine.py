"""The engine thread does errands between steps, one at a time, and loses none of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from tests.fakes.backend import FakeBackend
from worker.contract import EngineOptions
from worker.engine.batch import Chunk
from worker.engine.engine import Engine
from worker.engine.errors import BackendFailed, EngineStopped, ForwardAborted
from worker.engine.request import FinishReason, GenerationRequest, Output


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine(FakeBackend(), EngineOptions(context=128))
    engine.start()
    yield engine
    engine.stop()


async def test_errand_runs_on_the_engine_thread_and_returns_its_result(engine: Engine) -> None:
    assert await engine.call(lambda: threading.current_thread().name) == "engine"


async def test_error_of_an_errand_reaches_its_caller_and_the_engine_goes_on(engine: Engine) -> None:
    with pytest.raises(ZeroDivisionError):
        await engine.call(lambda: 1 / 0)
    assert await engine.call(lambda: 2) == 2


async def test_idle_time_is_not_time_without_a_step(engine: Engine) -> None:
    await engine.call(lambda: None)
    await asyncio.sleep(0.05)
    idle_since_s = engine.snapshot().step_at_s
    may_end = threading.Event()
    holding = engine.call(lambda: may_end.wait(30))
    assert engine.snapshot().step_at_s >= idle_since_s + 0.05
    may_end.set()
    await holding


async def test_errands_and_answers_take_turns(engine: Engine) -> None:
    outputs: list[Output] = []
    ended = asyncio.Event()

    def sink(output: Output) -> None:
        outputs.append(output)
        if output.finish is not None:
            ended.set()

    engine.submit(GenerationRequest(tuple(range(1, 20)), 100), sink)
    results = await asyncio.gather(*(engine.call(lambda i=i: i) for i in range(50)))  # type: ignore[misc]
    await asyncio.wait_for(ended.wait(), 30)
    assert results == list(range(50))
    assert outputs


class Stuck(FakeBackend):
    """Every pass lasts until it is interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.is_running = threading.Event()
        self.may_end = threading.Event()

    def forward(self, chunks: Sequence[Chunk]) -> npt.NDArray[np.float32]:
        self.is_running.set()
        if self.may_end.wait(30):
            self.may_end.clear()
            raise ForwardAborted
        raise AssertionError("nobody interrupted the pass")

    def interrupt(self) -> None:
        self.may_end.set()


async def test_pass_for_requests_that_are_all_gone_is_broken_off() -> None:
    backend = Stuck()
    engine = Engine(backend, EngineOptions(context=128))
    engine.start()
    first = engine.submit(GenerationRequest((1, 2, 3), 5), lambda _: None)
    await asyncio.to_thread(backend.is_running.wait, 30)
    second = engine.submit(GenerationRequest((4, 5, 6), 5), lambda _: None)
    engine.abort(second)
    assert not backend.may_end.is_set(), "the first request still wants this pass"
    engine.abort(first)
    await asyncio.wait_for(engine.call(lambda: None), 20)
    assert engine.snapshot().counters.failed_steps == 0
    engine.stop()


async def test_stop_does_not_wait_for_the_end_of_a_pass() -> None:
    backend = Stuck()
    engine = Engine(backend, EngineOptions(context=128))
    engine.start()
    engine.submit(GenerationRequest((1, 2, 3), 5), lambda _: None)
    await asyncio.to_thread(backend.is_running.wait, 30)
    await asyncio.wait_for(asyncio.to_thread(engine.stop), 20)


async def test_time_of_steps_holds_the_passes_but_no_errands(engine: Engine) -> None:
    ended = asyncio.Event()
    engine.submit(GenerationRequest((1, 2, 3), 20), lambda output: ended.set() if output.finish is not None else None)
    await asyncio.wait_for(ended.wait(), 30)
    for _ in range(3):  # the last step is over, and so is the one that tidies up after it
        await engine.call(lambda: None)
    counters = engine.snapshot().counters
    assert 0.0 < counters.forward_seconds < counters.step_seconds
    await engine.call(lambda: None)
    assert engine.snapshot().counters.step_seconds == counters.step_seconds


async def test_engine_is_not_idle_while_an_errand_runs(engine: Engine) -> None:
    seen = await engine.call(lambda: (engine.is_idle, engine.snapshot().has_work))
    assert seen == (False, True)


async def test_errand_that_may_give_way_does_not_begin_when_somebody_waits() -> None:
    backend = Stuck()
    engine = Engine(backend, EngineOptions(context=128))
    engine.start()
    request_id = engine.submit(GenerationRequest((1, 2, 3), 5), lambda _: None)
    await asyncio.to_thread(backend.is_running.wait, 30)
    measurement = engine.call(lambda: 1, lambda: None)
    backend.may_end.set()
    with pytest.raises(ForwardAborted):
        await measurement
    engine.abort(request_id)
    engine.stop()


async def test_errand_that_waits_when_the_engine_stops_is_told(engine: Engine) -> None:
    is_running, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        is_running.set()
        may_end.wait(30)

    first, second = engine.call(hold), engine.call(lambda: 1)
    await asyncio.to_thread(is_running.wait, 30)
    asyncio.get_running_loop().call_later(0.05, may_end.set)
    await asyncio.to_thread(engine.stop)
    await first
    with pytest.raises(EngineStopped):
        await second
    with pytest.raises(EngineStopped):
        engine.call(lambda: 1)


@pytest.mark.parametrize(("prompt", "max_tokens"), [((), 5), ((1,), -1), ((1,) * 128, 1), ((1,) * 128, 0)])
async def test_request_that_could_never_run_is_refused_at_once(
    engine: Engine, prompt: tuple[int, ...], max_tokens: int
) -> None:
    with pytest.raises(ValueError, match=f"{len(prompt)} tokens and {max_tokens} more, room for 128"):
        engine.submit(GenerationRequest(prompt, max_tokens), lambda _: None)
    assert engine.is_idle


class BrokenBackend(FakeBackend):
    """No pass of it succeeds."""

    def forward(self, chunks: Sequence[Chunk]) -> npt.NDArray[np.float32]:
        raise BackendFailed(-3)


async def test_engine_that_fails_leaves_its_requests_to_another_one_instead_of_failing_them() -> None:
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    outputs: list[Output] = []
    engine = Engine(BrokenBackend(), EngineOptions(context=128), on_failure=failed.set_result)
    engine.start()
    engine.submit(GenerationRequest((1, 2, 3), 4), outputs.append)
    assert isinstance(await failed, BackendFailed)
    assert [output.finish for output in outputs] == [FinishReason.ABORT]
    engine.stop()
