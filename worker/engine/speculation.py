"""How many drafted tokens each generating sequence takes into a pass, so that drafting pays or costs nothing.

A pass with more rows takes longer; what the rows bring depends on how often the drafts turn out right. Both are
measured: the first by the cost table, the second by comparing drafts with what was then sampled, whether they
were in the pass or not. Pure. Must not know where drafts come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.engine.cost import CostTable

MIN_GAIN = 1.04
"""Tokens per second with drafts over those without that make drafts worth it: both sides are estimates."""

_DECAY = 0.93
"""Of what an older comparison counts against a newer one."""

_PRIOR_RIGHT, _PRIOR_ALL = 0.4, 1.0
"""What a sequence without any comparison is believed to do."""


class Acceptance:
    """How often drafts of one kind turn out right, newer ones counting more."""

    def __init__(self) -> None:
        self._right = 0.0
        self._all = 0.0

    def observe(self, *, is_right: bool) -> None:
        """Take one comparison into account."""
        self._right = self._right * _DECAY + is_right
        self._all = self._all * _DECAY + 1.0

    @property
    def rate(self) -> float:
        """Share of right drafts, between 0 and 1."""
        return (self._right + _PRIOR_RIGHT) / (self._all + _PRIOR_ALL)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence that could take drafts into the pass."""

    rate: float
    """Probability that a draft is right, given that those before it are."""
    max_drafted: int


def draft_lengths(
    candidates: Sequence[Candidate],
    costs: CostTable,
    *,
    num_rows: int,
    max_drafted: int,
    max_seconds: float,
    num_tokens: float | None = None,
    seconds_per_draft: float = 0.0,
) -> list[int]:
    """Return how many drafts each candidate takes into a pass of `num_rows` other rows: the fastest choice.

    At most `max_drafted` in all, and a pass of at most `max_seconds`. `num_tokens` is what the other rows are
    expected to bring: one token each unless drafts are among them. `seconds_per_draft` is what making one costs.
    """
    lengths = [0] * len(candidates)
    plain_s = costs.estimate(num_rows)
    if plain_s is None:
        return lengths
    # A sequence's next draft is worth less than the one before, so that the best set is a prefix of this order.
    gains = sorted(
        (
            (candidate.rate ** (position + 1), -position, index)
            for index, candidate in enumerate(candidates)
            for position in range(min(candidate.max_drafted, max_drafted))
        ),
        reverse=True,
    )
    expected = float(num_rows) if num_tokens is None else num_tokens
    best, num_best = MIN_GAIN * expected / plain_s, 0
    for count, (gain, _, _) in enumerate(gains[:max_drafted], start=1):
        expected += gain
        seconds = costs.estimate(num_rows + count) or plain_s
        if seconds > max(max_seconds, plain_s):
            break
        speed = expected / (seconds + count * seconds_per_draft)
        if speed > best:
            best, num_best = speed, count
    for _, _, index in gains[:num_best]:
        lengths[index] += 1
    return lengths
