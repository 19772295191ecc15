"""The fleet in a simulated world: whatever happens, in whatever order, its promises hold.

The promises about single actions are checked by `tests/fakes/world.py`; here are the histories, and what must
be true at the end of each: nobody waits for ever.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from router.events import FleetLimits, LeaseId, ModelPolicy, RefusalKind
from tests.fakes.world import Behaviour, Fate, Outcome, World

NAMES = ("a", "b", "c", "d")
models_strategy = st.sampled_from(NAMES)

policies = st.builds(
    ModelPolicy,
    name=st.just(""),
    idle_unload_s=st.sampled_from([0.0, 3.0, 40.0]),
    pin=st.sampled_from([False, False, False, True]),
    preload=st.sampled_from([False, False, True]),
    priority=st.sampled_from([0, 0, 1]),
    load_timeout_s=st.sampled_from([4.0, 20.0]),
    max_queue=st.sampled_from([2, 5, 256]),
    queue_timeout_s=st.sampled_from([0.0, 7.0, 100.0]),
    unavailable=st.sampled_from([None, None, None, None, "no such file"]),
    fingerprint=st.sampled_from(["1", "1", "2"]),
)
limits_strategy = st.builds(
    FleetLimits,
    max_loaded=st.sampled_from([None, 1, 1, 2, 3]),
    max_wait_s=st.sampled_from([0.0, 5.0, 30.0]),
    drain_timeout_s=st.sampled_from([0.0, 10.0]),
)


@st.composite
def catalogs(draw: st.DrawFn) -> dict[str, ModelPolicy]:
    names = draw(st.sets(models_strategy, min_size=3).map(sorted))
    return {name: replace(draw(policies), name=name) for name in names}


behaviours = st.builds(
    Behaviour,
    outcome=st.sampled_from([Outcome.READY] * 8 + list(Outcome)),
    load_s=st.sampled_from([0.0, 0.4, 3.0, 15.0]),
    stop_s=st.sampled_from([0.0, 0.5, 6.0]),
    max_leases=st.sampled_from([1, 3]),
)


class AnyHistory(RuleBasedStateMachine):
    """What happens often in life has several rules here, because each rule is as likely as any other."""

    @initialize(models=catalogs(), limits=limits_strategy, ways=st.fixed_dictionaries(dict.fromkeys(NAMES, behaviours)))
    def begin(self, models: dict[str, ModelPolicy], limits: FleetLimits, ways: dict[str, Behaviour]) -> None:
        self.world = World(models, limits, behaviours=dict(ways))

    @rule(model=models_strategy, priority=st.sampled_from([0, 0, 0, 1]), key_id=st.sampled_from([None, "k1", "k2"]))
    def request(self, model: str, priority: int, key_id: str | None) -> None:
        self.world.request(model, priority=priority, key_id=key_id)

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

    @rule(pick=st.integers(0, 10))
    def finish_a_running_one(self, pick: int) -> None:
        running = self.world.with_fate(Fate.GRANTED)
        if running:
            self.world.release(running[pick % len(running)].lease_id)

    @rule(model=models_strategy, fate=st.sampled_from([Fate.QUEUED, Fate.GRANTED]))
    def all_clients_of_a_model_leave(self, model: str, fate: Fate) -> None:
        for request in self.world.with_fate(fate):
            if request.model == model:
                self.world.release(request.lease_id)

    @rule(model=models_strategy, behaviour=behaviours)
    def behave_from_now_on(self, model: str, behaviour: Behaviour) -> None:
        self.world.behaviours[model] = behaviour

    @rule(pick=st.integers(0, 60), what=st.sampled_from(["crash", "hear again", "release again", "ghost"]))
    def trouble(self, pick: int, what: str) -> None:
        alive = list(self.world.processes)
        match what:
            case "crash" if alive:
                self.world.crash(alive[pick % len(alive)])
            case "hear again":
                self.world.hear_again(pick)
            case "release again":
                self.world.release(LeaseId(pick))
            case _:
                self.world.request("ghost")

    @rule(model=models_strategy, what=st.sampled_from(["load", "unload"]))
    def operate(self, model: str, what: str) -> None:
        if what == "load":
            self.world.load(model)
        else:
            self.world.unload(model)

    @rule(
        what=st.sampled_from(["one", "one", "limits", "everything"]),
        model=models_strategy,
        fingerprint=st.sampled_from(["1", "2", "3"]),
        models=catalogs(),
        limits=limits_strategy,
    )
    def change(
        self, what: str, model: str, fingerprint: str, models: dict[str, ModelPolicy], limits: FleetLimits
    ) -> None:
        old = self.world.models
        match what:
            case "one" if model in old:
                self.world.change({**old, model: replace(old[model], fingerprint=fingerprint)})
            case "limits":
                self.world.change(old, limits)
            case _:
                self.world.change(models, limits)

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
    patient = {
        name: replace(policy, queue_timeout_s=0.0, max_queue=256, pin=False, idle_unload_s=10.0, unavailable=None)
        for name, policy in world.models.items()
    }
    world.change(patient)
    for request in world.with_fate(Fate.GRANTED):
        world.release(request.lease_id)
    world.advance(200.0)  # the slowest load that is under way, then a few swaps
    assert not world.with_fate(Fate.QUEUED), "somebody waits for ever"
    for name in patient:
        world.load(name)  # a bad file is not tried again by itself for a while
    world.advance(100.0)
    newcomers = [world.request(name) for name in patient for _ in range(5)]
    world.advance(200.0)
    fates = {request.fate for request in newcomers}
    assert fates == {Fate.RELEASED}, "somebody is not served although nothing is wrong"
    world.advance(100.0)
    assert not world.processes, "an idle worker was never unloaded"
    assert world.fleet.next_deadline_s is None, "a clock ticks although nothing is left to do"


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(
    max_examples=400,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@settings(max_examples=150, deadline=None)
@given(
    max_wait_s=st.sampled_from([0.0, 5.0, 30.0]),
    every_s=st.floats(0.2, 2.0),
    hold_s=st.floats(0.05, 8.0),
    load_s=st.floats(0.1, 5.0),
    asks_after_s=st.floats(0.0, 20.0),
)
def test_a_busy_model_never_keeps_another_one_waiting_beyond_the_configured_time(
    max_wait_s: float, every_s: float, hold_s: float, load_s: float, asks_after_s: float
) -> None:
    limits = FleetLimits(max_loaded=1, max_wait_s=max_wait_s)
    world = World({name: ModelPolicy(name) for name in "ab"}, limits, hold_s=hold_s)
    world.behaviours = {name: Behaviour(load_s=load_s) for name in "ab"}
    # What loads has to finish, what runs has to finish, the worker stops, and the other one loads.
    bound_s = max(max_wait_s, load_s) + hold_s + 0.5 + load_s + 0.001
    keep_asking(world, "a", every_s, asks_after_s)
    asked = world.request("b")
    keep_asking(world, "a", every_s, bound_s + every_s)
    assert asked.ended_s is not None, "the other model was never served"
    assert asked.worker is not None
    assert asked.ended_s - asked.since_s <= bound_s


def keep_asking(world: World, model: str, every_s: float, for_s: float) -> None:
    """Requests for `model` have come in steadily for `for_s` seconds."""
    end_s = world.now_s + for_s
    while world.now_s < end_s:
        world.request(model)
        world.advance(every_s)


@settings(max_examples=300, deadline=None)
@given(
    arrivals=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 3.0)), min_size=1, max_size=60),
    hold_s=st.floats(0.1, 3.0),
    load_s=st.floats(0.1, 40.0),
    max_loaded=st.sampled_from([1, 2]),
    max_leases=st.sampled_from([1, 3]),
)
def test_every_request_of_a_mixed_load_is_served_and_the_starts_are_few(
    arrivals: list[tuple[str, float]], hold_s: float, load_s: float, max_loaded: int, max_leases: int
) -> None:
    models = {name: ModelPolicy(name, queue_timeout_s=0.0) for name in "abc"}
    world = World(models, FleetLimits(max_loaded=max_loaded), hold_s=hold_s)
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
