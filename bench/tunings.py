"""llama-server's tunings, and which of them is the best for what. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bench.figures import DEFAULT, TUNED, Contestant, Kind
from bench.scenarios import FIRST, GAP, SPEED, TIME

BATCHES = (32, 64, 128, 256, 512)

SPECULATION = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
"""Its ways to guess without a second model."""

STEADY, PREFIX, LONG, COPY = "steady generation", "common prefix", "long prompt", "copying"

FIGURES: Mapping[str, tuple[str, ...]] = {STEADY: (SPEED,), PREFIX: (TIME,), LONG: (GAP, FIRST), COPY: (SPEED,)}
"""What decides in each family of rows."""

Results = Mapping[str, Mapping[str, float]]
"""Figures by name, by options as they are written on the command line."""


def tunings() -> list[Contestant]:
    """Return all that are screened: the defaults, and small batches without flash attention, with unified KV or not."""
    found = [DEFAULT]
    for size in BATCHES:
        options = ("-fa", "off", "-b", str(size), "-ub", str(size))
        found += [peer(options), peer((*options, "-kvu"))]
    return found


def speculations() -> list[Contestant]:
    """Return every way to guess, with its usual batches: it dies when guesses overrun small ones."""
    return [peer(("-fa", "off", "--spec-type", each)) for each in SPECULATION]


def peer(options: Sequence[str]) -> Contestant:
    """Return llama-server as it is screened, named by its options."""
    return Contestant(" ".join(options), Kind.PEER, tuple(options))


def tuned(options: str) -> Contestant:
    """Return llama-server as the best of a screening takes part in a row."""
    return Contestant(TUNED, Kind.PEER, tuple(options.split()))


def score(family: str, figures: Mapping[str, float]) -> float:
    """Return how good the figures are; more is better.

    Of a long prompt the product counts: half the gap is worth twice the time to the first token.
    """
    if family in (STEADY, COPY):
        return figures[SPEED]
    return -math.prod(figures[name] for name in FIGURES[family])


def choose(family: str, results: Results) -> str:
    """Return the options of the best tuning; the defaults take part in every row anyway.

    Raises: ValueError if none ran.
    """
    candidates = [name for name in results if name != DEFAULT.name and FIGURES[family][0] in results[name]]
    if not candidates:
        raise ValueError(f"no tuning of llama-server ran for: {family}")
    return max(candidates, key=lambda name: score(family, results[name]))


def front(family: str, results: Results) -> list[str]:
    """Return the tunings that no other one beats in every figure of the family."""
    names = FIGURES[family]
    sign = 1.0 if family in (STEADY, COPY) else -1.0
    points = {name: [sign * values[each] for each in names] for name, values in results.items() if names[0] in values}

    def is_beaten(mine: Sequence[float]) -> bool:
        return any(
            all(a >= b for a, b in zip(other, mine, strict=True)) and list(other) != list(mine)
            for other in points.values()
        )

    return [name for name, point in points.items() if not is_beaten(point)]
