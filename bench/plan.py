"""Which row is measured next, so that the time that there is goes round. Pure.

Rows take turns: each is measured once before any is measured twice. When time runs short pairs are dropped, never rows.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bench.figures import Entry, Figure

T = TypeVar("T")

SURELY_WORSE = {1: 1.5, 2: 1.15}
"""A peer that is so many times worse than the best one, after so many turns or more, is not measured again."""


@dataclass(slots=True)
class Progress:
    """How far a row is."""

    key: str
    max_turns: int
    turn_s: float
    """What one turn takes: guessed at first, then measured."""
    num_done: int = 0


def next_row(rows: Sequence[Progress], left_s: float) -> Progress | None:
    """Return the row that has had the fewest turns and still fits the time; one that had none always fits."""
    open_rows = [row for row in rows if row.num_done < row.max_turns and (not row.num_done or row.turn_s <= left_s)]
    return min(open_rows, key=lambda row: row.num_done, default=None)


def forecast(rows: Sequence[Progress], left_s: float) -> dict[str, int]:
    """Return how many turns each row will have if every turn takes what is expected."""
    copies = [Progress(row.key, row.max_turns, row.turn_s, row.num_done) for row in rows]
    while (row := next_row(copies, left_s)) is not None:
        row.num_done += 1
        left_s -= row.turn_s
    return {row.key: row.num_done for row in copies}


def dropped(rows: Sequence[Progress]) -> dict[str, int]:
    """Return the turns that there was no time for, by row."""
    return {row.key: row.max_turns - row.num_done for row in rows if row.num_done < row.max_turns}


def in_turn(contestants: Sequence[T], turn: int) -> list[T]:
    """Return the order of one turn: forwards, then backwards, so that a drift of the machine harms all alike."""
    return list(contestants if turn % 2 == 0 else reversed(contestants))


def no_longer_needed(name: str, peers: Sequence[Entry], compared: frozenset[str], *, is_joint: bool = False) -> bool:
    """Whether a peer has lost to another so clearly that more runs of it would not change the table.

    `peers` are the figures of those that ours is compared with, `compared` names the figures that have targets. In a
    joint row the product of these decides, elsewhere each.
    """
    mine = _medians(entry for entry in peers if entry.contestant == name and entry.figure.name in compared)
    if not mine:
        return False
    num_turns = len({entry.turn for entry in peers if entry.contestant == name})
    limit = SURELY_WORSE[min(num_turns, max(SURELY_WORSE))]
    rivals = (_medians(e for e in peers if e.contestant == other) for other in {e.contestant for e in peers} - {name})
    factors = [
        [_times_worse(mine[figure], rival[figure]) for figure in mine]
        for rival in rivals
        if mine.keys() <= rival.keys()
    ]
    if is_joint:
        return any(math.prod(each) > limit for each in factors)
    return bool(factors) and all(max(by_rival) > limit for by_rival in zip(*factors, strict=True))


def _medians(entries: Iterable[Entry]) -> dict[str, Figure]:
    """Return the median of each figure by its name."""
    by_name: dict[str, list[Figure]] = {}
    for entry in entries:
        by_name.setdefault(entry.figure.name, []).append(entry.figure)
    return {
        name: dataclasses.replace(figures[0], value=statistics.median(figure.value for figure in figures))
        for name, figures in by_name.items()
    }


def _times_worse(mine: Figure, other: Figure) -> float:
    """Return how many times worse a figure is than another's; below 1 where it is better."""
    good, bad = (other.value, mine.value) if mine.is_more_better else (mine.value, other.value)
    if good == bad:
        return 1.0
    return good / bad if bad else math.inf
