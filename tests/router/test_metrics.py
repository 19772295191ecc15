"""The metrics page is valid, complete and monotonic over the lives of workers."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from router.catalog import Catalog
from router.events import ExitReason, WorkerId
from router.fleet_views import DeviceView, FleetSnapshot, ModelView
from router.lifecycle import WorkerState
from router.metrics import RouterMetrics
from router.metrics_fleet import WORKER_STATES
from router.worker_totals import ModelTotals, WorkerTotals, add_histograms
from tests.support.http_side import make_spec
from worker.contract import EngineCounters, Histogram, Phase, SlotReport, SlotState, WorkerStatus

A1, A2, B1 = WorkerId("a", 0, 1), WorkerId("a", 0, 2), WorkerId("b", 0, 1)
GPU = DeviceView("CUDA0", "gpu", "a card", 80, 72, 50, 7)


def view(
    name: str, state: WorkerState, queue_length: int = 0, oldest_wait_s: float | None = None, num_starts: int = 0
) -> ModelView:
    return ModelView(name, state, queue_length, oldest_wait_s, (), None, None, None, num_starts, None)


def status(generated: int, *, slots: tuple[SlotState, ...] = (), **more: Any) -> WorkerStatus:
    return WorkerStatus(
        Phase.READY,
        counters=EngineCounters(
            generated_tokens=generated,
            prompt_tokens_computed=10 * generated,
            prompt_tokens_cached=3,
            prefill_seconds=0.5,
            generation_seconds=1.5,
            forwards=generated + 1,
            forward_seconds=2.0,
            step_seconds=2.25,
        ),
        slots=tuple(SlotReport(i, state) for i, state in enumerate(slots)),
        histograms={"batch_rows": Histogram((1.0, 8.0), (2, 1, 0), 9.0)},
        **more,
    )


def busy_page() -> RouterMetrics:
    """Return metrics in which every family has a sample."""
    metrics = RouterMetrics()
    views = {"a": view("a", WorkerState.READY, 2, 1.5, num_starts=1), "b": view("b", WorkerState.UNLOADED)}
    metrics.watch_fleet(lambda: FleetSnapshot(views, False, (GPU,)))
    metrics.request_finished("a", "/v1/chat/completions", "ok", 0.3)
    metrics.request_finished("a", "/v1/chat/completions", "client_gone", 0.3)
    metrics.queue_waited("a", 0.01)
    metrics.worker_started("a")
    metrics.worker_loaded("a", {"read": 0.2, "total": 0.4})
    metrics.worker_exited(B1, ExitReason.CRASHED, was_killed=True)
    metrics.model_evicted("b")
    histograms = {
        name: Histogram((0.1, 1.0), (1, 0, 2), 5.0)
        for name in ("time_to_first_token_seconds", "inter_token_seconds", "batch_rows")
    }
    live = status(
        7,
        slots=(SlotState.GENERATING, SlotState.GENERATING, SlotState.IDLE),
        kv_cells={"used": 30, "shared": 0, "idle": 5, "total": 100},
        memory_bytes={"rss": 1000, "private": 300},
        device_bytes={"CPU": {"weights": 600, "kv": 50}},
    )
    metrics.status_received(A1, WorkerStatus(**{**_fields(live), "histograms": histograms}))
    return metrics


def _fields(status: WorkerStatus) -> dict[str, Any]:
    return {name: getattr(status, name) for name in WorkerStatus.__dataclass_fields__}


def samples(metrics: RouterMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = metrics.render()[0].decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(metrics: RouterMetrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, tuple(sorted(labels.items()))))


EXPECTED = {
    "corral_requests_total": "counter",
    "corral_request_seconds": "histogram",
    "corral_queue_wait_seconds": "histogram",
    "corral_time_to_first_token_seconds": "histogram",
    "corral_inter_token_seconds": "histogram",
    "corral_batch_rows": "histogram",
    "corral_prompt_tokens_total": "counter",
    "corral_generated_tokens_total": "counter",
    "corral_prefill_seconds_total": "counter",
    "corral_generation_seconds_total": "counter",
    "corral_forward_total": "counter",
    "corral_forward_seconds_total": "counter",
    "corral_step_seconds_total": "counter",
    "corral_parked_sequences_total": "counter",
    "corral_failed_steps_total": "counter",
    "corral_drafted_tokens_total": "counter",
    "corral_accepted_tokens_total": "counter",
    "corral_slots": "gauge",
    "corral_kv_cells": "gauge",
    "corral_queue_length": "gauge",
    "corral_queue_oldest_seconds": "gauge",
    "corral_worker_state": "gauge",
    "corral_worker_starts_total": "counter",
    "corral_worker_exits_total": "counter",
    "corral_worker_kills_total": "counter",
    "corral_load_seconds": "histogram",
    "corral_evictions_total": "counter",
    "corral_catalog_reloads_total": "counter",
    "corral_catalog_reload_success": "gauge",
    "corral_catalog_reload_timestamp_seconds": "gauge",
    "corral_device_memory_bytes": "gauge",
    "corral_worker_device_bytes": "gauge",
    "corral_worker_memory_bytes": "gauge",
    "corral_build_info": "gauge",
    "process_cpu_seconds_total": "counter",
    "process_resident_memory_bytes": "gauge",
    "process_start_time_seconds": "gauge",
    "process_open_fds": "gauge",
}


def test_page_has_every_family_once_with_help_type_and_samples() -> None:
    page, content_type = busy_page().render()
    text = page.decode()
    types = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    helps = re.findall(r"^# HELP (\S+) ", text, re.MULTILINE)
    assert dict(types) == EXPECTED
    assert len(types) == len(EXPECTED)
    assert sorted(helps) == sorted(EXPECTED)
    assert all(family.samples for family in text_string_to_metric_families(text))
    assert content_type.startswith("text/plain")


def test_time_of_steps_and_of_passes_are_told_apart() -> None:
    page = busy_page()
    forward, step = (value(page, f"corral_{name}_seconds_total", model="a") for name in ("forward", "step"))
    assert forward
    assert step == 1.125 * forward


def test_names_have_no_other_characters_than_letters_and_underscores() -> None:
    for name, labels in samples(busy_page()):
        assert re.fullmatch(r"[a-z_]+", name)
        assert all(re.fullmatch(r"[a-z_]+", label) for label, _ in labels)


def test_every_histogram_is_cumulative_and_complete() -> None:
    for family in text_string_to_metric_families(busy_page().render()[0].decode()):
        if family.type != "histogram":
            continue
        by_series: dict[Any, list[float]] = {}
        counts = {}
        for sample in family.samples:
            key = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
            if sample.name.endswith("_bucket"):
                by_series.setdefault(key, []).append(sample.value)
            elif sample.name.endswith("_count"):
                counts[key] = sample.value
        for key, buckets in by_series.items():
            assert buckets == sorted(buckets)
            assert buckets[-1] == counts[key]


def test_openmetrics_is_served_to_those_who_accept_it() -> None:
    page, content_type = busy_page().render("application/openmetrics-text; version=1.0.0,text/plain;q=0.5")
    assert content_type.startswith("application/openmetrics-text")
    families = parse_openmetrics(page.decode())  # type: ignore[no-untyped-call]
    names = {family.name for family in families}
    assert {"corral_requests", "corral_forward", "corral_worker_state", "corral_build"} <= names


@pytest.mark.parametrize("accept", [None, "", "*/*", "text/plain; version=0.0.4", "text/html", ";;,=", "x" * 5000])
def test_any_other_accept_header_gets_prometheus_text(accept: str | None) -> None:
    page, content_type = busy_page().render(accept)
    assert content_type.startswith("text/plain")
    assert b"corral_requests_total" in page


@pytest.mark.parametrize("version", ["abc", "1.0.0.0.0.0", "-1", "", "99"])
def test_a_strange_version_in_the_accept_header_is_no_error(version: str) -> None:
    assert busy_page().render(f"application/openmetrics-text; version={version}")[0]


def test_a_fresh_router_has_a_page() -> None:
    page, _ = RouterMetrics().render()
    assert b"corral_build_info" in page


def test_counters_survive_the_worker_that_counted() -> None:
    metrics = RouterMetrics()
    seen = []

    def look() -> None:
        seen.append(value(metrics, "corral_generated_tokens_total", model="a"))

    metrics.status_received(A1, status(5))
    look()
    metrics.status_received(A1, status(9))
    look()
    metrics.worker_exited(A1, ExitReason.CRASHED)
    look()
    metrics.status_received(A2, status(0))
    look()
    metrics.status_received(A2, status(4))
    look()
    assert seen == [5, 9, 9, 9, 13]
    assert value(metrics, "corral_prompt_tokens_total", model="a", source="computed") == 130
    assert value(metrics, "corral_prompt_tokens_total", model="a", source="cached") == 6
    assert value(metrics, "corral_batch_rows_count", model="a") == 6
    assert value(metrics, "corral_batch_rows_sum", model="a") == 18


def test_gauges_of_a_dead_worker_are_gone() -> None:
    metrics = RouterMetrics()
    metrics.status_received(A1, status(1, slots=(SlotState.IDLE,), memory_bytes={"rss": 5}))
    assert value(metrics, "corral_slots", model="a", state="idle") == 1
    assert value(metrics, "corral_slots", model="a", state="generating") == 0
    metrics.worker_exited(A1, ExitReason.STOPPED)
    assert value(metrics, "corral_slots", model="a", state="idle") is None
    assert value(metrics, "corral_worker_memory_bytes", model="a", kind="rss") is None


def test_worker_state_is_one_for_the_present_state_alone() -> None:
    metrics = busy_page()
    for state in WORKER_STATES:
        assert value(metrics, "corral_worker_state", model="a", state=state) == (state == "ready")
    assert value(metrics, "corral_queue_length", model="a") == 2
    assert value(metrics, "corral_queue_oldest_seconds", model="a") == 1.5
    assert value(metrics, "corral_queue_oldest_seconds", model="b") == 0


def test_model_that_was_never_started_shows_its_one_state() -> None:
    metrics = busy_page()
    assert value(metrics, "corral_worker_state", model="b", state="unloaded") == 1
    assert value(metrics, "corral_worker_state", model="b", state="ready") is None


def test_model_that_was_started_once_keeps_all_states() -> None:
    metrics = RouterMetrics()
    metrics.watch_fleet(lambda: FleetSnapshot({"a": view("a", WorkerState.UNLOADED, num_starts=1)}, False))
    assert value(metrics, "corral_worker_state", model="a", state="unloaded") == 1
    assert value(metrics, "corral_worker_state", model="a", state="ready") == 0


def test_unavailable_model_is_told_from_an_unloaded_one() -> None:
    catalog = Catalog({"a": make_spec("a", problem="no such file"), "b": make_spec("b")})
    views = {name: view(name, WorkerState.UNLOADED) for name in catalog.models}
    metrics = RouterMetrics()
    metrics.watch_fleet(lambda: FleetSnapshot(views, False), lambda: catalog)
    assert value(metrics, "corral_worker_state", model="a", state="unavailable") == 1
    assert value(metrics, "corral_worker_state", model="a", state="unloaded") is None
    assert value(metrics, "corral_worker_state", model="b", state="unloaded") == 1


def test_memory_of_devices_is_shown_by_kind() -> None:
    metrics = busy_page()
    kinds = {"total": 80, "usable": 72, "reserved": 50, "used_by_others": 7}
    for kind, size in kinds.items():
        assert value(metrics, "corral_device_memory_bytes", device="CUDA0", kind=kind) == size


def test_memory_of_workers_is_shown_by_kind_and_by_device() -> None:
    metrics = busy_page()
    assert value(metrics, "corral_worker_memory_bytes", model="a", kind="private") == 300
    assert value(metrics, "corral_worker_device_bytes", model="a", device="CPU", kind="weights") == 600
    metrics.status_received(B1, status(1, device_bytes={"CPU": {"weights": 1}}))
    metrics.status_received(WorkerId("b", 1, 1), status(1, device_bytes={"CPU": {"weights": 2}}))
    assert value(metrics, "corral_worker_device_bytes", model="b", device="CPU", kind="weights") == 3, "replicas add up"


def test_configuration_that_the_router_started_with_is_in_force() -> None:
    metrics = RouterMetrics()
    assert value(metrics, "corral_catalog_reload_success") == 1
    assert value(metrics, "corral_catalog_reload_timestamp_seconds") == pytest.approx(time.time(), abs=60)
    for result in ("success", "failure"):
        assert value(metrics, "corral_catalog_reloads_total", result=result) == 0


def test_failed_reload_is_shown_until_one_succeeds() -> None:
    metrics = RouterMetrics()
    since = value(metrics, "corral_catalog_reload_timestamp_seconds")
    assert since is not None
    metrics.catalog_reloaded(False)
    metrics.catalog_reloaded(False)
    assert value(metrics, "corral_catalog_reload_success") == 0
    assert value(metrics, "corral_catalog_reload_timestamp_seconds") == since, "the old one is still in force"
    metrics.catalog_reloaded(True)
    assert value(metrics, "corral_catalog_reload_success") == 1
    assert (value(metrics, "corral_catalog_reload_timestamp_seconds") or 0.0) > since
    assert value(metrics, "corral_catalog_reloads_total", result="failure") == 2
    assert value(metrics, "corral_catalog_reloads_total", result="success") == 1


def test_evictions_are_counted_by_the_model_that_went() -> None:
    metrics = RouterMetrics()
    metrics.model_evicted("a")
    metrics.model_evicted("a")
    assert value(metrics, "corral_evictions_total", model="a") == 2


@pytest.mark.parametrize("reason", list(ExitReason))
def test_every_reason_of_an_exit_is_a_label(reason: ExitReason) -> None:
    metrics = RouterMetrics()
    metrics.worker_exited(A1, reason)
    assert value(metrics, "corral_worker_exits_total", model="a", reason=reason.value) == 1


def test_exits_are_counted_by_reason() -> None:
    metrics = RouterMetrics()
    for reason in (ExitReason.STOPPED, ExitReason.STOPPED, ExitReason.BAD_MODEL):
        metrics.worker_exited(A1, reason)
    assert value(metrics, "corral_worker_exits_total", model="a", reason="stopped") == 2
    assert value(metrics, "corral_worker_exits_total", model="a", reason="bad_model") == 1
    assert value(metrics, "corral_worker_kills_total", model="a") is None


def test_two_routers_in_one_process_count_apart() -> None:
    first, second = RouterMetrics(), RouterMetrics()
    first.worker_started("a")
    assert value(second, "corral_worker_starts_total", model="a") is None


def test_histograms_with_other_bounds_keep_count_and_sum() -> None:
    old = Histogram((1.0, 2.0, 4.0), (1, 2, 3, 4), 30.0)
    new = Histogram((2.0, 8.0), (1, 1, 1), 5.0)
    assert add_histograms(old, new) == Histogram((2.0, 8.0), (4, 4, 5), 35.0)


def test_totals_of_a_model_without_histograms_are_its_counters() -> None:
    totals = WorkerTotals()
    totals.update(B1, WorkerStatus(Phase.LOADING))
    assert totals.by_model() == {"b": ModelTotals()}
    totals.retire(B1)
    totals.retire(B1)
    assert totals.by_model() == {"b": ModelTotals()}
