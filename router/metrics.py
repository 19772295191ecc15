"""Everything that `GET /metrics` shows: the router's own counters, the workers' totals, the state of the fleet.

Owns what the router counts, and the text. Must not ask a worker for anything or wake one: worker figures come from
the status links (`metrics_workers.py`), fleet figures from a snapshot at the time of the scrape (`metrics_fleet.py`).
Labels take values from closed sets only (`model` is a name of the catalogue, never what a request said).
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from router.catalog import Catalog
from router.events import ExitReason, WorkerId
from router.fleet_views import FleetSnapshot
from router.metrics_fleet import FleetCollector
from router.metrics_workers import WorkerCollector
from router.worker_totals import WorkerTotals
from worker.contract import EngineCounters, WorkerStatus

_OPENMETRICS = "application/openmetrics-text; version=1.0.0"

_REQUEST_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_WAIT_BUCKETS = (0.001, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_LOAD_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)


class RouterMetrics:
    """The registry of one router. Counters live here and never go back, whatever happens to workers."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a series per series that no query needs
        self.registry = CollectorRegistry()
        self._totals = WorkerTotals()
        self._requests = Counter(
            "corral_requests",
            "Requests that ended, by outcome: ok, client_gone, timeout, rejected, worker_died, error.",
            ["model", "route", "outcome"],
            registry=self.registry,
        )
        self._request_seconds = Histogram(
            "corral_request_seconds",
            "From the arrival of a request to the end of its reply.",
            ["model", "route"],
            buckets=_REQUEST_BUCKETS,
            registry=self.registry,
        )
        self._queue_wait = Histogram(
            "corral_queue_wait_seconds",
            "How long requests waited for a place on a worker, less the time in which the model was loading.",
            ["model"],
            buckets=_WAIT_BUCKETS,
            registry=self.registry,
        )
        self._starts = Counter("corral_worker_starts", "Worker processes started.", ["model"], registry=self.registry)
        self._exits = Counter(
            "corral_worker_exits",
            "Workers that ended, by reason; everything but `stopped` and `no_room` is a failure.",
            ["model", "reason"],
            registry=self.registry,
        )
        self._kills = Counter(
            "corral_worker_kills",
            "Workers that had to be killed because they did not stop in time.",
            ["model"],
            registry=self.registry,
        )
        self._load_seconds = Histogram(
            "corral_load_seconds",
            "How long loading took, by phase: fetch, then the worker's own; total is all of it.",
            ["model", "phase"],
            buckets=_LOAD_BUCKETS,
            registry=self.registry,
        )
        self._evictions = Counter(
            "corral_evictions",
            "Models that were unloaded because another one needed their place, by the model that went.",
            ["model"],
            registry=self.registry,
        )
        self._reloads = Counter(
            "corral_catalog_reloads",
            "Attempts to take over a changed configuration, by result: success, failure.",
            ["result"],
            registry=self.registry,
        )
        self._reload_success = Gauge(
            "corral_catalog_reload_success",
            "1 if the configuration as it now stands is in force, 0 if the last attempt to read it failed.",
            registry=self.registry,
        )
        self._reload_timestamp = Gauge(
            "corral_catalog_reload_timestamp_seconds",
            "When the configuration in force was taken over, since the Unix epoch.",
            registry=self.registry,
        )
        for result in ("success", "failure"):
            self._reloads.labels(result)  # both series from the start, so that the first one counts as an increase
        self._reload_success.set(1)
        self._reload_timestamp.set_to_current_time()
        build = Info("corral_build", "Versions of what is running.", registry=self.registry)
        build.info(
            {
                "version": _version_of("llama-corral"),
                "python": platform.python_version(),
                "llama_cpp_python": _version_of("llama-cpp-python"),
            }
        )
        self.registry.register(WorkerCollector(self._totals))
        self.registry.register(_ProcessCollector())

    # --- what happened ---

    def request_finished(self, model: str, route: str, outcome: str, seconds: float) -> None:
        """Count one request that ended."""
        self._requests.labels(model, route, outcome).inc()
        self._request_seconds.labels(model, route).observe(seconds)

    def queue_waited(self, model: str, seconds: float) -> None:
        """Count one granted lease."""
        self._queue_wait.labels(model).observe(seconds)

    def worker_started(self, model: str) -> None:
        """Count one process."""
        self._starts.labels(model).inc()

    def worker_loaded(self, model: str, seconds_by_phase: Mapping[str, float]) -> None:
        """Count one load that ended in a ready worker."""
        for phase, seconds in seconds_by_phase.items():
            self._load_seconds.labels(model, phase).observe(seconds)

    def worker_exited(self, worker: WorkerId, reason: ExitReason, *, was_killed: bool = False) -> None:
        """Count one end of a worker, or of the attempt to start one; keep what it had counted."""
        self._exits.labels(worker.model, reason.value).inc()
        if was_killed:
            self._kills.labels(worker.model).inc()
        self._totals.retire(worker)

    def remote_answered(self, model: str, *, prompt_tokens: int, cached_tokens: int, generated_tokens: int) -> None:
        """Count the tokens of one answer of another server."""
        self._totals.add(
            model,
            EngineCounters(
                prompt_tokens_computed=max(0, prompt_tokens - cached_tokens),
                prompt_tokens_cached=cached_tokens,
                generated_tokens=generated_tokens,
            ),
        )

    def model_evicted(self, model: str) -> None:
        """Count one worker that has to go because another model needs its place."""
        self._evictions.labels(model).inc()

    def catalog_reloaded(self, ok: bool) -> None:
        """Count one attempt to take over a changed configuration; `ok` = it is in force now."""
        self._reloads.labels("success" if ok else "failure").inc()
        self._reload_success.set(float(ok))
        if ok:
            self._reload_timestamp.set(time.time())

    def status_received(self, worker: WorkerId, status: WorkerStatus) -> None:
        """Take one line of a worker's status link."""
        self._totals.update(worker, status)

    def watch_fleet(self, snapshot: Callable[[], FleetSnapshot], catalog: Callable[[], Catalog] | None = None) -> None:
        """Show the fleet that `snapshot` gives at each scrape, and what `catalog` cannot offer. To be called once."""
        self.registry.register(FleetCollector(snapshot, catalog))

    # --- what is shown ---

    def render(self, accept: str | None = None) -> tuple[bytes, str]:
        """Return the page and its `Content-Type`: OpenMetrics if `accept` asks for it, else Prometheus text."""
        # Normalised, because the library takes whatever a client writes as a version for a number.
        wanted = [part.partition(";")[0].strip().lower() for part in (accept or "").split(",")]
        encode, content_type = choose_encoder(_OPENMETRICS if "application/openmetrics-text" in wanted else "")
        return encode(self.registry), content_type


class _ProcessCollector(Collector):
    """The router's own process, under the names that Prometheus clients use. Works on macOS too."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the names are fixed."""
        return []

    def collect(self) -> Iterator[Metric]:
        with self._process.oneshot():
            times = self._process.cpu_times()
            yield CounterMetricFamily(
                "process_cpu_seconds", "User and system CPU time of the router.", value=times.user + times.system
            )
            yield GaugeMetricFamily(
                "process_resident_memory_bytes",
                "Resident memory of the router.",
                value=self._process.memory_info().rss,
            )
            yield GaugeMetricFamily(
                "process_start_time_seconds",
                "Start of the router since the Unix epoch.",
                value=self._process.create_time(),
            )
            yield GaugeMetricFamily(
                "process_open_fds", "Open file descriptors of the router.", value=self._process.num_fds()
            )


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
