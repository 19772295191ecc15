"""The table of worker states and the back-off rule."""

from __future__ import annotations

import itertools

import pytest

from router.lifecycle import (
    LIVE,
    MAX_BACKOFF_S,
    TRANSITIONS,
    IllegalTransition,
    WorkerState,
    advance,
    backoff_s,
)

WITHOUT_PROCESS = {WorkerState.UNLOADED, WorkerState.BACKOFF, WorkerState.FAILED}


def test_the_life_of_a_worker_goes_through_every_live_state() -> None:
    life = ["unloaded", "starting", "loading", "ready", "draining", "stopping", "unloaded"]
    for old, new in itertools.pairwise(life):
        assert advance(WorkerState(old), WorkerState(new)) is WorkerState(new)


@pytest.mark.parametrize("state", sorted(LIVE))
def test_a_live_worker_may_exit_at_any_time_and_for_any_reason(state: WorkerState) -> None:
    for after in WITHOUT_PROCESS:
        assert advance(state, after) is after


@pytest.mark.parametrize("state", sorted(WITHOUT_PROCESS))
def test_without_a_process_there_is_nothing_to_stop_or_drain(state: WorkerState) -> None:
    assert not TRANSITIONS[state] & (LIVE - {WorkerState.STARTING})


def test_a_failure_has_to_be_forgiven_before_the_next_start() -> None:
    for state in (WorkerState.BACKOFF, WorkerState.FAILED):
        assert TRANSITIONS[state] == {WorkerState.UNLOADED}


def test_a_worker_that_stops_never_serves_again() -> None:
    assert TRANSITIONS[WorkerState.STOPPING] == WITHOUT_PROCESS


def test_a_victim_that_nobody_needs_any_more_serves_again() -> None:
    assert advance(WorkerState.DRAINING, WorkerState.READY) is WorkerState.READY


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("unloaded", "ready"),
        ("unloaded", "unloaded"),
        ("ready", "stopping"),
        ("ready", "loading"),
        ("loading", "draining"),
        ("stopping", "draining"),
        ("backoff", "starting"),
    ],
)
def test_a_move_that_the_table_lacks_is_refused_and_named(old: str, new: str) -> None:
    with pytest.raises(IllegalTransition, match=f"from {old} to {new}"):
        advance(WorkerState(old), WorkerState(new))


def test_every_state_has_its_row() -> None:
    assert set(TRANSITIONS) == set(WorkerState)


def test_the_pause_doubles_with_every_failure_up_to_a_limit() -> None:
    assert [backoff_s(attempt) for attempt in range(8)] == [0, 1, 2, 4, 8, 16, 32, MAX_BACKOFF_S]
    assert backoff_s(100_000) == MAX_BACKOFF_S
