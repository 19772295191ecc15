"""The form of a panel, and the queries that many of them are made of.

Owns no panel (`requests_rows.py` and `machine_rows.py` do). Must not know Grafana's JSON (`make_dashboard.py` does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ON = 'instance=~"$instance", model=~"$model"'
SERVER = 'instance=~"$instance"'
RATE = "[$__rate_interval]"
GREEN, YELLOW, ORANGE, RED, BLUE, PURPLE, GREY = "green", "yellow", "orange", "red", "blue", "purple", "#808080"


@dataclass(frozen=True)
class Target:
    """One query, and how its series are called."""

    expr: str
    legend: str = "{{model}}"


@dataclass(frozen=True)
class Panel:
    """One picture."""

    title: str
    description: str
    targets: Sequence[Target]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    thresholds: Sequence[tuple[float, str]] = ()
    words: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """What is shown in place of values, and in which colour."""
    color: str = BLUE
    colors: Mapping[str, str] = field(default_factory=dict)
    """Of series whose names are known."""
    no_value: str = "unknown"
    is_stacked: bool = False
    is_bars: bool = False
    has_exemplars: bool = False
    """Single requests are shown as dots, with the id that the log has too."""
    is_now: bool = False
    """Of a single figure: only what it is now, without its past."""


def quantiles(
    metric: str, by: str = "model", on: str = ON, steps: Sequence[int] = (50, 90), *, is_of_all: bool = False
) -> list[Target]:
    """Return the quantiles of what a histogram was given lately; `is_of_all`: since the server's start."""
    series = f"{metric}_bucket{{{on}}}" if is_of_all else f"rate({metric}_bucket{{{on}}}{RATE})"
    return [
        Target(
            f"histogram_quantile({step / 100}, sum by ({by}, le) ({series}))",
            f"{{{{{by}}}}} p{step}",
        )
        for step in steps
    ]


def rate(metric: str, by: str = "model", on: str = ON) -> str:
    """Return the growth of a counter in a second."""
    return f"sum by ({by}) (rate({metric}{{{on}}}{RATE}))"


def events(metric: str, by: str, on: str = ON) -> str:
    """Return how often something has happened since the last point of the picture: each event once, the first too.

    `increase` passes over the first one, because there was no counter before it. A counter that is smaller than it was
    has started again. What was not scraped before at all tells nothing of when it happened.
    """
    series = f"{metric}{{{on}}}"
    was_scraped = f'up{{job="corral", {SERVER}}} offset $__interval'
    return f"sum by ({by}) (({series} - {series} offset $__interval) >= 0 or {series} and on (instance) {was_scraped})"


def per(metric: str, other: str, by: str = "model", on: str = ON, other_on: str = ON) -> str:
    """Return by how much a counter grows for each step of another one; nothing where that stands still."""
    return f"{rate(metric, by, on)} / ({rate(other, by, other_on)} > 0)"


def average(metric: str, by: str = "model") -> str:
    """Return the mean of what a histogram was given lately."""
    return per(f"{metric}_sum", f"{metric}_count", by)


def figure(title: str, description: str, expr: str, unit: str = "short", **options: object) -> Panel:
    """Return a single figure of the first row."""
    return Panel(title, description, [Target(expr, "")], unit, kind="stat", width=4, height=4, **options)  # type: ignore[arg-type]
