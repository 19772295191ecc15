"""What a forward pass of so many rows costs, learnt by measuring, and how many rows fit into a time.

The cost is not proportional to the rows: a GPU and some CPU kernels have knees. So the table keeps one moving
average for each power of two and interpolates between them. One pass that something else on the machine has slowed
down must not spoil it: an entry that looks dear is not used, and so would not be measured again. Pure; times are
given. Must not know sequences.
"""

from __future__ import annotations

import itertools

_NUM_BUCKETS = 13
"""Row counts up to 1, 2, 4 ... 4096."""

_WEIGHT = 0.2
"""Of a new measurement in its moving average."""

_OUTLIER = 3.0
"""A pass that takes more than so many times what was expected counts as if it had taken just that."""

_STALE = 50
"""An entry is out of date when its neighbours have been measured so many passes later than itself."""

_STEPS = (*range(4, 64, 4), *range(64, 256, 16), *range(256, 512, 64), 512, 768, 1024, 1536, 2048)
"""Row counts to choose from, not all of them: llama.cpp reuses its graph when a count comes back."""


class CostTable:
    """Seconds of a pass by number of rows."""

    def __init__(self) -> None:
        self._rows = [0.0] * _NUM_BUCKETS
        self._seconds = [0.0] * _NUM_BUCKETS
        self._is_seed = [False] * _NUM_BUCKETS
        self._seen_at = [0] * _NUM_BUCKETS
        self._num_seen = 0

    def seed(self, num_rows: int, seconds: float) -> None:
        """Believe that a pass takes so long until one of about as many rows has been measured."""
        index = _bucket(num_rows)
        if not self._seconds[index] or self._is_seed[index]:
            self._rows[index], self._seconds[index], self._is_seed[index] = num_rows, seconds, True

    def observe(self, num_rows: int, seconds: float) -> None:
        """Take one measured pass into account."""
        if num_rows < 1 or seconds <= 0.0:
            return
        expected = self.estimate(num_rows)
        if expected is not None:
            seconds = min(seconds, _OUTLIER * expected)
        index = _bucket(num_rows)
        weight = _WEIGHT if self._seconds[index] and not self._is_seed[index] else 1.0
        self._is_seed[index] = False
        self._rows[index] += (num_rows - self._rows[index]) * weight
        self._seconds[index] += (seconds - self._seconds[index]) * weight
        self._num_seen += 1
        self._seen_at[index] = self._num_seen
        self._doubt_stale()

    def _doubt_stale(self) -> None:
        """Bring entries down that are dearer than what was measured since on both sides of them tells."""
        known = [index for index, seconds in enumerate(self._seconds) if seconds]
        for before, index, after in zip(known, known[1:], known[2:], strict=False):
            if min(self._seen_at[before], self._seen_at[after]) < self._seen_at[index] + _STALE:
                continue
            sides = [(self._rows[one], self._seconds[one]) for one in (before, after)]
            expected = _interpolate(sides, self._rows[index])
            if expected is not None and self._seconds[index] > expected:
                self._seconds[index] += (expected - self._seconds[index]) * _WEIGHT

    def estimate(self, num_rows: int) -> float | None:
        """Return the expected seconds of a pass of `num_rows`; None as long as nothing was measured.

        Between two measured counts by interpolation; above the largest in proportion to the rows; below the
        smallest the smallest's time.
        """
        return _interpolate(self._known(), num_rows)

    def _known(self) -> list[tuple[float, float]]:
        return [(rows, seconds) for rows, seconds in zip(self._rows, self._seconds, strict=True) if seconds]

    def rows_within(self, seconds: float, *, at_least: int, at_most: int, unknown: int) -> int:
        """Return how many rows a pass may have to stay within `seconds`; `unknown` before any measurement."""
        known = self._known()
        if not known:
            return max(at_least, min(unknown, at_most))
        fitting = at_least
        for step in (*(s for s in _STEPS if s < at_most), at_most):
            cost = _interpolate(known, step)
            if step > fitting and cost is not None and cost <= seconds:
                fitting = step
        return min(fitting, at_most)


def _bucket(num_rows: int) -> int:
    return min((num_rows - 1).bit_length(), _NUM_BUCKETS - 1)


def _interpolate(known: list[tuple[float, float]], num_rows: float) -> float | None:
    """Return the seconds at `num_rows` on the line through `known` (rows, seconds), in order of rows."""
    if not known:
        return None
    if num_rows < known[0][0]:
        return known[0][1]
    for (rows, seconds), (next_rows, next_seconds) in itertools.pairwise(known):
        if num_rows < next_rows:
            return seconds + (next_seconds - seconds) * (num_rows - rows) / (next_rows - rows)
    rows, seconds = known[-1]
    return seconds * num_rows / rows
