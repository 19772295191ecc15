"""Slots on real llama.cpp: whoever comes after whom in which slot, everybody's answer is to their own prompt alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.tiny_gguf import TinyModel, write_tiny_gemma, write_tiny_llama
from tests.worker.engine.test_llama_engine import EIGHT, Driver, assert_valid, prompt_of
from worker.contract import EngineOptions
from worker.engine.llama import LlamaBackend
from worker.engine.request import FinishReason

NUM_ROUNDS = 20
NUM_AT_ONCE = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture
def driver(model: TinyModel) -> Iterator[Driver]:
    driver = Driver(model.path)
    yield driver
    driver.backend.close()


def judge_of(path: Path) -> LlamaBackend:
    return LlamaBackend.load(str(path), EngineOptions(context=128, slots=1))


@pytest.mark.parametrize("swa_full", [None, False], ids=["shares", "cannot share"])
def test_nobody_sees_what_another_has_left_in_its_slot(model: TinyModel, tmp_path: Path, swa_full: bool | None) -> None:
    """Prompts share nothing, one token or many with those before them; some leave in the middle, some stop early."""
    path = model.path if swa_full is None else write_tiny_gemma(tmp_path / "gemma.gguf", sliding_window=16).path
    driver = Driver(path, replace(EIGHT, slots=2, swa_full=swa_full is None))
    chance = random.Random(9)
    answered: list[tuple[list[int], list[int]]] = []
    for number in range(NUM_ROUNDS):
        prompts = {}
        for place in range(NUM_AT_ONCE):
            start = 100 * number + place
            prompt = prompt_of(chance.randint(3, 40), 3)[: chance.choice([0, 1, 40])] + prompt_of(9, start)
            wishes = {"slot": chance.choice([None, 0, 1]), "cache_prompt": chance.random() < 0.8}
            prompts[driver.submit(prompt, chance.choice([0, 3, 8]), **wishes)] = prompt
        for _ in range(chance.randint(1, 12)):
            driver.step()
        for request_id in chance.sample(list(prompts), 2):
            driver.core.abort(request_id)
            if request_id not in driver.ends:
                del prompts[request_id]
        driver.run()
        answered += [(prompt, driver.answers[request_id]) for request_id, prompt in prompts.items()]
    driver.backend.close()
    judge = judge_of(path)
    for prompt, answer in answered:
        assert_valid(judge, prompt, answer)
    judge.close()
    assert sum(len(answer) for _, answer in answered) > 300


def test_request_for_another_slot_reuses_what_an_earlier_one_has_computed(driver: Driver, model: TinyModel) -> None:
    told = []
    for slot in (0, 0, 5):
        request_id = driver.submit(prompt_of(40, 1), 4, slot=slot)
        driver.run()
        end = driver.ends[request_id]
        assert end.timings is not None
        told.append((end.slot, end.timings.cached_tokens))
    assert told == [(0, 0), (0, 39), (5, 39)]


def test_prompt_without_an_answer_is_computed_and_kept(driver: Driver, model: TinyModel) -> None:
    nothing = driver.submit(prompt_of(40, 1), 0)
    driver.run()
    assert (driver.ends[nothing].finish, driver.answers[nothing]) == (FinishReason.LENGTH, [])
    longer = [*prompt_of(40, 1), *prompt_of(5, 2)]
    request_id = driver.submit(longer, 6)
    driver.run()
    timings = driver.ends[request_id].timings
    assert timings is not None
    assert timings.cached_tokens == 40
    judge = judge_of(model.path)
    assert_valid(judge, longer, driver.answers[request_id])
    judge.close()
