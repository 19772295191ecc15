"""Mirostat and adaptive-p go the way that llama.cpp's go when the same tokens are drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from tests.fakes.pieces import no_text
from tests.support.llama_chain import Chain
from worker.engine.request import DEFAULT_SAMPLERS, GenerationRequest, SamplerKind, SamplingParams
from worker.engine.sampler import Sampler
from worker.engine.sampling_candidates import Candidates
from worker.engine.sampling_feedback import feedback

NUM_VOCAB = 4000
NO_TOKENS = np.empty(0, dtype=np.int32)
ADAPTIVE = replace(
    SamplingParams(temperature=1.0, min_p=0.001, top_k=0, top_p=1.0),
    samplers=(SamplerKind.MIN_P, SamplerKind.ADAPTIVE_P),
)


def rows(num: int, seed: int) -> list[npt.NDArray[np.float32]]:
    """Return rows of which some are sure of themselves and some are not."""
    numbers = np.random.RandomState(seed)
    return [numbers.normal(0.0, numbers.uniform(1.5, 3.0), NUM_VOCAB).astype(np.float32) for _ in range(num)]


@pytest.mark.parametrize(
    "params",
    [
        *(
            SamplingParams(temperature=1.0, mirostat=version, mirostat_tau=tau, mirostat_eta=eta)
            for version in (1, 2)
            for tau, eta in ((5.0, 0.1), (2.0, 0.5), (3.0, 0.9), (0.5, 0.2))
        ),
        *(
            replace(ADAPTIVE, adaptive_target=target, adaptive_decay=decay)
            for target, decay in ((0.5, 0.9), (0.1, 0.5), (0.9, 0.99), (0.0, 0.0))
        ),
    ],
    ids=lambda params: f"{params.mirostat} {params.mirostat_tau} {params.mirostat_eta} {params.adaptive_target}",
)
def test_the_same_draws_lead_the_same_way(params: SamplingParams) -> None:
    ours = feedback(params, NUM_VOCAB)
    assert ours is not None
    states = {ours.state}
    with Chain(params, NUM_VOCAB) as chain:
        for row in rows(150, seed=1):
            theirs, drawn = chain.distribution(row)
            chain.accept(drawn)
            candidates = Candidates(row)
            if not params.mirostat:
                candidates.whole()
                candidates.keep_ids(candidates.ids_above(candidates.top + np.log(params.min_p)))
            ours.prepare(candidates)
            distribution = np.zeros(NUM_VOCAB)
            for token, logprob in candidates.best(NUM_VOCAB):
                distribution[token] = np.exp(logprob)
            np.testing.assert_allclose(distribution, theirs, atol=2e-4)
            ours.learn(candidates, drawn)
            states.add(ours.state)
    assert len(states) > 100


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [2.0, 4.0])
def test_mirostat_keeps_the_surprise_near_tau(version: int, tau: float) -> None:
    params = SamplingParams(temperature=1.0, mirostat=version, mirostat_tau=tau, seed=2)
    request = GenerationRequest((1,), 1, params, num_logprobs=0, post_sampling_logprobs=True)
    sampler = Sampler(request, 5000, frozenset(), no_text)
    row = np.random.RandomState(3).normal(0.0, 2.0, 5000).astype(np.float32)
    picks = [sampler.sample(row.copy(), NO_TOKENS, index) for index in range(1500)]
    surprises = [-pick.logprob / np.log(2.0) for pick in picks[300:] if pick.logprob is not None]
    assert np.mean(surprises) == pytest.approx(tau, abs=0.15)


def test_adaptive_p_keeps_the_average_probability_near_its_target() -> None:
    params = SamplingParams(
        temperature=1.0, adaptive_target=0.4, samplers=(*DEFAULT_SAMPLERS, SamplerKind.ADAPTIVE_P), seed=5
    )
    request = GenerationRequest((1,), 1, params, num_logprobs=0)
    sampler = Sampler(request, 50, frozenset(), no_text)
    row = np.full(50, -9.0, dtype=np.float32)
    row[:5] = np.log([0.5, 0.3, 0.1, 0.06, 0.04])
    logprobs = [sampler.sample(row.copy(), NO_TOKENS, index).logprob for index in range(600)]
    chosen = np.exp([one for one in logprobs if one is not None])
    assert len(chosen) == 600
    assert chosen.mean() == pytest.approx(0.4, abs=0.05)
    plain = Sampler(replace(request, sampling=replace(params, samplers=DEFAULT_SAMPLERS)), 50, frozenset(), no_text)
    counts = {plain.sample(row.copy(), NO_TOKENS, index).token for index in range(600)}
    assert counts >= {0, 1, 2}


@pytest.mark.parametrize("params", [SamplingParams(mirostat=2, seed=1), replace(ADAPTIVE, adaptive_target=0.3)])
def test_asking_again_for_a_token_learns_only_once(params: SamplingParams) -> None:
    """A row that is looked at again, after a failed pass or by a grammar, must not count twice."""
    once, twice = (Sampler(GenerationRequest((1,), 1, params), NUM_VOCAB, frozenset(), no_text) for _ in range(2))
    others = rows(100, seed=9)
    for index, row in enumerate(rows(100, seed=4)):
        twice.sample(others[index].copy(), NO_TOKENS, index)
        assert once.sample(row.copy(), NO_TOKENS, index).token == twice.sample(row.copy(), NO_TOKENS, index).token, (
            index
        )
