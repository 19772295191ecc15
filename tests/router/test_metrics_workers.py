"""What workers count stays monotonic over their lives, and what they use is shown while they live."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.catalog import Catalog
from router.events import ExitReason, WorkerId
from router.fleet_views import FleetSnapshot, ResidentView
from router.lifecycle import WorkerState
from router.metrics import RouterMetrics
from router.metrics.fleet import LIVE_STATES, WORKER_STATES
from router.metrics.workers import WorkerFamilies
from router.worker_totals import ReplicaTotals, WorkerTotals, add_histograms
from tests.support.busy_metrics import (
    A1,
    A2,
    B1,
    FACTS,
    busy_metrics,
    make_status,
    make_view,
    samples,
    value,
    with_counters,
)
from tests.support.http_side import make_spec
from worker.contract import Histogram, Phase, SlotState, WorkerStatus

# --- counters ---------------------------------------------------------------------------------------------


def test_counters_survive_the_worker_that_counted() -> None:
    metrics = RouterMetrics()
    seen = []

    def look() -> None:
        seen.append(value(metrics, "corral_generated_tokens_total", model="a", replica="0"))

    metrics.status_received(A1, make_status(5))
    look()
    metrics.status_received(A1, make_status(9))
    look()
    metrics.worker_exited(A1, ExitReason.CRASHED)
    look()
    metrics.status_received(A2, make_status(0))
    look()
    metrics.status_received(A2, make_status(4))
    look()
    assert seen == [5, 9, 9, 9, 13]
    assert value(metrics, "corral_prompt_tokens_total", model="a", replica="0", source="computed") == 130
    assert value(metrics, "corral_prompt_tokens_total", model="a", replica="0", source="cached") == 6
    assert value(metrics, "corral_batch_rows_count", model="a", replica="0") == 6
    assert value(metrics, "corral_batch_rows_sum", model="a", replica="0") == 18


def test_no_counter_ever_falls_while_workers_come_and_go() -> None:
    metrics, before = RouterMetrics(), dict[object, float]()

    def look() -> None:
        now = {key: number for key, number in samples(metrics).items() if key[0].endswith(("_total", "_count"))}
        assert before.keys() <= now.keys()
        assert all(now[key] >= number for key, number in before.items())
        before.update(now)

    for worker in (A1, WorkerId("a", 1, 1), A2, B1):
        for generated in (0, 3, 8):
            metrics.status_received(worker, make_status(generated))
            look()
        if worker != B1:
            metrics.worker_exited(worker, ExitReason.STOPPED)
            look()
    assert sum(n for (name, _), n in samples(metrics).items() if name == "corral_generated_tokens_total") == 4 * 8


def test_replicas_are_told_apart() -> None:
    metrics = RouterMetrics()
    metrics.status_received(A1, make_status(3))
    metrics.status_received(WorkerId("a", 1, 1), make_status(4))
    for replica, generated in (("0", 3), ("1", 4)):
        assert value(metrics, "corral_generated_tokens_total", model="a", replica=replica) == generated


def test_tokens_of_another_server_have_no_replica_and_nothing_else_is_shown_of_it() -> None:
    metrics = RouterMetrics()
    metrics.remote_answered("far", prompt_tokens=10, cached_tokens=4, generated_tokens=7)
    metrics.remote_answered("far", prompt_tokens=1, cached_tokens=0, generated_tokens=1)
    shown = {
        (name, labels): number for (name, labels), number in samples(metrics).items() if ("model", "far") in labels
    }
    assert shown == {
        ("corral_prompt_tokens_total", (("model", "far"), ("source", "computed"))): 7,
        ("corral_prompt_tokens_total", (("model", "far"), ("source", "cached"))): 4,
        ("corral_generated_tokens_total", (("model", "far"),)): 8,
    }


def test_time_of_steps_and_of_passes_are_told_apart() -> None:
    page = busy_metrics()
    forward, step = (
        value(page, f"corral_{name}_seconds_total", model="a", replica="0") for name in ("forward", "step")
    )
    assert forward
    assert step == 1.125 * forward


def test_hits_misses_and_evictions_of_the_prefix_cache_are_shown() -> None:
    metrics = RouterMetrics()
    line = with_counters(make_status(1), prefix_hits=3, prefix_misses=2, prefixes_demoted=5, prefixes_dropped=1)
    metrics.status_received(A1, line)
    for result, number in (("hit", 3), ("miss", 2)):
        assert value(metrics, "corral_prefix_cache_requests_total", model="a", replica="0", result=result) == number
    for kind, number in (("cells", 5), ("host", 1)):
        assert value(metrics, "corral_prefix_cache_evictions_total", model="a", replica="0", kind=kind) == number


def test_histograms_with_other_bounds_keep_count_and_sum() -> None:
    old = Histogram((1.0, 2.0, 4.0), (1, 2, 3, 4), 30.0)
    new = Histogram((2.0, 8.0), (1, 1, 1), 5.0)
    assert add_histograms(old, new) == Histogram((2.0, 8.0), (4, 4, 5), 35.0)


def test_totals_of_a_model_without_histograms_are_its_counters() -> None:
    totals = WorkerTotals()
    totals.update(B1, WorkerStatus(Phase.LOADING))
    assert totals.by_replica() == {("b", "0"): ReplicaTotals()}
    totals.retire(B1)
    totals.retire(B1)
    assert totals.by_replica() == {("b", "0"): ReplicaTotals()}


# --- what live workers use --------------------------------------------------------------------------------


def test_gauges_of_a_dead_worker_are_gone() -> None:
    metrics = RouterMetrics()
    line = make_status(1, slots=(SlotState.IDLE,), memory_bytes={"rss": 5}, facts=FACTS, max_rows=8, num_threads=1)
    metrics.status_received(A1, line)
    before = {name for name, labels in samples(metrics) if ("model", "a") in labels}
    assert {"corral_slots", "corral_batch_rows_max", "corral_worker_stuck_seconds"} <= before
    assert value(metrics, "corral_slots", model="a", replica="0", state="idle") == 1
    assert value(metrics, "corral_slots", model="a", replica="0", state="generating") == 0
    metrics.worker_exited(A1, ExitReason.STOPPED)
    left = {name for name, labels in samples(metrics) if ("model", "a") in labels}
    assert all(name.endswith(("_total", "_bucket", "_count", "_sum")) for name in left)


def test_nothing_is_shown_of_a_loading_worker_that_it_cannot_know_yet() -> None:
    metrics = RouterMetrics()
    metrics.status_received(A1, WorkerStatus(Phase.LOADING))
    shown = {name for name, labels in samples(metrics) if ("model", "a") in labels}
    for name in ("slots", "kv_cells", "batch_rows_max", "worker_context_tokens", "worker_stuck_seconds"):
        assert f"corral_{name}" not in shown
    assert not shown & {f"corral_worker_{name}" for name in ("memory_bytes", "queue_length", "threads")}


def test_memory_of_workers_is_shown_by_kind_and_by_device() -> None:
    metrics = busy_metrics()
    assert value(metrics, "corral_worker_memory_bytes", model="a", replica="0", kind="private") == 300
    device = {"replica": "0", "device": "CPU", "kind": "weights"}
    assert value(metrics, "corral_worker_device_bytes", model="a", **device) == 600
    for replica, size in ((0, 1), (1, 2)):
        line = make_status(1, device_bytes={"CPU": {"weights": size}})
        metrics.status_received(WorkerId("b", replica, 1), line)
        assert value(metrics, "corral_worker_device_bytes", model="b", **device | {"replica": str(replica)}) == size


@pytest.mark.parametrize(
    ("has_work", "phase", "stuck_s"),
    [
        (True, Phase.READY, 30.0),
        (True, Phase.DRAINING, 30.0),
        (False, Phase.READY, 0.0),
        (True, Phase.LOADING, None),
        (True, Phase.FAILED, None),
    ],
)
def test_a_worker_is_stuck_for_as_long_as_it_has_work_and_completes_no_pass(
    has_work: bool, phase: Phase, stuck_s: float | None
) -> None:
    totals = WorkerTotals()
    totals.update(A1, WorkerStatus(phase, has_work=has_work, step_at_s=70.0, at_s=95.0))
    families = WorkerFamilies(totals, clock=lambda: 100.0).families()
    shown = {one.name: [sample.value for block in one.blocks for sample in block.samples()] for one in families}
    assert shown["corral_worker_stuck_seconds"] == ([] if stuck_s is None else [stuck_s])
    assert shown["corral_worker_status_age_seconds"] == [5.0]


# --- the fleet --------------------------------------------------------------------------------------------


def test_worker_state_is_one_for_the_present_state_alone() -> None:
    metrics = busy_metrics()
    for state in WORKER_STATES:
        assert value(metrics, "corral_worker_state", model="a", state=state) == (state == "ready")
    assert value(metrics, "corral_queue_length", model="a") == 2
    assert value(metrics, "corral_queue_oldest_seconds", model="a") == 1.5
    assert value(metrics, "corral_queue_oldest_seconds", model="b") == 0


def test_every_scrape_shows_the_fleet_as_it_is_then() -> None:
    views = {"a": make_view("a", WorkerState.UNLOADED), "b": make_view("b", WorkerState.UNLOADED)}
    metrics = RouterMetrics()
    metrics.watch_fleet(lambda: FleetSnapshot(views, False))
    for state, length, oldest_s in (
        (WorkerState.LOADING, 3, 1.5),
        (WorkerState.LOADING, 2, 2.5),
        (WorkerState.READY, 0, None),
    ):
        views["a"] = make_view("a", state, length, oldest_s, num_starts=1)
        assert value(metrics, "corral_worker_state", model="a", state=state.value) == 1
        assert value(metrics, "corral_worker_state", model="a", state="unloaded") == 0
        assert value(metrics, "corral_queue_length", model="a") == length
        assert value(metrics, "corral_queue_oldest_seconds", model="a") == (oldest_s or 0)
        assert value(metrics, "corral_worker_state", model="b", state="unloaded") == 1
    del views["b"]
    assert value(metrics, "corral_queue_length", model="b") is None
    assert value(metrics, "corral_worker_state", model="b", state="unloaded") is None


def test_model_that_was_never_started_shows_its_one_state() -> None:
    metrics = busy_metrics()
    assert value(metrics, "corral_worker_state", model="b", state="unloaded") == 1
    assert value(metrics, "corral_worker_state", model="b", state="ready") is None
    assert value(metrics, "corral_workers", model="b", state="ready") is None


def test_model_that_was_started_once_keeps_all_states() -> None:
    metrics = RouterMetrics()
    metrics.watch_fleet(lambda: FleetSnapshot({"a": make_view("a", WorkerState.UNLOADED, num_starts=1)}, False))
    assert value(metrics, "corral_worker_state", model="a", state="unloaded") == 1
    assert value(metrics, "corral_worker_state", model="a", state="ready") == 0


def test_unavailable_model_is_told_from_an_unloaded_one() -> None:
    catalog = Catalog({"a": make_spec("a", problem="no such file"), "b": make_spec("b")})
    views = {name: make_view(name, WorkerState.UNLOADED) for name in catalog.models}
    metrics = RouterMetrics()
    metrics.watch_fleet(lambda: FleetSnapshot(views, False), lambda: catalog)
    assert value(metrics, "corral_models") == 2
    assert value(metrics, "corral_worker_state", model="a", state="unavailable") == 1
    assert value(metrics, "corral_worker_state", model="a", state="unloaded") is None
    assert value(metrics, "corral_worker_state", model="b", state="unloaded") == 1


def test_workers_are_counted_by_state_and_leases_by_replica() -> None:
    ready = ResidentView(A1, WorkerState.READY, 3, 6, 0.0, 0.0, None)
    residents = (
        ready,
        replace(ready, worker=WorkerId("a", 1, 1), num_leases=1),
        ResidentView(WorkerId("a", 2, 1), WorkerState.LOADING, 0, 0, 0.0, 0.0, None),
    )
    metrics = RouterMetrics()
    views = {"a": make_view("a", WorkerState.READY, num_starts=3, residents=residents)}
    metrics.watch_fleet(lambda: FleetSnapshot(views, False))
    counted = {state: value(metrics, "corral_workers", model="a", state=state) for state in LIVE_STATES}
    assert counted == dict.fromkeys(LIVE_STATES, 0) | {"ready": 2, "loading": 1}
    for replica, held, most in (("0", 3, 6), ("1", 1, 6), ("2", None, None)):
        assert value(metrics, "corral_leases_held", model="a", replica=replica) == held
        assert value(metrics, "corral_leases_max", model="a", replica=replica) == most


def test_memory_of_devices_is_shown_by_kind_and_what_is_not_known_is_left_out() -> None:
    metrics = busy_metrics()
    kinds = {"total": 80, "usable": 72, "reserved": 50, "used_by_others": 7, "free": 15}
    for kind, size in kinds.items():
        assert value(metrics, "corral_device_memory_bytes", device="CUDA0", kind=kind) == size
    for kind, known in {"total": 64, "usable": 60, "reserved": 5, "used_by_others": None, "free": None}.items():
        assert value(metrics, "corral_device_memory_bytes", device="CPU", kind=kind) == known
    assert value(metrics, "corral_device_info", device="CUDA0", kind="gpu", description="a card") == 1
    assert value(metrics, "corral_worker_reserved_bytes", model="a", replica="0", device="CUDA0") == 50
