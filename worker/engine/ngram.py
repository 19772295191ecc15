"""Drafts from the text itself: what followed the last few tokens the last time they occurred.

Answers that quote their prompt (code, edits, summaries) or repeat themselves are drafted well, and it costs
nothing but a look into a table. Pure; must not know costs or acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from worker.engine.batch import TokenArray

SIZES = (4, 2)
"""Lengths of the n-grams that are looked up, the surer first."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may come next, and how many tokens of context they are drafted from."""

    tokens: TokenArray
    """Shape: (num_drafted,), at least one."""
    size: int


class NgramIndex:
    """Where each n-gram of one sequence last ended. Grows with the sequence."""

    def __init__(self) -> None:
        self._ends: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in SIZES)
        self._num_indexed = 0

    def extend(self, tokens: TokenArray) -> None:
        """Take tokens into account that came since the last call; `tokens` is the whole sequence."""
        if len(tokens) == self._num_indexed:
            return
        for size, ends in zip(SIZES, self._ends, strict=True):
            # Only n-grams that something follows: the last one is what will be looked up.
            first = max(0, self._num_indexed - size)
            recent = tokens[first:].tolist()
            count = max(0, len(recent) - size)
            grams = zip(*(recent[offset : offset + count] for offset in range(size)), strict=True)
            ends.update(zip(grams, range(first + size, first + size + count), strict=True))
        self._num_indexed = len(tokens)

    def draft(self, tokens: TokenArray, max_drafted: int) -> Draft | None:
        """Return what followed the end of `tokens` before; None if that is new. `extend` has seen all of them."""
        if max_drafted < 1:
            return None
        for size, ends in zip(SIZES, self._ends, strict=True):
            if len(tokens) < size:
                continue
            start = ends.get(tuple(tokens[-size:].tolist()))
            if start is not None:
                # Where the text has come round to itself, its period goes on.
                period = len(tokens) - start
                indexes = start + np.arange(max_drafted) % period
                return Draft(tokens[indexes], size)
        return None
