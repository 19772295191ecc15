"""Models that share memory: who finds room, who waits for it, who is told that there is none."""

from __future__ import annotations

import pytest

from router.device import NOWHERE
from router.events import (
    DevicesChanged,
    DevicesMeasured,
    GrantLease,
    LeaseId,
    LoadRequested,
    ModelPolicy,
    ModelSized,
    RefusalKind,
    RefuseLoad,
    SpawnWorker,
    StopWorker,
    Tick,
    UnloadRequested,
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
    release,
    spawned_by,
    stopped_by,
    worker,
)

A1, B1, C1, D1 = worker("a"), worker("b"), worker("c"), worker("d")


# --- room is made by bytes --------------------------------------------------------------------------------


def test_an_idle_model_is_evicted_for_memory_although_max_loaded_allows_more() -> None:
    fleet = machine(cpu(24), sizes={"a": 20, "b": 10}, max_loaded=4)
    given_ready(fleet, "a")
    assert ask(fleet, 1, "b", 10.0) == [StopWorker(A1, grace_s=5.0)]
    assert exits(fleet, A1, 11.0) == [SpawnWorker(B1, cpu_place(10))]
    assert ready(fleet, B1, 12.0) == [GrantLease(LeaseId(1), B1)]


def test_a_busy_model_keeps_its_memory_until_its_answers_are_complete() -> None:
    fleet = machine(cpu(24), sizes={"a": 20, "b": 10}, max_loaded=4)
    (running,) = given_ready(fleet, "a", num_leases=1)
    assert ask(fleet, 1, "b", 10.0) == []
    words = str(fleet.snapshot(11.0).models["b"].blocked_by)
    assert words.startswith("memory: it needs 10.0 GB on CPU, where 4.0 GB are free")
    assert words.endswith("; 'a' is busy, 1 request is running")
    assert release(fleet, running, 12.0) == [StopWorker(A1, grace_s=5.0)]


def test_a_busy_model_drains_for_memory_once_somebody_has_waited_too_long() -> None:
    fleet = machine(cpu(24), sizes={"a": 20, "b": 10}, max_wait_s=30.0)
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 10.0)
    assert fleet.next_deadline_s == 40.0
    fleet.handle(Tick(), 40.0)
    assert state(fleet, "a", 40.0) is WorkerState.DRAINING


def test_a_model_that_can_never_fit_is_refused_with_what_it_needs_and_what_there_is() -> None:
    fleet = machine(cpu(24, headroom_bytes=2 * GB), sizes={"a": 20, "b": 30})
    given_ready(fleet, "a")
    refused = refusal(ask(fleet, 1, "b", 1.0))
    assert refused.kind is RefusalKind.TOO_LARGE
    assert "it needs 30.0 GB of memory" in refused.detail
    assert "CPU has 22.0 GB for models (of 24.0 GB, headroom 2.0 GB)" in refused.detail
    assert state(fleet, "a") is WorkerState.READY, "nobody goes for it"


def test_a_model_that_is_too_large_for_the_gpus_is_told_what_else_could_be_done() -> None:
    fleet = machine(cpu(64), gpu(0, 24, budget_bytes=20 * GB), sizes={"a": 30})
    refused = refusal(ask(fleet, 1, "a", 1.0))
    assert "it needs 30.0 GB of GPU memory and 0 MB of main memory" in refused.detail
    assert "GPU0 has 20.0 GB for models (of 24.0 GB, budget 20.0 GB)" in refused.detail
    assert "`gpu_layers: auto`" in refused.detail


def test_a_device_that_is_named_and_not_there_is_told_in_the_refusal() -> None:
    fleet = machine(cpu(64), gpu(0, 24), sizes={"a": 3}, policies=(ModelPolicy("a", devices=("GPU7",)),))
    refused = refusal(ask(fleet, 1, "a", 1.0))
    assert refused.kind is RefusalKind.TOO_LARGE
    assert "its `device` GPU7 is not there; there is CPU, GPU0" in refused.detail


def test_two_models_that_do_not_fit_on_one_gpu_are_put_on_two() -> None:
    fleet = machine(cpu(64), gpu(0, 24), gpu(1, 24), sizes={"a": 18, "b": 8})
    assert ask(fleet, 1, "a", 0.0) == [SpawnWorker(A1, gpu_place(0, 18))]
    assert ask(fleet, 2, "b", 0.0) == [SpawnWorker(B1, gpu_place(1, 8))]


def test_memory_is_set_apart_when_a_start_is_decided_not_when_it_has_happened() -> None:
    fleet = machine(cpu(24), sizes={"a": 14, "b": 14})
    assert spawned_by(ask(fleet, 1, "a", 0.0)) == [A1]
    assert ask(fleet, 2, "b", 0.001) == []
    assert fleet.reserved() == {"CPU": 14 * GB}


def test_memory_belongs_to_a_worker_until_it_has_exited_however_it_is_told_to() -> None:
    fleet = machine(cpu(24), sizes={"a": 14, "b": 14})
    given_ready(fleet, "a")
    fleet.handle(UnloadRequested("a"), 1.0)
    assert ask(fleet, 1, "b", 2.0) == []
    assert exits(fleet, A1, 3.0) == [SpawnWorker(B1, cpu_place(14))]


def test_the_memory_of_a_load_that_failed_is_free_again() -> None:
    fleet = machine(cpu(24), sizes={"a": 20, "b": 20})
    ask(fleet, 1, "a", 0.0)
    ask(fleet, 2, "b", 0.5)
    assert spawned_by(exits(fleet, A1, 1.0, CRASH)) == [B1]


def test_a_model_that_nothing_is_known_of_starts_and_takes_no_memory_from_others() -> None:
    fleet = make_fleet("a", "b")
    fleet.handle(DevicesChanged((cpu(24),)), 0.0)
    fleet.handle(ModelSized("b", size(20)), 0.0)
    assert ask(fleet, 1, "a", 1.0) == [SpawnWorker(A1, NOWHERE)]
    assert ask(fleet, 2, "b", 1.0) == [SpawnWorker(B1, cpu_place(20))]


def test_fewest_bytes_are_lost_for_a_small_model() -> None:
    fleet = machine(cpu(24), sizes={"a": 4, "b": 20, "c": 18})
    given_ready(fleet, "a", now_s=0.0)
    given_ready(fleet, "b", now_s=1.0)
    assert stopped_by(ask(fleet, 1, "c", 2.0)) == [B1], "without b the room is enough, so a stays"


def test_several_small_models_go_for_a_large_one() -> None:
    fleet = machine(cpu(24), sizes={"a": 8, "b": 8, "c": 8, "d": 16})
    for index, name in enumerate("abc"):
        given_ready(fleet, name, now_s=float(index))
    assert stopped_by(ask(fleet, 1, "d", 3.0)) == [A1, B1]
    assert exits(fleet, A1, 4.0) == []
    assert spawned_by(exits(fleet, B1, 4.5)) == [D1]


def test_a_model_that_loads_slowly_is_evicted_after_one_that_is_quickly_back() -> None:
    fleet = machine(cpu(24), sizes={"a": 12, "b": 12, "c": 12})
    fleet.handle(ModelSized("a", size(12), load_s=60.0), 0.0)
    fleet.handle(ModelSized("b", size(12), load_s=2.0), 0.0)
    ask(fleet, 1, "a", 0.0)
    ready(fleet, A1, 60.0)
    release(fleet, 1, 60.0)
    ask(fleet, 2, "b", 70.0)
    ready(fleet, B1, 72.0)
    release(fleet, 2, 72.0)
    assert stopped_by(ask(fleet, 3, "c", 80.0)) == [B1]


# --- others use memory too --------------------------------------------------------------------------------


def test_memory_that_other_programs_use_is_waited_for_and_a_model_starts_as_soon_as_it_is_free() -> None:
    fleet = machine(gpu(0, 24), cpu(64), sizes={"a": 20})
    fleet.handle(DevicesMeasured({"GPU0": 9 * GB}), 1.0)
    assert ask(fleet, 1, "a", 2.0) == []
    assert fleet.waits_for_room
    words = fleet.snapshot(3.0).models["a"].blocked_by
    assert words == "memory: it needs 20.0 GB on GPU0, where 15.0 GB are free and other programs use 9.0 GB"
    assert fleet.handle(DevicesMeasured({"GPU0": 4 * GB}), 5.0) == [SpawnWorker(A1, gpu_place(0, 20))]
    assert not fleet.waits_for_room


def test_a_request_that_waits_too_long_for_memory_that_others_use_is_told_who_has_it() -> None:
    fleet = machine(cpu(24), sizes={"a": 20}, policies=(ModelPolicy("a", queue_timeout_s=5.0),))
    fleet.handle(DevicesMeasured({"CPU": 30 * GB}), 1.0)
    ask(fleet, 1, "a", 2.0)
    refused = refusal(fleet.handle(Tick(), 7.0))
    assert refused.kind is RefusalKind.QUEUE_TIMEOUT
    assert "where 0 MB are free and other programs use 30.0 GB" in refused.detail


def test_what_others_use_within_the_headroom_or_beyond_the_budget_takes_nothing_from_models() -> None:
    fleet = machine(cpu(24, budget_bytes=12 * GB), sizes={"a": 12})
    fleet.handle(DevicesMeasured({"CPU": 12 * GB}), 1.0)
    assert spawned_by(ask(fleet, 1, "a", 2.0)) == [A1]


def test_others_that_take_memory_send_no_model_away() -> None:
    fleet = machine(cpu(24), sizes={"a": 20})
    given_ready(fleet, "a")
    assert fleet.handle(DevicesMeasured({"CPU": 20 * GB}), 1.0) == []
    assert state(fleet, "a") is WorkerState.READY


def test_an_idle_model_makes_room_where_others_have_taken_memory() -> None:
    fleet = machine(cpu(24), sizes={"a": 8, "b": 10})
    given_ready(fleet, "a")
    fleet.handle(DevicesMeasured({"CPU": 8 * GB}), 1.0)
    assert stopped_by(ask(fleet, 1, "b", 2.0)) == [A1]


# --- room that is becoming free belongs to who waits for it -----------------------------------------------


def test_small_models_that_come_later_do_not_take_the_room_that_a_large_one_waits_for() -> None:
    fleet = machine(cpu(24), sizes={"a": 10, "b": 10, "c": 22, "d": 4}, max_wait_s=30.0)
    (first,) = given_ready(fleet, "a", num_leases=1)
    (second,) = given_ready(fleet, "b", num_leases=1)
    ask(fleet, 1, "c", 1.0)
    fleet.handle(Tick(), 31.0)
    assert (state(fleet, "a"), state(fleet, "b")) == (WorkerState.DRAINING, WorkerState.DRAINING)
    assert ask(fleet, 2, "d", 32.0) == [], "4 GB are free, but c has waited for them"
    release(fleet, first, 33.0)
    assert exits(fleet, A1, 34.0) == []
    release(fleet, second, 35.0)
    assert exits(fleet, B1, 36.0) == [SpawnWorker(C1, cpu_place(22))]


def test_who_has_waited_too_long_has_a_claim_on_the_room_of_a_model_that_still_loads() -> None:
    fleet = machine(cpu(24), sizes={"a": 10, "c": 22, "d": 4}, max_wait_s=30.0)
    ask(fleet, 1, "a", 0.0)
    ask(fleet, 2, "c", 1.0)
    fleet.handle(Tick(), 31.0)
    assert ask(fleet, 3, "d", 32.0) == [], "14 GB are free, and c would need them"
    assert ready(fleet, A1, 40.0) == [GrantLease(LeaseId(1), A1)], "the load serves those who waited for it"
    assert release(fleet, 1, 41.0) == [StopWorker(A1, grace_s=5.0)]
    assert spawned_by(exits(fleet, A1, 42.0)) == [C1]


def test_a_small_model_starts_beside_the_claim_of_a_large_one_if_there_is_room_for_both() -> None:
    fleet = machine(cpu(24), sizes={"a": 10, "b": 12, "c": 2})
    given_ready(fleet, "a")
    fleet.handle(DevicesMeasured({"CPU": 10 * GB}), 0.5)
    assert stopped_by(ask(fleet, 1, "b", 1.0)) == [A1]
    assert spawned_by(ask(fleet, 2, "c", 2.0)) == [C1], "14 GB will be left of others, b takes 12"


def test_a_model_that_nobody_can_make_room_for_yet_does_not_hold_up_smaller_ones() -> None:
    fleet = machine(cpu(24), sizes={"a": 10, "b": 20, "c": 10}, max_wait_s=30.0)
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 1.0)
    assert spawned_by(ask(fleet, 2, "c", 2.0)) == [C1], "until b has waited for max_wait_s"


def test_requests_for_different_devices_do_not_wait_for_each_other() -> None:
    policies = (ModelPolicy("b", devices=("GPU0",)), ModelPolicy("c", devices=("GPU1",)))
    fleet = machine(cpu(64), gpu(0, 24), gpu(1, 20), sizes={"a": 22, "b": 22, "c": 8}, policies=policies)
    given_ready(fleet, "a")
    assert stopped_by(ask(fleet, 1, "b", 1.0)) == [A1]
    assert spawned_by(ask(fleet, 2, "c", 1.0)) == [C1]


# --- limits that change -----------------------------------------------------------------------------------


def test_a_lowered_budget_sends_idle_models_away_and_busy_ones_when_they_are_idle() -> None:
    fleet = machine(cpu(40), sizes={"a": 10, "b": 10, "c": 10})
    given_ready(fleet, "a", now_s=0.0)
    (running,) = given_ready(fleet, "b", num_leases=1, now_s=1.0)
    given_ready(fleet, "c", num_leases=1, now_s=2.0)
    assert stopped_by(fleet.handle(DevicesChanged((cpu(40, budget_bytes=10 * GB),)), 3.0)) == [A1]
    exits(fleet, A1, 4.0)
    assert stopped_by(release(fleet, running, 5.0)) == [B1]


def test_a_lowered_budget_sends_no_more_away_than_it_must() -> None:
    fleet = machine(cpu(40), sizes={"a": 4, "b": 20, "c": 8})
    for index, name in enumerate("abc"):
        given_ready(fleet, name, now_s=float(index))
    assert stopped_by(fleet.handle(DevicesChanged((cpu(40, budget_bytes=14 * GB),)), 3.0)) == [B1]


def test_a_larger_budget_starts_who_waits() -> None:
    fleet = machine(cpu(40, budget_bytes=15 * GB), sizes={"a": 10, "b": 10})
    given_ready(fleet, "a", num_leases=1)
    assert ask(fleet, 1, "b", 1.0) == []
    assert spawned_by(fleet.handle(DevicesChanged((cpu(40),)), 2.0)) == [B1]


def test_a_budget_below_what_a_waiting_model_needs_refuses_it() -> None:
    fleet = machine(cpu(40), sizes={"a": 30, "b": 30})
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 1.0)
    refused = refusal(fleet.handle(DevicesChanged((cpu(20),)), 2.0))
    assert refused.kind is RefusalKind.TOO_LARGE


def test_pinned_models_that_leave_no_memory_are_named_in_the_refusal() -> None:
    fleet = machine(cpu(24), sizes={"a": 20, "b": 10}, policies=(ModelPolicy("a", pin=True),))
    given_ready(fleet, "a")
    refused = refusal(ask(fleet, 1, "b", 1.0))
    assert refused.kind is RefusalKind.UNAVAILABLE
    assert "pinned models ('a') leave no room for it, and it needs 10.0 GB" in refused.detail


def test_a_pinned_model_that_leaves_enough_memory_is_no_reason_to_refuse() -> None:
    fleet = machine(cpu(24), sizes={"a": 10, "b": 10, "c": 12}, policies=(ModelPolicy("a", pin=True),))
    given_ready(fleet, "a")
    given_ready(fleet, "b")
    assert stopped_by(ask(fleet, 1, "c", 1.0)) == [B1]


def test_memory_that_others_use_beside_a_pinned_model_is_waited_for_and_not_refused() -> None:
    fleet = machine(cpu(24), sizes={"a": 10, "b": 10}, policies=(ModelPolicy("a", pin=True),))
    given_ready(fleet, "a")
    fleet.handle(DevicesMeasured({"CPU": 10 * GB}), 1.0)
    assert ask(fleet, 1, "b", 2.0) == []
    assert spawned_by(fleet.handle(DevicesMeasured({}), 3.0)) == [B1]


@pytest.mark.parametrize(("own_s", "due_s"), [(None, 31.0), (4.0, 5.0), (0.0, 1.0)])
def test_a_model_may_have_a_shorter_wait_of_its_own(own_s: float | None, due_s: float) -> None:
    policies = (ModelPolicy("b", max_wait_s=own_s),)
    fleet = machine(cpu(24), sizes={"a": 20, "b": 20}, policies=policies, max_wait_s=30.0)
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 1, "b", 1.0)
    if due_s > 1.0:
        assert state(fleet, "a") is WorkerState.READY
        assert fleet.next_deadline_s == due_s
        fleet.handle(Tick(), due_s)
    assert state(fleet, "a") is WorkerState.DRAINING


# --- what can be seen -------------------------------------------------------------------------------------


def test_the_snapshot_shows_what_each_device_has_and_who_uses_it() -> None:
    fleet = machine(cpu(64), gpu(0, 24, headroom_bytes=2 * GB), sizes={"a": 18})
    given_ready(fleet, "a")
    fleet.handle(DevicesMeasured({"GPU0": 1 * GB}), 1.0)
    main, card = fleet.snapshot(1.0).devices
    assert (main.id, main.kind, main.total_bytes, main.reserved_bytes) == ("CPU", "cpu", 64 * GB, 0)
    assert (card.usable_bytes, card.reserved_bytes, card.used_by_others_bytes) == (22 * GB, 18 * GB, 1 * GB)
    view = fleet.snapshot(1.0).models["a"]
    assert view.footprint == size(18)
    assert view.residents[0].placement == gpu_place(0, 18)


def test_a_model_that_was_never_mentioned_may_be_sized_without_harm() -> None:
    fleet = machine(cpu(24), sizes={"a": 10})
    assert fleet.handle(ModelSized("ghost", size(10)), 1.0) == []


def test_a_model_that_can_never_fit_looks_so_before_anybody_asks_for_it() -> None:
    fleet = machine(cpu(10), sizes={"a": 11})
    assert "it needs 11.0 GB" in (fleet.snapshot(0.0).models["a"].impossible or "")
    fleet.handle(DevicesChanged((cpu(12),)), 1.0)
    assert fleet.snapshot(1.0).models["a"].impossible is None


def test_a_load_that_is_wished_and_can_never_be_done_is_refused_aloud() -> None:
    fleet = machine(cpu(10), sizes={"a": 11})
    (refused,) = fleet.handle(LoadRequested("a"), 1.0)
    assert isinstance(refused, RefuseLoad)
    assert "does not fit" in refused.detail


def test_without_devices_memory_is_not_looked_at() -> None:
    fleet = machine(sizes={"a": 900, "b": 900})
    given_ready(fleet, "a")
    assert ask(fleet, 1, "b", 1.0) == [SpawnWorker(B1, NOWHERE)]
