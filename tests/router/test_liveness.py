"""A worker that hangs is told from one that is slow, loading, idle, or only unheard by a router that slept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.events import WorkerId
from router.liveness import LATE_S, PASS_FACTOR, LivenessWatch, why_hung
from worker.contract import Phase, WorkerStatus

A1, B1 = WorkerId("a", 0, 1), WorkerId("b", 0, 1)
LIMIT_S = 60.0
READY = WorkerStatus(Phase.READY)


def heard(now_s: float, **more: object) -> WorkerStatus:
    """Return a line of this moment: ready, idle and well unless told otherwise."""
    return replace(READY, at_s=now_s, step_at_s=now_s, **more)  # type: ignore[arg-type]


def look_every_second(watch: LivenessWatch, until_s: int, status_at: object, start_s: int = 0) -> list[tuple[int, str]]:
    """Return when and why A1 was found hung, looking from `start_s` to `until_s`."""
    found = []
    for now_s in range(start_s, until_s + 1):
        status = status_at(now_s) if callable(status_at) else status_at
        found += [(now_s, why) for _, why in watch.look(float(now_s), [(A1, status, LIMIT_S)])]
    return found


# --- the rule -----------------------------------------------------------------------------------------------


def test_worker_that_has_not_reported_for_the_limit_hangs_even_without_work() -> None:
    assert why_hung(heard(1000.0), 1059.9, LIMIT_S) is None
    why = why_hung(heard(1000.0), 1060.0, LIMIT_S)
    assert why == "it has not reported for 60 s (hang_timeout_s is 60)"


def test_engine_with_work_that_completes_no_pass_for_the_limit_hangs() -> None:
    stuck = replace(heard(1060.0), has_work=True, step_at_s=1000.0)
    assert why_hung(stuck, 1059.9, LIMIT_S) is None
    assert "had work for 60 s and completed no pass" in str(why_hung(stuck, 1060.0, LIMIT_S))


def test_idle_engine_owes_no_pass() -> None:
    assert why_hung(replace(heard(5000.0), step_at_s=0.0), 5001.0, LIMIT_S) is None


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.LOADING, Phase.WARMING, Phase.FAILED])
def test_worker_that_loads_or_has_failed_is_not_judged_here(phase: Phase) -> None:
    silent = replace(heard(0.0), phase=phase, has_work=True)
    assert why_hung(silent, 10_000.0, LIMIT_S) is None


@pytest.mark.parametrize("phase", [Phase.READY, Phase.DRAINING])
def test_worker_that_drains_is_judged_like_one_that_serves(phase: Phase) -> None:
    assert why_hung(replace(heard(0.0), phase=phase), 61.0, LIMIT_S) is not None


def test_a_limit_of_zero_means_never() -> None:
    assert why_hung(heard(0.0, has_work=True), 1e9, 0.0) is None


def test_pass_may_take_many_times_the_longest_one_so_far() -> None:
    stuck = replace(heard(1e4), has_work=True, step_at_s=0.0)
    at_most_s = PASS_FACTOR * 10.0
    assert why_hung(replace(stuck, at_s=at_most_s), at_most_s - 1, LIMIT_S, longest_pass_s=10.0) is None
    assert why_hung(replace(stuck, at_s=at_most_s), at_most_s, LIMIT_S, longest_pass_s=10.0) is not None


# --- looking again and again --------------------------------------------------------------------------------


def test_hung_worker_is_found_at_the_limit_and_only_once() -> None:
    watch = LivenessWatch()
    found = look_every_second(watch, 200, lambda now_s: heard(min(now_s, 10)))
    assert [at_s for at_s, _ in found] == [70]
    assert watch.hung == {A1: found[0][1]}


def test_stuck_engine_is_found_although_its_event_loop_reports() -> None:
    def status(now_s: float) -> WorkerStatus:
        return replace(heard(now_s), has_work=now_s >= 10, step_at_s=10.0, step=3)

    assert [at_s for at_s, _ in look_every_second(LivenessWatch(), 100, status)] == [70]


def test_worker_that_reports_and_computes_is_never_found() -> None:
    watch = LivenessWatch()
    assert look_every_second(watch, 500, lambda now_s: heard(now_s, has_work=True, step=10 * now_s)) == []
    assert watch.hung == {}


def test_count_begins_anew_when_the_router_itself_was_away() -> None:
    watch = LivenessWatch()
    asleep_s, back_s = 30, 5000
    assert look_every_second(watch, asleep_s, lambda now_s: heard(now_s, has_work=True)) == []
    # The machine slept: the last lines are an hour old for everybody, and the workers are as well as before.
    stale = heard(asleep_s, has_work=True)
    found = look_every_second(watch, back_s + 100, lambda _: stale, start_s=back_s)
    assert [at_s for at_s, _ in found] == [back_s + LIMIT_S], "but who stays silent from then on hangs"


def test_a_look_that_is_a_little_late_does_not_save_a_hung_worker() -> None:
    watch, silent = LivenessWatch(), heard(0.0)
    looks = [0.0]
    while looks[-1] < 2 * LIMIT_S:
        looks.append(looks[-1] + LATE_S)
    found = [now_s for now_s in looks if watch.look(now_s, [(A1, silent, LIMIT_S)])]
    assert found == [LIMIT_S]


def test_clock_that_goes_back_counts_as_being_away() -> None:
    watch, silent = LivenessWatch(), heard(0.0)
    watch.look(100.0, [(A1, silent, LIMIT_S)])
    watch.look(50.0, [(A1, silent, LIMIT_S)])
    assert watch.look(51.0, [(A1, silent, LIMIT_S)]) == []


def test_one_slow_pass_after_slow_passes_is_no_hang() -> None:
    """A pass takes ten seconds each time, then one takes five minutes: a longer prompt on a slow machine."""

    def status(now_s: float) -> WorkerStatus:
        step = min(now_s // 10, 5)
        return replace(heard(now_s), has_work=True, step=step, step_at_s=10.0 * step)

    found = look_every_second(LivenessWatch(), 1000, status)
    assert [at_s for at_s, _ in found] == [50 + 10 * PASS_FACTOR]


def test_first_pass_may_take_many_times_the_warm_up() -> None:
    slow = {"warmup": 5.0}

    def status(now_s: float) -> WorkerStatus:
        return replace(heard(now_s), has_work=True, step_at_s=0.0, load_seconds=slow)

    assert [at_s for at_s, _ in look_every_second(LivenessWatch(), 500, status)] == [5 * PASS_FACTOR]


def test_warm_up_tells_nothing_once_a_pass_was_seen() -> None:
    def status(now_s: float) -> WorkerStatus:
        step = min(now_s, 2)
        return replace(heard(now_s), has_work=True, step=step, step_at_s=float(step), load_seconds={"warmup": 100.0})

    assert [at_s for at_s, _ in look_every_second(LivenessWatch(), 500, status)] == [2 + LIMIT_S]


def test_idle_time_is_not_taken_for_a_long_pass() -> None:
    def status(now_s: float) -> WorkerStatus:
        if now_s < 100:  # idle, after a first pass
            return replace(heard(now_s), step=1, step_at_s=0.0)
        return replace(heard(now_s), has_work=True, step=1, step_at_s=100.0)

    assert [at_s for at_s, _ in look_every_second(LivenessWatch(), 500, status)] == [100 + LIMIT_S]


def test_workers_are_judged_one_by_one_and_forgotten_when_they_are_gone() -> None:
    watch = LivenessWatch()
    silent = heard(0.0)
    for now_s in range(70):
        watch.look(float(now_s), [(A1, silent, LIMIT_S), (B1, heard(float(now_s)), LIMIT_S)])
    assert watch.hung.keys() == {A1}
    watch.look(70.0, [(B1, heard(70.0), LIMIT_S)])
    assert watch.hung == {}
