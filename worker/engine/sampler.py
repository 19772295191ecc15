"""Picks a token from one row of logits: biases, a chain of samplers, then a seeded draw; and how likely it was.

Owns the order of these and the log-probabilities. Must not know sequences, nor what a constraint is about.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from worker.engine.batch import TokenArray
from worker.engine.request import GenerationRequest, Pick, SamplerKind
from worker.engine.rule_follower import RuleFollower
from worker.engine.sampling_candidates import Candidates, Row
from worker.engine.sampling_chance import uniform
from worker.engine.sampling_feedback import State, feedback
from worker.engine.sampling_infill import Infill
from worker.engine.sampling_steps import chain, temperature_step

IMPOSSIBLE = -9999.0
"""The log-probability of what cannot be: JSON has no infinity. OpenAI's number."""


class Sampler:
    """One request's way of choosing.

    The draw depends on (seed, choice, token index) alone. Only Mirostat and adaptive-p remember more, and they
    learn once for each index: to ask again for the last index replaces what was picked before. `pieces` tells the bytes
    of a token.
    """

    def __init__(
        self,
        request: GenerationRequest,
        num_vocab: int,
        end_tokens: frozenset[int],
        pieces: Callable[[int], bytes],
    ) -> None:
        params = self.params = request.sampling
        biases = dict(params.logit_bias)
        if params.ignore_eos:
            biases.update(dict.fromkeys(sorted(end_tokens), -math.inf))
        self._min_tokens = request.min_tokens
        self._end_ids = np.array(sorted(end_tokens), dtype=np.int64)
        self._bias_ids = np.array(list(biases), dtype=np.int64)
        self._bias = np.array(list(biases.values()), dtype=np.float32)
        infill = None
        if SamplerKind.INFILL in params.samplers:
            may_end = not params.ignore_eos and request.constraint is None  # which says itself where it may
            infill = Infill(end_tokens, pieces, first_end=request.min_tokens, may_end=may_end)
        self._steps = temperature_step(params) if params.mirostat in (1, 2) else chain(params, infill)
        self._feedback = feedback(params, num_vocab)
        self._before: tuple[int, State] = (-1, ())
        earlier = request.earlier
        if self._feedback is not None and earlier is not None and earlier.sampler_state:
            self._feedback.state = earlier.sampler_state
        self._rule = None
        if request.constraint is not None:
            self._rule = RuleFollower(request.constraint, end_tokens, () if earlier is None else earlier.tokens)
        self._num_logprobs = request.num_logprobs
        self._is_post_sampling = request.post_sampling_logprobs

    @property
    def rule(self) -> RuleFollower | None:
        """What the answer is held to, if anything."""
        return self._rule

    @property
    def state(self) -> State:
        """What it remembers of the tokens that it has picked; () if that is nothing."""
        return () if self._feedback is None else self._feedback.state

    def sample(self, row: Row, tokens: TokenArray, index: int) -> Pick:
        """Return the token to append.

        Shapes: row (num_vocab,), tokens (num_tokens,) = prompt and answer so far. Mutates: row.
        `index` is the number of tokens generated before this one.
        """
        with np.errstate(all="ignore"):  # logits that are infinite or no numbers are not worth a warning
            return self._sample(row, tokens, index)

    def _sample(self, row: Row, tokens: TokenArray, index: int) -> Pick:
        original = None
        if self._num_logprobs is not None and not self._is_post_sampling:
            original = Candidates(row.copy())
        if len(self._bias_ids):
            row[self._bias_ids] += self._bias
        if index < self._min_tokens:
            row[self._end_ids] = -np.inf
        candidates = Candidates(row)
        if self._rule is not None:
            self._rule.cut(candidates, index)
        for step in self._steps:
            step(candidates, tokens, index)
        token = self._draw(candidates, index)
        is_last = self._rule is not None and self._rule.take(token, index)
        if self._num_logprobs is None:
            return Pick(token, is_last=is_last)
        return _with_logprobs(original or candidates, token, self._num_logprobs, is_last=is_last)

    def _draw(self, candidates: Candidates, index: int) -> int:
        if self._feedback is None:
            return self._pick(candidates, index)
        if self._before[0] == index:
            self._feedback.state = self._before[1]
        self._before = (index, self._feedback.state)
        self._feedback.prepare(candidates)
        token = self._pick(candidates, index)
        self._feedback.learn(candidates, token)
        return token

    def _pick(self, candidates: Candidates, index: int) -> int:
        if candidates.is_decided:
            return int(candidates.ids[0])
        return candidates.pick(uniform(self.params.seed, self.params.choice, index))


def _with_logprobs(candidates: Candidates, token: int, count: int, *, is_last: bool) -> Pick:
    top = tuple((one, _as_number(logprob)) for one, logprob in candidates.best(count))
    return Pick(token, _as_number(candidates.logprob(token)), top, is_last)


def _as_number(logprob: float) -> float:
    return min(logprob, 0.0) if logprob > IMPOSSIBLE else IMPOSSIBLE  # also where it is no number
