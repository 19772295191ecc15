"""A reproducible answer of a real model, asked for twenty times while a server's usual work goes on around it."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.company import Company
from tests.support.models import smollm2_path
from tests.support.real_server import Api
from worker.contract import EngineOptions
from worker.engine.engine import Engine
from worker.engine.llama import LlamaBackend
from worker.engine.request import GenerationRequest, SamplingParams

NUM_RUNS = 20


@pytest.mark.slow
async def test_twenty_runs_under_varied_load_give_the_same_tokens_and_logprobs() -> None:
    options = EngineOptions(context=256, slots=4, device="cpu")
    backend = LlamaBackend.load(str(smollm2_path()), options, num_threads=2)
    prompt = tuple(
        backend.vocabulary.tokenize(
            "Once upon a time there was a small computer that answered whatever people asked of it, "
            "and because it had so many friends it never said the same thing twice. One day",
            add_special=True,
            parse_special=False,
        )
    )
    assert len(prompt) > 32, "more than one pass"
    wanted = GenerationRequest(
        prompt, 10, SamplingParams(temperature=0.8, seed=3, ignore_eos=True), num_logprobs=2, reproducible=True
    )
    engine = Engine(backend, options, num_threads=2)
    engine.start()
    company = Company(engine, prompt, is_small=True)
    runs = []
    for seed in range(NUM_RUNS):
        engine.set_threads(1 + seed % 2)
        runs.append(await company.answer(wanted, seed))
    engine.stop()
    assert len(set(runs)) == 1
    tokens, picks = runs[0]
    assert (len(tokens), len(picks)) == (10, 10)
    assert [pick.token for pick in picks] == list(tokens)
    assert all(pick.logprob is not None and len(pick.top) == 2 for pick in picks)


@pytest.mark.slow
async def test_clients_get_the_same_log_probabilities_alone_and_beside_others(api: Api) -> None:
    prompt = "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is"
    wanted = {"seed": 5, "temperature": 0.8, "logprobs": 2, "reproducible": True}

    async def ask() -> object:
        answer = await api.complete("cold", prompt, 6, **wanted)
        assert answer.status == 200
        return answer.body["choices"][0]["logprobs"]

    alone = await ask()
    others = [asyncio.create_task(api.complete("cold", prompt * (1 + i % 2), 6)) for i in range(3)]
    beside = await asyncio.gather(ask(), ask())
    slots = await api.slots("cold")
    assert [other.status for other in await asyncio.gather(*others)] == [200] * 3
    assert beside == [alone, alone]
    assert sorted(slot["id"] for slot in slots) == [0, 1, 2], "two slots, and the lane of these requests"
