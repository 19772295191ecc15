"""Several models and fewer places than models: who is evicted, when, and for whom."""

from __future__ import annotations

from router.events import (
    CatalogChanged,
    FleetLimits,
    GrantLease,
    LeaseId,
    LoadRequested,
    ModelPolicy,
    RefusalKind,
    SpawnWorker,
    StopWorker,
    Tick,
    UnloadRequested,
)
from router.fleet import Fleet
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

A1, A2, B1, C1 = worker("a"), worker("a", 2), worker("b"), worker("c")


def pair(**limits: float) -> Fleet:
    return make_fleet("a", "b", max_loaded=1, **limits)


def test_an_idle_resident_is_evicted_for_a_new_model() -> None:
    fleet = pair()
    given_ready(fleet, "a")
    assert ask(fleet, 1, "b", 10.0) == [StopWorker(A1, grace_s=5.0)]
    assert exits(fleet, A1, 11.0) == [SpawnWorker(B1)]
    assert ready(fleet, B1, 15.0) == [GrantLease(LeaseId(1), B1)]


def test_without_a_limit_models_do_not_evict_each_other() -> None:
    fleet = make_fleet("a", "b")
    given_ready(fleet, "a")
    assert ask(fleet, 1, "b", 10.0) == [SpawnWorker(B1)]


def test_the_least_recently_used_model_of_the_lowest_priority_is_evicted() -> None:
    fleet = make_fleet(ModelPolicy("a", priority=1), "b", "c", "d", max_loaded=3)
    given_ready(fleet, "a", now_s=1.0)
    given_ready(fleet, "b", now_s=2.0)
    given_ready(fleet, "c", now_s=3.0)
    ask(fleet, 1, "b", 4.0)
    release(fleet, 1, 5.0)
    assert stopped_by(ask(fleet, 2, "d", 6.0)) == [C1]


def test_a_busy_model_finishes_its_answers_before_it_makes_room() -> None:
    fleet = pair(max_wait_s=30.0)
    (running,) = given_ready(fleet, "a", num_leases=1)
    assert ask(fleet, 1, "b", 10.0) == []
    assert "'a' is busy, 1 request is running" in str(fleet.snapshot(11.0).models["b"].blocked_by)
    assert release(fleet, running, 20.0) == [StopWorker(A1, grace_s=5.0)]


def test_requests_of_the_resident_model_are_served_together_until_another_has_waited_too_long() -> None:
    fleet = pair(max_wait_s=30.0)
    (first,) = given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 10.0)
    assert ask(fleet, 2, "a", 39.0) == [GrantLease(LeaseId(2), A1)]
    assert fleet.next_deadline_s == 40.0
    assert fleet.handle(Tick(), 40.0) == []
    assert fleet.snapshot(40.0).models["a"].state is WorkerState.DRAINING
    assert ask(fleet, 3, "a", 41.0) == [], "a victim takes no new requests"
    release(fleet, first, 42.0)
    assert release(fleet, 2, 43.0) == [StopWorker(A1, grace_s=5.0)]
    assert exits(fleet, A1, 44.0) == [SpawnWorker(B1)]


def test_a_swap_never_cuts_off_running_requests_however_long_they_take() -> None:
    fleet = make_fleet("a", ModelPolicy("b", queue_timeout_s=0.0), max_loaded=1)
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 0.0)
    fleet.handle(Tick(), 30.0)
    assert fleet.next_deadline_s is None
    assert fleet.handle(Tick(), 1e6) == []


def test_a_request_that_gives_up_waiting_for_room_is_told_who_had_it() -> None:
    fleet = make_fleet("a", ModelPolicy("b", queue_timeout_s=5.0), max_loaded=1)
    given_ready(fleet, "a", num_leases=2)
    ask(fleet, 1, "b", 0.0)
    refused = refusal(fleet.handle(Tick(), 5.0))
    assert refused.kind is RefusalKind.QUEUE_TIMEOUT
    assert "max_loaded is 1" in refused.detail
    assert "'a' is busy, 2 requests are running" in refused.detail


def test_the_evicted_models_own_waiters_do_not_take_the_place_back() -> None:
    fleet = pair(max_wait_s=30.0)
    (running,) = given_ready(fleet, "a", num_leases=1, max_leases=1)
    ask(fleet, 1, "a", 1.0)  # older than the request for b
    ask(fleet, 2, "b", 2.0)
    fleet.handle(Tick(), 32.0)
    release(fleet, running, 33.0)
    assert exits(fleet, A1, 34.0) == [SpawnWorker(B1)]
    ready(fleet, B1, 35.0)
    assert fleet.handle(Tick(), 63.9) == [], "b has its turn before a may ask for the place"
    fleet.handle(Tick(), 64.0)
    assert fleet.snapshot(64.0).models["b"].state is WorkerState.DRAINING


def test_a_victim_serves_again_when_nobody_needs_its_place_any_more() -> None:
    fleet = pair(max_wait_s=30.0)
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 0.0)
    fleet.handle(Tick(), 30.0)
    ask(fleet, 2, "a", 31.0)
    assert release(fleet, 1, 32.0) == [GrantLease(LeaseId(2), A1)]
    assert fleet.snapshot(32.0).models["a"].state is WorkerState.READY


def test_a_model_that_drains_by_request_is_not_opened_again() -> None:
    fleet = pair(max_wait_s=30.0)
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 0.0)
    fleet.handle(Tick(), 30.0)
    fleet.handle(UnloadRequested("a"), 31.0)
    ask(fleet, 2, "a", 31.0)
    assert release(fleet, 1, 32.0) == []
    assert fleet.snapshot(32.0).models["a"].state is WorkerState.DRAINING


def test_a_loading_model_is_never_a_victim_and_serves_its_waiters_first() -> None:
    fleet = pair(max_wait_s=5.0)
    ask(fleet, 1, "a", 0.0)
    assert ask(fleet, 2, "b", 0.005) == []
    assert fleet.handle(Tick(), 20.0) == []
    assert ready(fleet, A1, 40.0) == [GrantLease(LeaseId(1), A1)]
    assert release(fleet, 1, 41.0) == [StopWorker(A1, grace_s=5.0)]


def test_a_model_that_was_loaded_for_somebody_who_left_makes_room_as_soon_as_it_is_ready() -> None:
    fleet = pair()
    ask(fleet, 1, "a", 0.0)
    ask(fleet, 2, "b", 1.0)
    release(fleet, 1, 2.0)
    assert ready(fleet, A1, 3.0) == [StopWorker(A1, grace_s=5.0)]


def test_two_models_that_want_the_same_place_get_it_one_after_the_other() -> None:
    fleet = make_fleet("a", "b", "c", max_loaded=1)
    given_ready(fleet, "a")
    assert ask(fleet, 1, "b", 10.0) == [StopWorker(A1, grace_s=5.0)]
    assert ask(fleet, 2, "c", 10.0) == []
    assert exits(fleet, A1, 11.0) == [SpawnWorker(B1)]
    ready(fleet, B1, 12.0)
    assert release(fleet, 1, 13.0) == [StopWorker(B1, grace_s=5.0)]
    assert exits(fleet, B1, 14.0) == [SpawnWorker(C1)]


def test_one_request_makes_only_one_model_go() -> None:
    fleet = make_fleet("a", "b", "c", max_loaded=2)
    given_ready(fleet, "a", now_s=0.0)
    given_ready(fleet, "b", now_s=1.0)
    assert stopped_by(ask(fleet, 1, "c", 2.0)) == [A1]
    assert ask(fleet, 2, "c", 2.5) == []
    assert fleet.handle(Tick(), 40.0) == []


def test_two_requests_for_different_models_make_two_models_go() -> None:
    fleet = make_fleet("a", "b", "c", "d", max_loaded=2)
    given_ready(fleet, "a", now_s=0.0)
    given_ready(fleet, "b", now_s=1.0)
    assert stopped_by(ask(fleet, 1, "c", 2.0)) == [A1]
    assert stopped_by(ask(fleet, 2, "d", 2.0)) == [B1]


def test_a_model_that_comes_back_after_its_unload_does_not_leave_another_one_waiting() -> None:
    fleet = make_fleet("a", "b", "c", max_loaded=2)
    given_ready(fleet, "a")
    given_ready(fleet, "b")
    fleet.handle(UnloadRequested("a"), 1.0)
    assert ask(fleet, 1, "a", 2.0) == []
    assert ask(fleet, 2, "c", 3.0) == [StopWorker(B1, grace_s=5.0)], "one place for each of them"


def test_of_two_busy_models_the_one_that_has_not_been_asked_for_lately_goes() -> None:
    fleet = make_fleet("a", "b", "c", max_loaded=2, max_wait_s=30.0)
    given_ready(fleet, "a", num_leases=1, now_s=0.0)
    given_ready(fleet, "b", num_leases=1, now_s=1.0)
    ask(fleet, 1, "a", 2.0)
    ask(fleet, 2, "c", 3.0)
    fleet.handle(Tick(), 33.0)
    states = {name: view.state for name, view in fleet.snapshot(33.0).models.items()}
    assert (states["a"], states["b"]) == (WorkerState.READY, WorkerState.DRAINING)


def test_a_model_that_becomes_idle_makes_room_before_a_draining_one_has_finished() -> None:
    fleet = make_fleet("a", "b", "c", max_loaded=2, max_wait_s=30.0)
    given_ready(fleet, "a", num_leases=1, now_s=0.0)
    (running,) = given_ready(fleet, "b", num_leases=1, now_s=1.0)
    ask(fleet, 1, "c", 2.0)
    fleet.handle(Tick(), 32.0)
    assert fleet.snapshot(32.0).models["a"].state is WorkerState.DRAINING
    assert release(fleet, running, 33.0) == [StopWorker(B1, grace_s=5.0)]
    assert fleet.snapshot(33.0).models["a"].state is WorkerState.READY, "its place is not needed any more"


def test_a_victim_that_crashes_while_it_drains_still_makes_room() -> None:
    fleet = pair(max_wait_s=30.0)
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 0.0)
    fleet.handle(Tick(), 30.0)
    assert exits(fleet, A1, 31.0, CRASH) == [SpawnWorker(B1)]


def test_a_model_that_crashes_while_others_wait_leaves_its_place_to_them() -> None:
    fleet = pair()
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 1.0)
    assert exits(fleet, A1, 2.0, CRASH) == [SpawnWorker(B1)]


def test_a_load_that_fails_gives_its_place_to_the_next_model() -> None:
    fleet = pair()
    ask(fleet, 1, "a", 0.0)
    ask(fleet, 2, "b", 0.0)
    assert spawned_by(exits(fleet, A1, 1.0, CRASH)) == [B1]


def test_higher_priorities_get_the_next_place_unless_somebody_has_waited_too_long() -> None:
    fleet = make_fleet("a", "b", ModelPolicy("c", priority=5), max_loaded=1, max_wait_s=30.0)
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 0.0)
    ask(fleet, 2, "c", 10.0)
    assert spawned_by(exits(fleet, A1, 11.0, CRASH)) == [C1]

    fleet = make_fleet("a", "b", ModelPolicy("c", priority=5), max_loaded=1, max_wait_s=30.0)
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 0.0)
    ask(fleet, 2, "c", 10.0)
    assert spawned_by(exits(fleet, A1, 31.0, CRASH)) == [B1]

    fleet = make_fleet("a", "b", ModelPolicy("c", priority=5), max_loaded=1, max_wait_s=30.0)
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 0.0)
    ask(fleet, 2, "c", 10.0)
    assert spawned_by(exits(fleet, A1, 41.0, CRASH)) == [B1], "both have waited too long: the older one"


def test_a_pinned_model_that_holds_the_only_place_is_named_in_the_refusal() -> None:
    fleet = make_fleet(ModelPolicy("a", pin=True), "b", max_loaded=1)
    given_ready(fleet, "a")
    refused = refusal(ask(fleet, 1, "b", 1.0))
    assert refused.kind is RefusalKind.UNAVAILABLE
    assert "max_loaded is 1" in refused.detail
    assert "'a'" in refused.detail


def test_requests_that_wait_are_refused_when_a_pinned_model_takes_the_last_place() -> None:
    fleet = make_fleet("a", ModelPolicy("b", pin=True), "c", max_loaded=1)
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 0.0)
    ask(fleet, 2, "c", 1.0)
    spawn, refused = exits(fleet, A1, 2.0, CRASH)
    assert spawn == SpawnWorker(B1)
    assert "'b'" in refusal([refused]).detail


def test_a_victim_that_is_pinned_while_it_drains_serves_again_and_the_others_are_refused() -> None:
    fleet = pair(max_wait_s=30.0)
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 0.0)
    fleet.handle(Tick(), 30.0)
    models = {"a": ModelPolicy("a", pin=True), "b": ModelPolicy("b")}
    refused = refusal(fleet.handle(CatalogChanged(models, FleetLimits(max_loaded=1)), 31.0))
    assert (refused.lease_id, refused.kind) == (1, RefusalKind.UNAVAILABLE)
    assert fleet.snapshot(31.0).models["a"].state is WorkerState.READY


def test_a_place_beside_a_pinned_model_is_shared_by_the_others() -> None:
    fleet = make_fleet(ModelPolicy("a", pin=True), "b", "c", max_loaded=2)
    given_ready(fleet, "a", now_s=0.0)
    given_ready(fleet, "b", now_s=5.0)
    assert stopped_by(ask(fleet, 1, "c", 6.0)) == [B1]


def test_a_load_on_demand_waits_for_room_like_a_request_and_gives_up_like_one() -> None:
    fleet = make_fleet("a", ModelPolicy("b", queue_timeout_s=50.0), max_loaded=1, max_wait_s=30.0)
    (running,) = given_ready(fleet, "a", num_leases=1)
    assert fleet.handle(LoadRequested("b"), 0.0) == []
    assert fleet.next_deadline_s == 30.0
    fleet.handle(Tick(), 30.0)
    assert fleet.snapshot(30.0).models["a"].state is WorkerState.DRAINING
    assert fleet.next_deadline_s == 50.0
    fleet.handle(Tick(), 50.0)
    assert fleet.snapshot(50.0).models["a"].state is WorkerState.READY
    release(fleet, running, 51.0)
    assert fleet.snapshot(51.0).models["b"].state is WorkerState.UNLOADED


def test_an_unload_of_a_model_that_waits_for_room_refuses_its_requests() -> None:
    fleet = pair()
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 1.0)
    refused = refusal(fleet.handle(UnloadRequested("b"), 2.0))
    assert "unloaded by request before it could be loaded" in refused.detail


def test_a_lower_limit_sends_idle_models_away_and_busy_ones_when_they_are_idle() -> None:
    fleet = make_fleet("a", "b", "c", max_loaded=3)
    given_ready(fleet, "a", now_s=0.0)
    (running,) = given_ready(fleet, "b", num_leases=1, now_s=1.0)
    given_ready(fleet, "c", num_leases=1, now_s=2.0)
    models = {name: ModelPolicy(name) for name in "abc"}
    assert stopped_by(fleet.handle(CatalogChanged(models, FleetLimits(max_loaded=1)), 3.0)) == [A1]
    assert exits(fleet, A1, 4.0) == []
    assert stopped_by(release(fleet, running, 5.0)) == [B1]


def test_a_request_that_waits_too_long_after_the_limit_was_lowered_drains_all_who_are_too_many() -> None:
    fleet = make_fleet("a", "b", "c", max_loaded=2)
    given_ready(fleet, "a", num_leases=1)
    given_ready(fleet, "b", num_leases=1)
    fleet.handle(CatalogChanged({name: ModelPolicy(name) for name in "abc"}, FleetLimits(max_loaded=1)), 1.0)
    ask(fleet, 1, "c", 2.0)
    fleet.handle(Tick(), 32.0)
    states = {name: view.state for name, view in fleet.snapshot(32.0).models.items()}
    assert (states["a"], states["b"]) == (WorkerState.DRAINING, WorkerState.DRAINING)


def test_each_of_two_models_that_wait_too_long_under_a_lowered_limit_gets_one_place() -> None:
    fleet = make_fleet("a", "b", "c", "d", "e", max_loaded=3)
    for name in "abc":
        given_ready(fleet, name, num_leases=1)
    fleet.handle(CatalogChanged({name: ModelPolicy(name) for name in "abcde"}, FleetLimits(max_loaded=2)), 1.0)
    ask(fleet, 1, "d", 2.0)
    ask(fleet, 2, "e", 3.0)
    fleet.handle(Tick(), 33.0)
    states = [fleet.snapshot(33.0).models[name].state for name in "abc"]
    assert states == [WorkerState.DRAINING] * 3, "one that is too many, one for d and one for e"


def test_a_pinned_model_that_is_being_unloaded_is_waited_for() -> None:
    fleet = make_fleet(ModelPolicy("a", pin=True), "b", max_loaded=1)
    (running,) = given_ready(fleet, "a", num_leases=1)
    fleet.handle(UnloadRequested("a"), 1.0)
    assert ask(fleet, 1, "b", 2.0) == []
    release(fleet, running, 3.0)
    assert exits(fleet, A1, 4.0) == [SpawnWorker(B1)]


def test_a_higher_limit_starts_who_waits_and_opens_the_victim_again() -> None:
    fleet = pair(max_wait_s=30.0)
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 0.0)
    fleet.handle(Tick(), 30.0)
    models = {name: ModelPolicy(name) for name in "ab"}
    assert fleet.handle(CatalogChanged(models, FleetLimits(max_loaded=2)), 31.0) == [SpawnWorker(B1)]
    assert fleet.snapshot(31.0).models["a"].state is WorkerState.READY


def test_alternating_requests_cost_two_loads_not_six() -> None:
    fleet = pair()
    spawned = []
    for lease_id, model in enumerate("ababab"):
        spawned += spawned_by(ask(fleet, lease_id, model, 0.01 * lease_id))
    ready(fleet, A1, 1.0)
    for lease_id in (0, 2, 4):
        release(fleet, lease_id, 2.0)
    spawned += spawned_by(exits(fleet, A1, 3.0))
    assert ready(fleet, B1, 4.0) == [GrantLease(LeaseId(n), B1) for n in (1, 3, 5)]
    assert spawned == [A1, B1]
