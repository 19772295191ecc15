"""Reproducible requests over the real library on a tiny model: bit for bit the same, whatever happens around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.company import Company
from tests.support.tiny_gguf import TinyModel, write_tiny_gemma, write_tiny_llama
from worker.contract import EngineOptions
from worker.engine.engine import Engine
from worker.engine.llama import LlamaBackend
from worker.engine.request import GenerationRequest, SamplingParams

CONTEXT = 256
PROMPT = tuple(270 + (i * 11) % 140 for i in range(75))
SAMPLED = SamplingParams(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, seed=7, ignore_eos=True)
WANTED = GenerationRequest(PROMPT, 24, SAMPLED, num_logprobs=2, reproducible=True)
NUM_RUNS = 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def engine_on(path: Path, **options: object) -> Engine:
    chosen = EngineOptions(**({"context": CONTEXT, "slots": 4} | options))  # type: ignore[arg-type]
    engine = Engine(LlamaBackend.load(str(path), chosen), chosen, check_cells=True)
    engine.start()
    return engine


@pytest.fixture
async def company(model: TinyModel) -> AsyncIterator[Company]:
    engine = engine_on(model.path)
    yield Company(engine, PROMPT)
    engine.stop()


async def test_twenty_runs_in_different_company_give_one_answer(company: Company) -> None:
    runs = {await company.answer(WANTED, seed) for seed in range(NUM_RUNS)}
    assert len(runs) == 1
    assert all(len(tokens) == 24 and len(picks) == 24 for tokens, picks in runs)
    assert {pick.logprob is not None for _, picks in runs for pick in picks} == {True}


@pytest.mark.slow
async def test_other_requests_do_depend_on_their_company(company: Company) -> None:
    """The company of the test above makes a difference."""
    plain = GenerationRequest(PROMPT, 24, SAMPLED, num_logprobs=2)
    runs = {await company.answer(plain, seed) for seed in range(NUM_RUNS)}
    assert len(runs) > 1


async def test_answer_does_not_depend_on_slots_pool_threads_and_guesses(model: TinyModel) -> None:
    answers = set()
    for num_threads, options in enumerate(({"slots": 1}, {"slots": 8, "draft_max": 0}, {"kv_tokens": 300}), start=1):
        engine = engine_on(model.path, **options)
        engine.set_threads(num_threads)
        answers.add(await Company(engine, PROMPT).answer(WANTED, seed=num_threads))
        engine.stop()
    assert len(answers) == 1


@pytest.mark.parametrize("swa_full", [True, False])
async def test_sliding_windows_are_reproducible_too(tmp_path: Path, swa_full: bool) -> None:
    engine = engine_on(write_tiny_gemma(tmp_path / "gemma.gguf", sliding_window=16).path, swa_full=swa_full)
    company = Company(engine, PROMPT)
    assert len({await company.answer(WANTED, seed) for seed in range(5)}) == 1
    engine.stop()


async def test_aborted_one_leaves_no_trace_in_the_next(company: Company) -> None:
    first = await company.answer(WANTED, seed=1)
    for pause_s in (0.0, 0.002, 0.01):
        request_id = company.engine.submit(WANTED, lambda output: None)
        await asyncio.sleep(pause_s)
        company.engine.abort(request_id)
    assert await company.answer(WANTED, seed=2) == first
