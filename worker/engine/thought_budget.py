"""A limit of tokens on what a model thinks before it answers: when it is used up, the thought is ended for it.

A `Constraint` around that of the rest of the answer. Pure. Must not know text: tags are bytes of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from worker.engine.constraint import Allowed, Constraint

_SPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class ThoughtBudget:
    """What a request allows."""

    num_tokens: int
    """Of a thought."""
    open: bytes
    """What a thought begins with."""
    close: bytes
    """What it ends with."""
    closing: tuple[int, ...]
    """The tokens that end it when its budget is used up."""
    starts_inside: bool = False
    """The prompt has begun it."""


@dataclass(frozen=True, slots=True)
class _State:
    """Where an answer is."""

    tail: bytes
    """The last bytes, enough to see a tag; all of them while no thought has begun."""
    num_tokens: int | None
    """Of the thought so far; None = there is none now."""
    num_closed: int = 0
    """Of the closing tokens, those that have come in a row."""
    is_past: bool = False
    """The thought is over, or there will be none."""


class BudgetedThoughts:
    """The constraint of one answer. `pieces` tells the bytes of a token; `rest` holds for all of the answer."""

    def __init__(self, budget: ThoughtBudget, pieces: Callable[[int], bytes], rest: Constraint | None = None) -> None:
        self._budget = budget
        self._pieces = pieces
        self._rest = rest
        self._states = [_State(b"", 0 if budget.starts_inside else None)]

    def allowed(self, drafts: Sequence[int]) -> list[Allowed]:
        """Return what may come next and behind each of `drafts`."""
        others: list[Allowed] = [None] * (len(drafts) + 1) if self._rest is None else self._rest.allowed(drafts)
        state, allowed = self._states[-1], []
        for place, other in enumerate(others):
            must = self._must(state, other)
            allowed.append(other if must is None else must)
            if place == len(drafts) or must not in (None, drafts[place]):
                break
            state = self._after(state, drafts[place])
        return allowed

    def accept(self, token: int) -> None:
        """The answer goes on with `token`."""
        if self._rest is not None:
            self._rest.accept(token)
        self._states.append(self._after(self._states[-1], token))

    def rollback(self, num_tokens: int) -> None:
        """The last so many tokens are no part of the answer."""
        if self._rest is not None:
            self._rest.rollback(num_tokens)
        del self._states[len(self._states) - num_tokens :]

    def forced(self, most: int) -> Sequence[int]:
        """Return the tokens that end the thought when its time has come."""
        state = self._states[-1]
        if self._must(state) is not None:
            return self._budget.closing[state.num_closed :][:most]
        return () if self._rest is None else self._rest.forced(most)

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` may come one after another."""
        state, count = self._states[-1], 0
        for token in tokens:
            if self._must(state) not in (None, token):
                break
            state, count = self._after(state, token), count + 1
        return count if self._rest is None else min(count, self._rest.num_allowed(tokens))

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end may come."""
        return self._rest is not None and self._rest.is_over

    def _must(self, state: _State, other: Allowed = None) -> int | None:
        """Return the token that must come, if the thought is to end, and can as far as the `other` rule goes.

        It cannot within a letter that takes several tokens.
        """
        if state.is_past or state.num_tokens is None or state.num_tokens < self._budget.num_tokens:
            return None
        must = self._budget.closing[state.num_closed]
        may_come = other is None or (other == must if isinstance(other, int) else bool(other[must]))
        return must if may_come else None

    def _after(self, state: _State, token: int) -> _State:
        if state.is_past:
            return state
        budget, tail = self._budget, state.tail + self._pieces(token)
        if state.num_tokens is None:
            begun = tail.lstrip(_SPACE)
            if begun.startswith(budget.open):
                return _State(begun[len(budget.open) :], 0)
            return _State(tail, None, is_past=not budget.open.startswith(begun))
        if self._must(state) == token:
            num_closed = state.num_closed + 1
            is_past = num_closed == len(budget.closing)
            return _State(tail[-len(budget.close) :], state.num_tokens, num_closed, is_past)
        if budget.close in tail:
            return _State(b"", None, is_past=True)
        return _State(tail[-len(budget.close) :], state.num_tokens + 1)
