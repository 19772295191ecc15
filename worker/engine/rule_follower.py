"""Keeps one answer within its constraint while tokens are drafted, verified, sampled, and sampled again.

Owns how far the constraint has come. `prepare` and `look_ahead` find out what is allowed and may run beside a pass; the
rest belongs to the engine's thread. Must not know how tokens are chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import numpy as np

from worker.engine.constraint import Allowed, Constraint, ConstraintFailed, MakeConstraint
from worker.engine.sampling_candidates import MAX_LISTED, Candidates

P = ParamSpec("P")
T = TypeVar("T")


class RuleFollower:
    """The constraint of one answer, at the place that is sampled next; `make` is called when it is needed first."""

    def __init__(self, make: MakeConstraint, end_tokens: frozenset[int], earlier: Sequence[int] = ()) -> None:
        """`earlier`: what there is of the answer already."""
        self._make = make
        self._earlier = earlier
        self._made: Constraint | None = None
        self._ends = end_tokens
        self._end_ids = np.array(sorted(end_tokens), dtype=np.int64)
        self._num_taken = 0
        """Tokens of the answer that the constraint has accepted."""
        self._first = 0
        """Index of the token that the first of `_allowed` is about."""
        self._allowed: list[Allowed] = []
        self._forced: Sequence[int] = ()
        self._problem: ConstraintFailed | None = None

    def prepare(self, index: int, drafts: Sequence[int]) -> None:
        """Find out what may come at `index`, the number of tokens before it, and behind the drafts from there on."""
        self._first, self._allowed = index, []
        try:
            self._go_back(index)
            self._allowed = self._do(self._constraint.allowed, self._before_end(drafts))
        except ConstraintFailed:
            pass  # `cut` tells: there may be no need for what lies behind

    def cut(self, candidates: Candidates, index: int) -> None:
        """Leave what may come at `index`. Raises: ConstraintFailed."""
        if not 0 <= index - self._first < len(self._allowed):
            self.prepare(index, ())
        if self._problem is not None:
            raise self._problem
        allowed = self._allowed[index - self._first]
        if isinstance(allowed, int):
            candidates.decide(allowed)
        elif allowed is not None:
            self._keep(candidates, allowed)

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
        self._forced = ()
        constraint = self._constraint
        self._do(constraint.accept, token)
        self._num_taken += 1
        return self._do(lambda: constraint.is_over)

    def look_ahead(self, most: int) -> None:
        """Find out which tokens are likely next because little else may come, at most so many."""
        try:
            self._forced = self._do(self._constraint.forced, most)
        except ConstraintFailed:
            self._forced = ()

    def forced(self, most: int) -> Sequence[int]:
        """Return what `look_ahead` has found, at most so many."""
        return self._forced[:most]

    def give_up(self) -> None:
        """The answer ends: to go on takes too long. Whatever is still under way for it is of no use."""
        self._problem = ConstraintFailed("it takes too long to find out what may come next; ask for a simpler form")

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` may come one after another."""
        try:
            return self._do(self._constraint.num_allowed, tokens)
        except ConstraintFailed:
            return 0

    @property
    def _constraint(self) -> Constraint:
        if self._made is None:
            self._made = self._do(self._make_at_place)
        return self._made

    def _make_at_place(self) -> Constraint:
        constraint = self._make()
        for token in self._earlier:
            constraint.accept(token)
        self._num_taken = len(self._earlier)
        return constraint

    def _do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do a part of the constraint's work. Raises: ConstraintFailed, from the first failure on for ever."""
        if self._problem is not None:
            raise self._problem
        try:
            return work(*args, **kwargs)
        except ConstraintFailed as problem:
            self._problem = self._problem or problem
            raise
        except Exception as fault:
            failure = ConstraintFailed(f"what it is held to could not be followed ({type(fault).__name__})")
            self._problem = self._problem or failure
            raise failure from fault

    def _before_end(self, drafts: Sequence[int]) -> Sequence[int]:
        """Return the drafts up to the first end token: behind it nothing can come."""
        ends = (place for place, draft in enumerate(drafts) if draft in self._ends)
        return drafts[: next(ends, len(drafts))]

    def _go_back(self, index: int) -> None:
        if self._num_taken > index:
            self._do(self._constraint.rollback, self._num_taken - index)
            self._num_taken = index
