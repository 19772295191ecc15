"""The whole engine over the real library on a tiny model: many requests in one batch stay each other's strangers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.plain_llama import plain_greedy
from tests.support.tiny_gguf import TinyModel, write_tiny_gemma, write_tiny_llama
from worker.contract import EngineOptions, SlotState
from worker.engine.batch import Chunk, Clear
from worker.engine.core import EngineCore
from worker.engine.engine import Engine
from worker.engine.engine_limits import scheduler_options
from worker.engine.errors import EngineStopped
from worker.engine.llama import LlamaBackend
from worker.engine.request import FinishReason, GenerationRequest, Output, RequestId, SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
EIGHT = EngineOptions(context=128, slots=8, prompt_cache_bytes=0)
MARGIN = 0.05
"""Logits of equal histories may differ by so much when passes are cut or composed differently."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def prompt_of(length: int, start: int) -> list[int]:
    return [270 + (start * 31 + i * 7) % 140 for i in range(length)]


class Driver:
    """Runs a core until nothing is left to do. Every step's books are compared with the cache."""

    def __init__(self, path: Path, options: EngineOptions = EIGHT) -> None:
        self.backend = LlamaBackend.load(str(path), options)
        ticks = itertools.count()
        self.core = EngineCore(
            self.backend, scheduler_options(self.backend, options), clock=lambda: float(next(ticks)), check_cells=True
        )
        self.answers: dict[RequestId, list[int]] = {}
        self.ends: dict[RequestId, Output] = {}
        self._ids = itertools.count(1)

    def submit(self, prompt: list[int], max_tokens: int = 20, **fields: Any) -> RequestId:
        request_id = RequestId(next(self._ids))
        self.core.submit(request_id, GenerationRequest(tuple(prompt), max_tokens, **{"sampling": GREEDY} | fields))
        self.answers[request_id] = []
        return request_id

    def step(self) -> None:
        for output in self.core.step():
            self.answers[output.request_id] += output.tokens
            if output.finish:
                self.ends[output.request_id] = output

    def run(self) -> None:
        while self.core.has_work:
            self.step()
        self.core.check_cells()

    def answer(self, prompt: list[int], max_tokens: int = 20, **fields: Any) -> list[int]:
        request_id = self.submit(prompt, max_tokens, **fields)
        self.run()
        return self.answers[request_id]


@pytest.fixture
def driver(model: TinyModel) -> Iterator[Driver]:
    driver = Driver(model.path)
    yield driver
    driver.backend.close()


def assert_valid(backend: LlamaBackend, prompt: list[int], answer: list[int]) -> None:
    """Each token of the answer is, for the history before it, the likeliest or as good as that."""
    backend.apply(Clear(0))
    history = [*prompt, *answer]
    for length in range(len(prompt), len(history)):
        start = 0 if length == len(prompt) else length - 1
        tokens = np.array(history[start:length], dtype=np.int32)
        (row,) = backend.forward([Chunk(0, RequestId(0), tokens, start, num_outputs=1)])
        assert np.isfinite(row).all()
        assert row[history[length]] >= row.max() - MARGIN, f"token {length - len(prompt)} of the answer"


# --- the core ---------------------------------------------------------------------------------------------


def test_lone_greedy_answer_is_that_of_llama_cpps_plain_loop(driver: Driver, model: TinyModel) -> None:
    prompt = prompt_of(24, 1)
    assert driver.answer(prompt) == plain_greedy(model.path, prompt, 20)


def test_eight_different_requests_at_once_each_get_a_right_answer(driver: Driver, model: TinyModel) -> None:
    prompts = [prompt_of(5 + 6 * i, start=i) for i in range(8)]
    ids = [driver.submit(prompt) for prompt in prompts]
    driver.run()
    judge = LlamaBackend.load(str(model.path), EngineOptions(context=128, slots=1))
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert len(driver.answers[request_id]) == 20
        assert driver.ends[request_id].finish is FinishReason.LENGTH
        assert_valid(judge, prompt, driver.answers[request_id])
    judge.close()


def test_answer_to_one_prompt_is_no_right_answer_to_another(driver: Driver, model: TinyModel) -> None:
    """The judge of these tests can tell."""
    ids = [driver.submit(prompt_of(10, start=i)) for i in range(8)]
    driver.run()
    assert len({tuple(driver.answers[request_id]) for request_id in ids}) == 8
    judge = LlamaBackend.load(str(model.path), EngineOptions(context=128, slots=1))
    for i, request_id in enumerate(ids):
        with pytest.raises(AssertionError, match="of the answer"):
            assert_valid(judge, prompt_of(10, start=(i + 1) % 8), driver.answers[request_id])
    judge.close()


def test_same_request_in_the_same_company_gets_the_same_answer(model: TinyModel) -> None:
    runs = []
    for _ in range(2):
        driver = Driver(model.path)
        ids = [driver.submit(prompt_of(5 + 6 * i, start=i)) for i in range(8)]
        driver.run()
        runs.append([driver.answers[request_id] for request_id in ids])
        driver.backend.close()
    assert runs[0] == runs[1]


def test_answer_on_a_reused_beginning_is_right_and_computes_little(driver: Driver, model: TinyModel) -> None:
    first = prompt_of(40, 1)
    driver.answer(first)
    computed = driver.core.statistics.counters().rows
    second = [*first[:30], *prompt_of(6, 9)]
    request_id = driver.submit(second)
    driver.run()
    timings = driver.ends[request_id].timings
    assert timings is not None
    assert timings.cached_tokens == 30
    assert driver.core.statistics.counters().rows - computed == 6 + 19
    judge = LlamaBackend.load(str(model.path), EngineOptions(context=128, slots=1))
    assert_valid(judge, second, driver.answers[request_id])
    judge.close()


@pytest.mark.parametrize("swa_full", [True, False])
def test_sliding_window_answers_are_right_whether_they_can_share_or_not(tmp_path: Path, swa_full: bool) -> None:
    path = write_tiny_gemma(tmp_path / "gemma.gguf", sliding_window=16).path
    options = replace(EIGHT, slots=3, swa_full=swa_full)
    driver = Driver(path, options)
    first = prompt_of(40, 1)
    turns = [first, [*first, *driver.answer(first, 8), *prompt_of(5, 2)], [*first[:20], *prompt_of(9, 3)]]
    ids = [driver.submit(prompt, 12) for prompt in turns]
    driver.run()
    judge = LlamaBackend.load(str(path), EngineOptions(context=128, slots=1))
    for request_id, prompt in zip(ids, turns, strict=True):
        assert_valid(judge, prompt, driver.answers[request_id])
    judge.close()
    driver.backend.close()


def test_cancelled_request_leaves_its_neighbours_alone(driver: Driver, model: TinyModel) -> None:
    ids = [driver.submit(prompt_of(20, start=i), 30) for i in range(4)]
    for _ in range(6):
        driver.step()
    driver.core.abort(ids[1])
    late = driver.submit(prompt_of(20, start=7), 10)
    driver.run()
    judge = LlamaBackend.load(str(model.path), EngineOptions(context=128, slots=1))
    for request_id, start in ((ids[0], 0), (ids[2], 2), (ids[3], 3), (late, 7)):
        assert_valid(judge, prompt_of(20, start), driver.answers[request_id])
    judge.close()
    assert ids[1] not in driver.ends


def test_small_pool_ends_nobody(model: TinyModel) -> None:
    """Four requests need more cells than there are: some wait or make room, all are answered rightly."""
    driver = Driver(model.path, replace(EIGHT, slots=4, kv_tokens=256))
    prompts = [prompt_of(60, start=i) for i in range(4)]
    ids = [driver.submit(prompt, 60) for prompt in prompts]
    driver.run()
    judge = LlamaBackend.load(str(model.path), EngineOptions(context=128, slots=1))
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert driver.ends[request_id].num_generated == 60
        assert_valid(judge, prompt, driver.answers[request_id])
    judge.close()
    driver.backend.close()


def test_seed_decides_a_sampled_answer(driver: Driver) -> None:
    hot = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, ignore_eos=True)
    prompt = prompt_of(10, 1)
    answers = [driver.answer(prompt, sampling=replace(hot, seed=seed), cache_prompt=False) for seed in (1, 1, 2)]
    assert answers[0] == answers[1]
    assert answers[1] != answers[2]


def test_end_token_ends_the_answer_and_is_not_part_of_it(driver: Driver, model: TinyModel) -> None:
    wants_end = SamplingParams(temperature=0.0, logit_bias=((model.eos, 1000.0),))
    request_id = driver.submit(prompt_of(10, 1), sampling=wants_end)
    driver.run()
    assert driver.answers[request_id] == []
    assert driver.ends[request_id].finish is FinishReason.STOP


def test_context_ends_the_answer(driver: Driver) -> None:
    request_id = driver.submit(prompt_of(120, 1), 50)
    driver.run()
    assert len(driver.answers[request_id]) == 8
    assert driver.ends[request_id].finish is FinishReason.LENGTH


# --- the engine with its thread ---------------------------------------------------------------------------


@asynccontextmanager
async def running(path: Path, options: EngineOptions = EIGHT) -> AsyncIterator[Engine]:
    engine = Engine(LlamaBackend.load(str(path), options), options, check_cells=True)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


async def answered(engine: Engine, prompt: list[int], max_tokens: int = 20) -> list[int]:
    """Return the whole answer."""
    tokens: list[int] = []
    is_over = asyncio.Event()

    def take(output: Output) -> None:
        tokens.extend(output.tokens)
        if output.finish:
            is_over.set()

    engine.submit(GenerationRequest(tuple(prompt), max_tokens, GREEDY), take)
    async with asyncio.timeout(30):
        await is_over.wait()
    return tokens


async def test_requests_from_the_event_loop_share_passes_and_get_right_answers(model: TinyModel) -> None:
    prompts = [prompt_of(10 + i, start=i) for i in range(8)]
    async with running(model.path) as engine:
        answers = await asyncio.gather(*(answered(engine, prompt) for prompt in prompts))
        snapshot = engine.snapshot()
    assert snapshot.counters.generated_tokens == 160
    assert snapshot.counters.forwards < 60
    assert not snapshot.has_work
    judge = LlamaBackend.load(str(model.path), EngineOptions(context=128, slots=1))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_valid(judge, prompt, answer)
    judge.close()


async def test_abort_from_the_event_loop_frees_the_slot(model: TinyModel) -> None:
    async with running(model.path, replace(EIGHT, context=4096, slots=1)) as engine:
        has_begun = asyncio.Event()
        outputs: list[Output] = []

        def take(output: Output) -> None:
            outputs.append(output)
            has_begun.set()

        request_id = engine.submit(GenerationRequest((300, 301), 4000, GREEDY), take)
        await has_begun.wait()
        engine.abort(request_id)
        engine.abort(request_id)
        count = len(outputs)
        assert len(await answered(engine, prompt_of(10, 1), 5)) == 5
        assert len(outputs) == count, "no output follows an abort"
        assert engine.snapshot().counters.aborted == 1
        assert [slot.state for slot in engine.snapshot().slots] == [SlotState.IDLE]


async def test_drain_waits_for_what_runs(model: TinyModel) -> None:
    async with running(model.path) as engine:
        asked = [asyncio.create_task(answered(engine, prompt_of(10, start=i), 100)) for i in range(3)]
        await asyncio.sleep(0)
        await asyncio.wait_for(engine.drain(), 30)
        assert [len(await task) for task in asked] == [100] * 3


async def test_stopped_engine_takes_nothing_more(model: TinyModel) -> None:
    async with running(model.path) as engine:
        engine.stop()
        with pytest.raises(EngineStopped):
            engine.submit(GenerationRequest((300,), 1, GREEDY), lambda output: None)


@pytest.mark.parametrize("prompt", [(), tuple(range(270, 398)), tuple(range(270, 400))])
async def test_request_that_could_never_run_is_refused_at_once(model: TinyModel, prompt: tuple[int, ...]) -> None:
    async with running(model.path) as engine:
        with pytest.raises(ValueError, match="room for 128"):
            engine.submit(GenerationRequest(prompt, 1, GREEDY), lambda output: None)
