"""What was measured of one request, and what many of them say together.

Pure arithmetic. What could not be measured is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from router.cli.formats import latency, rate


@dataclass(frozen=True, slots=True)
class Shot:
    """One request from its sending to its end. Units: seconds, tokens."""

    ttft_s: float | None = None
    """Until the first text; None = none came."""
    gaps_s: tuple[float, ...] = ()
    """Between one piece of text and the next."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the prompt: those that the server did not have to compute."""
    generated_tokens: int | None = None
    failure: str | None = None
    """Why it failed; None = it did not."""

    @property
    def tokens_per_second(self) -> float | None:
        """Of this answer, from its first token on."""
        if self.generated_tokens is None or self.generated_tokens < 2 or not sum(self.gaps_s):
            return None
        return (self.generated_tokens - 1) / sum(self.gaps_s)


@dataclass(frozen=True, slots=True)
class Level:
    """All requests that were made with so many at the same time."""

    concurrency: int
    shots: Sequence[Shot]
    wall_s: float

    @property
    def good(self) -> list[Shot]:
        """The requests that were answered."""
        return [shot for shot in self.shots if shot.failure is None]

    @property
    def failures(self) -> Mapping[str, int]:
        """How many requests failed, by reason."""
        return Counter(shot.failure for shot in self.shots if shot.failure is not None)

    @property
    def total_per_second(self) -> float | None:
        """Tokens that all streams together made in a second."""
        tokens = [shot.generated_tokens for shot in self.good if shot.generated_tokens is not None]
        return sum(tokens) / self.wall_s if tokens and self.wall_s > 0 else None

    def ttft_s(self, share: float) -> float | None:
        """Return the time to the first token that so large a share of the requests did not exceed."""
        return quantile([shot.ttft_s for shot in self.good if shot.ttft_s is not None], share)

    def gap_s(self, share: float) -> float | None:
        """Return the same of the time between two pieces of text, over all requests."""
        return quantile([gap for shot in self.good for gap in shot.gaps_s], share)

    def stream_per_second(self) -> float | None:
        """Return the tokens in a second of the stream in the middle."""
        return quantile([speed for shot in self.good if (speed := shot.tokens_per_second) is not None], 0.5)

    def cached_share(self) -> float | None:
        """Return how much of the prompts the server had in its cache."""
        known = [
            (shot.prompt_tokens, shot.cached_tokens)
            for shot in self.good
            if shot.prompt_tokens is not None and shot.cached_tokens is not None
        ]
        total = sum(prompt for prompt, _ in known)
        return sum(cached for _, cached in known) / total if total else None

    def to_json(self) -> dict[str, Any]:
        """Return all figures."""
        return {
            "concurrency": self.concurrency,
            "requests": len(self.shots),
            "errors": len(self.shots) - len(self.good),
            "wall_s": round(self.wall_s, 3),
            "ttft_s": {"p50": _rounded(self.ttft_s(0.5)), "p95": _rounded(self.ttft_s(0.95))},
            "gap_s": {"p50": _rounded(self.gap_s(0.5)), "p95": _rounded(self.gap_s(0.95))},
            "tokens_per_second": {
                "stream": _rounded(self.stream_per_second()),
                "total": _rounded(self.total_per_second),
            },
            "cached_share": _rounded(self.cached_share()),
            "failures": dict(self.failures),
        }


COLUMNS = (
    "AT ONCE",
    "REQUESTS",
    "FIRST p50",
    "FIRST p95",
    "GAP p50",
    "GAP p95",
    "TOKENS/S EACH",
    "TOKENS/S ALL",
    "ERRORS",
)
DROPPABLE = ("REQUESTS", "GAP p95", "FIRST p95", "GAP p50", "TOKENS/S EACH")


def row_of(level: Level) -> tuple[str | None, ...]:
    """Return the row of a level."""
    return (
        str(level.concurrency),
        str(len(level.shots)),
        latency(level.ttft_s(0.5)),
        latency(level.ttft_s(0.95)),
        latency(level.gap_s(0.5)),
        latency(level.gap_s(0.95)),
        rate(level.stream_per_second()),
        rate(level.total_per_second),
        str(len(level.shots) - len(level.good)),
    )


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the value that `share` of all values do not exceed, between two of them by proportion; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def sweep(num_places: int) -> list[int]:
    """Return 1, 2, 4 and so on up to twice as many requests at once as there are places for."""
    levels = [1]
    while levels[-1] * 2 <= 2 * num_places:
        levels.append(levels[-1] * 2)
    if levels[-1] < 2 * num_places:
        levels.append(2 * num_places)
    return levels


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)
