"""The model to come home to: loaded again when everything else has been unloaded."""

from __future__ import annotations

from router.device import Device, DeviceKind, Footprint, FootprintSource
from router.events import (
    CatalogChanged,
    DevicesChanged,
    DevicesMeasured,
    FleetLimits,
    ModelPolicy,
    ModelSized,
    ShutdownRequested,
    SpawnWorker,
    StopWorker,
    Tick,
    UnloadRequested,
)
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

H1, H2, B1, C1, D1 = worker("h"), worker("h", 2), worker("b"), worker("c"), worker("d")
HOME = ModelPolicy("h", home=True)
BRIEF = ModelPolicy("b", idle_unload_s=10.0)


def test_the_home_model_comes_back_when_the_other_one_has_idled_away() -> None:
    fleet = make_fleet(HOME, BRIEF, max_loaded=1)
    given_ready(fleet, "h", now_s=0.0)
    assert stopped_by(ask(fleet, 1, "b", 1.0)) == [H1]
    exits(fleet, H1, 2.0)
    ready(fleet, B1, 3.0)
    release(fleet, 1, 4.0)
    assert fleet.handle(Tick(), 14.0) == [StopWorker(B1, grace_s=5.0)]
    assert exits(fleet, B1, 15.0) == [SpawnWorker(H2)]
    assert ready(fleet, H2, 16.0) == []


def test_the_home_model_is_not_loaded_before_anything_else_was() -> None:
    fleet = make_fleet(HOME, "b")
    assert fleet.handle(Tick(), 0.0) == []
    assert fleet.next_deadline_s is None


def test_the_home_model_is_never_unloaded_for_idleness() -> None:
    fleet = make_fleet(ModelPolicy("h", home=True, idle_unload_s=10.0))
    given_ready(fleet, "h")
    assert fleet.next_deadline_s is None
    assert fleet.handle(Tick(), 1e6) == []


def test_the_home_model_may_be_evicted() -> None:
    fleet = make_fleet(HOME, "b", max_loaded=1)
    given_ready(fleet, "h")
    assert ask(fleet, 1, "b", 1.0) == [StopWorker(H1, grace_s=5.0)]


def test_the_home_model_waits_until_the_last_other_model_is_gone() -> None:
    fleet = make_fleet(HOME, BRIEF, "c", "d")
    given_ready(fleet, "b")
    given_ready(fleet, "c")
    fleet.handle(UnloadRequested("b"), 1.0)
    assert exits(fleet, B1, 2.0) == []
    assert ask(fleet, 1, "d", 2.5) == [SpawnWorker(D1)], "nor does it come along when somebody else is loaded"
    exits(fleet, D1, 2.7, CRASH)
    fleet.handle(UnloadRequested("c"), 3.0)
    assert exits(fleet, C1, 4.0) == [SpawnWorker(H1)]


def test_requests_of_other_models_come_before_the_home_model() -> None:
    fleet = make_fleet(HOME, "b", "c", max_loaded=1)
    given_ready(fleet, "b")
    ask(fleet, 1, "c", 1.0)
    assert exits(fleet, B1, 2.0) == [SpawnWorker(C1)]


def test_an_unload_of_the_home_model_is_obeyed() -> None:
    fleet = make_fleet(HOME, "b")
    given_ready(fleet, "h")
    assert fleet.handle(UnloadRequested("h"), 1.0) == [StopWorker(H1, grace_s=5.0)]
    assert exits(fleet, H1, 2.0) == []
    assert fleet.handle(Tick(), 100.0) == []


def test_a_home_model_that_crashes_comes_back_by_itself_and_pauses_when_it_does_so_again() -> None:
    fleet = make_fleet(HOME, "b")
    given_ready(fleet, "h")
    assert exits(fleet, H1, 1.0, CRASH) == [SpawnWorker(H2)]
    ready(fleet, H2, 3.0)
    assert exits(fleet, H2, 3.0, CRASH) == []
    assert fleet.next_deadline_s == 4.0
    assert fleet.handle(Tick(), 4.0) == [SpawnWorker(worker("h", 3))]


def test_an_unload_while_the_home_model_pauses_calls_its_return_off() -> None:
    fleet = make_fleet(HOME, "b")
    given_ready(fleet, "h")
    exits(fleet, H1, 1.0, CRASH)
    ready(fleet, H2, 3.0)
    exits(fleet, H2, 3.0, CRASH)
    assert fleet.handle(UnloadRequested("h"), 3.5) == []
    assert fleet.next_deadline_s is None
    assert fleet.handle(Tick(), 4.0) == []


def test_a_home_model_that_cannot_load_is_left_alone() -> None:
    fleet = make_fleet(HOME, "b")
    given_ready(fleet, "b")
    assert exits(fleet, B1, 1.0) == [SpawnWorker(H1)]
    assert exits(fleet, H1, 2.0, BAD_FILE) == []
    given_ready(fleet, "b", now_s=3.0)
    assert exits(fleet, worker("b", 2), 4.0) == []


def test_a_home_model_that_is_unavailable_is_not_started() -> None:
    fleet = make_fleet(ModelPolicy("h", home=True, unavailable="h.gguf does not exist"), "b")
    given_ready(fleet, "b")
    assert exits(fleet, B1, 1.0) == []


def test_several_home_models_come_back_as_far_as_there_is_room() -> None:
    fleet = make_fleet(HOME, ModelPolicy("g", home=True), ModelPolicy("f", home=True), "b", max_loaded=2)
    given_ready(fleet, "b")
    assert exits(fleet, B1, 1.0) == [SpawnWorker(H1), SpawnWorker(worker("g"))]


def test_a_home_model_that_finds_no_room_comes_back_when_others_have_given_memory_back() -> None:
    fleet = make_fleet(HOME, "b")
    fleet.handle(DevicesChanged((Device("CPU", DeviceKind.CPU, 20),)), 0.0)
    fleet.handle(ModelSized("h", Footprint(11, source=FootprintSource.PROBE)), 0.0)
    given_ready(fleet, "b")
    fleet.handle(DevicesMeasured({"CPU": 15}), 0.5)
    assert exits(fleet, B1, 1.0) == []
    assert spawned_by(fleet.handle(DevicesMeasured({"CPU": 0}), 9.0)) == [H1]


def test_a_home_model_that_does_not_fit_stays_away() -> None:
    fleet = make_fleet(HOME, "b")
    fleet.handle(DevicesChanged((Device("CPU", DeviceKind.CPU, 10),)), 0.0)
    fleet.handle(ModelSized("h", Footprint(11, source=FootprintSource.PROBE)), 0.0)
    given_ready(fleet, "b")
    assert exits(fleet, B1, 1.0) == []


def test_a_removed_home_model_does_not_come_back() -> None:
    fleet = make_fleet(HOME, "b")
    given_ready(fleet, "h", num_leases=1)
    given_ready(fleet, "b")
    fleet.handle(CatalogChanged({"b": ModelPolicy("b")}, FleetLimits()), 1.0)
    exits(fleet, H1, 2.0, CRASH)
    assert exits(fleet, B1, 3.0) == []


def test_nothing_comes_home_once_the_router_stops() -> None:
    fleet = make_fleet(HOME, "b")
    given_ready(fleet, "b")
    fleet.handle(ShutdownRequested(), 1.0)
    assert exits(fleet, B1, 2.0) == []


def test_a_home_model_that_is_busy_stays_ready() -> None:
    fleet = make_fleet(HOME, "b")
    given_ready(fleet, "h", num_leases=1)
    given_ready(fleet, "b")
    assert exits(fleet, B1, 1.0) == []
    assert fleet.snapshot(1.0).models["h"].state is WorkerState.READY
