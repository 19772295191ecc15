"""How long an idle worker stays is what its clients said last, and else what is configured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.events import CatalogChanged, FleetLimits, KeepAliveSet, LoadRequested, ModelPolicy, Tick
from router.lifecycle import WorkerState
from tests.support.fleet_machine import state
from tests.support.fleet_scenes import ask, exits, given_ready, make_fleet, ready, release, stopped_by, worker

A1 = worker("a")
ONE_MINUTE = ModelPolicy("a", idle_unload_s=60.0)


def test_worker_stays_as_long_as_the_request_said_that_it_served() -> None:
    fleet = make_fleet(ONE_MINUTE)
    ask(fleet, 1, "a", 0.0, keep_alive_s=5.0)
    ready(fleet, A1, 1.0)
    release(fleet, 1, 10.0)
    assert fleet.next_deadline_s == 15.0
    assert stopped_by(fleet.handle(Tick(), 15.0)) == [A1]


def test_a_request_that_says_nothing_changes_nothing() -> None:
    fleet = make_fleet(ONE_MINUTE)
    given_ready(fleet, "a")
    ask(fleet, 1, "a", 1.0, keep_alive_s=5.0)
    release(fleet, 1, 2.0)
    ask(fleet, 2, "a", 3.0)
    release(fleet, 2, 4.0)
    assert fleet.next_deadline_s == 9.0


def test_a_later_request_says_otherwise() -> None:
    fleet = make_fleet(ONE_MINUTE)
    given_ready(fleet, "a")
    for lease_id, keep_alive_s in ((1, 5.0), (2, 500.0)):
        ask(fleet, lease_id, "a", 1.0, keep_alive_s=keep_alive_s)
        release(fleet, lease_id, 2.0)
    assert fleet.next_deadline_s == 502.0


def test_with_zero_the_worker_goes_at_the_end_of_the_last_request_and_not_before() -> None:
    fleet = make_fleet(ONE_MINUTE)
    given_ready(fleet, "a")
    ask(fleet, 1, "a", 1.0, keep_alive_s=0.0)
    ask(fleet, 2, "a", 1.0)
    assert stopped_by(release(fleet, 1, 2.0)) == []
    assert stopped_by(release(fleet, 2, 3.0)) == [A1]


def test_with_a_negative_time_idleness_never_unloads_it_but_another_model_may() -> None:
    fleet = make_fleet(ONE_MINUTE, "b", max_loaded=1)
    given_ready(fleet, "a")
    ask(fleet, 1, "a", 1.0, keep_alive_s=-1.0)
    release(fleet, 1, 2.0)
    assert fleet.next_deadline_s is None
    assert stopped_by(ask(fleet, 2, "b", 1e6)) == [A1]


def test_a_model_that_is_never_unloaded_by_itself_is_when_a_request_says_so() -> None:
    fleet = make_fleet(ModelPolicy("a", idle_unload_s=0.0))
    given_ready(fleet, "a")
    ask(fleet, 1, "a", 1.0, keep_alive_s=4.0)
    release(fleet, 1, 2.0)
    assert fleet.next_deadline_s == 6.0


@pytest.mark.parametrize("kept", [{"pin": True}, {"home": True}])
def test_a_model_that_always_stays_does_so_whatever_a_request_says(kept: dict[str, bool]) -> None:
    fleet = make_fleet(ModelPolicy("a", **kept))
    given_ready(fleet, "a")
    ask(fleet, 1, "a", 1.0, keep_alive_s=0.0)
    assert release(fleet, 1, 2.0) == []
    assert fleet.next_deadline_s is None


def test_what_was_said_ends_with_the_worker() -> None:
    fleet = make_fleet(ONE_MINUTE)
    given_ready(fleet, "a")
    ask(fleet, 1, "a", 1.0, keep_alive_s=0.0)
    release(fleet, 1, 2.0)
    exits(fleet, A1, 3.0)
    ask(fleet, 2, "a", 4.0)
    ready(fleet, worker("a", 2), 5.0)
    release(fleet, 2, 6.0)
    assert fleet.next_deadline_s == 66.0


def test_what_was_said_ends_when_the_configuration_says_something_else() -> None:
    fleet = make_fleet(ONE_MINUTE)
    given_ready(fleet, "a")
    ask(fleet, 1, "a", 1.0, keep_alive_s=-1.0)
    release(fleet, 1, 2.0)
    fleet.handle(CatalogChanged({"a": replace(ONE_MINUTE, priority=1)}, FleetLimits()), 3.0)
    assert fleet.next_deadline_s is None
    fleet.handle(CatalogChanged({"a": replace(ONE_MINUTE, idle_unload_s=20.0)}, FleetLimits()), 4.0)
    assert fleet.next_deadline_s == 22.0


def test_an_idle_model_that_is_told_to_go_goes_and_one_that_is_not_loaded_stays_so() -> None:
    fleet = make_fleet(ONE_MINUTE, "b")
    given_ready(fleet, "a")
    assert stopped_by(fleet.handle(KeepAliveSet("a", 0.0), 1.0)) == [A1]
    assert fleet.handle(KeepAliveSet("b", 0.0), 1.0) == []
    assert fleet.handle(KeepAliveSet("nobody", 0.0), 1.0) == []


def test_a_busy_model_that_is_told_to_go_serves_first_whoever_has_asked() -> None:
    fleet = make_fleet(ONE_MINUTE)
    fleet.handle(LoadRequested("a"), 0.0)
    ask(fleet, 1, "a", 1.0)
    assert fleet.handle(KeepAliveSet("a", 0.0), 2.0) == []
    ready(fleet, A1, 3.0)
    assert state(fleet, "a") is WorkerState.READY
    assert stopped_by(release(fleet, 1, 4.0)) == [A1]


def test_the_view_of_a_worker_tells_how_long_it_may_be_idle() -> None:
    fleet = make_fleet(ONE_MINUTE)
    (lease_id,) = given_ready(fleet, "a", num_leases=1)
    (view,) = fleet.snapshot(1.0).models["a"].residents
    assert (view.idle_limit_s, view.idle_unload_at_s) == (60.0, None)
    release(fleet, lease_id, 2.0)
    ask(fleet, 7, "a", 3.0, keep_alive_s=-1.0)
    (view,) = fleet.snapshot(3.0).models["a"].residents
    assert view.idle_limit_s is None
