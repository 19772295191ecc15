"""Whom to evict for another model, and where it goes then."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.device import Placement
from router.events import WorkerId
from router.lifecycle import WorkerState
from router.placement import PLACES, Occupant, Plan, choose_victims, plan_placement

READY, DRAINING, STOPPING = WorkerState.READY, WorkerState.DRAINING, WorkerState.STOPPING
NOW_S = 100.0


def occupant(
    name: str,
    state: WorkerState = READY,
    *,
    leases: int = 0,
    used_s: float = 0.0,
    priority: int = 0,
    kept: bool = False,
    load_s: float = 1.0,
    **holds: int,
) -> Occupant:
    """A worker with one place and, of the devices, what is said."""
    return Occupant(WorkerId(name, 0, 1), state, leases, used_s, priority, kept, {PLACES: 1, **holds}, load_s)


def victims(*occupants: Occupant, places: int = 1, may_drain: bool = False, **missing: int) -> str | None:
    """Who goes when so many places, or else so many bytes of devices, are missing."""
    wanted: Mapping[str, int] = missing or ({PLACES: places} if places else {})
    chosen = choose_victims(occupants, wanted, NOW_S, may_drain=may_drain)
    return None if chosen is None else "".join(victim.worker.model for victim in chosen)


# --- whose turn it is -------------------------------------------------------------------------------------


def test_the_least_recently_used_idle_worker_goes() -> None:
    assert victims(occupant("a", used_s=5), occupant("b", used_s=3), occupant("c", used_s=4)) == "b"


def test_a_lower_priority_goes_before_a_longer_idleness() -> None:
    assert victims(occupant("a", used_s=1, priority=1), occupant("b", used_s=9)) == "b"


def test_a_model_that_is_slow_to_load_stays_longer_than_one_that_comes_back_quickly() -> None:
    slow = occupant("a", used_s=NOW_S - 60, load_s=30.0)
    quick = occupant("b", used_s=NOW_S - 10, load_s=2.0)
    assert victims(slow, quick) == "b", "2 loads long idle against 5"
    assert victims(occupant("a", used_s=NOW_S - 300, load_s=30.0), quick) == "a", "10 against 5"


def test_a_load_that_took_no_time_at_all_counts_as_a_short_one() -> None:
    assert victims(occupant("a", used_s=NOW_S - 1, load_s=0.0), occupant("b", used_s=NOW_S - 2, load_s=0.1)) == "b"


def test_a_busy_worker_stays_while_others_may_still_wait() -> None:
    assert victims(occupant("a", leases=1)) is None


def test_a_busy_worker_goes_once_somebody_has_waited_too_long() -> None:
    assert victims(occupant("a", leases=1, used_s=2), occupant("b", leases=4, used_s=1), may_drain=True) == "b"


def test_an_idle_worker_goes_before_a_busy_one_of_lower_priority() -> None:
    assert victims(occupant("a", leases=1, priority=-1), occupant("b", priority=9), may_drain=True) == "b"


@pytest.mark.parametrize("leases", [0, 2])
@pytest.mark.parametrize("state", [READY, DRAINING])
def test_a_pinned_worker_never_goes(leases: int, state: WorkerState) -> None:
    assert victims(occupant("a", state, leases=leases, kept=True), may_drain=True) is None


@pytest.mark.parametrize("state", [WorkerState.STARTING, WorkerState.LOADING])
def test_the_room_of_a_worker_that_loads_is_spoken_for_only_after_all_others_and_by_who_has_waited_too_long(
    state: WorkerState,
) -> None:
    loading = occupant("a", state)
    assert victims(loading) is None
    assert victims(loading, occupant("b", leases=1, priority=5), may_drain=True) == "b"
    assert victims(loading, may_drain=True) == "a"


def test_nobody_else_goes_if_a_place_is_becoming_free_anyway() -> None:
    assert victims(occupant("a"), occupant("b", STOPPING)) == "b"


def test_the_room_of_a_pinned_worker_that_already_stops_counts() -> None:
    assert victims(occupant("a"), occupant("b", STOPPING, kept=True)) == "b"


def test_an_idle_worker_goes_before_one_whose_last_requests_may_take_long() -> None:
    assert victims(occupant("a", DRAINING, leases=1), occupant("b")) == "b"


def test_a_worker_that_drains_makes_room_before_another_busy_one_has_to() -> None:
    assert victims(occupant("a", leases=1), occupant("b", DRAINING, leases=1), may_drain=True) == "b"


def test_a_worker_that_drains_is_waited_for_even_before_busy_ones_may_be_drained() -> None:
    assert victims(occupant("a", leases=1), occupant("b", DRAINING, leases=1)) == "b"


def test_several_places_need_several_workers() -> None:
    assert victims(occupant("a", used_s=2), occupant("b", used_s=1), occupant("c", used_s=3), places=2) == "ba"


def test_nobody_goes_in_vain_if_there_are_too_few_who_may() -> None:
    assert victims(occupant("a"), occupant("b", leases=1), places=2) is None


def test_no_place_needs_no_victim() -> None:
    assert victims(occupant("a"), places=0) == ""


# --- bytes ------------------------------------------------------------------------------------------------


def test_bytes_are_what_counts_not_the_number_of_models() -> None:
    assert victims(occupant("a", used_s=1, CPU=20), occupant("b", used_s=2, CPU=3), CPU=18) == "a"


def test_as_many_go_as_are_needed_for_the_bytes_and_no_more() -> None:
    held = [occupant(name, used_s=index, CPU=10) for index, name in enumerate("abcd")]
    assert victims(*held, CPU=10) == "a"
    assert victims(*held, CPU=11) == "ab"
    assert victims(*held, CPU=40) == "abcd"
    assert victims(*held, CPU=41) is None


def test_a_small_one_that_was_idle_longer_does_not_go_in_vain_beside_a_large_one() -> None:
    assert victims(occupant("a", used_s=1, CPU=5), occupant("b", used_s=2, CPU=20), CPU=20) == "b"
    assert victims(occupant("a", used_s=1, CPU=5), occupant("b", used_s=2, CPU=20), CPU=21) == "ab"


def test_of_several_that_went_in_vain_none_goes() -> None:
    small = [occupant(name, used_s=index, CPU=4) for index, name in enumerate("abc")]
    assert victims(*small, occupant("d", used_s=9, CPU=30), CPU=30) == "d"
    assert victims(*small, occupant("d", used_s=9, CPU=30), CPU=33) == "ad", "the one that has been idle for longest"


def test_a_worker_that_holds_nothing_of_what_is_missing_stays() -> None:
    on_gpu = occupant("a", used_s=1, GPU0=20)
    assert victims(on_gpu, occupant("b", used_s=2, CPU=20), CPU=10) == "b"
    assert victims(on_gpu, CPU=1) is None


def test_a_worker_that_holds_only_what_others_have_given_back_already_stays() -> None:
    both = occupant("b", used_s=2, GPU0=10, CPU=10)
    assert victims(occupant("a", used_s=1, GPU0=10), both, occupant("c", used_s=3, GPU0=10), GPU0=10, CPU=5) == "b"


def test_several_resources_are_given_back_at_once() -> None:
    held = (occupant("a", used_s=1, GPU0=10), occupant("b", used_s=2, CPU=10), occupant("c", used_s=3, GPU1=10))
    assert victims(*held, GPU0=5, CPU=5) == "ab"
    assert victims(*held, GPU0=5, CPU=11) is None


def test_bytes_of_one_that_stops_already_count_so_that_fewer_have_to_go() -> None:
    leaving = occupant("z", STOPPING, CPU=10)
    assert victims(leaving, occupant("a", used_s=1, CPU=10), occupant("b", used_s=2, CPU=10), CPU=20) == "za"
    assert victims(leaving, occupant("a", used_s=1, CPU=10), CPU=10) == "z"


def test_a_place_and_bytes_may_both_be_missing() -> None:
    held = (occupant("a", used_s=1, CPU=1), occupant("b", used_s=2, CPU=10))
    assert choose_victims(held, {PLACES: 1, "CPU": 10}, NOW_S, may_drain=False) == (held[1],)
    assert choose_victims(held, {PLACES: 2, "CPU": 10}, NOW_S, may_drain=False) == held


held_strategy = st.lists(
    st.builds(
        lambda name, state, leases, used_s, priority, cpu, gpu: occupant(
            name, state, leases=leases, used_s=used_s, priority=priority, CPU=cpu, GPU0=gpu
        ),
        st.uuids().map(str),
        st.sampled_from([READY, READY, READY, DRAINING, STOPPING, WorkerState.LOADING]),
        st.sampled_from([0, 0, 1]),
        st.integers(0, 90),
        st.integers(0, 2),
        st.integers(0, 30),
        st.integers(0, 30),
    ),
    max_size=7,
)


@given(
    held=held_strategy,
    missing=st.dictionaries(st.sampled_from(["CPU", "GPU0", PLACES]), st.integers(1, 60), min_size=1),
    may_drain=st.booleans(),
)
def test_victims_give_back_enough_and_none_of_them_goes_in_vain(
    held: list[Occupant], missing: dict[str, int], may_drain: bool
) -> None:
    def suffice(some: list[Occupant]) -> bool:
        return all(sum(one.holds.get(name, 0) for one in some) >= amount for name, amount in missing.items())

    chosen = choose_victims(held, missing, NOW_S, may_drain=may_drain)
    if chosen is None:
        idle = [one for one in held if one.state in (DRAINING, STOPPING) or (one.state is READY and not one.num_leases)]
        assert not suffice(idle)
        return
    assert suffice(list(chosen))
    assert not any(suffice([other for other in chosen if other is not one]) for one in chosen)
    assert may_drain or all(one.state is not WorkerState.LOADING for one in chosen)
    assert may_drain or not any(one.state is READY and one.num_leases for one in chosen)


# --- where it goes then -----------------------------------------------------------------------------------

ON_GPU0 = Placement({"GPU0": 10}, gpus=("GPU0",))
ON_GPU1 = Placement({"GPU1": 10}, gpus=("GPU1",))
OPTIONS = [ON_GPU0, ON_GPU1]


def planned(free: Mapping[str, int], *occupants: Occupant, **how: bool) -> Plan | None:
    return plan_placement(OPTIONS, free, occupants, NOW_S, **how)


def worker(name: str) -> WorkerId:
    return WorkerId(name, 0, 1)


def test_a_model_goes_where_it_likes_best_of_what_is_free() -> None:
    assert planned({"GPU0": 10, "GPU1": 10}) == Plan(ON_GPU0)


def test_a_model_goes_to_the_empty_gpu_and_not_beside_another_one_that_fills_the_first() -> None:
    assert planned({"GPU0": 6, "GPU1": 24}, occupant("a", GPU0=18)) == Plan(ON_GPU1)


def test_what_others_use_is_not_free() -> None:
    assert planned({"GPU0": -3, "GPU1": 9}) is None


def test_a_resource_that_nobody_counts_is_not_limited() -> None:
    assert planned({}) == Plan(ON_GPU0)
    assert planned({PLACES: 1}) == Plan(ON_GPU0)
    assert planned({PLACES: 0}) is None


def test_if_nothing_is_free_the_cheapest_victims_decide_where_it_goes() -> None:
    held = (occupant("a", GPU0=10, priority=1), occupant("b", GPU1=10))
    assert planned({"GPU0": 0, "GPU1": 0}, *held) == Plan(ON_GPU1, (worker("b"),))


def test_an_idle_victim_on_the_second_best_gpu_is_better_than_a_busy_one_on_the_best() -> None:
    held = (occupant("a", leases=1, GPU0=10), occupant("b", GPU1=10))
    assert planned({"GPU0": 0, "GPU1": 0}, *held, may_drain=True) == Plan(ON_GPU1, (worker("b"),))


def test_of_equal_victims_those_that_are_quick_to_load_again_go() -> None:
    held = (occupant("a", GPU0=10, load_s=9.0), occupant("b", GPU1=10, load_s=2.0))
    assert planned({"GPU0": 0, "GPU1": 0}, *held) == Plan(ON_GPU1, (worker("b"),))


def test_if_all_is_equal_it_goes_where_it_likes_best() -> None:
    held = (occupant("b", GPU1=10), occupant("a", GPU0=10))
    assert planned({"GPU0": 0, "GPU1": 0}, *held) == Plan(ON_GPU0, (worker("a"),))


def test_who_must_not_evict_does_not() -> None:
    assert planned({"GPU0": 0, "GPU1": 0}, occupant("a", GPU0=10), may_evict=False) is None


def test_without_anybody_who_may_go_there_is_no_plan() -> None:
    held = (occupant("a", GPU0=10, leases=1), occupant("b", GPU1=10, kept=True))
    assert planned({"GPU0": 0, "GPU1": 0}, *held) is None
    assert planned({"GPU0": 0, "GPU1": 0}, *held, may_drain=True) == Plan(ON_GPU0, (worker("a"),))
