"""The distribution that a token is drawn from is llama.cpp's own: every sampler, many parameters, any order."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from tests.fakes.pieces import no_text
from tests.support.llama_chain import Distribution, chain_distribution
from worker.engine.request import DEFAULT_SAMPLERS, GenerationRequest, SamplerKind, SamplingParams
from worker.engine.sampler import Sampler

Row = npt.NDArray[np.float32]

PLAIN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=3)
HISTORY = np.array([3, 3, 7, 50, 3, 9, 120, 7, 1, 2, 3, 9, 120], dtype=np.int32)
LARGE = 20_011
"""Enough for every short cut of ours, and no round number."""


def peaked(num_vocab: int, seed: int) -> Row:
    """Return logits as models have them: a wide bulk, and some tokens far above."""
    numbers = np.random.RandomState(seed)
    row = numbers.normal(0.0, 2.0, num_vocab)
    head = numbers.choice(num_vocab, 40, replace=False)
    row[head] = 14.0 - numbers.exponential(3.0, 40)
    return row.astype(np.float32)


def flat(num_vocab: int, seed: int) -> Row:
    return np.random.RandomState(seed).normal(0.0, 1.5, num_vocab).astype(np.float32)


def drawn_from(row: Row, params: SamplingParams) -> Distribution:
    """Return the distribution of the next token, as the sampler itself tells it."""
    request = GenerationRequest((1,), 1, params, num_logprobs=len(row), post_sampling_logprobs=True)
    pick = Sampler(request, len(row), frozenset(), no_text).sample(row.copy(), HISTORY, 0)
    distribution = np.zeros(len(row))
    for token, logprob in pick.top:
        distribution[token] = np.exp(logprob)
    assert pick.logprob == dict(pick.top)[pick.token]
    return distribution


def distance(ours: Distribution, theirs: Distribution) -> float:
    """Return how much probability would have to move."""
    return float(np.abs(ours - theirs).sum() / 2.0)


SINGLE = {
    "top_k": [{"top_k": count} for count in (1, 2, 40, 127, 129, 1000, 5000, LARGE, LARGE + 1)],
    "top_p": [{"top_p": share} for share in (0.0, 0.01, 0.3, 0.9, 0.95, 0.999)],
    "min_p": [{"min_p": share} for share in (1e-6, 0.001, 0.05, 0.5, 1.0)],
    "typical_p": [{"typical_p": share} for share in (0.0, 0.1, 0.5, 0.9, 0.99)],
    "top_n_sigma": [{"top_n_sigma": factor} for factor in (0.3, 1.0, 2.0, 4.0)],
    "xtc": [{"xtc_probability": 1.0, "xtc_threshold": bound} for bound in (0.001, 0.02, 0.1, 0.3, 0.5, 0.6)],
    "temperature": [{"temperature": value} for value in (0.0, 1e-4, 0.01, 0.3, 1.0, 2.0, 50.0)],
    "dynatemp": [
        {"temperature": 0.8, "dynatemp_range": 0.4},
        {"temperature": 0.5, "dynatemp_range": 2.0},
        {"temperature": 0.0, "dynatemp_range": 1.0},
        {"temperature": 1.0, "dynatemp_range": 1.0, "dynatemp_exponent": 0.5},
        {"temperature": 1.0, "dynatemp_range": 0.9, "dynatemp_exponent": 3.0},
    ],
    "min_keep": [
        {"top_p": 0.1, "min_keep": 5},
        {"top_p": 0.1, "min_keep": 700},
        {"min_p": 0.9, "min_keep": 5},
        {"min_p": 0.9, "min_keep": 6000},
        {"typical_p": 0.05, "min_keep": 20},
        {"xtc_probability": 1.0, "xtc_threshold": 0.02, "top_k": 12, "min_keep": 11},
    ],
    "dry": [
        {"dry_multiplier": 0.8},
        {"dry_multiplier": 5.0, "dry_base": 1.1, "dry_allowed_length": 1},
        {"dry_multiplier": 5.0, "dry_allowed_length": 0, "dry_penalty_last_n": 6, "top_k": 50},
    ],
    "mirostat 1": [{"mirostat": 1, "mirostat_tau": tau, "temperature": 0.8} for tau in (0.5, 1.5, 3.0, 5.0)],
    "mirostat 2": [{"mirostat": 2, "mirostat_tau": tau, "temperature": 1.2} for tau in (0.0, 1.5, 3.0, 8.0)],
    "adaptive_p": [
        {"adaptive_target": target, "samplers": (*DEFAULT_SAMPLERS, SamplerKind.ADAPTIVE_P), "min_p": min_p}
        for target in (0.0, 0.3, 1.0, -1.0)
        for min_p in (0.0, 0.02)
    ],
}


@pytest.mark.parametrize("make_row", [peaked, flat])
@pytest.mark.parametrize("num_vocab", [150, LARGE])
@pytest.mark.parametrize("name", SINGLE)
def test_each_sampler_leaves_llama_cpps_distribution(name: str, num_vocab: int, make_row: object) -> None:
    row = make_row(num_vocab, 5)  # type: ignore[operator]
    for changes in SINGLE[name]:
        params = replace(PLAIN, **changes)  # type: ignore[arg-type]
        ours, theirs = drawn_from(row, params), chain_distribution(row, params, HISTORY.tolist())
        assert distance(ours, theirs) < 2e-4, changes


def test_biases_come_before_everything() -> None:
    row = peaked(300, 1)
    params = replace(PLAIN, logit_bias=((5, 9.0), (7, -np.inf)), top_k=9, repeat_penalty=1.5, typical_p=0.8)
    assert distance(drawn_from(row, params), chain_distribution(row, params, HISTORY.tolist())) < 1e-4


def random_params(chance: random.Random) -> SamplingParams:
    """Return parameters of which about half are on, in any order, some twice and some never."""

    def pick(off: float, *others: float) -> float:
        return off if chance.random() < 0.4 else chance.choice(others)

    samplers = list(DEFAULT_SAMPLERS)
    if chance.random() < 0.7:
        chance.shuffle(samplers)
    samplers = samplers[: chance.randint(3, 9)] + [kind for kind in samplers[:2] if chance.random() < 0.2]
    return SamplingParams(
        temperature=pick(1.0, 0.3, 0.8, 1.7),
        dynatemp_range=pick(0.0, 0.3, 0.9),
        top_k=int(pick(0, 3, 40, 300)),
        top_p=pick(1.0, 0.4, 0.8, 0.95),
        min_p=pick(0.0, 0.01, 0.1),
        typical_p=pick(1.0, 0.3, 0.8),
        top_n_sigma=pick(-1.0, 1.0, 2.5),
        xtc_probability=pick(0.0, 1.0),
        xtc_threshold=chance.choice((0.01, 0.1, 0.3)),
        min_keep=int(pick(0, 2, 9)),
        dry_multiplier=pick(0.0, 0.7),
        dry_allowed_length=chance.randint(0, 2),
        repeat_penalty=pick(1.0, 1.2, 0.9),
        frequency_penalty=pick(0.0, 0.3),
        presence_penalty=pick(0.0, 0.4),
        samplers=tuple(samplers),
    )


def has_a_sense(params: SamplingParams) -> bool:
    """Return whether llama.cpp's answer is defined: its typical-p computes with 0 x infinity after a ban."""
    order = params.samplers
    is_typical = params.typical_p < 1.0 and SamplerKind.TYPICAL_P in order
    is_banning = params.top_n_sigma > 0.0 and SamplerKind.TOP_N_SIGMA in order
    return not (is_typical and is_banning)


@pytest.mark.parametrize("num_vocab", [150, LARGE])
def test_any_order_of_samplers_leaves_llama_cpps_distribution(num_vocab: int) -> None:
    chance = random.Random(20)
    num_compared, far = 0, []
    while num_compared < (250 if num_vocab == 150 else 60):
        params = random_params(chance)
        if not has_a_sense(params):
            continue
        num_compared += 1
        row = (peaked if chance.random() < 0.7 else flat)(num_vocab, num_compared)
        ours, theirs = drawn_from(row, params), chain_distribution(row, params, HISTORY.tolist())
        if distance(ours, theirs) > 1e-3:
            far.append((distance(ours, theirs), params))
    assert not far


def test_typical_p_after_a_ban_takes_no_notice_of_banned_tokens() -> None:
    row = peaked(300, 2)
    params = replace(PLAIN, top_n_sigma=1.0, typical_p=0.5)
    cut = replace(PLAIN, top_n_sigma=1.0, min_p=1e-9, samplers=(SamplerKind.TOP_N_SIGMA, SamplerKind.MIN_P))
    left = chain_distribution(row, cut)
    with np.errstate(divide="ignore"):
        alone = np.where(left > 0.0, np.log(left), -np.inf).astype(np.float32)[left > 0.0]
    wanted = np.zeros(len(row))
    wanted[left > 0.0] = chain_distribution(alone, replace(PLAIN, typical_p=0.5))
    assert distance(drawn_from(row, params), wanted) < 1e-4


# --- temperature 0 ----------------------------------------------------------------------------------------


def test_greedy_is_llama_cpps_choice_whatever_else_is_set() -> None:
    chance = random.Random(20)
    for number in range(300):
        params = replace(random_params(chance), temperature=0.0, dynatemp_range=0.0)
        if SamplerKind.TEMPERATURE not in params.samplers or not has_a_sense(params):
            continue
        row = peaked(400, number)
        theirs = chain_distribution(row, params, HISTORY.tolist())
        request = GenerationRequest((1,), 1, params)
        ours = Sampler(request, len(row), frozenset(), no_text).sample(row.copy(), HISTORY, number).token
        assert theirs[ours] == 1.0, params


@pytest.mark.parametrize("letters", ["edskypmxt", "sktpm", "kt", "tx"])
def test_of_equal_best_tokens_greedy_takes_the_first(letters: str) -> None:
    row = np.zeros(LARGE, dtype=np.float32)
    row[[500, 900, 17_000]] = 5.0
    params = replace(PLAIN, temperature=0.0, top_k=2)
    assert Sampler(GenerationRequest((1,), 1, params), LARGE, frozenset(), no_text).sample(row, HISTORY, 0).token == 500
