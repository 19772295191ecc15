"""Several models that want the one place at the same instant, again and again: nobody is forgotten."""

from __future__ import annotations

import random

from router.events import FleetLimits, ModelPolicy
from tests.fakes.world import Behaviour, Fate, World

NUM_ROUNDS = 50
LOAD_S, STOP_S, HOLD_S, MAX_WAIT_S = 1.0, 0.5, 0.2, 2.0


def open_world(*names: str) -> World:
    return World(
        {name: ModelPolicy(name) for name in names},
        FleetLimits(max_loaded=1, max_wait_s=MAX_WAIT_S),
        hold_s=HOLD_S,
        behaviours={name: Behaviour(load_s=LOAD_S, stop_s=STOP_S) for name in names},
    )


def test_two_newcomers_at_the_same_instant_are_both_served_in_every_round() -> None:
    world = open_world("warm", "left", "right")
    for number in range(NUM_ROUNDS):
        warm = world.request("warm")
        world.advance(10)  # it is served, and idle again
        assert warm.fate is Fate.RELEASED
        pair = [world.request(name) for name in (("left", "right"), ("right", "left"))[number % 2]]
        for request in pair:
            world.advance(LOAD_S + STOP_S + HOLD_S + 0.1)
            assert request.fate in (Fate.GRANTED, Fate.RELEASED), f"round {number}: still {request.fate}"
        world.advance(HOLD_S)
        assert [request.fate for request in pair] == [Fate.RELEASED] * 2
        world.advance(10)


def test_of_five_models_in_one_place_each_request_is_served_within_one_turn_of_all_others() -> None:
    names = ["a", "b", "c", "d", "e"]
    chance = random.Random(7)
    world = open_world(*names)
    turn_s = LOAD_S + STOP_S + HOLD_S + MAX_WAIT_S
    for _ in range(15):
        asked = [world.request(name) for name in chance.sample(names, 5)]
        world.advance(len(names) * turn_s)
        assert [request.fate for request in asked] == [Fate.RELEASED] * 5
