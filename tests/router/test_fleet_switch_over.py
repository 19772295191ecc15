"""A new configuration for a model that runs: its successor takes over, and no request is lost or waits needlessly."""

from __future__ import annotations

from typing import Any

from router.device import Device, DeviceKind, Footprint, FootprintSource, Placement
from router.events import (
    Action,
    CatalogChanged,
    DevicesChanged,
    ExitReason,
    FleetLimits,
    GrantLease,
    LeaseId,
    ModelPolicy,
    ModelSized,
    PlaceWorker,
    SpawnWorker,
    StopWorker,
    Tick,
    WorkerExit,
    WorkerId,
    WorkerSized,
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
    release,
    spawned_by,
    stopped_by,
    worker,
)


def of(replica: int, incarnation: int = 1) -> WorkerId:
    return WorkerId("a", replica, incarnation)


OLD, NEW = of(0), of(1)
B = worker("b")


def reconfigure(
    fleet: Fleet, now_s: float, fingerprint: str = "new", *others: ModelPolicy, **fields: Any
) -> list[Action]:
    """`a` gets another configuration; limits stay as `fields` say."""
    limits = FleetLimits(**{name: fields.pop(name) for name in ("max_loaded", "max_wait_s") if name in fields})
    changed = ModelPolicy("a", fingerprint=fingerprint, **fields)
    return fleet.handle(CatalogChanged({m.name: m for m in (changed, *others)}, limits), now_s)


def states(fleet: Fleet) -> dict[int, WorkerState]:
    return {view.worker.replica: view.state for view in fleet.snapshot(0.0).models["a"].residents}


# --- room for both ----------------------------------------------------------------------------------------


def test_a_busy_model_gets_its_successor_beside_it_and_no_request_waits() -> None:
    fleet = make_fleet("a")
    (running,) = given_ready(fleet, "a", num_leases=1)
    assert reconfigure(fleet, 1.0) == [SpawnWorker(NEW)]
    assert ask(fleet, 1, "a", 2.0) == [GrantLease(LeaseId(1), OLD)], "while the successor loads, the old one serves"
    ready(fleet, NEW, 3.0)
    assert states(fleet) == {0: WorkerState.DRAINING, 1: WorkerState.READY}
    assert ask(fleet, 2, "a", 4.0) == [GrantLease(LeaseId(2), NEW)]
    assert release(fleet, running, 5.0) == []
    assert release(fleet, 1, 6.0) == [StopWorker(OLD, grace_s=5.0)]
    assert exits(fleet, OLD, 7.0) == []
    assert states(fleet) == {1: WorkerState.READY}


def test_requests_that_wait_for_a_place_on_the_old_worker_are_served_by_the_new_one() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a", num_leases=1, max_leases=1)
    ask(fleet, 1, "a", 0.5)
    assert spawned_by(reconfigure(fleet, 1.0)) == [NEW]
    assert ready(fleet, NEW, 2.0) == [GrantLease(LeaseId(1), NEW)]


def test_an_outdated_worker_that_drains_is_never_cut_off() -> None:
    fleet = make_fleet("a")
    (running,) = given_ready(fleet, "a", num_leases=1)
    reconfigure(fleet, 1.0)
    ready(fleet, NEW, 2.0)
    assert fleet.handle(Tick(), 1e5) == [StopWorker(NEW, grace_s=5.0)], "the successor idles away, as it may"
    assert states(fleet)[0] is WorkerState.DRAINING
    assert release(fleet, running, 2e5) == [StopWorker(OLD, grace_s=5.0)]


def test_an_idle_model_with_a_new_configuration_is_simply_unloaded() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a")
    assert reconfigure(fleet, 1.0) == [StopWorker(OLD, grace_s=5.0)]
    assert ask(fleet, 1, "a", 2.0) == []
    assert exits(fleet, OLD, 3.0) == [SpawnWorker(of(0, 2))]


def test_a_successor_that_finds_no_memory_beside_the_old_worker_gives_way_until_that_one_is_idle() -> None:
    needs = Footprint(10, source=FootprintSource.PROBE)
    fleet = make_fleet("a")
    fleet.handle(DevicesChanged((Device("CPU", DeviceKind.CPU, 19),)), 0.0)
    fleet.handle(ModelSized("a", needs), 0.0)
    (running,) = given_ready(fleet, "a", num_leases=1)
    assert reconfigure(fleet, 1.0) == [SpawnWorker(NEW)], "nothing is known of the new configuration yet"
    no_room = StopWorker(NEW, grace_s=5.0, reason=ExitReason.NO_ROOM)
    assert fleet.handle(WorkerSized(NEW, needs), 1.5) == [no_room]
    assert exits(fleet, NEW, 2.0, WorkerExit(ExitReason.NO_ROOM, "")) == [], "it is not begun again and again"
    assert ask(fleet, 1, "a", 3.0) == [GrantLease(LeaseId(1), OLD)]
    release(fleet, running, 4.0)
    assert release(fleet, 1, 5.0) == [StopWorker(OLD, grace_s=5.0)]


def test_a_successor_that_finds_memory_beside_the_old_worker_has_it_set_apart() -> None:
    needs = Footprint(10, source=FootprintSource.PROBE)
    fleet = make_fleet("a")
    fleet.handle(DevicesChanged((Device("CPU", DeviceKind.CPU, 20),)), 0.0)
    fleet.handle(ModelSized("a", needs), 0.0)
    given_ready(fleet, "a", num_leases=1)
    reconfigure(fleet, 1.0)
    (placed,) = fleet.handle(WorkerSized(NEW, needs), 1.5)
    assert placed == PlaceWorker(NEW, Placement({"CPU": 10}, gpu_layers=0))
    assert fleet.reserved() == {"CPU": 20}


def test_a_second_change_before_the_successor_is_ready_begins_its_load_again() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a", num_leases=1)
    reconfigure(fleet, 1.0, "new")
    stop, spawn = reconfigure(fleet, 2.0, "newer")
    assert (stop, spawn) == (StopWorker(NEW, grace_s=5.0), SpawnWorker(of(2)))
    assert ask(fleet, 1, "a", 2.5) == [GrantLease(LeaseId(1), OLD)]


# --- no room for both -------------------------------------------------------------------------------------


def test_without_room_the_old_worker_goes_when_it_is_idle() -> None:
    fleet = make_fleet("a", max_loaded=1)
    (running,) = given_ready(fleet, "a", num_leases=1)
    assert reconfigure(fleet, 1.0, max_loaded=1) == []
    assert ask(fleet, 1, "a", 2.0) == [GrantLease(LeaseId(1), OLD)]
    assert release(fleet, 1, 3.0) == []
    assert release(fleet, running, 4.0) == [StopWorker(OLD, grace_s=5.0)]


def test_without_room_a_model_that_is_never_idle_drains_after_the_longest_wait() -> None:
    fleet = make_fleet("a", max_loaded=1)
    (running,) = given_ready(fleet, "a", num_leases=1)
    reconfigure(fleet, 1.0, max_loaded=1, max_wait_s=30.0)
    assert fleet.next_deadline_s == 31.0
    assert ask(fleet, 1, "a", 30.9) == [GrantLease(LeaseId(1), OLD)]
    assert fleet.handle(Tick(), 31.0) == []
    assert states(fleet) == {0: WorkerState.DRAINING}
    assert ask(fleet, 2, "a", 32.0) == []
    release(fleet, running, 33.0)
    assert release(fleet, 1, 34.0) == [StopWorker(OLD, grace_s=5.0)]
    assert exits(fleet, OLD, 35.0) == [SpawnWorker(of(0, 2))]
    assert ready(fleet, of(0, 2), 36.0) == [GrantLease(LeaseId(2), of(0, 2))]


def test_a_models_own_longest_wait_counts_for_its_switch_over() -> None:
    fleet = make_fleet("a", max_loaded=1)
    given_ready(fleet, "a", num_leases=1)
    reconfigure(fleet, 1.0, max_loaded=1, **{"max_wait_s": 30.0})
    fleet.handle(CatalogChanged({"a": ModelPolicy("a", fingerprint="new", max_wait_s=4.0)}, FleetLimits(1)), 2.0)
    assert fleet.next_deadline_s == 5.0, "from the first change on"


def test_another_change_without_effect_on_the_worker_does_not_start_its_time_anew() -> None:
    fleet = make_fleet("a", max_loaded=1)
    given_ready(fleet, "a", num_leases=1)
    reconfigure(fleet, 1.0, "new", max_loaded=1)
    reconfigure(fleet, 20.0, "newer", max_loaded=1)
    assert fleet.next_deadline_s == 31.0


def test_a_successor_evicts_nobody() -> None:
    fleet = make_fleet("a", "b", max_loaded=2)
    given_ready(fleet, "a", num_leases=1)
    given_ready(fleet, "b")
    assert reconfigure(fleet, 1.0, "new", ModelPolicy("b"), max_loaded=2) == []
    assert exits(fleet, B, 2.0, CRASH) == [SpawnWorker(NEW)], "room that becomes free is used"


def test_a_model_that_drains_for_its_successor_makes_room_for_others_too() -> None:
    fleet = make_fleet("a", "b", max_loaded=1)
    (running,) = given_ready(fleet, "a", num_leases=1)
    reconfigure(fleet, 1.0, "new", ModelPolicy("b"), max_loaded=1)
    fleet.handle(Tick(), 31.0)
    ask(fleet, 1, "b", 32.0)
    assert stopped_by(release(fleet, running, 33.0)) == [OLD]
    assert exits(fleet, OLD, 34.0) == [SpawnWorker(B)]


# --- a new configuration that does not work ---------------------------------------------------------------


def test_a_successor_that_cannot_load_leaves_the_old_worker_serving() -> None:
    fleet = make_fleet("a")
    (running,) = given_ready(fleet, "a", num_leases=1)
    reconfigure(fleet, 1.0)
    assert exits(fleet, NEW, 2.0, BAD_FILE) == []
    assert ask(fleet, 1, "a", 3.0) == [GrantLease(LeaseId(1), OLD)]
    assert release(fleet, running, 4.0) == []
    assert release(fleet, 1, 5.0) == [], "it stays although it is idle: nothing better can be had"
    assert fleet.snapshot(6.0).models["a"].state is WorkerState.READY


def test_a_successor_that_crashes_while_it_loads_is_tried_again_after_a_pause() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a", num_leases=1)
    reconfigure(fleet, 1.0)
    assert exits(fleet, NEW, 2.0, CRASH) == []
    assert fleet.next_deadline_s == 3.0
    assert fleet.handle(Tick(), 3.0) == [SpawnWorker(of(1, 2))]
    assert ask(fleet, 1, "a", 3.5) == [GrantLease(LeaseId(1), OLD)]


def test_a_configuration_that_is_unavailable_leaves_the_old_worker_serving() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a")
    assert reconfigure(fleet, 1.0, unavailable="chat.jinja does not exist") == []
    assert fleet.handle(Tick(), 100.0) == []
    assert ask(fleet, 1, "a", 101.0) == [GrantLease(LeaseId(1), OLD)]


def test_a_repaired_configuration_is_taken_up_at_once() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a")
    reconfigure(fleet, 1.0, "broken", unavailable="chat.jinja does not exist")
    assert reconfigure(fleet, 2.0, "repaired") == [StopWorker(OLD, grace_s=5.0)]


# --- back to the old one ----------------------------------------------------------------------------------


def test_a_change_that_is_taken_back_while_the_old_worker_drains_opens_it_again() -> None:
    fleet = make_fleet("a", max_loaded=1)
    given_ready(fleet, "a", num_leases=1)
    reconfigure(fleet, 1.0, max_loaded=1)
    fleet.handle(Tick(), 31.0)
    ask(fleet, 1, "a", 32.0)
    assert states(fleet) == {0: WorkerState.DRAINING}
    assert reconfigure(fleet, 33.0, "", max_loaded=1) == [GrantLease(LeaseId(1), OLD)]
    assert states(fleet) == {0: WorkerState.READY}


def test_a_change_that_is_taken_back_before_anything_happened_leaves_all_as_it_was() -> None:
    fleet = make_fleet("a", max_loaded=1)
    given_ready(fleet, "a", num_leases=1)
    reconfigure(fleet, 1.0, max_loaded=1)
    assert reconfigure(fleet, 2.0, "", max_loaded=1) == []
    assert fleet.next_deadline_s is None
    assert ask(fleet, 1, "a", 40.0) == [GrantLease(LeaseId(1), OLD)]
    reconfigure(fleet, 50.0, max_loaded=1)
    assert fleet.next_deadline_s == 80.0, "the time of the new change begins with it"


def test_a_change_that_is_taken_back_stops_the_successor_that_still_loads() -> None:
    fleet = make_fleet("a")
    given_ready(fleet, "a", num_leases=1)
    reconfigure(fleet, 1.0)
    assert reconfigure(fleet, 2.0, "") == [StopWorker(NEW, grace_s=5.0)]
    assert ask(fleet, 1, "a", 3.0) == [GrantLease(LeaseId(1), OLD)]


# --- several replicas -------------------------------------------------------------------------------------


def test_replicas_are_replaced_as_soon_as_one_successor_is_ready_and_grow_again() -> None:
    fleet = make_fleet(ModelPolicy("a", replicas=2))
    ask(fleet, 1, "a", 0.0)
    ready(fleet, of(0), 1.0)
    ready(fleet, of(1), 2.0)
    ask(fleet, 2, "a", 3.0)
    assert reconfigure(fleet, 4.0, replicas=2) == [SpawnWorker(of(2))]
    ready(fleet, of(2), 5.0)
    assert states(fleet) == {0: WorkerState.DRAINING, 1: WorkerState.DRAINING, 2: WorkerState.READY}
    assert ask(fleet, 3, "a", 6.0) == [GrantLease(LeaseId(3), of(2)), SpawnWorker(of(3))]
