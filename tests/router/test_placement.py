"""Whom to evict for another model."""

from __future__ import annotations

import pytest

from router.events import WorkerId
from router.lifecycle import WorkerState
from router.placement import Occupant, choose_victims

READY, DRAINING, STOPPING = WorkerState.READY, WorkerState.DRAINING, WorkerState.STOPPING


def occupant(
    name: str,
    state: WorkerState = READY,
    *,
    leases: int = 0,
    used_s: float = 0.0,
    priority: int = 0,
    kept: bool = False,
) -> Occupant:
    return Occupant(WorkerId(name, 0, 1), state, leases, used_s, priority, kept)


def victims(*occupants: Occupant, places: int = 1, may_drain: bool = False) -> str | None:
    chosen = choose_victims(occupants, places, may_drain=may_drain)
    return None if chosen is None else "".join(worker.model for worker in chosen)


def test_the_least_recently_used_idle_worker_goes() -> None:
    assert victims(occupant("a", used_s=5), occupant("b", used_s=3), occupant("c", used_s=4)) == "b"


def test_a_lower_priority_goes_before_a_longer_idleness() -> None:
    assert victims(occupant("a", used_s=1, priority=1), occupant("b", used_s=9)) == "b"


def test_a_busy_worker_stays_while_others_may_still_wait() -> None:
    assert victims(occupant("a", leases=1)) is None


def test_a_busy_worker_goes_once_somebody_has_waited_too_long() -> None:
    assert victims(occupant("a", leases=1, used_s=2), occupant("b", leases=4, used_s=1), may_drain=True) == "b"


def test_an_idle_worker_goes_before_a_busy_one_of_lower_priority() -> None:
    assert victims(occupant("a", leases=1, priority=-1), occupant("b", priority=9), may_drain=True) == "b"


@pytest.mark.parametrize("leases", [0, 2])
def test_a_pinned_worker_never_goes(leases: int) -> None:
    assert victims(occupant("a", leases=leases, kept=True), may_drain=True) is None


@pytest.mark.parametrize("state", [WorkerState.STARTING, WorkerState.LOADING])
def test_a_worker_that_loads_never_goes(state: WorkerState) -> None:
    assert victims(occupant("a", state), may_drain=True) is None


def test_nobody_else_goes_if_a_place_is_becoming_free_anyway() -> None:
    assert victims(occupant("a"), occupant("b", STOPPING)) == "b"


def test_an_idle_worker_goes_before_one_whose_last_requests_may_take_long() -> None:
    assert victims(occupant("a", DRAINING, leases=1), occupant("b")) == "b"


def test_a_worker_that_drains_makes_room_before_another_busy_one_has_to() -> None:
    assert victims(occupant("a", leases=1), occupant("b", DRAINING, leases=1), may_drain=True) == "b"


def test_several_places_need_several_workers() -> None:
    assert victims(occupant("a", used_s=2), occupant("b", used_s=1), occupant("c", used_s=3), places=2) == "ba"


def test_nobody_goes_in_vain_if_there_are_too_few_who_may() -> None:
    assert victims(occupant("a"), occupant("b", leases=1), places=2) is None


def test_no_place_needs_no_victim() -> None:
    assert victims(occupant("a"), places=0) == ""
