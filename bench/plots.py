"""The figures as pictures. Needs matplotlib, which the extra `bench` installs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.figures import BEST, DEFAULT, OURS
from bench.scenarios import SPEED
from bench.table import Line

BLUE, GREY, ORANGE = "#2f6f9f", "#b8b8b8", "#d98032"


def draw(found: Sequence[Line], stem: Path) -> list[Path] | None:
    """Write the plots as `stem`-NAME.svg and return them; None without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        return None
    mpl.use("svg")
    mpl.rcParams.update(
        {"svg.hashsalt": "corral", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    )
    plots = [(_ratios, "ratios"), (_steady, "steady")]
    written = (plot(found, stem.with_name(f"{stem.name}-{name}.svg")) for plot, name in plots)
    return [file for file in written if file is not None]


def advantage(line: Line) -> float | None:
    """Return how many times better ours is than the best peer; None where that cannot be said."""
    if line.ratio is None or line.ratio <= 0 or line.ratio == float("inf"):
        return None
    return line.ratio if line.figure.is_more_better else 1 / line.ratio


def _ratios(found: Sequence[Line], file: Path) -> Path | None:
    """Draw one bar for each figure that must beat llama-server: how many times better ours is than it at its best."""
    shown = [(line, value, _bounds(line)) for line in found if (value := advantage(line)) is not None and _bounds(line)]
    if not shown:
        return None
    figure, axes = _canvas(11.0, 1.0 + 0.26 * len(shown))
    places = range(len(shown), 0, -1)
    axes.barh(places, [value - 1 for _, value, _ in shown], left=1.0, color=BLUE, height=0.6)
    for place, (_, value, bounds) in zip(places, shown, strict=True):
        is_ahead = value >= 1
        axes.text(
            value * (1.02 if is_ahead else 0.98), place, f"{value:.2f}", ha="left" if is_ahead else "right", va="center"
        )
        for bound in bounds:
            axes.plot([bound, bound], [place - 0.42, place + 0.42], color=ORANGE, linewidth=2)
    edges = [edge for _, value, bounds in shown for edge in (value, *bounds)]
    axes.set_xscale("log")
    axes.set_xlim(min(0.9, 0.85 * min(edges)), 1.25 * max(1.1, *edges))
    ticks = [
        tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]
    ]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(list(places), [f"{line.row.name}, {line.row.model}: {line.figure.name}" for line, _, _ in shown])
    axes.set_ylim(0.3, len(shown) + 0.7)
    axes.set_title("times better than llama-server at its best (orange: must reach)", fontsize=9)
    return _save(figure, file)


def _bounds(line: Line) -> list[float]:
    """Return what the advantage over llama-server must reach."""
    bounds = [each.target.bound for each in line.verdicts if each.target.against == BEST and each.target.bound]
    return [bound if line.figure.is_more_better else 1 / bound for bound in bounds]


def _steady(found: Sequence[Line], file: Path) -> Path | None:
    """Draw tokens per second over the number of streams, a panel for each model."""
    rows = [line for line in found if line.row.key.startswith("steady-") and line.figure.name == SPEED]
    models = list(dict.fromkeys(line.row.model for line in rows))
    if not models:
        return None
    figure, panels = _canvas(3.2 * len(models), 2.8, columns=len(models))
    for axes, model in zip([panels] if len(models) == 1 else panels, models, strict=True):
        own = [line for line in rows if line.row.model == model]
        for label, colour, name_of in (
            ("ours", BLUE, lambda line: OURS.name),
            ("llama-server, best", ORANGE, lambda line: line.best),
            ("llama-server, default", GREY, lambda line: DEFAULT.name),
        ):
            points = [(line.row.slots, line.spreads[name]) for line in own if (name := name_of(line)) in line.spreads]
            if points:
                medians = [spread.median for _, spread in points]
                below = [spread.median - spread.least for _, spread in points]
                above = [spread.most - spread.median for _, spread in points]
                streams = [count for count, _ in points]
                axes.errorbar(streams, medians, [below, above], color=colour, label=label, marker="o", capsize=2)
        axes.set_title(model)
        axes.set_xlabel("streams")
        axes.set_ylim(bottom=0)
        axes.set_xticks([line.row.slots for line in own])
    first = panels if len(models) == 1 else panels[0]
    first.set_ylabel("tokens per second")
    first.legend(frameon=False, fontsize=8)
    return _save(figure, file)


def _canvas(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    from matplotlib import pyplot

    return pyplot.subplots(1, columns, figsize=(width, height))


def _save(figure: Any, file: Path) -> Path:
    from matplotlib import pyplot

    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
    return file
