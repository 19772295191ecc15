"""How CPU cores are shared out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.events import WorkerId
from router.threads import share_threads

A, B, C = (WorkerId(name, 0, 1) for name in "abc")


def test_a_lone_busy_worker_gets_every_core() -> None:
    assert share_threads(8, {A: True}) == {A: 8}


def test_busy_workers_share_the_cores() -> None:
    assert share_threads(2, {A: True, B: True}) == {A: 1, B: 1}


def test_no_core_is_left_over_when_the_division_is_uneven() -> None:
    assert share_threads(8, {A: True, B: True, C: True}) == {A: 3, B: 3, C: 2}


def test_every_worker_has_a_thread_even_if_there_are_more_workers_than_cores() -> None:
    assert share_threads(2, {A: True, B: True, C: True}) == {A: 1, B: 1, C: 1}


def test_an_idle_worker_is_ready_to_run_beside_the_busy_ones() -> None:
    assert share_threads(8, {A: True, B: False}) == {A: 8, B: 4}


def test_idle_workers_do_not_take_each_others_share() -> None:
    assert share_threads(4, {A: False, B: False, C: False}) == {A: 4, B: 4, C: 4}


def test_nobody_gets_nothing() -> None:
    assert share_threads(4, {}) == {}
    assert share_threads(0, {A: True}) == {A: 1}


@given(
    num_cores=st.integers(1, 64),
    busy=st.dictionaries(st.builds(WorkerId, st.sampled_from("abcdef"), st.integers(0, 2), st.just(1)), st.booleans()),
)
def test_shares_are_fair_and_use_the_whole_machine(num_cores: int, busy: dict[WorkerId, bool]) -> None:
    shares = share_threads(num_cores, busy)
    assert shares.keys() == busy.keys()
    with_work = [shares[worker] for worker, has_work in busy.items() if has_work]
    if with_work:
        assert sum(with_work) == max(num_cores, len(with_work))
        assert max(with_work) - min(with_work) <= 1
    for worker in busy:
        assert share_threads(num_cores, busy | {worker: True})[worker] == shares[worker]
