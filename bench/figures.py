"""The words of the bench: what is measured, on which contestant, and what it must reach. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number."""

    name: str
    value: float
    unit: str
    is_more_better: bool


class Kind(StrEnum):
    """Which program a contestant is."""

    OURS = "corral"
    PEER = "llama-server"
    PYTHON = "llama-cpp-python's example server"


@dataclass(frozen=True, slots=True)
class Contestant:
    """A program with options, as it takes part in one row."""

    name: str
    kind: Kind
    options: tuple[str, ...] = ()
    """Of the command line."""
    keys: Mapping[str, object] = field(default_factory=dict)
    """Of models.yaml, for ours."""


OURS = Contestant("ours", Kind.OURS)
PLAIN = Contestant("ours, no speculation", Kind.OURS, keys={"draft_max": 0})
DEFAULT = Contestant("default", Kind.PEER)
PYTHON = Contestant("python", Kind.PYTHON)
TUNED = "tuned"
"""Name of llama-server with the options that the screening chose."""

BEST = "best"
"""In a target: the better of all llama-servers of the row."""
ITSELF = ""
"""In a target: the figure is a ratio already."""


@dataclass(frozen=True, slots=True)
class Target:
    """What our figure, divided by another one's, must reach: at least it where more is better, at most it elsewhere.

    Without a bound there is only something to aim for.
    """

    figure: str
    bound: float | None
    against: str = BEST
    aim: float | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One figure of one run, as it stands in the raw file."""

    row: str
    contestant: str
    turn: int
    figure: Figure
