"""Which row is measured next, so that the time that there is goes round. Pure.

Rows take turns: each is measured once before any is measured twice. When time runs short pairs are dropped, never rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bench.figures import OURS, PLAIN, Entry

T = TypeVar("T")

SURELY_WORSE = 1.15
"""A peer that is so many times worse than the best one after two turns is not measured again."""


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


def no_longer_needed(name: str, entries: Sequence[Entry], compared: frozenset[str]) -> bool:
    """Whether a peer has lost so clearly that more runs of it would not change the table.

    `compared` names the figures that have targets. Ours are always needed.
    """
    if name in (OURS.name, PLAIN.name):
        return False
    values: dict[str, dict[str, list[float]]] = {}
    more: dict[str, bool] = {}
    for entry in entries:
        if entry.figure.name in compared and entry.contestant not in (OURS.name, PLAIN.name):
            values.setdefault(entry.figure.name, {}).setdefault(entry.contestant, []).append(entry.figure.value)
            more[entry.figure.name] = entry.figure.is_more_better
    if not values:
        return False
    return all(_has_lost(name, by_name, is_more_better=more[figure]) for figure, by_name in values.items())


def _has_lost(name: str, values: Mapping[str, Sequence[float]], *, is_more_better: bool) -> bool:
    if len(values.get(name, ())) < 2:
        return False
    mine = statistics.median(values[name])
    others = [statistics.median(each) for other, each in values.items() if other != name and len(each) >= 2]
    if not others:
        return False
    return max(others) > SURELY_WORSE * mine if is_more_better else min(others) * SURELY_WORSE < mine
