"""A registry in which every family of `/metrics` has samples, and ways to read its page.

Owns what tests of metrics share. Must not hold expectations about them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from router.catalog import Catalog
from router.device import Placement
from router.events import ExitReason, WorkerId
from router.fleet_views import DeviceView, FleetSnapshot, ModelView, ResidentView
from router.key_usage import Limit
from router.lifecycle import WorkerState
from router.metrics import RouterMetrics
from router.metrics.clients import HeldForClients
from router.metrics.registry import LOAD_PHASES
from tests.support.http_side import make_spec
from worker.contract import EngineCounters, Histogram, ModelFacts, Phase, SlotReport, SlotState, WorkerStatus

A1, A2, B1 = WorkerId("a", 0, 1), WorkerId("a", 0, 2), WorkerId("b", 0, 1)
GPU = DeviceView("CUDA0", "gpu", "a card", 80, 72, 50, 7, free_bytes=15)
UNMEASURED = DeviceView("CPU", "cpu", "", 64, 60, 5, None)
FACTS = ModelFacts(2048, 3, 100, 4096, 7, 7, 7, "tiny", True, "CPU")
CHAT = "/v1/chat/completions"
HISTOGRAMS = ("time_to_first_token_seconds", "inter_token_seconds", "batch_rows", "batch_busy_slots")


def make_view(
    name: str,
    state: WorkerState,
    queue_length: int = 0,
    oldest_wait_s: float | None = None,
    num_starts: int = 0,
    residents: tuple[ResidentView, ...] = (),
) -> ModelView:
    """Return a model as the fleet shows it."""
    return ModelView(name, state, queue_length, oldest_wait_s, residents, None, None, None, num_starts, None)


def make_status(generated: int, *, slots: tuple[SlotState, ...] = (), **more: Any) -> WorkerStatus:
    """Return a line of a ready worker that has generated so many tokens."""
    counters = EngineCounters(
        generated_tokens=generated,
        prompt_tokens_computed=10 * generated,
        prompt_tokens_cached=3,
        prefill_seconds=0.5,
        generation_seconds=1.5,
        forwards=generated + 1,
        forward_seconds=2.0,
        step_seconds=2.25,
    )
    chosen: dict[str, Any] = {
        "counters": counters,
        "slots": tuple(SlotReport(i, state) for i, state in enumerate(slots)),
        "histograms": {"batch_rows": Histogram((1.0, 8.0), (2, 1, 0), 9.0)},
    }
    return WorkerStatus(Phase.READY, **chosen | more)


def busy_metrics() -> RouterMetrics:
    """Return metrics in which every family has a sample."""
    metrics = RouterMetrics()
    resident = ResidentView(A1, WorkerState.READY, 2, 5, 0.0, 0.0, None, placement=Placement({"CUDA0": 50}))
    views = {
        "a": make_view("a", WorkerState.READY, 2, 1.5, num_starts=1, residents=(resident,)),
        "b": make_view("b", WorkerState.UNLOADED),
    }
    catalog = Catalog({name: make_spec(name) for name in views})
    metrics.watch_fleet(lambda: FleetSnapshot(views, False, (GPU, UNMEASURED)), lambda: catalog)
    metrics.watch_clients(
        lambda: HeldForClients(
            {"events": 1, "logs": 0}, 2, 4096, 10, {"attached": 1, "detached": 2, "finished": 3}, 8192
        )
    )
    metrics.request_finished("a", CHAT, "ok", 0.3, request_id="0123456789abcdef01234567", first_byte_s=0.2)
    metrics.request_finished("a", CHAT, "client_gone", 0.3)
    metrics.lease_granted("a", 0.01, 0.2, "0123456789abcdef01234567")
    metrics.worker_started("a")
    metrics.worker_loaded("a", dict.fromkeys(LOAD_PHASES, 0.2))
    metrics.worker_exited(B1, ExitReason.CRASHED, was_killed=True)
    metrics.model_evicted("b")
    metrics.loop_lagged(0.002)
    line = make_status(
        7,
        slots=(SlotState.GENERATING, SlotState.GENERATING, SlotState.IDLE),
        kv_cells={"used": 30, "shared": 0, "idle": 5, "total": 100},
        memory_bytes={"rss": 1000, "private": 300, "process": 200, "pss": 900, "weights": 500},
        device_bytes={"CPU": {"weights": 600, "kv": 50, "compute": 7}},
        histograms={name: Histogram((0.1, 1.0), (1, 0, 2), 5.0) for name in HISTOGRAMS},
        facts=FACTS,
        max_rows=512,
        num_threads=2,
    )
    metrics.status_received(A1, line)
    metrics.key_refused("team", Limit.TOKENS)
    return metrics


def with_counters(status: WorkerStatus, **counters: float) -> WorkerStatus:
    """Return the line with other counts."""
    return dataclasses.replace(status, counters=dataclasses.replace(status.counters, **counters))  # type: ignore[arg-type]


def samples(metrics: RouterMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample of the text page by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render()[0].decode())
        for sample in family.samples
    }


def look_up(metrics: RouterMetrics, name: str, labels: Mapping[str, str]) -> float | None:
    """Return the value of one sample, without a page; None = there is none."""
    found = (sample for family in metrics.families() for block in family.blocks for sample in block.samples())
    return next((sample.value for sample in found if sample.name == name and sample.labels == labels), None)


def value(metrics: RouterMetrics, name: str, **labels: str) -> float | None:
    """Return what the page shows for exactly these labels; None = nothing."""
    return samples(metrics).get((name, tuple(sorted(labels.items()))))
