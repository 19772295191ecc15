"""How many rows a pass may have: the options of the scheduler, and the rule that protects generating sequences.

Pure. Must not know which sequences run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.engine.cost import CostTable
from worker.engine.request import GenerationRequest

TARGET_ALONE_S = 0.5
"""Time of a pass while nobody generates: a bound for cancels and for who comes next. Small chunks cost little."""

MIN_ROWS_ALONE = 32
MIN_ROWS_BESIDE = 8
"""Prompt rows that every pass may carry, whatever it costs: prompts must come on."""

GAP_FACTOR = 5.0
MIN_GAP_S = 0.2
MAX_GAP_S = 0.5
"""Unless configured, prefills beside may stretch the gap between two tokens to so many times the usual one,
which a reader does not notice below the first bound and would beyond the second."""


def default_gap_s(usual_s: float | None) -> float:
    """Return the gap between tokens to aim at, given what a pass without prefill takes (None = not known)."""
    return min(MAX_GAP_S, max(MIN_GAP_S, GAP_FACTOR * (usual_s or 0.0)))


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """What the scheduler must know of the engine."""

    num_slots: int
    context: int
    """Tokens of one sequence."""
    num_cells: int
    """Of the shared pool; at least `context`."""
    max_rows: int
    """Rows of a pass that the backend can take."""
    rows_alone: int
    """Rows of a pass while nobody generates, until passes have been measured."""
    rows_beside: int
    """Prefill rows of a pass beside generating sequences, until passes have been measured."""
    end_tokens: frozenset[int]
    target_gap_s: float | None = None
    """Longest time between two tokens that prefills beside may cause; None = a few times the usual gap."""
    host_tokens: int = 0
    """Tokens that finished prefixes may hold in host memory together."""
    max_idle_cells: int | None = None
    """Cells that finished prefixes may keep while others run: every pass looks at all of them. None = no limit."""
    max_drafted_each: int = 0
    """Tokens of one answer that may be drafted ahead in a step."""
    max_drafted: int = 0
    """Of all answers together."""
    can_share: bool = True
    """Whether any prefix of a sequence can be shared and cut; False for recurrent and windowed memories."""
    is_windowed: bool = False
    """Whether layers have a sliding window: a blob holds the last one alone, so that it is restored whole or not."""
    first_slot: int = 0
    """The number under which clients see the first slot: a lane's come after all others."""
    fixed_rows: int | None = None
    """Every pass over a prompt has so many rows, whatever it costs, so that equal prompts are cut in equal places."""


def gap_s(options: SchedulerOptions, costs: CostTable, generating: Sequence[GenerationRequest]) -> float:
    """Return the longest gap between tokens to aim at: the strictest wish among the requests, else the model's."""
    wishes = [one.itl_target_ms / 1000 for one in generating if one.itl_target_ms is not None]
    if wishes:
        return min(wishes)
    return options.target_gap_s or default_gap_s(costs.estimate(len(generating)))


def prefill_rows(options: SchedulerOptions, costs: CostTable, generating: Sequence[GenerationRequest]) -> int:
    """Return how many prompt rows may join a pass: as many as its target time has room for."""
    if options.fixed_rows is not None:
        return options.fixed_rows
    num_generating = len(generating)
    if num_generating == 0:
        return costs.rows_within(
            TARGET_ALONE_S, at_least=MIN_ROWS_ALONE, at_most=options.max_rows, unknown=options.rows_alone
        )
    num_rows = costs.rows_within(
        gap_s(options, costs, generating),
        at_least=num_generating + MIN_ROWS_BESIDE,
        at_most=options.max_rows,
        unknown=num_generating + options.rows_beside,
    )
    return num_rows - num_generating
