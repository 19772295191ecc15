"""DRY lowers the logits that llama.cpp's DRY lowers, by as much; and what breaks a repetition is found as there."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as lib

from tests.fakes.pieces import no_text
from tests.support.llama_chain import chain_logits
from tests.support.vocabularies import vocabulary_of
from worker.engine.llama_vocabulary import LlamaVocabulary
from worker.engine.request import Breakers, GenerationRequest, SamplingParams
from worker.engine.sampler import Sampler
from worker.engine.sampling_dry import DEFAULT_BREAKERS, Dry, find_breakers

DRY = SamplingParams(temperature=0.0, dry_multiplier=0.8)


@pytest.fixture(scope="module", params=["spm", "bpe"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with vocabulary_of(request.param, tmp_path_factory.mktemp("dry")) as loaded:
        yield loaded


def lowered(params: SamplingParams, history: list[int], num_vocab: int) -> np.ndarray:
    """Return the logits after the sampler has worked on a row of zeros."""
    row = np.zeros(num_vocab, dtype=np.float32)
    sampler = Sampler(GenerationRequest((1,), 1, params), num_vocab, frozenset(), no_text)
    sampler.sample(row, np.array(history, dtype=np.int32), 0)
    return row


def assert_same(params: SamplingParams, history: list[int], num_vocab: int, **of_chain: Any) -> int:
    """Compare with llama.cpp's own, and return how many tokens it lowers."""
    theirs = chain_logits(np.zeros(num_vocab, dtype=np.float32), params, history, **of_chain)
    np.testing.assert_allclose(lowered(params, history, num_vocab), theirs, rtol=1e-5)
    return int(np.count_nonzero(theirs))


@pytest.mark.parametrize("allowed", [0, 1, 2, 5])
@pytest.mark.parametrize("last_n", [-1, 3, 20, 64])
@pytest.mark.parametrize("base", [1.0, 1.75, 4.0])
def test_repetitions_cost_what_they_cost_in_llama_cpp(allowed: int, last_n: int, base: float) -> None:
    params = replace(DRY, dry_allowed_length=allowed, dry_penalty_last_n=last_n, dry_base=base)
    chance, num_lowered = random.Random(1), 0
    for length in (1, 2, 5, 30, 70, 120):
        for alphabet in (1, 2, 4, 12):
            history = [chance.randrange(alphabet) for _ in range(length)]
            num_lowered += assert_same(params, history, 20)
    assert num_lowered > 0 or last_n <= allowed + 1


def test_the_longest_repetition_counts_and_very_long_ones_do_not_overflow() -> None:
    loop = [1, 2, 3, 4] * 300
    assert assert_same(replace(DRY, dry_penalty_last_n=-1), loop, 10) == 1
    assert assert_same(replace(DRY, dry_penalty_last_n=-1, dry_base=9.0), loop, 10) == 1
    history = [7, 1, 2, 3, 5, 9, 2, 3, 6, 7, 1, 2, 3]
    row = lowered(replace(DRY, dry_multiplier=1.0, dry_base=2.0), history, 10)
    # "7 1 2 3" went on with 5, "2 3" with 6.
    assert row.tolist() == [0, 0, 0, 0, 0, -4.0, -1.0, 0, 0, 0]


# --- breakers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "texts",
    [DEFAULT_BREAKERS, ("e",), (" ",), ("\n",), ("the",), ("hello world", "el"), ("aab", "ab"), ("x" * 60,), ("é",)],
    ids=str,
)
def test_breakers_of_a_vocabulary_break_as_in_llama_cpp(model: Any, texts: tuple[str, ...]) -> None:
    vocabulary = LlamaVocabulary(model)
    params = replace(DRY, dry_allowed_length=1, dry_penalty_last_n=-1, dry_breakers=find_breakers(vocabulary, texts))
    of_chain = {"vocab": lib.llama_model_get_vocab(model), "breakers": texts}
    lines = [
        'the story: "hello" the story: "hello',
        "tell the tell the tell",
        "hello world, hello world, hello wor",
        "aab ab aab ab aaab aa",
        "one\ntwo\none\ntwo\none",
        "é è é è é",
        "xxxx" * 20,
    ]
    num_lowered = 0
    for line in lines:
        history = vocabulary.tokenize(line, add_special=False, parse_special=False)
        num_lowered += assert_same(params, history, vocabulary.num_vocab, **of_chain)
    assert num_lowered > 0


def test_random_text_is_broken_as_in_llama_cpp(model: Any) -> None:
    vocabulary, chance = LlamaVocabulary(model), random.Random(3)
    tokens = [
        token
        for token in range(vocabulary.num_vocab)
        if set(vocabulary.piece(token).decode("utf-8", "replace")) & set("aeb ")
    ]
    texts = ("ab", "e", "bea")
    breakers = find_breakers(vocabulary, texts)
    of_chain = {"vocab": lib.llama_model_get_vocab(model), "breakers": texts}
    for number in range(60):
        few = chance.sample(tokens, min(len(tokens), 5))
        history = [chance.choice(few) for _ in range(80)]
        params = replace(DRY, dry_allowed_length=number % 3, dry_breakers=breakers)
        assert_same(params, history, vocabulary.num_vocab, **of_chain)


def test_a_breaker_limits_the_length_of_a_repetition() -> None:
    breakers: Breakers = {8: ((),), 5: ((6, 7),)}
    dry = Dry(replace(DRY, dry_allowed_length=1, dry_breakers=breakers))

    def repeats(*window: int) -> dict[int, int]:
        return dry.repeats(np.array(window, dtype=np.int32))

    assert repeats(1, 2, 3, 4, 1, 2, 3) == {4: 3}
    assert repeats(1, 8, 3, 4, 1, 8, 3) == {4: 1}, "the token 8 is a breaker alone"
    assert repeats(1, 2, 8, 4, 1, 2, 8) == {}, "nothing stands after the breaker"
    assert repeats(5, 6, 7, 2, 4, 5, 6, 7, 2) == {4: 1}, "5 6 7 is a breaker"
    assert repeats(5, 6, 2, 4, 5, 6, 2) == {4: 3}, "5 6 is none"


def test_breakers_are_looked_up_once_for_each_vocabulary(model: Any) -> None:
    vocabulary = LlamaVocabulary(model)
    assert find_breakers(vocabulary, DEFAULT_BREAKERS) is find_breakers(vocabulary, DEFAULT_BREAKERS)


@pytest.mark.parametrize("allowed", [0, 2, 5])
@pytest.mark.parametrize("num_words", [1, 2, 3, 30])
def test_repetitions_are_found_alike_whichever_way_they_are_counted(
    monkeypatch: pytest.MonkeyPatch, num_words: int, allowed: int
) -> None:
    random = np.random.RandomState(num_words)
    dry = Dry(replace(DRY, dry_allowed_length=allowed, dry_penalty_last_n=-1))
    for length in (allowed + 1, 20, 300):
        window = random.randint(0, num_words, length).astype(np.int32)
        monkeypatch.setattr("worker.engine.sampling_dry._WORK_PER_TOKEN", 10**6)
        by_length = dry.repeats(window)
        monkeypatch.setattr("worker.engine.sampling_dry._WORK_PER_TOKEN", 0)
        assert dry.repeats(window) == by_length


def test_text_that_repeats_itself_all_over_takes_no_longer_than_its_length_allows() -> None:
    dry = Dry(replace(DRY, dry_allowed_length=2, dry_penalty_last_n=-1, dry_base=1.0))
    window = np.full(20_000, 7, dtype=np.int32)
    began_s = time.process_time()
    assert dry.repeats(window) == {7: 19_999}
    assert time.process_time() - began_s < 2.0
