"""Turns of groups with equal adapters: how long they last, who comes next, and what that means for whole answers."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

from tests.fakes.backend import FakeBackend
from tests.fakes.bench import Bench, prompt_of
from worker.engine.adapters import MAX_TURN_S, MIN_STEPS, MIN_TURN_S, AdapterTurns
from worker.engine.errors import InvalidBatch
from worker.engine.request import AdapterSet, FinishReason, GenerationRequest, RequestId
from worker.engine.sequence import Sequence

BASE: AdapterSet = ()
A: AdapterSet = ((0, 1.0),)
B: AdapterSet = ((1, 1.0),)
C: AdapterSet = ((0, 0.5), (1, 1.0))


def running(*sets: AdapterSet) -> list[Sequence]:
    return [
        Sequence(RequestId(number), GenerationRequest((1, 2, 3), 8, adapters=adapters), 0.0)
        for number, adapters in enumerate(sets)
    ]


def turns_of(turns: AdapterTurns, sequences: list[Sequence], num_passes: int, *, pass_s: float) -> list[AdapterSet]:
    """Return the adapters of so many passes, each of which takes `pass_s`."""
    used = []
    for number in range(num_passes):
        chosen = turns.choose(sequences, number * pass_s)
        assert chosen == [one for one in sequences if one.request.adapters == turns.current]
        assert chosen
        used.append(turns.current)
    return used


def lengths(used: list[AdapterSet]) -> list[int]:
    """Return the passes of each turn but the last, which may have been cut off."""
    found = [0]
    for before, now in itertools.pairwise(used):
        found[-1] += 1
        if now != before:
            found.append(0)
    return found[:-1]


def test_sequences_with_equal_adapters_never_take_turns() -> None:
    turns = AdapterTurns()
    assert turns_of(turns, running(A, A, A), 50, pass_s=0.1) == [A] * 50


def test_quick_passes_make_a_turn_of_the_least_time() -> None:
    used = turns_of(AdapterTurns(), running(A, B), 400, pass_s=1 / 128)
    assert set(lengths(used)) == {math.ceil(MIN_TURN_S * 128)}


def test_passes_of_middling_length_make_a_turn_of_the_least_number() -> None:
    used = turns_of(AdapterTurns(), running(A, B), 100, pass_s=1 / 16)
    assert set(lengths(used)) == {MIN_STEPS}


def test_slow_passes_end_a_turn_early() -> None:
    used = turns_of(AdapterTurns(), running(A, B), 50, pass_s=MAX_TURN_S)
    assert set(lengths(used)) == {1}


@pytest.mark.parametrize("pass_s", [1 / 256, 1 / 16, 1 / 8, 1.0])
def test_groups_get_equal_shares_however_many_are_in_them(pass_s: float) -> None:
    num_passes = 3 * max(1, round(40 * MIN_TURN_S / pass_s))
    used = turns_of(AdapterTurns(), running(A, A, A, A, B, BASE), num_passes, pass_s=pass_s)
    counts = Counter(used)
    longest = max(lengths(used), default=1)
    assert max(counts.values()) - min(counts.values()) <= longest


def test_new_groups_stand_behind_those_that_wait_already() -> None:
    turns = AdapterTurns()
    turns.choose(running(A, B), 0.0)
    used = []
    for number in range(1, 6):
        turns.choose(running(C, B, A), number * MAX_TURN_S)
        used.append(turns.current)
    assert used == [B, C, A, B, C]


def test_group_that_waits_gets_its_turn_although_new_ones_keep_coming() -> None:
    turns = AdapterTurns()
    gaps, since = [], 0
    for number in range(60):
        newcomer = running(((5, 1.0 + number),))
        turns.choose([*running(A, B), *newcomer], number * MAX_TURN_S)
        since += 1
        if turns.current == B:
            gaps.append(since)
            since = 0
    assert len(gaps) >= 15
    assert max(gaps) <= 3


def test_group_that_has_ended_hands_its_turn_on_at_once() -> None:
    turns = AdapterTurns()
    turns.choose(running(A, B), 0.0)
    assert turns.current == A
    turns.choose(running(B), 0.001)
    assert turns.current == B


def test_newcomer_gets_its_turn_at_once_where_the_other_had_its_own() -> None:
    turns = AdapterTurns()
    turns_of(turns, running(A), 100, pass_s=0.01)
    turns.choose(running(A, B), 1.0)
    assert turns.current == B


def test_nobody_runs_and_nothing_changes() -> None:
    turns = AdapterTurns()
    turns.choose(running(A), 0.0)
    assert turns.choose([], 1.0) == []
    assert turns.current == A


# --- with the core ----------------------------------------------------------------------------------------


class QuickBench(Bench):
    """A bench whose passes take a hundredth of a second."""

    def step(self):  # type: ignore[no-untyped-def]
        self.now_s -= 0.99
        return super().step()


def test_answers_with_different_adapters_are_those_they_would_be_alone() -> None:
    bench = QuickBench(FakeBackend(num_vocab=5000, num_slots=6, context=300))
    sets = (BASE, A, B, C, A, BASE)
    ids = [bench.submit(prompt_of(20), 200, adapters=adapters) for adapters in sets]
    bench.run()
    answers = [bench.answers[request_id] for request_id in ids]
    assert answers == [bench.expected(prompt_of(20), 200, adapters) for adapters in sets]
    assert len({tuple(answer) for answer in answers}) == 4
    num_passes = len(bench.backend.passes)
    assert num_passes / len(bench.backend.turns) >= 15, "changes are few"


def test_requests_without_adapters_never_change_anything() -> None:
    bench = QuickBench(FakeBackend(num_slots=4))
    for number in range(6):
        bench.submit(prompt_of(20, number))
    bench.run()
    assert bench.backend.turns == []


def test_answer_beside_another_group_goes_at_half_its_pace_and_never_stops_for_long() -> None:
    bench = QuickBench(FakeBackend(num_vocab=100_000, num_slots=4, context=1000))
    mine = bench.submit(prompt_of(5), 200, adapters=A)
    for number in range(3):
        bench.submit(prompt_of(5, number), 400, adapters=B)
    at_s: list[float] = []
    while mine not in bench.ends:
        before = len(bench.answers[mine])
        bench.step()
        at_s += [bench.now_s] * (len(bench.answers[mine]) - before)
    assert at_s[-1] <= 2.3 * 200 * 0.01
    assert max(b - a for a, b in itertools.pairwise(at_s)) <= MIN_TURN_S + 0.05


def test_long_prompt_of_one_group_is_cut_small_beside_answers_of_another() -> None:
    bench = QuickBench(
        FakeBackend(num_vocab=100_000, num_slots=4, context=1000), max_rows=256, rows_alone=256, rows_beside=8
    )
    mine = bench.submit(prompt_of(5), 300, adapters=A)
    while not bench.answers[mine]:
        bench.step()
    bench.submit(prompt_of(400), 4, adapters=B)
    bench.backend.passes.clear()
    bench.run()
    assert max(map(sum, bench.backend.passes)) <= 16


def test_adapters_that_the_backend_refuses_fail_their_request_alone() -> None:
    class Choosy(FakeBackend):
        def use_adapters(self, adapters: AdapterSet) -> None:
            if adapters == B:
                raise InvalidBatch("not there")
            if adapters != self.adapters:
                super().use_adapters(adapters)

    bench = Bench(Choosy(num_vocab=5000))
    good, bad = bench.submit(prompt_of(9), 8, adapters=A), bench.submit(prompt_of(9), 8, adapters=B)
    bench.run()
    assert bench.ends[bad].finish is FinishReason.ERROR
    assert bench.answers[good] == bench.expected(prompt_of(9), 8, A)
