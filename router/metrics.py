"""Everything that `GET /metrics` shows: the router's own counters, the workers' totals, the state of the fleet.

Owns names, labels and the text. Must not ask a worker for anything or wake one: worker figures come from the
status links, fleet figures from a snapshot at the time of the scrape. Labels take values from closed sets only
(`model` is a name of the catalogue, never what a request said).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

import psutil
from prometheus_client import CollectorRegistry, Counter, Histogram, Info, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from router.events import ExitReason, WorkerId
from router.fleet import FleetSnapshot
from router.lifecycle import WorkerState
from router.worker_totals import WorkerTotals
from worker.contract import Histogram as WorkerHistogram
from worker.contract import SlotState, WorkerStatus

_OPENMETRICS = "application/openmetrics-text; version=1.0.0"

_REQUEST_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_WAIT_BUCKETS = (0.001, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_LOAD_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)

_WORKER_HISTOGRAMS = {
    "time_to_first_token_seconds": "From a request's arrival at the worker to its first token.",
    "inter_token_seconds": "Between two tokens of one request.",
    "batch_rows": "Rows (tokens) of one forward pass.",
}


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
            "Workers that ended, by reason; everything but `stopped` is a failure.",
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
        build = Info("corral_build", "Versions of what is running.", registry=self.registry)
        build.info(
            {
                "version": _version_of("llama-corral"),
                "python": platform.python_version(),
                "llama_cpp_python": _version_of("llama-cpp-python"),
            }
        )
        self.registry.register(_WorkerCollector(self._totals))
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

    def status_received(self, worker: WorkerId, status: WorkerStatus) -> None:
        """Take one line of a worker's status link."""
        self._totals.update(worker, status)

    def watch_fleet(self, snapshot: Callable[[], FleetSnapshot]) -> None:
        """Show the fleet that `snapshot` gives at each scrape. To be called once."""
        self.registry.register(_FleetCollector(snapshot))

    # --- what is shown ---

    def render(self, accept: str | None = None) -> tuple[bytes, str]:
        """Return the page and its `Content-Type`: OpenMetrics if `accept` asks for it, else Prometheus text."""
        # Normalised, because the library takes whatever a client writes as a version for a number.
        wanted = [part.partition(";")[0].strip().lower() for part in (accept or "").split(",")]
        encode, content_type = choose_encoder(_OPENMETRICS if "application/openmetrics-text" in wanted else "")
        return encode(self.registry), content_type


class _WorkerCollector(Collector):
    """Families that come from the status links."""

    def __init__(self, totals: WorkerTotals) -> None:
        self._totals = totals

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the names are fixed, and asking would cost a collection at start."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._counters()
        yield from self._histograms()
        yield from self._gauges()

    def _counters(self) -> Iterator[Metric]:
        prompt = CounterMetricFamily(
            "corral_prompt_tokens",
            "Prompt tokens, by where their KV came from: computed, or cached from an earlier request.",
            labels=["model", "source"],
        )
        generated = CounterMetricFamily("corral_generated_tokens", "Tokens generated.", labels=["model"])
        prefill = CounterMetricFamily(
            "corral_prefill_seconds", "Time in forward passes that computed prompts.", labels=["model"]
        )
        generation = CounterMetricFamily(
            "corral_generation_seconds", "Time in forward passes that generated tokens.", labels=["model"]
        )
        forward = CounterMetricFamily("corral_forward", "Forward passes.", labels=["model"])
        forward_seconds = CounterMetricFamily("corral_forward_seconds", "Time in forward passes.", labels=["model"])
        step_seconds = CounterMetricFamily(
            "corral_step_seconds", "Time in whole steps: forward passes and the work around them.", labels=["model"]
        )
        parked = CounterMetricFamily(
            "corral_parked_sequences",
            "Running answers that had to make room for others and went on later.",
            labels=["model"],
        )
        failed = CounterMetricFamily(
            "corral_failed_steps", "Forward passes and KV operations that failed and were made good.", labels=["model"]
        )
        drafted = CounterMetricFamily(
            "corral_drafted_tokens", "Tokens that were drafted ahead and verified in a forward pass.", labels=["model"]
        )
        accepted = CounterMetricFamily("corral_accepted_tokens", "Drafted tokens that were right.", labels=["model"])
        for model, totals in self._totals.by_model().items():
            counters = totals.counters
            prompt.add_metric([model, "computed"], counters.prompt_tokens_computed)
            prompt.add_metric([model, "cached"], counters.prompt_tokens_cached)
            generated.add_metric([model], counters.generated_tokens)
            prefill.add_metric([model], counters.prefill_seconds)
            generation.add_metric([model], counters.generation_seconds)
            forward.add_metric([model], counters.forwards)
            forward_seconds.add_metric([model], counters.forward_seconds)
            step_seconds.add_metric([model], counters.step_seconds)
            parked.add_metric([model], counters.parked)
            failed.add_metric([model], counters.failed_steps)
            drafted.add_metric([model], counters.drafted_tokens)
            accepted.add_metric([model], counters.accepted_tokens)
        yield from (prompt, generated, prefill, generation, forward, forward_seconds, step_seconds, parked, failed)
        yield from (drafted, accepted)

    def _histograms(self) -> Iterator[Metric]:
        totals_by_model = self._totals.by_model()
        for name, documentation in _WORKER_HISTOGRAMS.items():
            family = HistogramMetricFamily(f"corral_{name}", documentation, labels=["model"])
            for model, totals in totals_by_model.items():
                if (histogram := totals.histograms.get(name)) is not None:
                    family.add_metric([model], list(_cumulative(histogram)), histogram.total)
            yield family

    def _gauges(self) -> Iterator[Metric]:
        slots: dict[tuple[str, str], float] = {}
        cells: dict[tuple[str, str], float] = {}
        memory: dict[tuple[str, str], float] = {}
        for worker, status in self._totals.live().items():
            if status.slots:
                for state in SlotState:
                    slots.setdefault((worker.model, state.value.lower()), 0)
            for slot in status.slots:
                slots[worker.model, slot.state.value.lower()] += 1
            for kind, count in status.kv_cells.items():
                cells[worker.model, kind] = cells.get((worker.model, kind), 0) + count
            for kind, size in status.memory_bytes.items():
                memory[worker.model, kind] = memory.get((worker.model, kind), 0) + size
        yield _gauge("corral_slots", "Slots of loaded models, by state.", ["model", "state"], slots)
        yield _gauge("corral_kv_cells", "KV cells of loaded models, by kind.", ["model", "kind"], cells)
        yield _gauge("corral_worker_memory_bytes", "Memory of worker processes, by kind.", ["model", "kind"], memory)


class _FleetCollector(Collector):
    """Families that come from a snapshot of the fleet."""

    def __init__(self, snapshot: Callable[[], FleetSnapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the fleet may not be there yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "corral_worker_state", "1 for the state that the model is in, 0 for the others.", labels=["model", "state"]
        )
        length = GaugeMetricFamily(
            "corral_queue_length", "Requests that wait for a place on a worker.", labels=["model"]
        )
        oldest = GaugeMetricFamily(
            "corral_queue_oldest_seconds", "How long the oldest of them has waited; 0 = none waits.", labels=["model"]
        )
        for name, view in sorted(self._snapshot().models.items()):
            for each in WorkerState:
                state.add_metric([name, each.value], float(each is view.state))
            length.add_metric([name], view.queue_length)
            oldest.add_metric([name], view.oldest_wait_s or 0.0)
        yield from (state, length, oldest)


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


def _gauge(
    name: str, documentation: str, labels: list[str], values: Mapping[tuple[str, str], float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, documentation, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(list(key), value)
    return family


def _cumulative(histogram: WorkerHistogram) -> Iterator[tuple[str, float]]:
    """Yield upper bounds and running sums, as Prometheus wants them."""
    running = 0
    for bound, count in zip((*map(str, map(float, histogram.bounds)), "+Inf"), histogram.counts, strict=True):
        running += count
        yield bound, running


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
