"""The cost table and the row budget that follows from it."""

from __future__ import annotations

from typing import Any

import pytest

from worker.engine.budget import MIN_ROWS_ALONE, MIN_ROWS_BESIDE, SchedulerOptions, default_gap_s, gap_s, prefill_rows
from worker.engine.cost import CostTable
from worker.engine.request import GenerationRequest


def options(**changes: object) -> SchedulerOptions:
    values: dict[str, object] = {
        "num_slots": 4,
        "context": 1024,
        "num_cells": 4096,
        "max_rows": 512,
        "rows_alone": 128,
        "rows_beside": 32,
        "end_tokens": frozenset(),
    }
    return SchedulerOptions(**(values | changes))  # type: ignore[arg-type]


def generating(count: int, **fields: Any) -> list[GenerationRequest]:
    return [GenerationRequest((1,), 1, **fields) for _ in range(count)]


def linear(seconds_per_row: float, up_to: int = 512) -> CostTable:
    table = CostTable()
    rows = 1
    while rows <= up_to:
        table.observe(rows, rows * seconds_per_row)
        rows *= 2
    return table


def test_nothing_measured_means_the_first_guess() -> None:
    assert prefill_rows(options(), CostTable(), []) == 128
    assert prefill_rows(options(), CostTable(), generating(3)) == 32


def test_a_pass_alone_takes_about_half_a_second() -> None:
    assert prefill_rows(options(), linear(0.004), []) == 112
    assert prefill_rows(options(), linear(0.0001), []) == 512


def test_a_slow_machine_still_computes_some_prompt_rows() -> None:
    assert prefill_rows(options(), linear(2.0), []) == MIN_ROWS_ALONE
    assert prefill_rows(options(), linear(2.0), generating(2)) == MIN_ROWS_BESIDE


def test_rows_beside_generating_sequences_stay_within_the_target() -> None:
    costs = linear(0.005)
    num_rows = prefill_rows(options(target_gap_s=0.2), costs, generating(4))
    assert num_rows == 36
    assert costs.estimate(num_rows + 4) == pytest.approx(0.2)


def test_the_strictest_wish_among_the_requests_counts() -> None:
    requests = [*generating(3), *generating(1, itl_target_ms=50.0), *generating(1, itl_target_ms=80.0)]
    assert gap_s(options(target_gap_s=0.2), linear(0.001), requests) == 0.05
    assert prefill_rows(options(target_gap_s=0.2), linear(0.0005), requests) == 96 - 5


def test_a_knee_in_the_cost_is_respected() -> None:
    table = CostTable()
    for _ in range(20):
        for rows, seconds in ((1, 0.02), (32, 0.03), (64, 0.9), (128, 1.0)):
            table.observe(rows, seconds)
    assert prefill_rows(options(target_gap_s=0.05), table, generating(1)) == 31


def test_a_changed_cost_is_learnt_again() -> None:
    table = linear(0.001)
    for _ in range(40):
        table.observe(64, 0.64)
    assert table.estimate(64) == pytest.approx(0.64, rel=0.02)


def test_the_estimate_interpolates_and_extrapolates() -> None:
    table = CostTable()
    table.observe(8, 0.08)
    table.observe(32, 0.2)
    assert table.estimate(1) == 0.08
    assert table.estimate(20) == pytest.approx(0.14)
    assert table.estimate(64) == pytest.approx(0.4)


@pytest.mark.parametrize(("usual_s", "gap_s"), [(None, 0.2), (0.001, 0.2), (0.05, 0.25), (1.0, 0.5)])
def test_the_default_gap_is_a_few_usual_ones_within_bounds(usual_s: float | None, gap_s: float) -> None:
    assert default_gap_s(usual_s) == pytest.approx(gap_s)


# --- what a calibration has found -------------------------------------------------------------------------


def test_seeds_are_believed_until_a_pass_of_about_that_size_was_measured() -> None:
    table = CostTable()
    for rows in (1, 32, 128):
        table.seed(rows, rows * 0.01)
    assert table.estimate(64) == pytest.approx(0.64)
    table.observe(30, 0.6)
    assert table.estimate(30) == pytest.approx(0.6), "all of it, not a fifth"
    assert table.estimate(128) == pytest.approx(1.28)
    table.seed(32, 0.01)
    assert table.estimate(30) == pytest.approx(0.6), "what was measured stays"
    table.observe(30, 1.1)
    assert table.estimate(30) == pytest.approx(0.7), "and is averaged from then on"


def test_first_pass_is_sized_by_seeds() -> None:
    table = CostTable()
    for rows in (8, 64, 128, 256):
        table.seed(rows, rows * 0.004)
    assert prefill_rows(options(), table, []) == prefill_rows(options(), linear(0.004), []) < 128


@pytest.mark.parametrize("num_generating", [0, 3])
def test_fixed_rows_do_not_depend_on_costs_or_company(num_generating: int) -> None:
    for table in (CostTable(), linear(2.0), linear(0.0001)):
        assert prefill_rows(options(fixed_rows=24), table, generating(num_generating)) == 24


def test_one_pass_that_something_else_has_slowed_down_hardly_counts() -> None:
    table = linear(0.001)
    table.observe(16, 5.0)
    estimate = table.estimate(16)
    assert estimate is not None
    assert estimate < 0.025


def test_pass_that_is_slower_from_now_on_is_believed_after_a_while() -> None:
    table = linear(0.001)
    for _ in range(30):
        table.observe(16, 0.2)
    assert table.estimate(16) == pytest.approx(0.2, rel=0.05)


def test_entry_that_was_spoilt_and_is_not_used_any_more_recovers() -> None:
    table = CostTable()
    table.observe(1, 0.01)
    table.observe(17, 2.9)
    for _ in range(40):
        table.observe(17, 2.9)
    for _ in range(100):
        table.observe(1, 0.01)
        table.observe(128, 0.65)
    estimate = table.estimate(17)
    assert estimate is not None
    assert estimate < 0.1


def test_knee_that_is_measured_now_and_then_stays() -> None:
    table = CostTable()
    for turn in range(200):
        table.observe(1, 0.01)
        table.observe(128, 0.65)
        if turn % 10 == 0:
            table.observe(60, 2.0)
    assert table.estimate(60) == pytest.approx(2.0, rel=0.1)
