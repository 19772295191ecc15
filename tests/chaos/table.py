"""What all faults together have come to: one row for each, printed at the end of a run.

Owns the figures and their form. Must not inject anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

_HEADS = ("fault", "injected", "in flight", "lost", "p50 s", "p99 s")


@dataclass
class Row:
    """One fault."""

    fault: str
    injected: int
    """Times."""
    in_flight: int
    """Requests that ran when it was injected, all times together."""
    lost: int
    """Requests that got no complete, valid answer although their client stayed and was within its limits."""
    recovery_s: list[float] = field(default_factory=list)
    """From each injection to the end of the next normal request of the model."""


class Table:
    """The rows of one run, in the order in which they came."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, row: Row) -> None:
        """`row` is part of the table, whatever the test says of it afterwards."""
        self.rows.append(row)

    def lines(self) -> list[str]:
        """Return the table as text, with aligned columns; nothing where nothing was injected."""
        if not self.rows:
            return []
        cells = [_HEADS, *(_cells(row) for row in self.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADS))]
        return [
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in cells
        ]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest of `values` that at least this share of them does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _cells(row: Row) -> tuple[str, ...]:
    times = ["-", "-"] if not row.recovery_s else [f"{percentile(row.recovery_s, share):.2f}" for share in (0.5, 0.99)]
    return (row.fault, str(row.injected), str(row.in_flight), str(row.lost), *times)
