"""What a start finds out about a model's needs: it is placed anew, sent back, or measured."""

from __future__ import annotations

from router.device import FootprintSource
from router.events import (
    DevicesChanged,
    ExitReason,
    GrantLease,
    LeaseId,
    PlaceWorker,
    RefusalKind,
    SpawnWorker,
    StopWorker,
    WorkerExit,
    WorkerReady,
    WorkerSized,
)
from router.lifecycle import WorkerState
from tests.support.fleet_machine import GB, cpu, cpu_place, gpu, gpu_place, machine, size, state
from tests.support.fleet_scenes import (
    CRASH,
    ask,
    exits,
    given_ready,
    make_fleet,
    ready,
    refusal,
    spawned_by,
    worker,
)

A1, A2, B1 = worker("a"), worker("a", 2), worker("b")
NO_ROOM = WorkerExit(ExitReason.NO_ROOM, "", 0)


def test_a_worker_that_turns_out_larger_before_its_process_starts_is_placed_anew() -> None:
    fleet = machine(cpu(64), gpu(0, 12), gpu(1, 24), sizes={"a": 10})
    assert ask(fleet, 1, "a", 0.0) == [SpawnWorker(A1, gpu_place(0, 10))]
    assert fleet.handle(WorkerSized(A1, size(14)), 0.1) == [PlaceWorker(A1, gpu_place(1, 14))]
    assert fleet.reserved() == {"GPU1": 14 * GB, "CPU": 0}


def test_a_worker_that_turns_out_as_was_thought_stays_where_it_is() -> None:
    fleet = machine(cpu(64), gpu(0, 12), gpu(1, 24), sizes={"a": 10})
    ask(fleet, 1, "a", 0.0)
    assert fleet.handle(WorkerSized(A1, size(10)), 0.1) == []


def test_a_worker_with_other_needs_keeps_its_gpu_if_that_still_holds_it() -> None:
    fleet = machine(cpu(64), gpu(0, 12), gpu(1, 24), sizes={"a": 14})
    assert ask(fleet, 1, "a", 0.0) == [SpawnWorker(A1, gpu_place(1, 14))]
    assert fleet.handle(WorkerSized(A1, size(10)), 0.1) == [PlaceWorker(A1, gpu_place(1, 10))]


def test_a_worker_whose_own_place_is_the_last_one_may_still_be_placed_anew() -> None:
    fleet = machine(cpu(64), sizes={"a": 10}, max_loaded=1)
    ask(fleet, 1, "a", 0.0)
    assert fleet.handle(WorkerSized(A1, size(14)), 0.1) == [PlaceWorker(A1, cpu_place(14))]


def test_a_worker_that_finds_no_room_is_sent_back_and_placed_again_without_any_failure() -> None:
    fleet = machine(cpu(24), sizes={"a": 10, "b": 12})
    given_ready(fleet, "b")
    assert spawned_by(ask(fleet, 1, "a", 1.0)) == [A1]
    sent_back = fleet.handle(WorkerSized(A1, size(20)), 1.1)
    assert sent_back == [StopWorker(A1, grace_s=5.0, reason=ExitReason.NO_ROOM), StopWorker(B1, grace_s=5.0)]
    assert exits(fleet, A1, 1.2, NO_ROOM) == []
    assert exits(fleet, B1, 1.3) == [SpawnWorker(A2, cpu_place(20))]
    assert ready(fleet, A2, 2.0) == [GrantLease(LeaseId(1), A2)]
    exits(fleet, A2, 3.0, CRASH)
    assert spawned_by(ask(fleet, 2, "a", 3.0)) == [worker("a", 3)], "it is the first failure, without a pause"


def test_a_worker_that_turns_out_too_large_for_the_machine_ends_with_a_refusal_and_not_in_a_loop() -> None:
    fleet = machine(cpu(24), sizes={"a": 10})
    ask(fleet, 1, "a", 1.0)
    stop, refused = fleet.handle(WorkerSized(A1, size(30)), 1.1)
    assert stop == StopWorker(A1, grace_s=5.0, reason=ExitReason.NO_ROOM)
    assert refusal([refused]).kind is RefusalKind.TOO_LARGE
    assert exits(fleet, A1, 1.2, NO_ROOM) == []
    assert refusal(ask(fleet, 2, "a", 2.0)).kind is RefusalKind.TOO_LARGE


def test_what_a_loaded_worker_really_uses_replaces_what_was_set_apart_for_it() -> None:
    fleet = machine(cpu(24), sizes={"a": 20, "b": 8})
    given_ready(fleet, "a", num_leases=1)
    fleet.handle(WorkerSized(A1, size(15, FootprintSource.MEASURED)), 1.0)
    assert fleet.reserved() == {"CPU": 15 * GB}
    assert spawned_by(ask(fleet, 1, "b", 2.0)) == [B1]


def test_a_loaded_worker_that_uses_more_than_was_thought_keeps_it() -> None:
    fleet = machine(cpu(24), sizes={"a": 10, "b": 8})
    given_ready(fleet, "a", num_leases=1)
    assert fleet.handle(WorkerSized(A1, size(20, FootprintSource.MEASURED)), 1.0) == [PlaceWorker(A1, cpu_place(20))]
    assert state(fleet, "a") is WorkerState.READY
    assert ask(fleet, 1, "b", 2.0) == []


def test_what_was_measured_is_what_the_next_start_is_placed_by() -> None:
    fleet = machine(cpu(24), sizes={"a": 10})
    given_ready(fleet, "a")
    fleet.handle(WorkerSized(A1, size(12, FootprintSource.MEASURED)), 1.0)
    exits(fleet, A1, 2.0, CRASH)
    assert ask(fleet, 1, "a", 3.0) == [SpawnWorker(A2, cpu_place(12))]


def test_a_measurement_of_a_worker_that_is_gone_changes_nothing() -> None:
    fleet = machine(cpu(24), sizes={"a": 10})
    given_ready(fleet, "a")
    exits(fleet, A1, 2.0, CRASH)
    assert fleet.handle(WorkerSized(A1, size(99)), 2.5) == []
    assert spawned_by(ask(fleet, 1, "a", 3.0)) == [A2]


def test_a_worker_that_is_ready_before_anything_is_known_of_it_is_placed_when_it_is_measured() -> None:
    fleet = make_fleet("a", "b")
    fleet.handle(DevicesChanged((cpu(24),)), 0.0)
    ask(fleet, 1, "a", 0.0)
    ready(fleet, A1, 1.0)
    fleet.handle(WorkerSized(A1, size(20, FootprintSource.MEASURED)), 1.5)
    assert fleet.reserved() == {"CPU": 20 * GB}
    assert fleet.handle(WorkerReady(A1, 4), 2.0) == []
