"""The sampler chooses as llama.cpp's own chain of samplers would: the same tokens, with the same frequencies."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.fakes.pieces import no_text
from tests.support.llama_chain import chain_distribution, chain_logits
from worker.api.samplers import read_samplers
from worker.engine.request import GenerationRequest, SamplerKind, SamplingParams
from worker.engine.sampler import Sampler
from worker.engine.sampling_chance import uniform

NUM_DRAWS = 3_000
PLAIN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=11)
NO_TOKENS = np.empty(0, dtype=np.int32)
HISTORY = np.array([3, 3, 7, 50, 3, 9, 120, 7, 1, 2], dtype=np.int32)


def kinds(letters: str) -> tuple[SamplerKind, ...]:
    return read_samplers(letters)


PARAMETERS = {
    "plain": PLAIN,
    "defaults": SamplingParams(seed=11),
    "hot": replace(PLAIN, temperature=1.7),
    "cold": replace(PLAIN, temperature=0.3),
    "top_k": replace(PLAIN, top_k=7),
    "top_k beyond the vocabulary": replace(PLAIN, top_k=100_000),
    "top_p": replace(PLAIN, top_p=0.8),
    "narrow top_p": replace(PLAIN, top_p=0.05),
    "min_p": replace(PLAIN, min_p=0.1),
    "min_p alone at another temperature": replace(PLAIN, min_p=0.02, temperature=1.5),
    "all cuts": replace(PLAIN, top_k=50, top_p=0.9, min_p=0.03, temperature=0.9),
    "top_k and top_p": replace(PLAIN, top_k=20, top_p=0.6, temperature=1.3),
    "penalties": replace(PLAIN, repeat_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.7, top_k=30),
    "bias": replace(PLAIN, logit_bias=((5, 4.0), (6, -3.0), (7, -math.inf)), top_k=40),
    "typical_p": replace(PLAIN, typical_p=0.5),
    "wide typical_p": replace(PLAIN, typical_p=0.9, temperature=0.7),
    "typical_p of a few": replace(PLAIN, typical_p=0.7, top_k=20),
    "top_n_sigma": replace(PLAIN, top_n_sigma=1.0),
    "wide top_n_sigma": replace(PLAIN, top_n_sigma=2.5, temperature=2.0),
    "xtc": replace(PLAIN, xtc_probability=0.5, xtc_threshold=0.05),
    "xtc always": replace(PLAIN, xtc_probability=1.0, xtc_threshold=0.02),
    "xtc seldom": replace(PLAIN, xtc_probability=0.1, xtc_threshold=0.1, top_k=10),
    "xtc that keeps some": replace(PLAIN, xtc_probability=1.0, xtc_threshold=0.02, top_k=10, min_keep=8),
    "dry": replace(PLAIN, dry_multiplier=0.8, dry_allowed_length=1),
    "hard dry": replace(PLAIN, dry_multiplier=2.0, dry_base=3.0, dry_allowed_length=0, temperature=1.2),
    "dynatemp": replace(PLAIN, dynatemp_range=0.5),
    "dynatemp of a few": replace(PLAIN, temperature=1.5, dynatemp_range=1.5, dynatemp_exponent=2.0, top_k=30),
    "min_keep": replace(PLAIN, min_keep=12, top_p=0.1, min_p=0.5),
    "mirostat 1": replace(PLAIN, mirostat=1, mirostat_tau=2.0, mirostat_eta=0.0),
    "mirostat 2": replace(PLAIN, mirostat=2, mirostat_tau=2.0, mirostat_eta=0.0),
    "hot mirostat 2": replace(PLAIN, mirostat=2, mirostat_tau=3.0, mirostat_eta=0.0, temperature=1.5, top_k=1),
    "temperature first": replace(PLAIN, temperature=2.0, top_p=0.7, samplers=kinds("tkp")),
    "min_p before top_k": replace(PLAIN, min_p=0.05, top_k=8, samplers=kinds("mkt")),
    "penalties late": replace(PLAIN, repeat_penalty=1.5, frequency_penalty=0.3, top_k=60, samplers=kinds("ktedp")),
    "xtc first": replace(PLAIN, xtc_probability=0.7, xtc_threshold=0.03, top_p=0.9, samplers=kinds("xtp")),
    "no samplers": replace(PLAIN, temperature=0.2, top_k=3, samplers=()),
    "twice the same": replace(PLAIN, top_p=0.8, samplers=kinds("pp")),
}


def sampler_of(params: SamplingParams, num_vocab: int, end_tokens: frozenset[int]) -> Sampler:
    return Sampler(GenerationRequest((1,), 1, params), num_vocab, end_tokens, no_text)


def logits(num_vocab: int, seed: int = 0, scale: float = 3.0) -> npt.NDArray[np.float32]:
    return np.random.RandomState(seed).normal(0.0, scale, num_vocab).astype(np.float32)


def draw(params: SamplingParams, row: npt.NDArray[np.float32], num_draws: int = NUM_DRAWS) -> npt.NDArray[np.int64]:
    """Return how often each token comes, one draw for each index."""
    sampler = sampler_of(params, len(row), frozenset())
    counts = np.zeros(len(row), dtype=np.int64)
    for index in range(num_draws):
        counts[sampler.sample(row.copy(), HISTORY, index).token] += 1
    return counts


def deviation(counts: npt.NDArray[np.int64], expected: npt.NDArray[np.float64]) -> float:
    """Return by how many standard deviations the counts miss the probabilities (chi-square, rare tokens pooled)."""
    expected = expected * counts.sum()
    is_rare = expected < 5.0
    observed = [*counts[~is_rare], counts[is_rare].sum()]
    wanted = [*expected[~is_rare], expected[is_rare].sum()]
    if wanted[-1] == 0.0:
        assert observed[-1] == 0, "a token that the chain has cut off was chosen"
        del observed[-1], wanted[-1]
    freedom = len(wanted) - 1
    if freedom == 0:
        return 0.0
    chi_square = sum((o - w) ** 2 / w for o, w in zip(observed, wanted, strict=True))
    # Wilson and Hilferty: the cube root of a chi-square value is almost normally distributed.
    spread = 2.0 / (9.0 * freedom)
    return ((chi_square / freedom) ** (1 / 3) - (1.0 - spread)) / math.sqrt(spread)


# --- frequencies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_tokens_come_as_often_as_llama_cpps_chain_says(name: str) -> None:
    row, params = logits(200), PARAMETERS[name]
    assert deviation(draw(params, row), chain_distribution(row, params, HISTORY.tolist())) < 4.0


@pytest.mark.parametrize("name", ["plain", "defaults", "top_p", "all cuts"])
def test_tokens_of_a_large_vocabulary_come_as_often_as_llama_cpps_chain_says(name: str) -> None:
    row, params = logits(20_011, seed=1, scale=3.0), PARAMETERS[name]
    assert deviation(draw(params, row, 2000), chain_distribution(row, params, HISTORY.tolist())) < 4.0


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_what_the_chain_cuts_off_is_never_chosen_and_what_it_keeps_can_be(name: str) -> None:
    """A small vocabulary, whose every token comes if it may."""
    row, params = logits(150, seed=1, scale=1.0), replace(PARAMETERS[name], temperature=3.0)
    distribution = chain_distribution(row, params, HISTORY.tolist())
    seen = draw(params, row, 800) > 0
    assert not (seen & (distribution == 0.0)).any()
    assert seen[distribution > 0.02].all()


def test_equal_logits_are_cut_to_the_asked_number() -> None:
    row = np.zeros(100, dtype=np.float32)
    assert np.count_nonzero(draw(replace(PLAIN, top_k=5), row, 500)) == 5


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": 1.1}, {"top_k": 150}, {"top_p": 0.98}, {"min_p": 0.03}, {"logit_bias": ((144, 0.3), (24, 0.3))}],
    ids=str,
)
@pytest.mark.slow
def test_the_comparison_notices_a_small_fault(wrong: dict[str, Any]) -> None:
    row = logits(200, scale=1.0)
    assert deviation(draw(replace(PLAIN, **wrong), row, 20_000), chain_distribution(row, PLAIN)) > 4.0


# --- what is done to the logits ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"repeat_penalty": 1.3},
        {"repeat_penalty": 0.8},
        {"presence_penalty": 1.5},
        {"presence_penalty": -1.5},
        {"frequency_penalty": 0.9},
        {"repeat_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3},
        {"repeat_penalty": 1.3, "repeat_last_n": 3},
        {"repeat_penalty": 1.3, "repeat_last_n": 0},
        {"repeat_penalty": 1.3, "repeat_last_n": -1},
        {"repeat_penalty": 1.3, "repeat_last_n": 1000},
        {"logit_bias": ((3, 2.5), (7, -100.0), (199, 0.25))},
        {"logit_bias": ((3, 2.5),), "repeat_penalty": 2.0},
    ],
    ids=str,
)
def test_bias_and_penalties_change_the_logits_as_in_llama_cpp(changes: dict[str, Any]) -> None:
    params = replace(PLAIN, temperature=0.0, **changes)
    ours = logits(200)
    wanted = chain_logits(ours.copy(), params, HISTORY.tolist())
    token = sampler_of(params, 200, frozenset()).sample(ours, HISTORY, 0).token
    np.testing.assert_allclose(ours, wanted, rtol=1e-6, atol=1e-6)
    assert token == wanted.argmax()


def test_greedy_takes_the_largest_logit() -> None:
    for seed in range(20):
        row = logits(5000, seed=seed)
        params = SamplingParams(temperature=0.0, seed=seed)
        assert sampler_of(params, 5000, frozenset()).sample(row.copy(), NO_TOKENS, seed).token == row.argmax()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_end_tokens_never_come_when_they_are_ignored(temperature: float) -> None:
    row = logits(200)
    row[[4, 9]] = 30.0
    ends = frozenset({4, 9})
    kept = sampler_of(replace(PLAIN, temperature=temperature, top_k=40), 200, ends)
    ignoring = sampler_of(replace(PLAIN, temperature=temperature, top_k=40, ignore_eos=True), 200, ends)
    assert {kept.sample(row.copy(), NO_TOKENS, index).token for index in range(50)} <= ends
    assert not {ignoring.sample(row.copy(), NO_TOKENS, index).token for index in range(200)} & ends


@pytest.mark.parametrize(
    "params",
    [
        replace(PLAIN, temperature=0.0),
        replace(PLAIN, top_k=2),
        replace(PLAIN, mirostat=1),
        replace(PLAIN, mirostat=2),
        replace(PLAIN, adaptive_target=0.9, samplers=(SamplerKind.ADAPTIVE_P,)),
        replace(PLAIN, samplers=(), logit_bias=((4, 100.0),)),
    ],
    ids=["greedy", "two best", "mirostat 1", "mirostat 2", "adaptive", "biased"],
)
def test_end_tokens_come_after_the_least_length_and_not_before(params: SamplingParams) -> None:
    row = logits(200)
    row[[4, 9]] = 30.0
    sampler = Sampler(GenerationRequest((1,), 40, params, min_tokens=20), 200, frozenset({4, 9}), no_text)
    picked = [sampler.sample(row.copy(), NO_TOKENS, index).token for index in range(40)]
    assert not {4, 9} & set(picked[:20])
    assert {4, 9} & set(picked[20:])


def test_least_length_changes_no_other_draw() -> None:
    plain = Sampler(GenerationRequest((1,), 40, PLAIN), 200, frozenset({4}), no_text)
    longer = Sampler(GenerationRequest((1,), 40, PLAIN, min_tokens=20), 200, frozenset({4}), no_text)
    row = logits(200)
    row[4] = -math.inf
    for index in range(40):
        assert plain.sample(row.copy(), NO_TOKENS, index) == longer.sample(row.copy(), NO_TOKENS, index)


def test_banned_token_never_comes() -> None:
    row = logits(50)
    params = replace(PLAIN, logit_bias=((int(row.argmax()), -math.inf),))
    assert draw(params, row, 2000)[row.argmax()] == 0
    assert (
        sampler_of(replace(params, temperature=0.0), 50, frozenset()).sample(row.copy(), NO_TOKENS, 0).token
        != row.argmax()
    )


# --- chance -----------------------------------------------------------------------------------------------


def tokens_of(params: SamplingParams, num: int = 50) -> list[int]:
    row, sampler = logits(1000), sampler_of(params, 1000, frozenset())
    return [sampler.sample(row.copy(), NO_TOKENS, index).token for index in range(num)]


def test_same_seed_gives_the_same_tokens_and_others_give_others() -> None:
    first = tokens_of(replace(PLAIN, seed=42))
    assert tokens_of(replace(PLAIN, seed=42)) == first
    assert tokens_of(replace(PLAIN, seed=43)) != first
    assert tokens_of(replace(PLAIN, seed=42, choice=1)) != first


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
def test_every_seed_of_64_bits_is_its_own(seed: int) -> None:
    numbers = [uniform(seed, 0, index) for index in range(8)]
    assert all(0.0 <= number < 1.0 for number in numbers)
    assert numbers != [uniform(seed ^ 1, 0, index) for index in range(8)]
    assert numbers != [uniform(seed ^ 2**40, 0, index) for index in range(8)]


def test_a_token_depends_on_its_index_and_not_on_what_was_drawn_before() -> None:
    row, sampler = logits(1000), sampler_of(PLAIN, 1000, frozenset())
    in_order = [sampler.sample(row.copy(), NO_TOKENS, index).token for index in range(30)]
    backwards = [sampler.sample(row.copy(), NO_TOKENS, index).token for index in reversed(range(30))]
    assert backwards[::-1] == in_order


# --- rows that are no real ones ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PARAMETERS))
@pytest.mark.parametrize(
    ("value", "at"), [(-np.inf, ...), (np.nan, ...), (np.nan, 3), (np.inf, 5), (-3.4e38, ...)], ids=str
)
def test_a_row_without_sense_still_gives_a_token(name: str, value: float, at: object) -> None:
    row = logits(200)
    row[at] = value  # type: ignore[call-overload]
    with np.errstate(all="ignore"):
        token = sampler_of(PARAMETERS[name], 200, frozenset()).sample(row, HISTORY, 0).token
    assert 0 <= token < 200


def test_a_single_possible_token_is_taken() -> None:
    row = np.full(200, -np.inf, dtype=np.float32)
    row[17] = 0.0
    for params in PARAMETERS.values():
        if 17 not in dict(params.logit_bias):
            assert sampler_of(params, 200, frozenset()).sample(row.copy(), NO_TOKENS, 0).token == 17


def test_a_vocabulary_of_one_token_works() -> None:
    for params in PARAMETERS.values():
        free = replace(params, logit_bias=())
        assert sampler_of(free, 1, frozenset()).sample(np.zeros(1, dtype=np.float32), NO_TOKENS, 0).token == 0
