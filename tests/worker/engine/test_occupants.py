"""What each client has last had computed in each slot is remembered, within bounds."""

from __future__ import annotations

import numpy as np

from worker.engine import occupants
from worker.engine.occupants import MAX_REMEMBERED, MAX_TOKENS, Client, Occupant, Occupants


def of(num_tokens: int) -> Occupant:
    return Occupant(np.zeros(num_tokens, dtype=np.int32), "")


def test_the_last_one_of_each_client_and_slot_counts() -> None:
    known, first, second, other = Occupants(), of(1), of(2), of(3)
    known.note(0, Client("a"), first)
    known.note(0, Client("a"), second)
    known.note(0, Client("b"), other)
    assert (known.find(0, Client("a")), known.find(0, Client("b"))) == (second, other)
    assert known.find(1, Client("a")) is None
    assert known.find(0, Client("a", "salt")) is None
    assert known.forget(0, Client("a")) is second
    assert known.forget(0, Client("a")) is None
    assert known.find(0, Client("b")) is other


def test_the_one_used_longest_ago_is_forgotten_when_there_are_too_many() -> None:
    known = Occupants()
    for number in range(MAX_REMEMBERED):
        known.note(number, Client(), of(1))
    known.note(0, Client(), of(1))
    known.note(MAX_REMEMBERED, Client(), of(1))
    assert len(known) == MAX_REMEMBERED
    assert known.find(1, Client()) is None
    assert known.find(0, Client()) is not None


def test_all_together_have_a_bound_and_one_alone_may_pass_it() -> None:
    known = Occupants()
    for number in range(5):
        known.note(number, Client(), of(MAX_TOKENS // 4))
    assert [number for number in range(5) if known.find(number, Client())] == [1, 2, 3, 4]
    known.note(9, Client(), of(MAX_TOKENS + 1))
    assert len(known) == 1
    known.forget(9, Client())
    assert (len(known), known._num_tokens) == (0, 0)
    assert occupants.MAX_TOKENS * 4 <= 2**24
