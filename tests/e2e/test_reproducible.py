"""A reproducible answer of a real model, asked for twenty times while a server's usual work goes on around it."""

from __future__ import annotations

from tests.support.company import Company
from tests.support.models import smollm2_path
from worker.contract import EngineOptions
from worker.engine.engine import Engine
from worker.engine.llama import LlamaBackend
from worker.engine.request import GenerationRequest, SamplingParams

NUM_RUNS = 20


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
