"""Another configuration while everything runs, and models that are loaded at the start."""

from __future__ import annotations

from router.events import (
    Action,
    CatalogChanged,
    FleetLimits,
    GrantLease,
    LeaseId,
    ModelPolicy,
    RefusalKind,
    RefuseLoad,
    SpawnWorker,
    StopWorker,
    Tick,
    UnloadRequested,
)
from router.fleet import Fleet
from router.lifecycle import WorkerState
from tests.support.fleet_scenes import (
    BAD_FILE,
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


def change(fleet: Fleet, now_s: float, *models: ModelPolicy, **limits: float) -> list[Action]:
    return fleet.handle(CatalogChanged({m.name: m for m in models}, FleetLimits(**limits)), now_s)  # type: ignore[arg-type]


def test_an_unchanged_model_does_not_notice_that_another_one_is_added() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a", num_leases=1)
    assert change(fleet, 1.0, ModelPolicy("a"), ModelPolicy("b")) == []
    assert ask(fleet, 1, "b", 2.0) == [SpawnWorker(B1)]


def test_a_removed_model_refuses_who_waits_and_who_comes() -> None:
    fleet = make_fleet("a", "b")
    given_ready(fleet, "a", num_leases=1, max_leases=1)
    ask(fleet, 1, "a", 1.0)
    refused = refusal(change(fleet, 2.0, ModelPolicy("b")))
    assert refused.kind is RefusalKind.UNKNOWN_MODEL
    assert "removed" in refused.detail
    assert refusal(ask(fleet, 2, "a", 3.0)).kind is RefusalKind.UNKNOWN_MODEL


def test_a_removed_idle_model_stops_at_once_and_is_forgotten_when_it_has() -> None:
    fleet = make_fleet("a", "b")
    given_ready(fleet, "a")
    assert change(fleet, 1.0, ModelPolicy("b")) == [StopWorker(A1, grace_s=5.0)]
    assert "a" in fleet.snapshot(1.0).models
    exits(fleet, A1, 2.0)
    assert "a" not in fleet.snapshot(2.0).models


def test_a_removed_busy_model_finishes_its_answers_within_the_drain_time() -> None:
    fleet = make_fleet("a", "b")
    (running,) = given_ready(fleet, "a", num_leases=1)
    assert change(fleet, 1.0, ModelPolicy("b")) == []
    assert fleet.next_deadline_s == 61.0
    change(fleet, 2.0, ModelPolicy("b"), drain_timeout_s=1.0)
    assert fleet.next_deadline_s == 61.0, "what it was given stays its own"
    assert release(fleet, running, 3.0) == [StopWorker(A1, grace_s=5.0)]


def test_a_removed_model_that_never_ran_is_simply_gone() -> None:
    fleet = make_fleet("a", "b")
    assert change(fleet, 1.0, ModelPolicy("b")) == []
    assert set(fleet.snapshot(1.0).models) == {"b"}


def test_a_model_that_is_removed_and_added_again_gets_a_worker_of_its_own() -> None:
    fleet = make_fleet("a", "b")
    given_ready(fleet, "a")
    change(fleet, 1.0, ModelPolicy("b"))
    change(fleet, 1.5, ModelPolicy("a"), ModelPolicy("b"))
    assert ask(fleet, 1, "a", 1.6) == []
    assert exits(fleet, A1, 2.0) == [SpawnWorker(A2)]
    exits(fleet, A2, 3.0, CRASH)
    change(fleet, 4.0, ModelPolicy("b"))
    change(fleet, 5.0, ModelPolicy("a"), ModelPolicy("b"))
    assert ask(fleet, 2, "a", 6.0) == [SpawnWorker(worker("a", 3))], "no id is ever used twice"


def test_a_changed_model_without_room_for_a_second_worker_restarts_when_it_is_next_idle() -> None:
    fleet = make_fleet("a", max_loaded=1)
    (running,) = given_ready(fleet, "a", num_leases=1)
    assert change(fleet, 1.0, ModelPolicy("a", fingerprint="new"), max_loaded=1) == []
    assert ask(fleet, 1, "a", 2.0) == [GrantLease(LeaseId(1), A1)]
    assert release(fleet, running, 3.0) == []
    assert release(fleet, 1, 4.0) == [StopWorker(A1, grace_s=5.0)]
    assert exits(fleet, A1, 5.0) == [], "the next request loads it"
    assert ask(fleet, 2, "a", 6.0) == [SpawnWorker(A2)]


def test_a_changed_model_that_is_pinned_or_preloaded_comes_back_by_itself() -> None:
    for policy in (
        ModelPolicy("a", pin=True, fingerprint="new"),
        ModelPolicy("a", preload=True, fingerprint="new"),
    ):
        fleet = make_fleet("a")
        given_ready(fleet, "a")
        assert change(fleet, 1.0, policy) == [StopWorker(A1, grace_s=5.0)]
        assert exits(fleet, A1, 2.0) == [SpawnWorker(A2)]


def test_a_load_with_the_old_configuration_is_begun_again_for_those_who_wait() -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    assert change(fleet, 1.0, ModelPolicy("a", fingerprint="new")) == [StopWorker(A1, grace_s=5.0)]
    assert exits(fleet, A1, 2.0) == [SpawnWorker(A2)]
    assert ready(fleet, A2, 3.0) == [GrantLease(LeaseId(1), A2)]


def test_new_timeouts_take_effect_at_once_without_a_restart() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a", num_leases=1, max_leases=1)
    ask(fleet, 1, "a", 1.0)
    assert change(fleet, 2.0, ModelPolicy("a", queue_timeout_s=10.0)) == []
    assert fleet.next_deadline_s == 11.0


def test_a_model_that_becomes_unavailable_refuses_who_waits_for_its_start() -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    broken = ModelPolicy("a", fingerprint="new", unavailable="chat.jinja does not exist")
    stop, refused = change(fleet, 1.0, broken)
    assert stop == StopWorker(A1, grace_s=5.0)
    assert "chat.jinja does not exist" in refusal([refused]).detail


def test_a_running_model_that_could_not_start_again_serves_on() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a")
    change(fleet, 1.0, ModelPolicy("a", unavailable="a.gguf does not exist"))
    assert ask(fleet, 1, "a", 2.0) == [GrantLease(LeaseId(1), A1)]


def test_requests_of_a_running_model_that_is_evicted_and_cannot_start_again_are_refused() -> None:
    fleet = make_fleet("a", "b", max_loaded=1, max_wait_s=30.0)
    given_ready(fleet, "a", num_leases=1, max_leases=1)
    broken = ModelPolicy("a", unavailable="a.gguf does not exist")
    change(fleet, 1.0, broken, ModelPolicy("b"), max_loaded=1)
    ask(fleet, 1, "b", 2.0)
    ask(fleet, 2, "a", 3.0)
    refused = refusal(fleet.handle(Tick(), 32.0))
    assert refused.lease_id == 2
    assert "a.gguf does not exist" in refused.detail


# --- preloads ---------------------------------------------------------------------------------------------


def preloaded(*names: str) -> list[ModelPolicy]:
    return [ModelPolicy(name, preload=True) for name in names]


def test_preloads_start_with_the_first_tick_one_after_another() -> None:
    fleet = make_fleet(*preloaded("a", "b"), "c")
    assert fleet.next_deadline_s == 0.0
    assert fleet.handle(Tick(), 0.0) == [SpawnWorker(A1)]
    assert fleet.handle(Tick(), 1.0) == []
    assert ready(fleet, A1, 2.0) == [SpawnWorker(B1)]
    assert ready(fleet, B1, 3.0) == []


def test_a_request_does_not_wait_for_the_preloads() -> None:
    fleet = make_fleet(*preloaded("a", "b"), "c")
    fleet.handle(Tick(), 0.0)
    assert ask(fleet, 1, "c", 1.0) == [SpawnWorker(C1)]


def test_a_preload_that_fails_pauses_and_does_not_hold_up_the_others() -> None:
    fleet = make_fleet(*preloaded("a", "b"))
    fleet.handle(Tick(), 0.0)
    assert exits(fleet, A1, 1.0, CRASH) == [SpawnWorker(B1)]
    ready(fleet, B1, 1.5)
    assert fleet.next_deadline_s == 2.0
    assert fleet.handle(Tick(), 2.0) == [SpawnWorker(A2)]


def test_a_preload_of_a_bad_file_is_given_up_until_the_configuration_changes() -> None:
    fleet = make_fleet(*preloaded("a"))
    fleet.handle(Tick(), 0.0)
    exits(fleet, A1, 1.0, BAD_FILE)
    assert fleet.next_deadline_s is None
    assert fleet.handle(Tick(), 500.0) == []
    assert change(fleet, 501.0, ModelPolicy("a", preload=True, fingerprint="new")) == [SpawnWorker(A2)]


def test_a_bad_file_is_not_preloaded_because_it_is_marked_for_that_later() -> None:
    fleet = make_fleet("a")
    ask(fleet, 1, "a", 0.0)
    exits(fleet, A1, 1.0, BAD_FILE)
    assert change(fleet, 2.0, *preloaded("a")) == []
    assert fleet.next_deadline_s is None
    assert fleet.handle(Tick(), 500.0) == []


def test_a_preload_never_evicts_and_is_given_up_when_there_is_no_room() -> None:
    fleet = make_fleet(*preloaded("a", "b"), max_loaded=1)
    fleet.handle(Tick(), 0.0)
    (refused,) = ready(fleet, A1, 1.0)
    assert isinstance(refused, RefuseLoad)
    assert refused.model == "b"
    assert "limits.max_loaded is 1" in refused.detail
    fleet.handle(UnloadRequested("a"), 2.0)
    assert exits(fleet, A1, 3.0) == []


def test_an_unload_calls_a_pending_preload_off() -> None:
    fleet = make_fleet(*preloaded("a", "b"))
    fleet.handle(Tick(), 0.0)
    fleet.handle(UnloadRequested("b"), 1.0)
    assert ready(fleet, A1, 2.0) == []


def test_an_unavailable_preload_is_passed_over_and_loaded_when_it_becomes_available() -> None:
    broken = ModelPolicy("a", preload=True, unavailable="a.gguf does not exist")
    fleet = make_fleet(broken, *preloaded("b"))
    assert fleet.handle(Tick(), 0.0) == [SpawnWorker(B1)]
    ready(fleet, B1, 1.0)
    assert change(fleet, 2.0, *preloaded("a", "b")) == [SpawnWorker(A1)]


def test_a_preloaded_model_that_idled_away_is_not_preloaded_again_by_an_unrelated_change() -> None:
    fleet = make_fleet(ModelPolicy("a", preload=True, idle_unload_s=10.0))
    fleet.handle(Tick(), 0.0)
    ready(fleet, A1, 1.0)
    assert stopped_by(fleet.handle(Tick(), 11.0)) == [A1]
    exits(fleet, A1, 12.0)
    assert spawned_by(change(fleet, 13.0, ModelPolicy("a", preload=True, priority=4))) == []
    assert fleet.snapshot(13.0).models["a"].state is WorkerState.UNLOADED


def test_a_model_that_is_marked_for_preload_later_is_loaded_then() -> None:
    fleet = make_fleet("a")
    fleet.handle(Tick(), 0.0)
    assert change(fleet, 1.0, *preloaded("a")) == [SpawnWorker(A1)]
