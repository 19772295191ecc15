"""A pin that is set while the model is served: it goes before the policy, for as long as somebody wants it so."""

from __future__ import annotations

from router.events import CatalogChanged, FleetLimits, LoadRequested, ModelPolicy, PinSet, SpawnWorker, StopWorker, Tick
from router.fleet import Fleet
from router.lifecycle import WorkerState
from tests.support.fleet_scenes import ask, exits, make_fleet, ready, release, worker

IDLE_S = 100.0


def loaded(policy: ModelPolicy, *others: ModelPolicy, **limits: int) -> Fleet:
    """Return a fleet whose first model is idle since second 1."""
    fleet = make_fleet(policy, *others, **limits)
    fleet.handle(LoadRequested(policy.name), 0.0)
    ready(fleet, worker(policy.name), 1.0)
    return fleet


def policy(name: str = "a", *, pin: bool = False) -> ModelPolicy:
    return ModelPolicy(name, idle_unload_s=IDLE_S, pin=pin)


def is_stopped(fleet: Fleet, now_s: float) -> bool:
    return any(isinstance(action, StopWorker) for action in fleet.handle(Tick(), now_s))


def test_pinned_model_stays_when_it_is_idle() -> None:
    fleet = loaded(policy())
    fleet.handle(PinSet("a", True), 2.0)
    assert fleet.next_deadline_s is None, "nothing is due any more"
    assert not is_stopped(fleet, 1e6)


def test_model_that_is_not_pinned_any_more_goes_at_once_if_it_has_been_idle_for_too_long() -> None:
    fleet = loaded(policy(pin=True))
    assert not is_stopped(fleet, 1000.0)
    assert any(isinstance(action, StopWorker) for action in fleet.handle(PinSet("a", False), 1001.0))


def test_null_gives_the_pin_back_to_the_policy() -> None:
    fleet = loaded(policy(pin=True))
    fleet.handle(PinSet("a", False), 2.0)
    assert fleet.next_deadline_s == 1.0 + IDLE_S
    fleet.handle(PinSet("a", None), 3.0)
    assert not is_stopped(fleet, 1e6)


def test_pinned_model_makes_no_room_for_another() -> None:
    fleet = loaded(policy("a"), policy("b"), max_loaded=1)
    fleet.handle(PinSet("a", True), 2.0)
    assert not any(isinstance(action, StopWorker | SpawnWorker) for action in ask(fleet, 1, "b", 3.0))
    release(fleet, 1, 4.0)
    fleet.handle(PinSet("a", False), 5.0)
    assert any(isinstance(action, StopWorker) for action in ask(fleet, 2, "b", 6.0))


def test_pinning_loads_nothing() -> None:
    fleet = make_fleet(policy())
    assert fleet.handle(PinSet("a", True), 0.0) == []
    assert fleet.snapshot(0.0).models["a"].state is WorkerState.UNLOADED


def test_pin_outlives_an_unload_and_an_edit_of_the_configuration() -> None:
    fleet = loaded(policy())
    fleet.handle(PinSet("a", True), 2.0)
    fleet.handle(CatalogChanged({"a": ModelPolicy("a", idle_unload_s=5.0)}, FleetLimits()), 3.0)
    assert not is_stopped(fleet, 1e6)
    view = fleet.snapshot(1e6).models["a"]
    assert (view.is_pinned, view.is_pin_ordered) == (True, True)


def test_removed_model_forgets_its_pin_even_if_it_comes_back_while_its_worker_still_runs() -> None:
    fleet = loaded(policy())
    fleet.handle(PinSet("a", True), 2.0)
    ask(fleet, 1, "a", 3.0)
    fleet.handle(CatalogChanged({}, FleetLimits()), 4.0)
    fleet.handle(CatalogChanged({"a": policy()}, FleetLimits()), 5.0)
    view = fleet.snapshot(5.0).models["a"]
    assert (view.is_pinned, view.is_pin_ordered) == (False, False)
    release(fleet, 1, 6.0)
    exits(fleet, worker("a"), 7.0)


def test_pin_of_an_unknown_model_changes_nothing() -> None:
    fleet = make_fleet(policy())
    assert fleet.handle(PinSet("nobody", True), 0.0) == []


def test_view_of_a_model_at_rest_follows_its_pin() -> None:
    fleet = make_fleet(policy(pin=True))
    assert fleet.snapshot(0.0).models["a"].is_pinned
    for pin, is_pinned in ((False, False), (None, True), (True, True)):
        fleet.handle(PinSet("a", pin), 1.0)
        view = fleet.snapshot(1.0).models["a"]
        assert (view.is_pinned, view.is_pin_ordered) == (is_pinned, pin is not None)


def test_those_who_wait_are_shown_by_priority_and_then_by_age() -> None:
    fleet = make_fleet("a", "b")
    ask(fleet, 1, "a", 1.0, request_id="one", key_id="k")
    ask(fleet, 2, "b", 2.0, request_id="two", priority=5)
    ask(fleet, 3, "a", 3.0, request_id="three")
    waiting = fleet.waiters(4.0)
    assert [(one.request_id, one.model, one.waits_s) for one in waiting] == [
        ("two", "b", 2.0),
        ("one", "a", 3.0),
        ("three", "a", 1.0),
    ]
    assert (waiting[0].priority, waiting[1].key_id) == (5, "k")
    ready(fleet, worker("a"), 5.0)
    assert [one.request_id for one in fleet.waiters(5.0)] == ["two"]


def test_whether_a_model_is_pinned_is_told_as_the_last_order_has_it() -> None:
    fleet = loaded(policy(pin=True), policy("b"))
    assert (fleet.is_pinned("a"), fleet.is_pinned("b"), fleet.is_pinned("nobody")) == (True, False, False)
    fleet.handle(PinSet("a", False), 2.0)
    fleet.handle(PinSet("b", True), 2.0)
    assert (fleet.is_pinned("a"), fleet.is_pinned("b")) == (False, True)
    fleet.handle(PinSet("a", None), 3.0)
    assert fleet.is_pinned("a")
