"""The fleet in a simulated world: whatever happens, in whatever order, its promises hold.

The promises about single actions are checked by `tests/fakes/world.py`; here are the histories, and what must
be true at the end of each: nobody waits for ever.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from router.device import Device, DeviceKind, Footprint, FootprintSource
from router.events import FleetLimits, LeaseId, ModelPolicy, RefusalKind, WorkerId
from tests.fakes.world import Behaviour, Fate, Outcome, World
from tests.support.fleet_histories import (
    MACHINES,
    NAMES,
    PLACES_ALONE,
    behaviours,
    catalogs,
    footprints_strategy,
    limits_strategy,
    models_strategy,
)


class AnyHistory(RuleBasedStateMachine):
    """What happens often in life has several rules here, because each rule is as likely as any other."""

    machines: Sequence[tuple[Device, ...]] = (*PLACES_ALONE, *MACHINES)

    @initialize(
        models=catalogs(),
        limits=limits_strategy,
        ways=st.fixed_dictionaries(dict.fromkeys(NAMES, behaviours)),
        machine=st.integers(0, 11),
        footprints=st.fixed_dictionaries(dict.fromkeys(NAMES, footprints_strategy)),
    )
    def begin(
        self,
        models: dict[str, ModelPolicy],
        limits: FleetLimits,
        ways: dict[str, Behaviour],
        machine: int,
        footprints: dict[str, Footprint],
    ) -> None:
        devices = self.machines[machine % len(self.machines)]
        self.world = World(
            models, limits, behaviours=dict(ways), devices=devices, footprints=dict(footprints) if devices else {}
        )

    @precondition(lambda self: self.world.devices)
    @rule(model=models_strategy, used=st.sampled_from([0, 0, 20, 70]))
    def memory_becomes_known_or_scarce(self, model: str, used: int) -> None:
        self.world.tell_footprint(model)
        self.world.others_use({"CPU": used, "GPU0": used // 2})

    @rule(
        model=models_strategy,
        priority=st.sampled_from([0, 0, 0, 1]),
        key_id=st.sampled_from([None, "k1", "k2"]),
        keep_alive_s=st.sampled_from([None, None, None, 0.0, 2.0, 60.0, -1.0]),
    )
    def request(self, model: str, priority: int, key_id: str | None, keep_alive_s: float | None) -> None:
        weight = {"k2": 2.0}.get(key_id or "", 1.0)
        self.world.request(model, priority=priority, key_id=key_id, keep_alive_s=keep_alive_s, weight=weight)

    @rule(models=st.lists(models_strategy, min_size=2, max_size=8))
    def request_many(self, models: list[str]) -> None:
        for model in models:
            self.world.request(model)

    @rule(by_s=st.sampled_from([0.0, 0.3, 1.0, 2.0, 4.0]))
    def wait(self, by_s: float) -> None:
        self.world.advance(by_s)

    @rule(by_s=st.sampled_from([8.0, 31.0, 61.0, 301.0]))
    def wait_long(self, by_s: float) -> None:
        self.world.advance(by_s)

    @rule(share=st.sampled_from([0.1, 0.5, 0.99]))
    def look_before_anything_is_due(self, share: float) -> None:
        self.world.peek(share)

    @rule(pick=st.integers(0, 10), tokens=st.sampled_from([None, 0, 100, 256, 1000]))
    def finish_a_running_one(self, pick: int, tokens: int | None) -> None:
        running = self.world.with_fate(Fate.GRANTED)
        if running:
            self.world.release(running[pick % len(running)].lease_id, tokens)

    @rule(model=models_strategy, fate=st.sampled_from([Fate.QUEUED, Fate.GRANTED]))
    def all_clients_of_a_model_leave(self, model: str, fate: Fate) -> None:
        for request in self.world.with_fate(fate):
            if request.model == model:
                self.world.release(request.lease_id)

    @rule(model=models_strategy, behaviour=behaviours)
    def behave_from_now_on(self, model: str, behaviour: Behaviour) -> None:
        self.world.behaviours[model] = behaviour

    @rule(pick=st.integers(0, 60), what=st.sampled_from(["crash", "hang", "hear again", "release again", "ghost"]))
    def trouble(self, pick: int, what: str) -> None:
        alive = list(self.world.processes)
        match what:
            case "crash" if alive:
                self.world.crash(alive[pick % len(alive)])
            case "hang" if alive:
                self.world.hang(alive[pick % len(alive)])
            case "hear again":
                self.world.hear_again(pick)
            case "release again":
                self.world.release(LeaseId(pick))
            case "ghost":
                self.world.request("ghost")

    @rule(model=models_strategy, what=st.sampled_from(["load", "unload", "let go when idle"]))
    def operate(self, model: str, what: str) -> None:
        match what:
            case "load":
                self.world.load(model)
            case "unload":
                self.world.unload(model)
            case _:
                self.world.keep_alive(model, 0.0)

    @rule(model=models_strategy, pin=st.sampled_from([True, False, None]))
    def pin(self, model: str, pin: bool | None) -> None:
        self.world.pin(model, pin)

    @rule(model=models_strategy, fingerprint=st.sampled_from(["1", "2", "3"]), replicas=st.sampled_from([0, 0, 1, 2]))
    def change_one(self, model: str, fingerprint: str, replicas: int) -> None:
        old = self.world.models
        if model in old:
            changed = replace(old[model], fingerprint=fingerprint, replicas=replicas or old[model].replicas)
            self.world.change({**old, model: changed})

    @rule(limits=limits_strategy, models=st.one_of(st.none(), catalogs()))
    def change_everything(self, limits: FleetLimits, models: dict[str, ModelPolicy] | None) -> None:
        self.world.change(models or self.world.models, limits)

    @precondition(lambda self: len(self.world.history) > 60)
    @rule(drain_s=st.sampled_from([0.0, 5.0]))
    def shut_down(self, drain_s: float) -> None:
        self.world.shut_down(drain_s)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            if self.world.is_shutting_down:
                expect_everything_to_stop(self.world)
            else:
                expect_everybody_to_be_served(self.world)


def expect_everything_to_stop(world: World) -> None:
    """Nothing runs and nobody waits soon after the router was told to stop."""
    assert not world.with_fate(Fate.QUEUED)
    world.advance(12.0)  # the longest drain and the slowest exit
    assert not world.processes


def expect_everybody_to_be_served(world: World) -> None:
    """Once the world is calm, every waiting request ends, and at last nothing is left to be done."""
    world.behaviours = {name: Behaviour() for name in NAMES}
    world.hold_s = 1.0
    if world.devices:
        world.footprints = dict.fromkeys(NAMES, Footprint(20, 15, 5, 2, 10, FootprintSource.PROBE))
        world.others_use({})
    calm: dict[str, Any] = {"queue_timeout_s": 0.0, "max_queue": 256, "pin": False, "home": False, "unavailable": None}
    anywhere: dict[str, Any] = {"devices": (), "gpu_layers": -1}
    patient = {name: replace(policy, idle_unload_s=10.0, **calm, **anywhere) for name, policy in world.models.items()}
    world.change(patient)
    for name in patient:
        world.pin(name, None)
    for request in world.with_fate(Fate.GRANTED):
        world.release(request.lease_id)
    world.advance(200.0 + 2.0 * len(world.with_fate(Fate.QUEUED)))  # the slowest load that is under way, then swaps
    assert not world.with_fate(Fate.QUEUED), "somebody waits for ever"
    for name in patient:
        world.tell_footprint(name)  # loads that were under way have had the last word about the old ones
        world.load(name)  # a bad file is not tried again by itself for a while
    first = next(iter(patient))
    newcomers = [world.request(name) for name in [*patient, first, first, first]]  # more of one than it has leases
    world.advance(200.0)
    unserved = [request for request in newcomers if request.fate is not Fate.RELEASED]
    assert not unserved, f"somebody is not served although nothing is wrong: {unserved[0]}"
    for name in patient:
        world.keep_alive(name, 10.0)  # else those stay for good whose clients have said so
    world.advance(100.0)
    assert not world.processes, "an idle worker was never unloaded"
    assert world.fleet.next_deadline_s is None, "a clock ticks although nothing is left to do"


class HistoryWithPlaces(AnyHistory):
    """Models share a number of places."""

    machines = PLACES_ALONE


class HistoryWithMemory(AnyHistory):
    """Models share the memory of one to three devices, and sometimes a number of places too."""

    machines = MACHINES


# `make mutate` sets a number of its own, the same histories for every mutation, and needs no smallest example.
NUM_HISTORIES = int(os.environ.get("FLEET_HISTORIES", "0"))
histories = settings(
    max_examples=NUM_HISTORIES or 120,
    stateful_step_count=40,
    deadline=None,
    derandomize=bool(NUM_HISTORIES),
    phases=[Phase.generate] if NUM_HISTORIES else settings.default.phases,  # type: ignore[union-attr]
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

TestHistoriesWithPlaces = HistoryWithPlaces.TestCase
TestHistoriesWithPlaces.settings = histories
TestHistoriesWithMemory = HistoryWithMemory.TestCase
TestHistoriesWithMemory.settings = histories


def test_of_idle_and_busy_replicas_the_earliest_stay_whatever_their_numbers_are() -> None:
    one, two = (ModelPolicy("a", fingerprint="new", replicas=num) for num in (1, 2))
    world = World({"a": ModelPolicy("a")}, FleetLimits(), hold_s=1000.0)
    before = world.request("a")
    world.advance(2.0)
    world.change({"a": two})
    world.advance(2.0)
    after = [world.request("a") for _ in range(4)]
    world.advance(3.0)
    world.release(before.lease_id)
    world.advance(10.0)
    assert set(world.processes) == {WorkerId("a", 1, 1), WorkerId("a", 2, 1)}
    world.change({"a": one})
    for request in after:
        if request.worker == WorkerId("a", 1, 1):
            world.release(request.lease_id)
    assert set(world.processes) == {WorkerId("a", 1, 1), WorkerId("a", 2, 1)}, (
        "the later one is busy, and goes when it is not"
    )


def room_for(num: int, kind: str, names: str, *, max_wait_s: float, hold_s: float, load_s: float) -> World:
    """Return a world of models of which `num` can be loaded: by `max_loaded`, or because memory holds no more."""
    models = {name: ModelPolicy(name, queue_timeout_s=0.0) for name in names}
    if kind == "places":
        world = World(models, FleetLimits(max_loaded=num, max_wait_s=max_wait_s), hold_s=hold_s)
    else:
        size = Footprint(cpu_bytes=10, source=FootprintSource.PROBE)
        device = Device("CPU", DeviceKind.CPU, total_bytes=10 * num + 9)
        limits = FleetLimits(max_wait_s=max_wait_s)
        world = World(models, limits, hold_s=hold_s, devices=(device,), footprints=dict.fromkeys(names, size))
        for name in names:
            world.tell_footprint(name)
    world.behaviours = {name: Behaviour(load_s=load_s) for name in names}
    return world


kinds = st.sampled_from(["places", "memory"])


@settings(max_examples=NUM_HISTORIES or 80, deadline=None)
@given(
    kind=kinds,
    max_wait_s=st.sampled_from([0.0, 5.0, 30.0]),
    every_s=st.floats(0.2, 2.0),
    hold_s=st.floats(0.05, 8.0),
    load_s=st.floats(0.1, 5.0),
    asks_after_s=st.floats(0.0, 20.0),
)
def test_a_busy_model_never_keeps_another_one_waiting_beyond_the_configured_time(
    kind: str, max_wait_s: float, every_s: float, hold_s: float, load_s: float, asks_after_s: float
) -> None:
    world = room_for(1, kind, "ab", max_wait_s=max_wait_s, hold_s=hold_s, load_s=load_s)
    # What loads has to finish, what runs has to finish, the worker stops, and the other one loads.
    bound_s = max(max_wait_s, load_s) + hold_s + 0.5 + load_s + 0.001
    keep_asking(world, "a", every_s, asks_after_s)
    asked = world.request("b")
    keep_asking(world, "a", every_s, bound_s + every_s)
    assert asked.ended_s is not None, "the other model was never served"
    assert asked.worker is not None
    assert asked.ended_s - asked.since_s <= bound_s


@settings(max_examples=NUM_HISTORIES or 80, deadline=None)
@given(
    kind=kinds,
    asked=st.lists(st.sampled_from("abc"), min_size=2, max_size=40),
    hold_s=st.floats(0.1, 3.0),
    load_s=st.floats(0.1, 20.0),
    num=st.sampled_from([1, 2]),
)
def test_a_queue_that_alternates_between_models_costs_one_load_of_each(
    kind: str, asked: list[str], hold_s: float, load_s: float, num: int
) -> None:
    world = room_for(num, kind, "abc", max_wait_s=1e6, hold_s=hold_s, load_s=load_s)
    for model in asked:
        world.request(model)
    world.advance(len(asked) * (hold_s + 1.0) + 3 * (load_s + 0.5) + 1.0)
    assert all(request.fate is Fate.RELEASED for request in world.requests.values())
    assert len(world.spawns) == len(set(asked))


@settings(max_examples=NUM_HISTORIES or 40, deadline=None)
@given(
    kind=kinds,
    max_wait_s=st.sampled_from([3.0, 10.0]),
    gap_s=st.floats(0.2, 1.0),
    load_s=st.floats(0.1, 2.0),
)
def test_models_that_are_both_always_busy_are_swapped_no_more_often_than_the_longest_wait_says(
    kind: str, max_wait_s: float, gap_s: float, load_s: float
) -> None:
    world = room_for(1, kind, "ab", max_wait_s=max_wait_s, hold_s=2.5 * gap_s, load_s=load_s)
    started_s = world.now_s
    for index in range(80):
        world.request("ab"[index % 2])
        world.advance(gap_s)
    assert len(world.spawns) <= (world.now_s - started_s) / max_wait_s + 2
    world.advance(1000.0)
    assert all(request.fate is Fate.RELEASED for request in world.requests.values())


def keep_asking(world: World, model: str, every_s: float, for_s: float) -> None:
    """Requests for `model` have come in steadily for `for_s` seconds."""
    end_s = world.now_s + for_s
    while world.now_s < end_s:
        world.request(model)
        world.advance(every_s)


@settings(max_examples=NUM_HISTORIES or 100, deadline=None)
@given(
    kind=kinds,
    arrivals=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 3.0)), min_size=1, max_size=60),
    hold_s=st.floats(0.1, 3.0),
    load_s=st.floats(0.1, 40.0),
    num=st.sampled_from([1, 2]),
    max_leases=st.sampled_from([1, 3]),
)
def test_every_request_of_a_mixed_load_is_served_and_the_starts_are_few(
    kind: str, arrivals: list[tuple[str, float]], hold_s: float, load_s: float, num: int, max_leases: int
) -> None:
    world = room_for(num, kind, "abc", max_wait_s=30.0, hold_s=hold_s, load_s=load_s)
    world.behaviours = {name: Behaviour(load_s=load_s, max_leases=max_leases) for name in "abc"}
    for model, pause_s in arrivals:
        world.request(model)
        world.advance(pause_s)
    world.advance(len(arrivals) * (hold_s + load_s + 0.5) + 100.0)
    assert all(request.fate is Fate.RELEASED for request in world.requests.values())
    assert len(world.spawns) <= len(arrivals), "a model was loaded without serving anybody"


@pytest.mark.parametrize("round_", range(50))
def test_two_models_that_want_one_place_at_the_same_instant_both_get_it(round_: int) -> None:
    world = World({name: ModelPolicy(name) for name in "abc"}, FleetLimits(max_loaded=1), hold_s=0.1)
    world.behaviours = {name: Behaviour(load_s=1.0 + (round_ * 7 + ord(name)) % 5) for name in "abc"}
    world.request("a")
    world.advance(20.0)
    second, third = world.request("b"), world.request("c")
    world.advance(30.0)
    assert [second.fate, third.fate] == [Fate.RELEASED, Fate.RELEASED]
    assert len(world.spawns) == 3


def test_a_model_that_cannot_load_costs_about_five_starts_in_its_first_minute() -> None:
    world = World({"bad": ModelPolicy("bad"), "good": ModelPolicy("good")}, FleetLimits(), hold_s=0.1)
    world.behaviours["bad"] = Behaviour(Outcome.CRASHES, load_s=0.3)
    for _ in range(60):
        refused = world.request("bad")
        served = world.request("good")
        world.advance(1.0)
        assert served.fate is Fate.RELEASED or world.now_s < 102.0
        assert refused.refusal is None or refused.refusal.kind is RefusalKind.UNAVAILABLE
    assert 3 <= sum(worker.model == "bad" for _, worker in world.spawns) <= 6
