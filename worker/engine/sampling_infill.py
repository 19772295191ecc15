"""The sampler for filling in the middle: tokens that begin alike count as one, and an end is taken where it is likely.

Its meaning is llama.cpp's, for editors that ask for it behind top-k and top-p. Must not draw the token itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from worker.engine.batch import TokenArray
from worker.engine.sampling_candidates import Candidates, Logits

MAX_COMPARED = 256
"""Of more tokens, which editors never leave, the best are taken."""
_LEAST_SHARE = 0.2


class Infill:
    """One request's step. `pieces` tells the bytes of a token; control tokens have none."""

    def __init__(
        self, end_tokens: Collection[int], pieces: Callable[[int], bytes], *, first_end: int = 0, may_end: bool = True
    ) -> None:
        self._ends = np.array(sorted(end_tokens), dtype=np.int64)
        self._pieces = pieces
        self._first_end = first_end
        """No end is picked before so many tokens of the answer."""
        self._may_end = may_end and len(self._ends) > 0

    def __call__(self, candidates: Candidates, tokens: TokenArray, index: int) -> None:
        """Leave what may come next; the end alone where nothing else is likely enough."""
        size = candidates.size
        candidates.keep_largest(MAX_COMPARED)
        if candidates.whole() is not None:  # a vocabulary as small as that
            candidates.keep_ordered(candidates.ids_of_largest(MAX_COMPARED), size=size)
        is_end = np.isin(candidates.ids, self._ends)
        shares: Logits = candidates.weights() / candidates.weights().sum(dtype=np.float64)
        end_share = float(shares[is_end].sum())
        if 3 * end_share * size > float(shares[~is_end].sum()):
            candidates.keep(is_end)
            return
        is_left = self._merge(candidates, shares) & (is_end | (shares >= _LEAST_SHARE))
        num_texts = int(np.count_nonzero(is_left & ~is_end))
        if num_texts == 0:
            self._end(candidates, index)
            return
        least = float(shares[is_left].sum()) / (num_texts + 1)
        candidates.keep(is_left & (is_end | (shares >= least)))

    def _merge(self, candidates: Candidates, shares: Logits) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return who is left when tokens join the likelier one of two that begin alike. Mutates: `shares`."""
        pieces = [self._pieces(int(token)) for token in candidates.ids]
        is_left = np.ones(len(pieces), dtype=np.bool_)
        for first, longer in _extensions(pieces):
            for second in longer:
                if not is_left[first]:
                    break
                if second == first or not is_left[second]:
                    continue
                kept, joined = (second, first) if shares[second] > shares[first] else (first, second)
                shares[kept] += shares[joined]
                shares[joined] = 0.0
                is_left[joined] = False
        return is_left

    def _end(self, candidates: Candidates, index: int) -> None:
        if self._may_end and index >= self._first_end:
            candidates.decide(int(self._ends[0]))
        else:
            candidates.keep_largest(1)


def _extensions(pieces: Sequence[bytes]) -> Iterator[tuple[int, list[int]]]:
    """Yield each piece that is not empty, in order, with all that begin with it, in order.

    Sorted they stand behind it, so that not every piece is compared with every other one.
    """
    ranked = sorted(range(len(pieces)), key=pieces.__getitem__)
    ordered = [pieces[place] for place in ranked]
    for place, piece in enumerate(pieces):
        if piece:
            start = end = bisect_left(ordered, piece)
            while end < len(ordered) and ordered[end].startswith(piece):
                end += 1
            yield place, sorted(ranked[start:end])
