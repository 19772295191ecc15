"""Loads that fail, workers that crash or hang, and reports that come too late."""

from __future__ import annotations

import pytest

from router.events import (
    CatalogChanged,
    ExitReason,
    FleetLimits,
    GrantLease,
    LeaseId,
    LoadRequested,
    ModelPolicy,
    RefusalKind,
    RefuseLease,
    SpawnWorker,
    StopWorker,
    Tick,
    WorkerExit,
    WorkerProgressed,
    WorkerReady,
    WorkerStarted,
)
from router.lifecycle import MAX_CRASH_PAUSE_S, WorkerState
from tests.support.fleet_scenes import (
    BAD_FILE,
    CRASH,
    NO_MEMORY,
    STOPPED,
    ask,
    exits,
    given_ready,
    make_fleet,
    ready,
    refusal,
    release,
    worker,
)

A1, A2, A3, A4 = (worker("a", n) for n in (1, 2, 3, 4))


def test_a_failed_load_refuses_all_who_waited_with_the_real_reason() -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    ask(fleet, 2, "a", 0.5)
    refused = exits(fleet, A1, 1.0, NO_MEMORY)
    assert [type(action) for action in refused] == [RefuseLease, RefuseLease]
    first = refusal(refused[:1])
    assert first.kind is RefusalKind.UNAVAILABLE
    assert "unable to allocate buffer" in first.detail
    assert first.retry_after_s == 1.0


@pytest.mark.parametrize(
    "reason",
    [
        ExitReason.CRASHED,
        ExitReason.NO_MEMORY,
        ExitReason.SPAWN_FAILED,
        ExitReason.SOURCE_FAILED,
        ExitReason.STOPPED,  # somebody else ended it, or it left by itself: it must not start in a tight loop
    ],
)
def test_failures_that_may_pass_lead_to_a_growing_pause(reason: ExitReason) -> None:
    fleet = make_fleet("a")
    now_s = 0.0
    for incarnation, pause_s in enumerate([1.0, 2.0, 4.0, 8.0], start=1):
        assert ask(fleet, incarnation, "a", now_s) == [SpawnWorker(worker("a", incarnation))]
        exits(fleet, worker("a", incarnation), now_s, WorkerExit(reason, "no luck"))
        view = fleet.snapshot(now_s).models["a"]
        assert (view.state, view.retry_in_s) == (WorkerState.BACKOFF, pause_s)
        refused = refusal(ask(fleet, 100 + incarnation, "a", now_s + pause_s / 2))
        assert "no luck" in refused.detail
        assert refused.retry_after_s == pause_s / 2
        now_s += pause_s
        assert fleet.snapshot(now_s).models["a"].state is WorkerState.UNLOADED


def test_a_refusal_without_any_last_words_still_names_the_kind_of_failure() -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    (refused,) = exits(fleet, A1, 1.0, WorkerExit(ExitReason.NO_MEMORY, ""))
    assert "no_memory" in refusal([refused]).detail


def test_nothing_wakes_the_fleet_when_a_pause_ends_and_nobody_waits() -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    exits(fleet, A1, 1.0, CRASH)
    assert fleet.next_deadline_s is None


def test_a_bad_file_is_failed_until_somebody_acts() -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    exits(fleet, A1, 1.0, BAD_FILE)
    refused = refusal(ask(fleet, 2, "a", 200.0))
    assert "invalid magic characters" in refused.detail
    assert "Put it right, then POST /models/load; otherwise a request after 101 s tries again." in refused.detail
    assert refused.retry_after_s == 101.0
    assert fleet.snapshot(200.0).models["a"].state is WorkerState.FAILED


def test_a_bad_file_is_tried_again_for_a_request_that_comes_much_later() -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    exits(fleet, A1, 1.0, BAD_FILE)
    assert fleet.snapshot(400.0).models["a"].state is WorkerState.FAILED
    assert ask(fleet, 2, "a", 301.0) == [SpawnWorker(A2)]


@pytest.mark.parametrize("how", [BAD_FILE, CRASH])
def test_a_load_on_demand_lifts_a_remembered_failure(how: WorkerExit) -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    exits(fleet, A1, 1.0, how)
    assert fleet.handle(LoadRequested("a"), 1.1) == [SpawnWorker(A2)]
    exits(fleet, A2, 2.0, CRASH)
    assert fleet.snapshot(2.0).models["a"].retry_in_s == 1.0, "the count begins again too"


@pytest.mark.parametrize("how", [BAD_FILE, CRASH])
def test_a_changed_configuration_lifts_a_remembered_failure(how: WorkerExit) -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    exits(fleet, A1, 1.0, how)
    fleet.handle(CatalogChanged({"a": ModelPolicy("a", priority=3)}, FleetLimits()), 1.1)
    assert refusal(ask(fleet, 2, "a", 1.2)).kind is RefusalKind.UNAVAILABLE
    fleet.handle(CatalogChanged({"a": ModelPolicy("a", fingerprint="new")}, FleetLimits()), 1.3)
    assert ask(fleet, 3, "a", 1.4) == [SpawnWorker(A2)]


def test_a_failure_of_the_old_configuration_does_not_count_against_the_new_one() -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    stop = fleet.handle(CatalogChanged({"a": ModelPolicy("a", fingerprint="new")}, FleetLimits()), 0.5)
    assert stop == [StopWorker(A1, grace_s=5.0)]
    assert exits(fleet, A1, 1.0, BAD_FILE) == [SpawnWorker(A2)], "whoever waited gets the new one"


def test_a_load_that_hung_with_the_old_configuration_does_not_count_against_the_new_one() -> None:
    fleet = make_fleet(ModelPolicy("a", load_timeout_s=5.0))
    ask(fleet, 1, "a", 0.0)
    fleet.handle(Tick(), 5.0)
    fleet.handle(CatalogChanged({"a": ModelPolicy("a", fingerprint="new")}, FleetLimits()), 6.0)
    assert exits(fleet, A1, 7.0, STOPPED) == [SpawnWorker(A2)]


def test_a_model_that_fails_does_not_disturb_others() -> None:
    fleet = make_fleet("a", "b")
    ask(fleet, 1, "a", 0.0)
    exits(fleet, A1, 1.0, BAD_FILE)
    assert ask(fleet, 2, "b", 1.0) == [SpawnWorker(worker("b"))]


# --- crashes ----------------------------------------------------------------------------------------------


def test_an_idle_worker_that_crashes_is_replaced_at_the_next_request_without_a_pause() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a")
    assert exits(fleet, A1, 5.0, CRASH) == []
    view = fleet.snapshot(6.0).models["a"]
    assert (view.state, view.last_exit, view.last_exit_ago_s) == (WorkerState.UNLOADED, CRASH, 1.0)
    assert ask(fleet, 1, "a", 6.0) == [SpawnWorker(A2)]


def test_requests_that_wait_when_a_busy_worker_crashes_get_a_new_one_at_once() -> None:
    fleet = make_fleet("a")
    (running,) = given_ready(fleet, "a", num_leases=1, max_leases=1)
    ask(fleet, 1, "a", 4.0)
    assert exits(fleet, A1, 5.0, CRASH) == [SpawnWorker(A2)]
    assert release(fleet, running, 5.1) == [], "its client has seen the broken answer"
    assert ready(fleet, A2, 6.0) == [GrantLease(LeaseId(1), A2)]


def test_a_worker_that_keeps_crashing_soon_after_it_is_ready_has_to_pause_and_its_requests_wait_for_that() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a", now_s=0.0)
    exits(fleet, A1, 10.0, CRASH)
    ask(fleet, 1, "a", 10.0)
    ready(fleet, A2, 19.5)
    assert exits(fleet, A2, 20.0, CRASH) == []
    assert ask(fleet, 2, "a", 20.2) == []
    assert fleet.next_deadline_s == 20.5
    assert fleet.handle(Tick(), 20.5) == [SpawnWorker(A3)]
    assert ready(fleet, A3, 22.0) == [GrantLease(LeaseId(2), A3)]


def test_a_worker_that_has_served_for_longer_than_it_would_pause_is_replaced_at_once() -> None:
    fleet = make_fleet("a")
    for incarnation in range(1, 9):
        given_ready(fleet, "a", now_s=10.0 * incarnation)
        exits(fleet, worker("a", incarnation), 10.0 * incarnation + MAX_CRASH_PAUSE_S, CRASH)
    assert ask(fleet, 1, "a", 86.0) == [SpawnWorker(worker("a", 9))]


def test_a_worker_that_can_be_loaded_never_pauses_for_long() -> None:
    fleet = make_fleet("a")
    for incarnation in range(1, 9):
        given_ready(fleet, "a", now_s=10.0 * incarnation)
        exits(fleet, worker("a", incarnation), 10.0 * incarnation + 1, CRASH)
    assert fleet.snapshot(81.0).models["a"].retry_in_s == MAX_CRASH_PAUSE_S - 1


def test_a_load_that_fails_in_the_pause_after_a_crash_refuses_those_who_wait() -> None:
    fleet = make_fleet("a")
    for incarnation in (1, 2):
        given_ready(fleet, "a", now_s=10.0 * incarnation)
        exits(fleet, worker("a", incarnation), 10.0 * incarnation + 0.5, CRASH)
    ask(fleet, 7, "a", 20.7)
    assert fleet.handle(Tick(), 21.0) == [SpawnWorker(A3)]
    refused = refusal(exits(fleet, A3, 22.5, NO_MEMORY))
    assert NO_MEMORY.detail in refused.detail
    assert refusal(ask(fleet, 8, "a", 22.6)).retry_after_s is not None


def test_requests_wait_when_a_worker_is_killed_while_it_loads_as_another_could_be_loaded_before() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a", now_s=0.0)
    exits(fleet, A1, 1.0, CRASH)
    assert ask(fleet, 7, "a", 2.0) == [SpawnWorker(A2)]
    assert exits(fleet, A2, 3.0, CRASH) == []
    assert fleet.handle(Tick(), 5.0) == [SpawnWorker(A3)]
    assert exits(fleet, A3, 6.0, CRASH) == []
    assert fleet.handle(Tick(), 10.0) == [SpawnWorker(A4)]
    assert refusal(exits(fleet, A4, 11.0, CRASH)).lease_id == LeaseId(7), "it cannot be loaded any more"


def test_a_long_stay_makes_up_for_earlier_crashes() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a", now_s=0.0)
    exits(fleet, A1, 10.0, CRASH)
    given_ready(fleet, "a", now_s=10.0)
    exits(fleet, A2, 70.0, CRASH)
    given_ready(fleet, "a", now_s=70.0)
    exits(fleet, A3, 70.5, CRASH)
    assert ask(fleet, 1, "a", 70.5) == [SpawnWorker(A4)]


def test_a_configuration_that_was_never_loaded_refuses_those_who_wait_when_its_load_crashes() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a", now_s=0.0)
    exits(fleet, A1, 1.0, CRASH)
    fleet.handle(CatalogChanged({"a": ModelPolicy("a", fingerprint="other")}, FleetLimits()), 2.0)
    assert ask(fleet, 7, "a", 3.0) == [SpawnWorker(A2)]
    assert refusal(exits(fleet, A2, 4.0, CRASH)).lease_id == LeaseId(7)


# --- loads that hang --------------------------------------------------------------------------------------


def test_a_load_without_progress_is_stopped_and_the_reason_is_told() -> None:
    fleet = make_fleet(ModelPolicy("a", load_timeout_s=5.0))
    ask(fleet, 1, "a", 0.0)
    fleet.handle(WorkerStarted(A1), 1.0)
    assert fleet.next_deadline_s == 6.0
    assert fleet.handle(Tick(), 6.0) == [StopWorker(A1, grace_s=5.0, reason=ExitReason.LOAD_TIMEOUT)]
    refused = refusal(exits(fleet, A1, 7.0, STOPPED))
    assert "no progress for 5 s while loading (load_timeout_s)" in refused.detail
    last_exit = fleet.snapshot(7.0).models["a"].last_exit
    assert last_exit is not None
    assert last_exit.reason is ExitReason.LOAD_TIMEOUT
    assert fleet.snapshot(7.0).models["a"].state is WorkerState.BACKOFF


def test_a_slow_load_that_makes_progress_is_left_alone() -> None:
    fleet = make_fleet(ModelPolicy("a", load_timeout_s=5.0))
    ask(fleet, 1, "a", 0.0)
    fleet.handle(WorkerStarted(A1), 4.0)
    for now_s in (8.0, 12.0, 16.0, 20.0):
        assert fleet.handle(WorkerProgressed(A1), now_s) == []
        assert fleet.next_deadline_s == now_s + 5.0
    assert fleet.handle(WorkerReady(A1, 4), 24.9) == [GrantLease(LeaseId(1), A1)]


def test_a_model_that_once_took_too_long_can_be_loaded_later() -> None:
    fleet = make_fleet(ModelPolicy("a", load_timeout_s=5.0))
    ask(fleet, 1, "a", 0.0)
    fleet.handle(Tick(), 5.0)
    exits(fleet, A1, 6.0, STOPPED)
    assert ask(fleet, 2, "a", 7.0) == [SpawnWorker(A2)]
    assert ready(fleet, A2, 8.0) == [GrantLease(LeaseId(2), A2)]


# --- reports that are out of place ------------------------------------------------------------------------


def test_reports_about_workers_that_are_gone_change_nothing() -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    exits(fleet, A1, 1.0, CRASH)
    ask(fleet, 2, "a", 2.0)
    for late in (WorkerStarted(A1), WorkerProgressed(A1), WorkerReady(A1, 4)):
        assert fleet.handle(late, 3.0) == []
    assert exits(fleet, A1, 3.0, BAD_FILE) == []
    assert exits(fleet, worker("ghost"), 3.0, CRASH) == []
    assert ready(fleet, A2, 4.0) == [GrantLease(LeaseId(2), A2)]


def test_a_worker_may_be_ready_without_ever_having_said_that_it_started() -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    assert fleet.handle(WorkerReady(A1, 4), 1.0) == [GrantLease(LeaseId(1), A1)]


def test_a_worker_that_is_ready_twice_is_ready_once() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a", num_leases=1, max_leases=1)
    ask(fleet, 1, "a", 1.0)
    assert fleet.handle(WorkerStarted(A1), 2.0) == []
    assert fleet.handle(WorkerReady(A1, 1), 2.0) == []
    assert fleet.snapshot(2.0).models["a"].residents[0].since_s == 0.0


def test_what_a_request_took_is_told_after_the_end_of_its_worker() -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    ready(fleet, A1, 1.0)
    line = fleet._ledger.records["a"].line
    exits(fleet, A1, 2.0, CRASH)
    assert line.granted == {LeaseId(1)}, "what it took is not known yet"
    release(fleet, 1, 3.0)
    assert not line.granted
    fleet.check_integrity()
