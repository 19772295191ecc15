"""Several workers of one model: when there is another one, who is served by which, and when one goes again."""

from __future__ import annotations

from typing import Any

from router.device import Device, DeviceKind, Footprint, FootprintSource
from router.events import (
    Action,
    CatalogChanged,
    DevicesChanged,
    ExitReason,
    FleetLimits,
    GrantLease,
    LeaseId,
    LeaseRequested,
    LoadRequested,
    ModelPolicy,
    ModelSized,
    SpawnWorker,
    StopWorker,
    Tick,
    UnloadRequested,
    WorkerHung,
    WorkerId,
    WorkerReady,
    WorkerStarted,
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


def of(replica: int, incarnation: int = 1, model: str = "a") -> WorkerId:
    return WorkerId(model, replica, incarnation)


A0, A1, A2, B0 = of(0), of(1), of(2), of(0, model="b")


def replicas(num: int, **fields: Any) -> ModelPolicy:
    return ModelPolicy("a", replicas=num, **fields)


def ready_with(fleet: Fleet, loaded: WorkerId, now_s: float, *, max_leases: int, slots: int) -> list[Action]:
    """A worker that takes more leases than it serves at the same time, as real ones do."""
    fleet.handle(WorkerStarted(loaded), now_s)
    return fleet.handle(WorkerReady(loaded, max_leases, slots), now_s)


def two_ready(**fields: Any) -> Fleet:
    """Two idle replicas that serve two requests each and let four more wait right behind them."""
    fleet = make_fleet(replicas(2, **fields))
    ask(fleet, 1, "a", 0.0)
    ready_with(fleet, A0, 1.0, max_leases=6, slots=2)
    ready_with(fleet, A1, 2.0, max_leases=6, slots=2)
    release(fleet, 1, 3.0)
    return fleet


def granted(actions: list[Action]) -> WorkerId:
    """Return the worker that the only action grants."""
    (action,) = actions
    assert isinstance(action, GrantLease)
    return action.worker


def states(fleet: Fleet, model: str = "a") -> dict[int, WorkerState]:
    return {view.worker.replica: view.state for view in fleet.snapshot(0.0).models[model].residents}


# --- one more ---------------------------------------------------------------------------------------------


def test_a_second_replica_starts_when_all_others_have_work() -> None:
    fleet = make_fleet(replicas(2))
    assert ask(fleet, 1, "a", 0.0) == [SpawnWorker(A0)]
    assert ready(fleet, A0, 1.0) == [GrantLease(LeaseId(1), A0), SpawnWorker(A1)]


def test_there_is_one_worker_as_long_as_it_has_nothing_to_do() -> None:
    fleet = make_fleet(replicas(2))
    fleet.handle(LoadRequested("a"), 0.0)
    assert ready(fleet, A0, 1.0) == []
    assert ask(fleet, 1, "a", 2.0) == [GrantLease(LeaseId(1), A0), SpawnWorker(A1)]


def test_further_replicas_come_one_after_another_and_never_more_than_configured() -> None:
    fleet = make_fleet(replicas(3))
    actions = [action for lease_id in range(20) for action in ask(fleet, lease_id, "a", 0.0)]
    assert actions == [SpawnWorker(A0)]
    assert spawned_by(ready(fleet, A0, 1.0)) == [A1]
    assert spawned_by(ready(fleet, A1, 2.0)) == [A2]
    assert spawned_by(ready(fleet, A2, 3.0)) == []


def test_a_further_replica_evicts_nobody() -> None:
    fleet = make_fleet(replicas(2), "b", max_loaded=2)
    given_ready(fleet, "b")
    ask(fleet, 1, "a", 0.0)
    assert ready(fleet, A0, 1.0) == [GrantLease(LeaseId(1), A0)]
    assert fleet.handle(Tick(), 100.0) == []
    assert states(fleet, "b") == {0: WorkerState.READY}


def test_a_further_replica_starts_when_there_is_room_at_last() -> None:
    fleet = make_fleet(replicas(2), "b", max_loaded=2)
    given_ready(fleet, "b")
    ask(fleet, 1, "a", 0.0)
    ready(fleet, A0, 1.0)
    assert exits(fleet, B0, 5.0, CRASH) == [SpawnWorker(A1)]


def test_another_model_that_waits_comes_before_a_further_replica() -> None:
    fleet = make_fleet(replicas(2), "b", "c", max_loaded=2, max_wait_s=100.0)
    given_ready(fleet, "c", num_leases=1)
    ask(fleet, 1, "a", 0.0)
    ready(fleet, A0, 1.0)
    assert ask(fleet, 2, "b", 2.0) == []
    assert exits(fleet, worker("c"), 5.0, CRASH) == [SpawnWorker(B0)]


def test_a_further_replica_does_not_take_memory_while_another_model_waits_for_more_of_it() -> None:
    fleet = make_fleet(replicas(2, pin=True), "b", "c")
    fleet.handle(DevicesChanged((Device("CPU", DeviceKind.CPU, 32),)), 0.0)
    for name, num_bytes in {"a": 10, "b": 20, "c": 10}.items():
        fleet.handle(ModelSized(name, Footprint(num_bytes, source=FootprintSource.PROBE)), 0.0)
    fleet.handle(LoadRequested("a"), 0.0)
    ready(fleet, A0, 0.5)
    (running,) = given_ready(fleet, "c", num_leases=1)
    assert ask(fleet, 1, "b", 1.0) == [], "c is busy, and 12 are free"
    assert ask(fleet, 2, "a", 2.0) == [GrantLease(LeaseId(2), A0)]
    release(fleet, 1, 3.0)
    assert 1 in states(fleet), "as soon as nobody waits"
    assert release(fleet, running, 4.0) == []


def test_an_idle_replica_makes_room_for_another_model_and_the_other_one_serves_on() -> None:
    fleet = make_fleet(replicas(2), "b", max_loaded=2)
    ask(fleet, 1, "a", 0.0)
    ready(fleet, A0, 1.0)
    ready(fleet, A1, 2.0)
    assert stopped_by(ask(fleet, 2, "b", 3.0)) == [A1]
    assert ask(fleet, 3, "a", 4.0) == [GrantLease(LeaseId(3), A0)]


def test_replicas_are_placed_on_different_devices_where_one_does_not_hold_two() -> None:
    cards = tuple(Device(f"GPU{number}", DeviceKind.GPU, 24) for number in range(2))
    fleet = make_fleet(replicas(2))
    fleet.handle(DevicesChanged((Device("CPU", DeviceKind.CPU, 64), *cards)), 0.0)
    fleet.handle(ModelSized("a", Footprint(20, gpu_bytes=16, num_layers=4, source=FootprintSource.PROBE)), 0.0)
    (first,) = ask(fleet, 1, "a", 0.0)
    _, second = ready(fleet, A0, 1.0)
    assert isinstance(first, SpawnWorker)
    assert isinstance(second, SpawnWorker)
    assert (first.placement.gpus, second.placement.gpus) == (("GPU0",), ("GPU1",))


def test_each_replica_idles_away_by_itself() -> None:
    fleet = two_ready(idle_unload_s=10.0)
    ask(fleet, 2, "a", 8.0)
    assert stopped_by(fleet.handle(Tick(), 12.0)) == [A1], "ready since 2 s, and never used"
    assert states(fleet)[0] is WorkerState.READY


# --- who is served where ----------------------------------------------------------------------------------


def test_requests_go_to_the_least_loaded_replica() -> None:
    fleet = two_ready()
    assert [granted(ask(fleet, lease_id, "a", 4.0)) for lease_id in range(10, 14)] == [A0, A1, A0, A1]
    release(fleet, 11, 5.0)
    assert granted(ask(fleet, 14, "a", 6.0)) == A1


def test_load_is_measured_by_what_a_replica_can_serve() -> None:
    fleet = make_fleet(replicas(2))
    ask(fleet, 1, "a", 0.0)
    ready_with(fleet, A0, 1.0, max_leases=10, slots=1)
    ready_with(fleet, A1, 2.0, max_leases=10, slots=4)
    taken = [granted(ask(fleet, lease_id, "a", 3.0)) for lease_id in range(10, 14)]
    assert taken == [A1, A1, A1, A1], "a quarter of its slots each, while the other one is full"


def test_a_conversation_returns_to_the_replica_that_knows_its_beginning() -> None:
    fleet = two_ready()
    ask(fleet, 10, "a", 4.0)
    assert granted(ask(fleet, 11, "a", 4.0, prefixes=(7, 8))) == A1
    release(fleet, 10, 5.0)
    release(fleet, 11, 5.0)
    assert granted(ask(fleet, 12, "a", 6.0, prefixes=(7, 8, 9))) == A1
    assert granted(ask(fleet, 13, "a", 6.0, prefixes=(55,))) == A0


def test_the_longest_known_beginning_decides() -> None:
    fleet = two_ready()
    assert granted(ask(fleet, 10, "a", 4.0, prefixes=(1, 2))) == A0
    assert granted(ask(fleet, 11, "a", 4.0, prefixes=(1, 5, 6))) == A0, "both begin with the same system prompt"
    assert granted(ask(fleet, 12, "a", 4.0, prefixes=(3,))) == A1
    assert granted(ask(fleet, 13, "a", 4.0, prefixes=(3, 1))) == A1
    for lease_id in range(10, 14):
        release(fleet, lease_id, 5.0)
    assert granted(ask(fleet, 14, "a", 6.0, prefixes=(3, 5, 6))) == A0, "it knows three of them, the other one only one"


def test_a_replica_that_is_busy_yields_a_conversation_to_one_that_is_not() -> None:
    fleet = two_ready()
    assert granted(ask(fleet, 10, "a", 4.0, prefixes=(1,))) == A0
    assert granted(ask(fleet, 11, "a", 4.0, prefixes=(1,))) == A0, "it serves two at a time"
    assert granted(ask(fleet, 12, "a", 4.0, prefixes=(1,))) == A1
    assert granted(ask(fleet, 13, "a", 4.0, prefixes=(1,))) == A1, "now that one knows it too, and has a free slot"


def test_if_all_are_busy_a_request_waits_for_whichever_is_free_first_and_not_behind_the_one_that_knows_it() -> None:
    fleet = two_ready()
    for lease_id, prefix in enumerate([1, 2, 1, 2], start=10):
        ask(fleet, lease_id, "a", 4.0, prefixes=(prefix,))
    assert ask(fleet, 20, "a", 5.0, prefixes=(2,)) == []
    assert release(fleet, 10, 6.0) == [GrantLease(LeaseId(20), A0)]


def test_only_so_many_beginnings_are_remembered_and_the_latest_are() -> None:
    fleet = two_ready()
    ask(fleet, 10, "a", 4.0)
    assert granted(ask(fleet, 11, "a", 4.0, prefixes=(1,))) == A1
    release(fleet, 11, 5.0)
    for number in range(4096 // 64):
        block = tuple(range(100 + 64 * number, 164 + 64 * number))
        ask(fleet, 20, "a", 5.0, prefixes=(1000, *block))
        release(fleet, 20, 5.0)
    release(fleet, 10, 6.0)
    assert granted(ask(fleet, 12, "a", 7.0, prefixes=(1,))) == A0, "the least loaded: nobody knows it any more"


# --- one goes ---------------------------------------------------------------------------------------------


def test_a_replica_that_crashes_does_not_disturb_the_others() -> None:
    fleet = two_ready()
    ask(fleet, 10, "a", 4.0)
    ask(fleet, 11, "a", 4.0)
    assert exits(fleet, A1, 5.0, CRASH) == [SpawnWorker(of(1, 2))], "the other one has work, so it is replaced"
    assert states(fleet)[0] is WorkerState.READY
    assert granted(ask(fleet, 12, "a", 6.0)) == A0


def test_a_replica_that_hangs_does_not_disturb_the_others_and_is_replaced_before_it_is_gone() -> None:
    fleet = two_ready()
    ask(fleet, 10, "a", 4.0)
    ask(fleet, 11, "a", 4.0)
    stop, spawn = fleet.handle(WorkerHung(A1, "no step for 60 s"), 5.0)
    assert stop == StopWorker(A1, grace_s=0.0, reason=ExitReason.HUNG)
    assert spawn == SpawnWorker(A2), "under another number: the hung one still holds its own"
    assert granted(ask(fleet, 12, "a", 6.0)) == A0
    assert exits(fleet, A1, 7.0, CRASH) == []


def test_a_replica_that_keeps_failing_is_not_started_in_a_tight_loop_and_refuses_nobody() -> None:
    fleet = make_fleet(replicas(2))
    ask(fleet, 1, "a", 0.0)
    ready(fleet, A0, 1.0)
    assert exits(fleet, A1, 1.5, CRASH) == []
    assert fleet.next_deadline_s == 2.5
    assert granted(ask(fleet, 2, "a", 2.0)) == A0
    assert fleet.handle(Tick(), 2.5) == [SpawnWorker(of(1, 2))]
    assert exits(fleet, of(1, 2), 3.0, BAD_FILE) == []
    assert granted(ask(fleet, 3, "a", 3.5)) == A0


def test_requests_beyond_what_one_replica_takes_wait_while_the_next_one_loads() -> None:
    fleet = make_fleet(replicas(2))
    for lease_id in range(3):
        ask(fleet, lease_id, "a", 0.0)
    ready(fleet, A0, 1.0, max_leases=1)
    assert fleet.snapshot(1.0).models["a"].queue_length == 2
    assert ready(fleet, A1, 2.0, max_leases=1) == [GrantLease(LeaseId(1), A1)]
    assert release(fleet, 0, 3.0) == [GrantLease(LeaseId(2), A0)]


def test_an_unload_sends_all_replicas_away() -> None:
    fleet = two_ready()
    ask(fleet, 10, "a", 4.0)
    assert stopped_by(fleet.handle(UnloadRequested("a"), 5.0)) == [A1]
    assert stopped_by(release(fleet, 10, 6.0)) == [A0]
    exits(fleet, A0, 7.0)
    assert exits(fleet, A1, 7.0) == []


# --- another number of them -------------------------------------------------------------------------------


def change(fleet: Fleet, now_s: float, policy: ModelPolicy, **limits: Any) -> list[Action]:
    return fleet.handle(CatalogChanged({"a": policy}, FleetLimits(**limits)), now_s)


def test_an_idle_replica_beyond_a_lowered_number_goes_at_once() -> None:
    fleet = two_ready()
    assert change(fleet, 4.0, replicas(1)) == [StopWorker(A1, grace_s=5.0)]
    assert exits(fleet, A1, 5.0) == []
    assert states(fleet) == {0: WorkerState.READY}
    assert ask(fleet, 10, "a", 6.0) == [GrantLease(LeaseId(10), A0)]


def test_a_busy_replica_beyond_a_lowered_number_takes_no_more_while_others_can_and_goes_when_it_is_idle() -> None:
    fleet = two_ready()
    ask(fleet, 10, "a", 4.0)
    assert granted(ask(fleet, 11, "a", 4.0, prefixes=(1,))) == A1
    assert change(fleet, 5.0, replicas(1)) == []
    assert [granted(ask(fleet, lease_id, "a", 6.0, prefixes=(1,))) for lease_id in (12, 13)] == [A0, A0]
    assert release(fleet, 11, 7.0) == [StopWorker(A1, grace_s=5.0)]


def test_a_replica_beyond_a_lowered_number_still_serves_when_nobody_else_can() -> None:
    fleet = make_fleet(replicas(2))
    ask(fleet, 1, "a", 0.0)
    ready(fleet, A0, 1.0, max_leases=1)
    ready(fleet, A1, 2.0, max_leases=2)
    ask(fleet, 2, "a", 3.0)
    change(fleet, 4.0, replicas(1))
    assert granted(ask(fleet, 3, "a", 5.0)) == A1


def test_a_replica_that_is_pinned_goes_too_when_there_are_too_many() -> None:
    fleet = two_ready(pin=True)
    assert stopped_by(change(fleet, 4.0, replicas(1, pin=True))) == [A1]


def test_a_replica_that_still_loads_is_no_reason_to_send_the_ready_one_away() -> None:
    fleet = make_fleet(replicas(2))
    ask(fleet, 1, "a", 0.0)
    ready(fleet, A0, 1.0)
    release(fleet, 1, 2.0)
    assert change(fleet, 3.0, replicas(1)) == []
    assert stopped_by(ready(fleet, A1, 4.0)) == [A1]


def test_a_higher_number_starts_one_more_for_those_that_have_work() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a", num_leases=1)
    assert change(fleet, 1.0, replicas(2)) == [SpawnWorker(A1)]


# --- preloads ---------------------------------------------------------------------------------------------


def test_a_preload_loads_as_many_replicas_as_are_configured() -> None:
    fleet = make_fleet(replicas(3, preload=True))
    spawned = spawned_by(fleet.handle(Tick(), 0.0))
    for now_s, replica in enumerate([A0, A1, A2], start=1):
        spawned += spawned_by(ready(fleet, replica, float(now_s)))
    assert spawned == [A0, A1, A2]
    assert fleet.handle(Tick(), 10.0) == []


def test_a_preload_loads_as_many_replicas_as_fit() -> None:
    fleet = make_fleet(replicas(3, preload=True), max_loaded=2)
    fleet.handle(Tick(), 0.0)
    assert spawned_by(ready(fleet, A0, 1.0)) == [A1]
    assert ready(fleet, A1, 2.0) == []
    assert stopped_by(fleet.handle(UnloadRequested("a"), 3.0)) == [A0, A1]
    exits(fleet, A0, 4.0)
    assert exits(fleet, A1, 4.0) == [], "what found no room is given up"


def test_a_refused_request_says_nothing_of_replicas() -> None:
    fleet = make_fleet(replicas(2, queue_timeout_s=5.0))
    ask(fleet, 1, "a", 0.0)
    ready(fleet, A0, 1.0, max_leases=1)
    fleet.handle(LeaseRequested(LeaseId(2), "a"), 1.0)
    refused = refusal(fleet.handle(Tick(), 6.0))
    assert "a free place on 'a', where 1 request is running" in refused.detail
