"""Keeps one answer within its constraint while tokens are drafted, verified, sampled, and sampled again.

Owns how far the constraint has come. What is allowed is found out by `prepare`, which may run beside a pass; the rest
belongs to the engine's thread. Must not know how tokens are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from worker.engine.constraint import Allowed, Constraint, ConstraintFailed
from worker.engine.sampling_candidates import MAX_LISTED, Candidates


class RuleFollower:
    """The constraint of one answer, at the place that is sampled next."""

    def __init__(self, constraint: Constraint, end_tokens: frozenset[int]) -> None:
        self._constraint = constraint
        self._ends = end_tokens
        self._end_ids = np.array(sorted(end_tokens), dtype=np.int64)
        self._num_taken = 0
        """Tokens of the answer that the constraint has accepted."""
        self._first = 0
        """Index of the token that the first of `_allowed` is about."""
        self._allowed: list[Allowed] = []
        self._problem: ConstraintFailed | None = None

    def prepare(self, index: int, drafts: Sequence[int]) -> None:
        """Find out what may come at `index`, the number of tokens before it, and behind the drafts from there on."""
        try:
            self._go_back(index)
            self._first, self._allowed = index, self._constraint.allowed(drafts)
        except ConstraintFailed as problem:
            self._problem = problem

    def cut(self, candidates: Candidates, index: int) -> None:
        """Leave what may come at `index`. Raises: ConstraintFailed."""
        if self._problem is not None:
            raise self._problem
        if not 0 <= index - self._first < len(self._allowed):
            self.prepare(index, ())
            return self.cut(candidates, index)
        allowed = self._allowed[index - self._first]
        if isinstance(allowed, int):
            candidates.decide(allowed)
        elif allowed is not None:
            self._keep(candidates, allowed)
        return None

    def _keep(self, candidates: Candidates, allowed: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        if np.count_nonzero(allowed) <= MAX_LISTED:
            ids = np.flatnonzero(allowed)
            if not len(ids):
                raise ConstraintFailed("the grammar of this answer leaves no token to go on with")
            candidates.keep_ids(ids)
            is_possible = bool(candidates.logits[0] > -np.inf)
        else:
            candidates.ban(np.flatnonzero(~allowed))
            is_possible = candidates.has_any
        if not is_possible:
            # Every token that may come is banned by another wish, such as `ignore_eos` where only the end may.
            ends = self._end_ids[allowed[self._end_ids]]
            if not len(ends):
                raise ConstraintFailed("the grammar and 'logit_bias' of this answer leave no token to go on with")
            candidates.decide(int(ends[0]))

    def take(self, token: int, index: int) -> bool:
        """The token at `index` is chosen; return whether the answer is over with it. Raises: ConstraintFailed."""
        if token in self._ends:
            return False
        self._go_back(index)
        self._constraint.accept(token)
        self._num_taken += 1
        return self._constraint.is_over

    def forced(self, most: int) -> Sequence[int]:
        """Return tokens that are likely next, at most so many."""
        return () if self._problem is not None else self._constraint.forced(most)

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` may come one after another."""
        return 0 if self._problem is not None else self._constraint.num_allowed(tokens)

    def _go_back(self, index: int) -> None:
        if self._num_taken > index:
            self._constraint.rollback(self._num_taken - index)
            self._num_taken = index
