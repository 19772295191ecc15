"""The tokens that may still be picked, and their logits: the whole row at first, a few tokens after a cut.

Exact, but never sorts the row: the largest logit of each group of tokens tells where to look. A cut that leaves
many tokens bans the others in the row; one that leaves few makes a short list, best first, ties by id. Must not
know what a sampler is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float64]

MAX_LISTED = 4096
"""Longer lists cost more to sort than a ban in the row costs."""
_GROUP = 128
_NO_IDS = np.empty(0, dtype=np.int64)


class Candidates:
    """Logits of one choice under way. Mutates the row that it is made of, and is of no use after `pick`."""

    def __init__(self, row: Row) -> None:
        self.size = len(row)
        """How many tokens llama.cpp would count: those that its samplers only ban are among them."""
        self.ids = _NO_IDS
        self.logits: Logits = np.empty(0)
        """Of the listed tokens, largest first."""
        self._row: Row | None = row
        self._peaks: Row | None = None
        self._top_of_row = np.float32(0.0)
        self._weights: Row | Logits | None = None
        self._log_total: float | None = None

    def whole(self) -> Row | None:
        """Return the row with its finite largest logit, or None if the tokens are listed."""
        if self._row is not None and self._peaks is None:
            self._survey(self._row)
        return self._row

    @property
    def top(self) -> float:
        """The largest logit."""
        return float(self._top_of_row) if self.whole() is not None else float(self.logits[0])

    def weights(self) -> Row | Logits:
        """Return exp(logit - top) of each token of the row, or of the list."""
        if self._weights is None:
            row = self.whole()
            if row is None:
                self._weights = np.exp(self.logits - self.logits[0])
            else:
                weights = np.subtract(row, self._top_of_row)
                self._weights = np.exp(weights, out=weights)
        return self._weights

    @property
    def log_total(self) -> float:
        """Logarithm of the sum of all weights: -log of the best token's probability."""
        if self._log_total is None:
            self._log_total = math.log(float(self.weights().sum()))
        return self._log_total

    # --- cuts ---------------------------------------------------------------------------------------------

    def ids_above(self, threshold: float) -> Ids:
        """Return the tokens of the row whose logit is at least `threshold`, in order."""
        row, peaks = self._row, self._peaks
        assert row is not None
        assert peaks is not None
        if threshold == -math.inf:
            return np.flatnonzero(row > threshold)
        groups = (peaks >= threshold).nonzero()[0]
        if peaks is row or len(groups) * 8 > len(peaks):
            return (row >= threshold).nonzero()[0]
        num_groups = len(row) // _GROUP
        num_whole = int(groups.searchsorted(num_groups))
        rest, groups = groups[num_whole:], groups[:num_whole]
        looked_at = row[: num_groups * _GROUP].reshape(_GROUP, num_groups).take(groups, axis=1)
        lines, columns = (looked_at >= threshold).nonzero()
        ids: Ids = lines * num_groups + groups[columns]  # in order, as groups are neighbours
        return np.concatenate([ids, rest + num_groups * (_GROUP - 1)]) if len(rest) else ids

    def ids_of_largest(self, count: int) -> Ids:
        """Return the tokens of the `count` largest logits of the row, best first; of equals the first; none banned."""
        row, peaks = self._row, self._peaks
        assert row is not None
        assert peaks is not None
        values = peaks if count <= len(peaks) else row
        # So many groups have a logit that large, and so at least so many tokens.
        ids = self.ids_above(float(_nth_largest(values, min(count, len(values)))))
        logits = row[ids]
        if len(ids) > MAX_LISTED and len(ids) > count:
            last = _nth_largest(logits, count)
            above, equal = ids[logits > last], ids[logits == last]
            ids = np.concatenate([above, equal[: count - len(above)]])
            ids.sort()
            logits = row[ids]
        order = (-logits).argsort(kind="stable")
        return ids[order[:count]]

    def keep_ids(self, ids: Ids, *, size: int | None = None) -> None:
        """Keep only these tokens of the row; `ids` are in order, and not empty."""
        row = self._row
        assert row is not None
        if len(ids) <= MAX_LISTED:
            ids = ids[(-row[ids]).argsort(kind="stable")]
        self.keep_ordered(ids, size=size)

    def keep_ordered(self, ids: Ids, *, size: int | None = None) -> None:
        """Keep only these tokens of the row; `ids` stand best first, those of equals in order."""
        row = self._row
        assert row is not None
        logits = row[ids]
        if len(ids) > MAX_LISTED:
            row.fill(-np.inf)
            row[ids] = logits
        else:
            self._row, self.ids, self.logits = None, ids, logits.astype(np.float64)
        self._forget(len(ids) if size is None else size)

    def keep(self, where: slice | npt.NDArray[np.intp] | npt.NDArray[np.bool_], *, size: int | None = None) -> None:
        """Keep only these places of the list; they are in order, and not empty."""
        self.ids, self.logits = self.ids[where], self.logits[where]
        self._forget(len(self.ids) if size is None else size)

    def keep_largest(self, count: int) -> None:
        """Keep the `count` best tokens, at least one, or what there is."""
        row = self.whole()
        size = min(count, self.size)
        if row is None:
            self.keep(slice(count), size=size)
        elif size < self.size:
            self.keep_ordered(self.ids_of_largest(size), size=size)

    def keep_best(self) -> None:
        """Keep the best token alone, banning the others."""
        row = self._row
        if row is None:
            self.keep(slice(1), size=self.size)
            return
        best = int(row.argmax())
        if not np.isfinite(row[best]):
            self._survey(row)
            return
        self._row, self.ids, self.logits = None, np.array([best]), np.array([float(row[best])])
        self._forget(self.size)

    @property
    def has_any(self) -> bool:
        """Whether a token of the row can be picked."""
        return self._row is None or bool(self._row.max() > -np.inf)

    def ban(self, ids: Ids) -> None:
        """Take these tokens out of the row; others must be left."""
        row = self._row
        assert row is not None
        row[ids] = -np.inf
        self._forget(self.size - len(ids))

    def decide(self, token: int) -> None:
        """Leave this token alone, whether it is among them or not."""
        self._row, self.ids, self.logits = None, np.array([token]), np.ones(1)
        self._forget(1)

    # --- changes of logits --------------------------------------------------------------------------------

    def find(self, ids: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return which of `ids`, in order and each once, are left, and their places in `values`."""
        if self._row is not None:
            return ids, ids
        left, places, _ = np.intersect1d(self.ids, ids, assume_unique=True, return_indices=True)
        return left, places

    @property
    def values(self) -> Row | Logits:
        """The logits, to change in place: the whole row or those of the list. Then call `changed`."""
        return self.logits if self._row is None else self._row

    def changed(self) -> None:
        """Restore the order after logits have changed."""
        if self._row is None:
            order = np.lexsort((self.ids, -self.logits))
            ids, logits = self.ids[order], self.logits[order]
            num_possible = max(1, int(np.count_nonzero(logits > -np.inf)))
            self.ids, self.logits = ids[:num_possible], logits[:num_possible]
        self._forget(self.size)

    def divide(self, temperature: float) -> None:
        """Divide all logits by `temperature`, which is greater than 0."""
        row = self.whole()
        if row is not None and temperature < 1e-3:
            # What is further below has no weight left in 32 bits, and the quotients could be too large for them.
            self.keep_ids(self.ids_above(self.top - 110.0 * temperature), size=self.size)
            row = self._row
        if row is None:
            self.logits = self.logits / temperature
        else:
            np.divide(row, np.float32(temperature), out=row)
        self._forget(self.size)

    # --- the end ------------------------------------------------------------------------------------------

    @property
    def is_decided(self) -> bool:
        """Whether a single token is left."""
        return self.whole() is None and len(self.ids) == 1

    def pick(self, number: float) -> int:
        """Return the token at `number`, in [0, 1), of the line on which each is as long as it is likely."""
        if self.whole() is None:
            return int(self.ids[_place(self.weights(), number)])
        weights = self.weights()
        num_blocks = len(weights) // 256
        if num_blocks < 8:
            return _place(weights, number)
        whole = num_blocks * 256
        sums = np.append(weights[:whole].reshape(num_blocks, 256).sum(axis=1), weights[whole:].sum())
        lengths = np.cumsum(sums, dtype=np.float64)
        target = number * lengths[-1]
        block = min(int(np.searchsorted(lengths, target, side="right")), int(np.flatnonzero(sums)[-1]))
        within = weights[block * 256 : (block + 1) * 256]
        before = float(lengths[block - 1]) if block else 0.0
        return block * 256 + _place(within, (target - before) / float(sums[block]))

    def logprob(self, token: int) -> float:
        """Return the logarithm of the token's probability; -inf if it cannot be picked."""
        row = self.whole()
        if row is not None:
            return float(row[token]) - self.top - self.log_total
        places = np.flatnonzero(self.ids == token)
        return float(self.logits[places[0]]) - self.top - self.log_total if len(places) else -math.inf

    def best(self, count: int) -> list[tuple[int, float]]:
        """Return the `count` most likely tokens with the logarithms of their probabilities, best first."""
        if count <= 0:
            return []
        row = self.whole()
        ids, logits = self.ids[:count], self.logits[:count]
        if row is not None:
            ids = self.ids_of_largest(count)
            logits = row[ids].astype(np.float64)
        return list(zip(ids.tolist(), (logits - self.top - self.log_total).tolist(), strict=True))

    # --- inside -------------------------------------------------------------------------------------------

    def _survey(self, row: Row) -> None:
        """Find the largest logit of each group: token i belongs to the group i modulo the number of groups."""
        num_groups = len(row) // _GROUP
        if num_groups < _GROUP:
            peaks = row
        else:
            whole = num_groups * _GROUP
            peaks = np.concatenate([row[:whole].reshape(_GROUP, num_groups).max(axis=0), row[whole:]])
        top = peaks.max()
        if np.isfinite(top):
            self._peaks, self._top_of_row = peaks, top
            return
        # All logits are -inf, or one is NaN or too large: there must be an answer all the same.
        best = int(np.nan_to_num(row, nan=-np.inf, posinf=np.inf).argmax())
        self._row, self.ids, self.logits = None, np.array([best]), np.zeros(1)
        self._forget(1)

    def _forget(self, size: int) -> None:
        self.size = size
        self._peaks = self._weights = self._log_total = None


def _nth_largest(values: Row, count: int) -> np.float32:
    place = len(values) - count
    values = values.copy()
    values.partition(place)
    return np.float32(values[place])


def _place(weights: Row | Logits, number: float) -> int:
    """Return the place that covers `number`, in [0, 1), of the whole length."""
    ends: Logits = weights.cumsum(dtype=np.float64)
    place = int(ends.searchsorted(number * ends[-1], side="right"))
    # Rounding can lead beyond the last token that has any weight.
    return place if place < len(weights) and weights[place] else int(np.flatnonzero(weights)[-1])
