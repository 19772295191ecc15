"""Leases, queues, idleness, unloading and the end: one model at a time."""

from __future__ import annotations

import pytest

from router.events import (
    GrantLease,
    LeaseId,
    LoadRequested,
    ModelPolicy,
    RefusalKind,
    RefuseLease,
    ShutdownRequested,
    SpawnWorker,
    StopWorker,
    Tick,
    UnloadRequested,
    WorkerReady,
)
from router.lifecycle import WorkerState
from tests.support.fleet_scenes import (
    CRASH,
    ask,
    exits,
    given_ready,
    make_fleet,
    ready,
    refusal,
    release,
    spawned_by,
    stopped_by,
    worker,
)

A1, A2 = worker("a", 1), worker("a", 2)


# --- leases and queues ------------------------------------------------------------------------------------


def test_thirty_first_requests_start_one_worker_and_are_all_served() -> None:
    fleet = make_fleet("a")
    actions = [action for lease_id in range(30) for action in ask(fleet, lease_id, "a", 0.0)]
    assert actions == [SpawnWorker(A1)]
    assert ready(fleet, A1, 2.0, max_leases=30) == [GrantLease(LeaseId(n), A1) for n in range(30)]


def test_a_ready_worker_takes_no_more_leases_than_it_said() -> None:
    fleet = make_fleet("a")
    for lease_id in range(4):
        ask(fleet, lease_id, "a", 0.0)
    assert ready(fleet, A1, 1.0, max_leases=2) == [GrantLease(LeaseId(0), A1), GrantLease(LeaseId(1), A1)]
    assert release(fleet, 0, 2.0) == [GrantLease(LeaseId(2), A1)]
    assert release(fleet, 2, 3.0) == [GrantLease(LeaseId(3), A1)]


def test_a_worker_that_allows_no_lease_at_all_still_serves_one_at_a_time() -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    assert ready(fleet, A1, 1.0, max_leases=0) == [GrantLease(LeaseId(1), A1)]


def test_a_request_for_a_ready_model_is_granted_at_once() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a")
    assert ask(fleet, 1, "a", 1.0) == [GrantLease(LeaseId(1), A1)]


def test_waiting_requests_are_granted_by_priority_then_by_their_keys_share_then_by_age() -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0, key_id="big")
    ask(fleet, 2, "a", 0.1, key_id="big")
    ask(fleet, 3, "a", 0.2, key_id="small")
    ask(fleet, 4, "a", 0.3, key_id="big", priority=1)
    granted = ready(fleet, A1, 1.0, max_leases=4)
    assert granted == [GrantLease(LeaseId(n), A1) for n in (4, 3, 1, 2)]


def test_a_request_for_a_model_that_does_not_exist_is_refused_by_name() -> None:
    refused = refusal(ask(make_fleet("a"), 1, "b", 0.0))
    assert refused.kind is RefusalKind.UNKNOWN_MODEL
    assert "'b'" in refused.detail


def test_a_request_for_an_unavailable_model_is_refused_with_the_reason_and_starts_nothing() -> None:
    fleet = make_fleet(ModelPolicy("a", unavailable="/models/a.gguf does not exist"))
    refused = refusal(ask(fleet, 1, "a", 0.0))
    assert refused.kind is RefusalKind.UNAVAILABLE
    assert "/models/a.gguf does not exist" in refused.detail


def test_a_full_queue_refuses_the_newcomer_and_says_when_to_come_back() -> None:
    fleet = make_fleet(ModelPolicy("a", max_queue=2))
    ask(fleet, 1, "a", 0.0)
    ask(fleet, 2, "a", 5.0)
    refused = refusal(ask(fleet, 3, "a", 8.0))
    assert refused.kind is RefusalKind.QUEUE_FULL
    assert "2 requests" in refused.detail
    assert refused.retry_after_s == 8.0
    assert ready(fleet, A1, 9.0) == [GrantLease(LeaseId(1), A1), GrantLease(LeaseId(2), A1)]


def test_max_queue_zero_means_no_limit() -> None:
    fleet = make_fleet(ModelPolicy("a", max_queue=0))
    assert ask(fleet, 1, "a", 0.0) == [SpawnWorker(A1)]


def test_a_request_that_waits_too_long_is_refused_and_told_what_it_waited_for() -> None:
    fleet = make_fleet(ModelPolicy("a", queue_timeout_s=20.0))
    ask(fleet, 1, "a", 0.0)
    assert fleet.next_deadline_s == 20.0
    refused = refusal(fleet.handle(Tick(), 20.0))
    assert refused.kind is RefusalKind.QUEUE_TIMEOUT
    assert "waited 20 s (queue_timeout_s)" in refused.detail
    assert "'a' to load" in refused.detail


def test_a_request_that_waits_for_a_free_place_is_told_so_when_it_is_refused() -> None:
    fleet = make_fleet(ModelPolicy("a", queue_timeout_s=20.0))
    given_ready(fleet, "a", num_leases=2, max_leases=2)
    ask(fleet, 1, "a", 5.0)
    refused = refusal(fleet.handle(Tick(), 25.0))
    assert "a free place on 'a', where 2 requests are running" in refused.detail


def test_a_place_that_becomes_free_in_the_last_moment_is_still_given() -> None:
    fleet = make_fleet(ModelPolicy("a", queue_timeout_s=20.0))
    (running,) = given_ready(fleet, "a", num_leases=1, max_leases=1)
    ask(fleet, 1, "a", 0.0)
    assert release(fleet, running, 20.0) == [GrantLease(LeaseId(1), A1)]


def test_without_a_queue_timeout_a_request_waits_as_long_as_it_takes() -> None:
    fleet = make_fleet(ModelPolicy("a", queue_timeout_s=0.0, load_timeout_s=0.0))
    ask(fleet, 1, "a", 0.0)
    assert fleet.handle(Tick(), 1e6) == []
    assert ready(fleet, A1, 1e6) == [GrantLease(LeaseId(1), A1)]


def test_a_client_that_leaves_the_queue_is_forgotten_and_the_load_it_caused_goes_on() -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    assert release(fleet, 1, 1.0) == []
    assert fleet.snapshot(1.0).models["a"].queue_length == 0
    assert ready(fleet, A1, 2.0) == []
    assert ask(fleet, 2, "a", 3.0) == [GrantLease(LeaseId(2), A1)]


def test_a_lease_ends_once_however_often_it_is_released() -> None:
    fleet = make_fleet("a")
    (running,) = given_ready(fleet, "a", num_leases=1, max_leases=1)
    ask(fleet, 1, "a", 1.0)
    ask(fleet, 2, "a", 1.0)
    assert release(fleet, running, 2.0) == [GrantLease(LeaseId(1), A1)]
    assert release(fleet, running, 2.0) == []
    assert release(fleet, 999, 2.0) == []


def test_the_same_request_told_twice_waits_once() -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    assert ask(fleet, 1, "a", 0.0) == []
    assert ready(fleet, A1, 1.0) == [GrantLease(LeaseId(1), A1)]
    assert ask(fleet, 1, "a", 2.0) == []


# --- idleness ---------------------------------------------------------------------------------------------


def test_an_idle_model_is_unloaded_counted_from_the_end_of_its_last_request() -> None:
    fleet = make_fleet(ModelPolicy("a", idle_unload_s=10.0))
    (running,) = given_ready(fleet, "a", num_leases=1, now_s=0.0)
    assert fleet.handle(Tick(), 60.0) == []
    release(fleet, running, 100.0)
    assert fleet.next_deadline_s == 110.0
    assert fleet.handle(Tick(), 109.9) == []
    assert fleet.handle(Tick(), 110.0) == [StopWorker(A1, grace_s=5.0)]
    assert fleet.snapshot(110.0).models["a"].state is WorkerState.STOPPING
    exits(fleet, A1, 111.0)
    assert fleet.snapshot(111.0).models["a"].state is WorkerState.UNLOADED
    assert fleet.next_deadline_s is None


def test_a_model_that_was_loaded_for_nobody_idles_from_the_moment_it_is_ready() -> None:
    fleet = make_fleet(ModelPolicy("a", idle_unload_s=10.0))
    fleet.handle(LoadRequested("a"), 0.0)
    ready(fleet, A1, 50.0)
    assert fleet.next_deadline_s == 60.0
    fleet.handle(Tick(), 60.0)
    assert exits(fleet, A1, 61.0) == [], "it was asked for once"


def test_every_request_starts_the_idle_time_anew() -> None:
    fleet = make_fleet(ModelPolicy("a", idle_unload_s=10.0))
    given_ready(fleet, "a", now_s=0.0)
    ask(fleet, 1, "a", 9.0)
    release(fleet, 1, 9.5)
    assert fleet.next_deadline_s == 19.5


@pytest.mark.parametrize("policy", [ModelPolicy("a", idle_unload_s=0.0), ModelPolicy("a", idle_unload_s=1.0, pin=True)])
def test_a_model_without_idle_time_or_with_a_pin_stays(policy: ModelPolicy) -> None:
    fleet = make_fleet(policy)
    given_ready(fleet, "a")
    assert fleet.next_deadline_s is None
    assert fleet.handle(Tick(), 1e9) == []
    assert fleet.snapshot(1e9).models["a"].state is WorkerState.READY


def test_a_request_that_meets_a_stopping_worker_is_served_by_a_new_one_after_its_exit() -> None:
    fleet = make_fleet(ModelPolicy("a", idle_unload_s=10.0))
    given_ready(fleet, "a", now_s=0.0)
    fleet.handle(Tick(), 10.0)
    assert ask(fleet, 1, "a", 10.1) == []
    assert exits(fleet, A1, 12.0) == [SpawnWorker(A2)]
    assert ready(fleet, A2, 14.0) == [GrantLease(LeaseId(1), A2)]


# --- load and unload on demand ----------------------------------------------------------------------------


def test_a_load_on_demand_starts_a_worker_for_nobody() -> None:
    fleet = make_fleet("a")
    assert fleet.handle(LoadRequested("a"), 0.0) == [SpawnWorker(A1)]
    assert fleet.handle(LoadRequested("a"), 1.0) == []
    assert ready(fleet, A1, 2.0) == []
    assert fleet.handle(LoadRequested("a"), 3.0) == []


def test_an_unload_of_an_idle_model_stops_it_at_once_and_a_pin_does_not_forbid_it() -> None:
    fleet = make_fleet(ModelPolicy("a", pin=True))
    given_ready(fleet, "a")
    assert fleet.handle(UnloadRequested("a"), 1.0) == [StopWorker(A1, grace_s=5.0)]


def test_an_unload_lets_running_requests_end_and_takes_no_new_ones() -> None:
    fleet = make_fleet("a")
    (running,) = given_ready(fleet, "a", num_leases=1)
    assert fleet.handle(UnloadRequested("a"), 1.0) == []
    assert ask(fleet, 1, "a", 2.0) == []
    assert release(fleet, running, 3.0) == [StopWorker(A1, grace_s=5.0)]


def test_a_request_after_an_unload_loads_the_model_again() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a")
    fleet.handle(UnloadRequested("a"), 1.0)
    ask(fleet, 1, "a", 1.5)
    assert exits(fleet, A1, 2.0) == [SpawnWorker(A2)]


def test_an_unload_waits_no_longer_than_the_drain_time_for_running_requests() -> None:
    fleet = make_fleet("a", drain_timeout_s=60.0)
    (running,) = given_ready(fleet, "a", num_leases=1)
    fleet.handle(UnloadRequested("a"), 1.0)
    assert fleet.next_deadline_s == 61.0
    fleet.handle(UnloadRequested("a"), 30.0)  # impatience does not prolong it
    assert fleet.handle(Tick(), 61.0) == [StopWorker(A1, grace_s=5.0)]
    assert release(fleet, running, 61.5) == []
    assert exits(fleet, A1, 62.0) == []


def test_an_unload_while_loading_stops_the_load_and_refuses_those_who_wait_for_it() -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    stop, refused = fleet.handle(UnloadRequested("a"), 1.0)
    assert stop == StopWorker(A1, grace_s=5.0)
    assert isinstance(refused, RefuseLease)
    assert refused.kind is RefusalKind.UNAVAILABLE
    assert "unloaded by request while it was loading" in refused.detail
    assert exits(fleet, A1, 2.0, CRASH) == []
    assert spawned_by(ask(fleet, 2, "a", 3.0)) == [A2], "a load that was called off is no failure"


def test_a_worker_that_becomes_ready_while_it_stops_serves_nobody() -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    fleet.handle(UnloadRequested("a"), 1.0)
    ask(fleet, 2, "a", 1.5)
    assert fleet.handle(WorkerReady(A1, 4), 2.0) == []
    assert exits(fleet, A1, 3.0) == [SpawnWorker(A2)]


def test_an_unload_of_an_unloaded_model_does_not_disturb_its_next_request() -> None:
    fleet = make_fleet("a")
    assert fleet.handle(UnloadRequested("a"), 0.0) == []
    assert ask(fleet, 1, "a", 1.0) == [SpawnWorker(A1)]


def test_a_load_after_an_unload_brings_the_model_back_without_any_request() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a")
    fleet.handle(UnloadRequested("a"), 1.0)
    assert fleet.handle(LoadRequested("a"), 2.0) == []
    assert exits(fleet, A1, 3.0) == [SpawnWorker(A2)]


# --- the end ----------------------------------------------------------------------------------------------


def test_a_shutdown_refuses_who_waits_and_stops_idle_and_loading_workers_at_once() -> None:
    fleet = make_fleet("a", "b")
    given_ready(fleet, "a")
    ask(fleet, 1, "b", 1.0)
    actions = fleet.handle(ShutdownRequested(5.0), 2.0)
    assert sorted(stopped_by(actions)) == [A1, worker("b")]
    refused = [action for action in actions if isinstance(action, RefuseLease)]
    assert [(r.lease_id, r.kind) for r in refused] == [(1, RefusalKind.SHUTTING_DOWN)]
    assert refusal(ask(fleet, 2, "a", 3.0)).kind is RefusalKind.SHUTTING_DOWN
    exits(fleet, A1, 4.0)
    assert exits(fleet, worker("b"), 4.0) == []
    assert fleet.next_deadline_s is None


def test_a_shutdown_gives_running_requests_their_time_and_no_more() -> None:
    fleet = make_fleet("a", "b")
    (running,) = given_ready(fleet, "a", num_leases=1)
    given_ready(fleet, "b", num_leases=1)
    assert fleet.handle(ShutdownRequested(5.0), 10.0) == []
    assert release(fleet, running, 12.0) == [StopWorker(A1, grace_s=5.0)]
    assert fleet.next_deadline_s == 15.0
    assert fleet.handle(Tick(), 15.0) == [StopWorker(worker("b"), grace_s=5.0)]


def test_a_second_shutdown_can_only_be_faster() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a", num_leases=1)
    fleet.handle(ShutdownRequested(60.0), 0.0)
    assert fleet.handle(ShutdownRequested(0.0), 1.0) == [StopWorker(A1, grace_s=5.0)]


def test_nothing_is_loaded_or_preloaded_once_the_router_stops() -> None:
    fleet = make_fleet(ModelPolicy("a", preload=True))
    assert fleet.handle(ShutdownRequested(), 0.0) == []
    assert fleet.handle(LoadRequested("a"), 1.0) == []


# --- what can be seen -------------------------------------------------------------------------------------


def test_the_snapshot_shows_leases_queue_and_what_the_queue_waits_for() -> None:
    fleet = make_fleet(ModelPolicy("a", idle_unload_s=10.0), "b")
    given_ready(fleet, "a", num_leases=1, max_leases=1, now_s=1.0)
    ask(fleet, 1, "a", 2.0)
    view = fleet.snapshot(5.0).models["a"]
    assert (view.state, view.queue_length, view.oldest_wait_s) == (WorkerState.READY, 1, 3.0)
    assert view.blocked_by == "a free place on 'a', where 1 request is running or next"
    (resident,) = view.residents
    assert (resident.worker, resident.num_leases, resident.max_leases) == (A1, 1, 1)
    assert (resident.since_s, resident.last_used_s, resident.idle_unload_at_s) == (1.0, 1.0, None)
    other = fleet.snapshot(5.0).models["b"]
    assert (other.state, other.num_starts, other.blocked_by) == (WorkerState.UNLOADED, 0, None)
    assert (other.last_exit, other.last_exit_ago_s, other.retry_in_s) == (None, None, None)


def test_the_snapshot_says_when_an_idle_model_will_go() -> None:
    fleet = make_fleet(ModelPolicy("a", idle_unload_s=10.0))
    given_ready(fleet, "a", now_s=1.0)
    assert fleet.snapshot(5.0).models["a"].residents[0].idle_unload_at_s == 11.0


def test_a_clock_that_steps_back_changes_nothing() -> None:
    fleet = make_fleet(ModelPolicy("a", idle_unload_s=10.0))
    given_ready(fleet, "a", num_leases=1, now_s=100.0)
    ask(fleet, 1, "a", 50.0)
    assert fleet.snapshot(100.0).models["a"].residents[0].last_used_s == 100.0


def test_nothing_is_due_for_a_fleet_at_rest() -> None:
    assert make_fleet("a").next_deadline_s is None
