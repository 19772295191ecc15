"""The table: medians, their spread, ratios, and whether they are what they must be. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.figures import BEST, DEFAULT, ITSELF, OURS, Entry, Figure, Target
from bench.row import Row

HEADINGS = (
    "scenario",
    "model",
    "figure",
    "ours",
    "llama-server, default",
    "llama-server, best",
    "ours / best",
    "must reach",
    "met",
    "others",
)


@dataclass(frozen=True, slots=True)
class Spread:
    """What several runs gave."""

    median: float
    least: float
    most: float
    num_runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def text(self, unit: str) -> str:
        """Return the median with its unit, and between which values it lies."""
        shown = f"{number(self.median)} {unit}"
        if self.num_runs == 1 or self.least == self.most:
            return shown
        return f"{shown} ({number(self.least)}–{number(self.most)})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target and what was reached."""

    target: Target
    ratio: float | None
    is_more_better: bool

    @property
    def is_met(self) -> bool | None:
        """Whether the bound holds; None if it was not measured or there is none."""
        if self.ratio is None or self.target.bound is None:
            return None
        return self._holds(self.target.bound)

    @property
    def has_reached_aim(self) -> bool:
        """Whether what was aimed for has been reached."""
        return self.ratio is not None and self.target.aim is not None and self._holds(self.target.aim)

    def _holds(self, bound: float) -> bool:
        assert self.ratio is not None
        return self.ratio >= bound if self.is_more_better else self.ratio <= bound

    def must(self, unit: str) -> str:
        """Return the bound in words."""
        sign = "≥" if self.is_more_better else "≤"
        of = {BEST: "x", ITSELF: "" if unit == "x" else f" {unit}"}.get(self.target.against, f"x {self.target.against}")
        parts = []
        if self.target.bound is not None:
            parts.append(f"{sign} {number(self.target.bound)}{of}")
        if self.target.aim is not None:
            parts.append(f"aim {sign} {number(self.target.aim)}{of if not parts else ''}")
        return ", ".join(parts)

    def met(self) -> str:
        """Return the judgement in a word."""
        if self.ratio is None:
            return "not measured"
        reached = "aim too" if self.has_reached_aim else ""
        match self.is_met:
            case None:
                return "aim reached" if reached else "aim missed"
            case True:
                return f"yes, {reached}" if reached else "yes"
            case False:
                return "**no**"


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of one row."""

    row: Row
    figure: Figure
    """Its value means nothing here."""
    spreads: Mapping[str, Spread]
    best: str | None
    """The contestant that the figure is compared with."""
    options: Mapping[str, str]
    verdicts: tuple[Verdict, ...]

    @property
    def ratio(self) -> float | None:
        """Ours divided by the best peer's; None where there is none."""
        return _ratio(self.spreads, OURS.name, self.best)

    def cells(self) -> tuple[str, ...]:
        """Return the line as it is printed."""
        unit = self.figure.unit
        shown = {name: spread.text(unit) for name, spread in self.spreads.items()}
        best = ""
        if self.best is not None:
            options = self.options.get(self.best)
            best = f"{shown[self.best]} `{options}`" if options else "the same"
        in_columns = {OURS.name, DEFAULT.name, self.best}
        others = [f"{name} {text}" for name, text in shown.items() if name not in in_columns]
        return (
            self.row.name,
            self.row.model,
            self.figure.name,
            shown.get(OURS.name, "failed"),
            shown.get(DEFAULT.name, ""),
            best,
            "" if self.ratio is None else f"{self.ratio:.2f}",
            "; ".join(verdict.must(unit) for verdict in self.verdicts),
            "; ".join(verdict.met() for verdict in self.verdicts),
            "; ".join(others),
        )


def lines(row: Row, entries: Iterable[Entry], chosen: Mapping[str, str]) -> list[Line]:
    """Return a line for each figure of the row, in the order in which they were measured."""
    values: dict[str, dict[str, list[float]]] = {}
    shapes: dict[str, Figure] = {}
    for entry in entries:
        if entry.row == row.key:
            values.setdefault(entry.figure.name, {}).setdefault(entry.contestant, []).append(entry.figure.value)
            shapes.setdefault(entry.figure.name, entry.figure)
    spreads = {name: {who: Spread.of(each) for who, each in by_name.items()} for name, by_name in values.items()}
    peers = {one.name: " ".join(one.options) for one in row.contestants(chosen) if one.kind == DEFAULT.kind}
    joint = _best_of_all(spreads, peers) if row.is_joint else None
    found = []
    for name, figure in shapes.items():
        best = joint or _best_of(spreads[name], peers, is_more_better=figure.is_more_better)
        verdicts = tuple(
            Verdict(target, _reached(spreads[name], best, target), figure.is_more_better)
            for target in row.targets
            if target.figure == name
        )
        found.append(Line(row, figure, spreads[name], best, peers, verdicts))
    missing = {target.figure for target in row.targets} - set(shapes)
    for name in sorted(missing):
        verdicts = tuple(Verdict(target, None, False) for target in row.targets if target.figure == name)
        found.append(Line(row, Figure(name, 0.0, "", is_more_better=False), {}, None, peers, verdicts))
    return found


def _reached(spreads: Mapping[str, Spread], best: str | None, target: Target) -> float | None:
    if target.against == ITSELF:
        return spreads[OURS.name].median if OURS.name in spreads else None
    return _ratio(spreads, OURS.name, best if target.against == BEST else target.against)


def _ratio(spreads: Mapping[str, Spread], mine: str, other: str | None) -> float | None:
    if other is None or mine not in spreads or other not in spreads:
        return None
    if spreads[other].median == 0:
        return None if spreads[mine].median == 0 else math.inf  # both below what can be told apart
    return spreads[mine].median / spreads[other].median


def _best_of(spreads: Mapping[str, Spread], peers: Iterable[str], *, is_more_better: bool) -> str | None:
    measured = [name for name in peers if name in spreads]
    choose = max if is_more_better else min
    return choose(measured, key=lambda name: spreads[name].median, default=None)


def _best_of_all(spreads: Mapping[str, Mapping[str, Spread]], peers: Iterable[str]) -> str | None:
    """Return the peer with the smallest product of all figures, of which less is better."""
    measured = [name for name in peers if all(name in by_name for by_name in spreads.values())]
    return min(
        measured,
        key=lambda name: math.prod(by_name[name].median for by_name in spreads.values()),
        default=None,
    )


def number(value: float) -> str:
    """Return about three digits."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 4)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def markdown(found: Sequence[Line]) -> str:
    """Return the table as Markdown; a row's name stands only in its first line, and empty columns are left out."""
    rows = []
    previous = None
    for line in found:
        cells = list(line.cells())
        if previous == line.row.key:
            cells[0] = cells[1] = ""
        previous = line.row.key
        rows.append(cells)
    kept = [i for i in range(len(HEADINGS)) if any(cells[i] for cells in rows)]
    table = [[HEADINGS[i] for i in kept], ["---"] * len(kept), *([cells[i] for i in kept] for cells in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in table)


def summary(found: Sequence[Line]) -> str:
    """Return how many bounds hold, in a sentence."""
    verdicts = [verdict for line in found for verdict in line.verdicts if verdict.target.bound is not None]
    met = sum(verdict.is_met is True for verdict in verdicts)
    missed = sum(verdict.is_met is False for verdict in verdicts)
    return f"{met} of {len(verdicts)} bounds hold, {missed} do not, {len(verdicts) - met - missed} were not measured."
