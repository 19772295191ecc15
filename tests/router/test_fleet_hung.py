"""Workers that give no sign of life any more."""

from __future__ import annotations

import pytest

from router.events import (
    Action,
    ExitReason,
    GrantLease,
    LeaseId,
    ModelPolicy,
    SpawnWorker,
    StopWorker,
    Tick,
    UnloadRequested,
    WorkerExit,
    WorkerHung,
    WorkerStarted,
)
from router.fleet import Fleet
from router.lifecycle import WorkerState
from tests.support.fleet_scenes import (
    ask,
    exits,
    given_ready,
    make_fleet,
    ready,
    release,
    worker,
)

A1, A2, A3, B1 = worker("a"), worker("a", 2), worker("a", 3), worker("b")
WORDS = "no step for 60 s while 2 requests run"
KILLED = WorkerExit(ExitReason.STOPPED, "", -9)
KILL = StopWorker(A1, grace_s=0.0, reason=ExitReason.HUNG)


def hangs(fleet: Fleet, now_s: float) -> list[Action]:
    return fleet.handle(WorkerHung(A1, WORDS), now_s)


def test_a_hung_worker_is_killed_at_once_whatever_runs_on_it() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a", num_leases=2)
    assert hangs(fleet, 60.0) == [KILL]
    assert fleet.snapshot(60.0).models["a"].state is WorkerState.STOPPING


def test_an_idle_worker_that_hangs_is_killed_too() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a")
    assert hangs(fleet, 60.0) == [KILL]
    assert exits(fleet, A1, 60.1, KILLED) == []


def test_requests_that_wait_get_a_new_worker_as_soon_as_the_hung_one_is_gone() -> None:
    fleet = make_fleet("a", max_loaded=1)
    (running,) = given_ready(fleet, "a", num_leases=1, max_leases=1)
    ask(fleet, 1, "a", 5.0)
    hangs(fleet, 60.0)
    assert exits(fleet, A1, 60.1, KILLED) == [SpawnWorker(A2)]
    assert release(fleet, running, 60.2) == []
    assert ready(fleet, A2, 61.0) == [GrantLease(LeaseId(1), A2)]


def test_how_it_was_seen_that_a_worker_hung_is_remembered() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a", num_leases=1)
    hangs(fleet, 30.0)
    exits(fleet, A1, 30.1, KILLED)
    assert fleet.snapshot(31.0).models["a"].last_exit == WorkerExit(ExitReason.HUNG, WORDS, -9)


def test_a_worker_that_hangs_again_soon_has_to_pause_and_says_why() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a", num_leases=1)
    hangs(fleet, 30.0)
    exits(fleet, A1, 30.1, KILLED)
    assert ask(fleet, 1, "a", 31.0) == [SpawnWorker(A2)], "the first time costs no pause"
    ready(fleet, A2, 39.8)
    fleet.handle(WorkerHung(A2, WORDS), 40.0)
    exits(fleet, A2, 40.0, KILLED)
    assert ask(fleet, 2, "a", 40.5) == []
    last_exit = fleet.snapshot(40.6).models["a"].last_exit
    assert last_exit is not None
    assert last_exit.detail == WORDS
    assert fleet.handle(Tick(), 41.0) == [SpawnWorker(A3)]


def test_a_hung_worker_takes_no_requests_until_it_is_gone() -> None:
    fleet = make_fleet("a", max_loaded=1)
    given_ready(fleet, "a", num_leases=1)
    hangs(fleet, 30.0)
    assert ask(fleet, 1, "a", 30.5) == []
    assert "'a' to unload" in str(fleet.snapshot(31.0).models["a"].blocked_by)


def test_a_hung_worker_does_not_hold_up_other_models() -> None:
    fleet = make_fleet("a", "b", max_loaded=1)
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 5.0)
    hangs(fleet, 6.0)
    assert exits(fleet, A1, 6.1, KILLED) == [SpawnWorker(B1)]


def test_a_worker_that_hangs_while_it_drains_is_killed() -> None:
    fleet = make_fleet("a", "b", max_loaded=1, max_wait_s=5.0)
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 0.0)
    fleet.handle(Tick(), 5.0)
    assert fleet.snapshot(5.0).models["a"].state is WorkerState.DRAINING
    assert hangs(fleet, 60.0) == [KILL]


def test_an_unload_of_a_hung_worker_ends_when_it_is_seen_to_hang() -> None:
    fleet = make_fleet("a", drain_timeout_s=600.0)
    given_ready(fleet, "a", num_leases=1)
    fleet.handle(UnloadRequested("a"), 1.0)
    assert hangs(fleet, 60.0) == [KILL]
    assert fleet.next_deadline_s is None


def test_a_worker_that_is_told_to_stop_already_is_not_killed_twice() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a")
    fleet.handle(UnloadRequested("a"), 1.0)
    assert hangs(fleet, 2.0) == []
    assert hangs(fleet, 3.0) == []
    exits(fleet, A1, 4.0, KILLED)
    last_exit = fleet.snapshot(4.0).models["a"].last_exit
    assert last_exit is not None
    assert last_exit.reason is ExitReason.STOPPED


@pytest.mark.parametrize("is_started", [False, True])
def test_a_load_is_judged_by_its_own_time_limit_and_not_by_steps(is_started: bool) -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    if is_started:
        fleet.handle(WorkerStarted(A1), 0.5)
    assert hangs(fleet, 60.0) == []
    assert ready(fleet, A1, 61.0) == [GrantLease(LeaseId(1), A1)]


def test_a_worker_that_is_gone_cannot_hang() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a")
    exits(fleet, A1, 1.0)
    assert hangs(fleet, 2.0) == []
    assert fleet.handle(WorkerHung(worker("ghost"), WORDS), 2.0) == []


def test_a_pinned_worker_that_hangs_is_killed_and_replaced_for_the_next_request() -> None:
    fleet = make_fleet(ModelPolicy("a", pin=True))
    given_ready(fleet, "a", num_leases=1)
    assert hangs(fleet, 5.0) == [KILL]
    exits(fleet, A1, 5.1, KILLED)
    assert ask(fleet, 1, "a", 6.0) == [SpawnWorker(A2)]
