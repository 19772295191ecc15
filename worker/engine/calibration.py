"""What is measured of a model on this machine after loading, what follows from it, and how it is kept.

Passes of a few sizes are timed in throw-away contexts, with flash attention and without. Their times are the first
entries of the cost table, and decide about flash attention where the configuration leaves it open. Pure. Must not
measure (`calibrator.py`) nor read files (`calibration_files.py`).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from worker.contract import EngineOptions

FORMAT = 1

STREAM_ROWS = (8, 4, 1)
"""Rows of passes that generate, one of each sequence. In this order: see `Probe.seconds`."""
PROMPT_ROWS = (32, 128, 64, 256)
"""Rows of passes over a prompt; what decides comes early, because time may run out."""
FILL_ROWS = (128, 64, 32, 16, 8)
"""Prompt rows that the cells are filled with, as many as can be computed in a short time."""

MAX_PASS_S = 2.0
"""No pass is measured that would take longer: a request that comes may have to wait for its end."""
BUDGET_S = 5.5
"""Time in passes altogether."""
STEADY = 1.5
"""The second shortest time of equal passes is at most so many times the shortest, or something has disturbed them."""
FULL_SHARE = 0.8
"""Processor time that the threads of the passes had at least, of what they could have had; else others had it."""

PLAIN_CACHE_TYPES = frozenset({"f32", "f16", "bf16"})

_USUAL_WORK = {4: 128, 32: 16, 128: 4}
"""The work by which settings are compared, as passes by rows: four answers of 128 tokens to prompts of 256, half of
which are computed in small pieces, as beside other answers."""
CLEARLY_FASTER = 0.93
"""Part of the usual time within which another setting must do the same work to be taken instead of the default."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What was measured: times hold for exactly this."""

    model_file: str
    model_bytes: int
    modified_ns: int
    library: str
    cpu: str
    num_threads: int
    max_rows: int
    cache_type_k: str
    cache_type_v: str
    swa_full: bool


Times = Mapping[int, float]
"""Seconds of a pass by rows."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found, by setting of flash attention: `on`, `off`."""

    subject: Subject
    times: Mapping[str, Times]

    def to_json(self) -> str:
        """Return it as a JSON object."""
        subject = dataclasses.asdict(self.subject)
        return json.dumps({"format": FORMAT, "subject": subject, "times": self.times}, indent=1)


def from_json(text: str | bytes, subject: Subject) -> Calibration | None:
    """Return the calibration of `subject`; None when the text is one of something else, or none at all."""
    try:
        raw = json.loads(text)
        if raw["format"] != FORMAT or raw["subject"] != dataclasses.asdict(subject):
            return None
        times = {
            setting: {int(rows): float(seconds) for rows, seconds in raw["times"][setting].items()}
            for setting in ("off", "on")
            if setting in raw["times"]
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not any(times.values()) or not all(_is_sound(t) for t in times.values()):
        return None
    return Calibration(subject, times)


def _is_sound(times: Times) -> bool:
    return all(rows > 0 and math.isfinite(seconds) and seconds > 0 for rows, seconds in times.items())


def settings(options: EngineOptions) -> tuple[str, ...]:
    """Return the settings of flash attention to measure: the usual one first, and the other if there is a choice."""
    if options.flash_attn == "auto":
        return ("on", "off") if options.cache_type_v in PLAIN_CACHE_TYPES else ("on",)
    return (options.flash_attn,)


def choose_flash_attn(options: EngineOptions, calibration: Calibration) -> str:
    """Return the setting to load the model with: as configured, else `on` unless `off` is clearly faster."""
    if len(settings(options)) < 2:
        return options.flash_attn
    without, with_it = (work_seconds(calibration.times.get(setting, {})) for setting in ("off", "on"))
    if without is None or with_it is None:
        return options.flash_attn
    return "off" if without < CLEARLY_FASTER * with_it else "on"


def work_seconds(times: Times) -> float | None:
    """Return how long the usual work takes; None if too little was measured to tell."""
    if not _USUAL_WORK.keys() <= times.keys():
        return None
    return sum(num_passes * times[rows] for rows, num_passes in _USUAL_WORK.items())


def passes(options: EngineOptions, max_rows: int) -> list[tuple[str, int]]:
    """Return what to measure, as (setting, rows), in order.

    Settings take turns, so that whatever else the machine does meanwhile harms none of them alone; of the other setting
    only what decides between the two is measured, and what generating takes.
    """
    usual, *others = settings(options)
    planned = []
    for rows in (*STREAM_ROWS, *PROMPT_ROWS):
        if rows > max_rows:
            continue
        is_wanted_of_all = rows in STREAM_ROWS or rows in _USUAL_WORK
        for _ in range(_num_repeats(rows)):
            planned += [(setting, rows) for setting in (usual, *(others if is_wanted_of_all else ()))]
    return planned


def _num_repeats(rows: int) -> int:
    """Return how often to measure: what decides more often, and what is short, because a moment's disturbance is."""
    return (3 if rows in STREAM_ROWS else 1) * (2 if rows in _USUAL_WORK else 1)


class Measurements:
    """The times of passes as they come in."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        """In passes, the filling of cells included."""
        self.cpu_share = 1.0
        """Of the processor time that the threads could have had."""
        self._seconds: dict[str, dict[int, list[float]]] = {}

    def note(self, setting: str, rows: int, seconds: float) -> None:
        """A pass has taken so long."""
        self.spent_s += seconds
        self._seconds.setdefault(setting, {}).setdefault(rows, []).append(seconds)

    def times(self) -> dict[str, dict[int, float]]:
        """Return the shortest times, which were disturbed least."""
        return {
            setting: {rows: min(taken) for rows, taken in found.items()} for setting, found in self._seconds.items()
        }

    @property
    def is_undisturbed(self) -> bool:
        """Whether nothing else was using the machine: no processor time was missing, equal passes took equally long."""
        if self.cpu_share < FULL_SHARE:
            return False
        repeated = (sorted(taken) for found in self._seconds.values() for taken in found.values() if len(taken) > 1)
        return all(taken[1] <= STEADY * taken[0] for taken in repeated)

    def is_affordable(self, setting: str, rows: int) -> bool:
        """Whether a pass fits into the time that is left, judged by those that were measured."""
        found = self._seconds.get(setting, {})
        smaller = max((r for r in found if r <= rows), default=None)
        expected_s = 0.0 if smaller is None else _at_most_s(rows, smaller, min(found[smaller]))
        return expected_s <= min(MAX_PASS_S, BUDGET_S - self.spent_s)


def fill_rows(max_rows: int, short_pass: tuple[int, float]) -> int | None:
    """Return how many rows to fill the cells with, after a pass of (rows, seconds); None: the model is too slow."""
    fitting = (rows for rows in FILL_ROWS if rows <= max_rows and _at_most_s(rows, *short_pass) <= MAX_PASS_S / 2)
    return next(fitting, None)


def _at_most_s(rows: int, other_rows: int, other_s: float) -> float:
    """Return what a pass takes at most, given one that is not larger: in proportion to the rows."""
    return other_s * max(1.0, rows / other_rows)
