"""Log-probabilities: the model's own, or those of the draw; never a number that JSON cannot hold."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from tests.fakes.pieces import no_text
from tests.support.llama_chain import chain_distribution
from worker.engine.request import GenerationRequest, Pick, SamplingParams
from worker.engine.sampler import IMPOSSIBLE, Sampler

Row = npt.NDArray[np.float32]

HISTORY = np.array([3, 3, 7, 50, 3, 9], dtype=np.int32)
LARGE = 20_011
EVERYTHING = SamplingParams(
    temperature=1.3,
    top_k=50,
    top_p=0.9,
    repeat_penalty=1.5,
    frequency_penalty=0.5,
    dry_multiplier=1.0,
    logit_bias=((5, 4.0), (7, -math.inf)),
    ignore_eos=True,
    seed=8,
)


def logits(num_vocab: int, scale: float = 3.0, seed: int = 2) -> Row:
    return np.random.RandomState(seed).normal(-2.0, scale, num_vocab).astype(np.float32)


def pick(row: Row, params: SamplingParams, num: int, *, post: bool = False, index: int = 0) -> Pick:
    request = GenerationRequest((1,), 1, params, num_logprobs=num, post_sampling_logprobs=post)
    return Sampler(request, len(row), frozenset({11}), no_text).sample(row.copy(), HISTORY, index)


def log_softmax(row: Row) -> npt.NDArray[np.float64]:
    wide = row.astype(np.float64)
    shifted = wide - wide.max()
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result


@pytest.mark.parametrize("num_vocab", [60, 200, LARGE])
@pytest.mark.parametrize("scale", [0.1, 3.0, 20.0])
@pytest.mark.parametrize("params", [EVERYTHING, SamplingParams(temperature=0.0), SamplingParams(mirostat=2)])
def test_the_models_own_are_untouched_by_what_samplers_do(num_vocab: int, scale: float, params: SamplingParams) -> None:
    row = logits(num_vocab, scale)
    truth = log_softmax(row)
    order = np.lexsort((np.arange(num_vocab), -row))
    for index in range(10):
        got = pick(row, params, 20, index=index)
        assert got.logprob == pytest.approx(truth[got.token], abs=2e-5)
        assert [token for token, _ in got.top] == order[:20].tolist()
        np.testing.assert_allclose([logprob for _, logprob in got.top], truth[order[:20]], atol=2e-5)


@pytest.mark.parametrize("num_vocab", [60, 200, LARGE])
@pytest.mark.parametrize("scale", [0.0, 0.1, 20.0])
@pytest.mark.parametrize("post", [False, True])
def test_a_hundred_of_them_are_as_right_as_a_few(num_vocab: int, scale: float, post: bool) -> None:
    row = logits(num_vocab, scale)
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    truth = log_softmax(row)
    order = np.lexsort((np.arange(num_vocab), -row))[:100]
    got = pick(row, params, 100, post=post)
    assert [token for token, _ in got.top] == order.tolist()
    np.testing.assert_allclose([logprob for _, logprob in got.top], truth[order], atol=2e-5)


def test_those_of_the_model_know_no_least_length_and_those_of_the_draw_do() -> None:
    row = logits(200)
    row[11] = 30.0
    for post, expected in ((False, 11), (True, int(np.argsort(row)[-2]))):
        request = GenerationRequest(
            (1,), 9, SamplingParams(), num_logprobs=3, post_sampling_logprobs=post, min_tokens=5
        )
        got = Sampler(request, 200, frozenset({11}), no_text).sample(row.copy(), HISTORY, 0)
        assert got.token != 11
        assert got.top[0][0] == expected


def test_equal_tokens_are_ordered_by_id() -> None:
    row = np.zeros(LARGE, dtype=np.float32)
    row[[900, 500, 17_000]] = 5.0
    assert [token for token, _ in pick(row, SamplingParams(), 6).top] == [500, 900, 17_000, 0, 1, 2]


@pytest.mark.parametrize("num_vocab", [200, LARGE])
@pytest.mark.parametrize("params", [EVERYTHING, SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)])
def test_those_of_the_draw_are_llama_cpps_distribution(num_vocab: int, params: SamplingParams) -> None:
    row = logits(num_vocab)
    banned = replace(params, logit_bias=(*params.logit_bias, (11, -math.inf))) if params.ignore_eos else params
    truth = chain_distribution(row, banned, HISTORY.tolist())
    got = pick(row, params, 10, post=True)
    assert got.logprob is not None
    assert math.exp(got.logprob) == pytest.approx(truth[got.token], rel=1e-3)
    best = np.sort(truth[truth > 0.0])[::-1][:10]
    np.testing.assert_allclose([math.exp(logprob) for _, logprob in got.top], best, rtol=1e-3)


def test_a_greedy_draw_is_certain() -> None:
    row = logits(200)
    assert pick(row, SamplingParams(temperature=0.0), 5, post=True) == Pick(
        int(row.argmax()), 0.0, ((int(row.argmax()), 0.0),)
    )


def test_nothing_is_told_that_nobody_asked_for() -> None:
    row = logits(200)
    plain = Sampler(GenerationRequest((1,), 1, SamplingParams(seed=4)), 200, frozenset(), no_text).sample(
        row.copy(), HISTORY, 0
    )
    assert (plain.logprob, plain.top) == (None, ())
    only_its_own = pick(row, SamplingParams(seed=4), 0)
    assert only_its_own.top == ()
    assert only_its_own.token == plain.token
    assert only_its_own.logprob == pytest.approx(log_softmax(row)[plain.token], abs=2e-5)


def test_asking_for_more_than_there_are_gives_all() -> None:
    assert len(pick(logits(6), SamplingParams(top_k=3), 20).top) == 6
    assert len(pick(logits(6), SamplingParams(top_k=3, min_p=0.0, top_p=1.0), 20, post=True).top) == 3


@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize(
    ("value", "at"), [(-np.inf, ...), (np.nan, ...), (np.nan, 3), (np.inf, 5), (-3.4e38, ...), (-np.inf, slice(1, 200))]
)
def test_no_row_makes_a_number_that_is_none(value: float, at: object, post: bool) -> None:
    row = logits(200)
    row[at] = value  # type: ignore[call-overload]
    with np.errstate(all="raise"):
        for params in (EVERYTHING, SamplingParams(temperature=0.0), SamplingParams(mirostat=1)):
            got = pick(row, params, 5, post=post)
            numbers = [got.logprob, *(logprob for _, logprob in got.top)]
            assert all(number is not None and IMPOSSIBLE <= number <= 0.0 for number in numbers)


def test_a_token_that_the_model_rules_out_has_the_lowest_number() -> None:
    row = np.full(50, -np.inf, dtype=np.float32)
    row[3] = 0.0
    row[4] = -1e6
    forced = SamplingParams(temperature=0.0, logit_bias=((4, 2e6),))
    got = pick(row, forced, 2)
    assert (got.token, got.logprob) == (4, IMPOSSIBLE)
    assert got.top == ((3, 0.0), (4, IMPOSSIBLE))
