"""What the router counts itself, and the page that shows it together with all other families.

Owns the router's own counters. Must not ask a worker for anything, wait, or keep what a client wrote: the one thing it
remembers of single requests are ids that the router made, as exemplars.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

from router.account import Outcome
from router.catalog import Catalog
from router.events import ExitReason, WorkerId
from router.exits import NO_FAILURES
from router.fleet_views import FleetSnapshot
from router.key_guesses import Failure
from router.key_usage import Limit
from router.metrics import page
from router.metrics.clients import HeldForClients, MaybeOpen, client_families
from router.metrics.families import Counters, Exemplar, Family, Histograms, Kind, Number, gauge_of
from router.metrics.fleet import FleetFamilies
from router.metrics.process import OwnProcess
from router.metrics.workers import WorkerFamilies
from router.worker_totals import WorkerTotals
from worker.contract import EngineCounters, WorkerStatus

_REQUEST_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
_WAIT_BOUNDS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_LOAD_BOUNDS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
_LAG_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

RELOAD_RESULTS = ("success", "failure")
LOAD_PHASES = ("fetch", "spawn", "import", "read", "warmup", "total")


class RouterMetrics:
    """The registry of one router. Counters live here and never go back, whatever happens to workers."""

    def __init__(self) -> None:
        self.replies: set[MaybeOpen] = set()
        """Of the requests that run now; whoever handles a request adds its reply and takes it out again."""
        self._totals = WorkerTotals()
        self._workers = WorkerFamilies(self._totals)
        self._process = OwnProcess()
        self._fleet: FleetFamilies | None = None
        self._held: Callable[[], HeldForClients] | None = None
        self._failed: set[str] = set()
        """Models whose last worker has failed and that have not been started again."""
        self._requests = Counters(
            "corral_requests", "Requests that ended, by route, model and outcome.", "model", "outcome", "route"
        )
        self._resumed = Counters(
            "corral_resumed_requests",
            "Requests that went on with another worker when theirs was lost, by model and by how they ended.",
            *("model", "outcome"),
        )
        self._request_seconds = Histograms(
            "corral_request_seconds",
            "From the arrival of a request to the end of its reply, in seconds.",
            _REQUEST_BOUNDS_S,
            *("model", "route"),
        )
        self._first_byte = Histograms(
            "corral_time_to_first_byte_seconds",
            "From the arrival of a request to the first byte of its streamed answer, in seconds: how long clients see "
            "nothing.",
            _REQUEST_BOUNDS_S,
            *("model", "route"),
        )
        self._queue_wait = Histograms(
            "corral_queue_wait_seconds",
            "How long requests waited for a place on a worker, less the time in which it was loading, in seconds.",
            _WAIT_BOUNDS_S,
            "model",
        )
        self._load_wait = Histograms(
            "corral_load_wait_seconds",
            "How long requests waited for their worker to load, in seconds; those that found it loaded do not count.",
            _LOAD_BOUNDS_S,
            "model",
        )
        self._starts = Counters("corral_worker_starts", "Worker processes started.", "model")
        self._restarts = Counters(
            "corral_worker_restarts", "Worker processes started after the last worker of the model had failed.", "model"
        )
        self._exits = Counters(
            "corral_worker_exits",
            "Workers that ended, by reason; everything but `stopped` and `no_room` is a failure.",
            *("model", "reason"),
        )
        self._kills = Counters(
            "corral_worker_kills", "Workers that had to be killed because they did not stop in time.", "model"
        )
        self._load_seconds = Histograms(
            "corral_load_seconds",
            "How long loading took in seconds, by phase: fetch, then the worker's own; total is all but the fetch.",
            _LOAD_BOUNDS_S,
            *("model", "phase"),
        )
        self._evictions = Counters(
            "corral_evictions",
            "Workers that were unloaded because another model needed their place, by the model that went.",
            "model",
        )
        self._reloads = Counters(
            "corral_catalog_reloads",
            "Attempts to take over a changed configuration, by result: success, failure.",
            "result",
        )
        self._key_failures = Counters(
            "corral_authentication_failures",
            "Requests without a right API key, by reason: missing, wrong, throttled.",
            "reason",
        )
        for reason in Failure:
            self._key_failures.of(reason.value)  # all from the start, so that the first one counts as an increase
        self._key_refusals = Counters(
            "corral_key_refusals", "Requests refused because a limit of their API key was reached.", "key", "reason"
        )
        self._loop_lag = Histograms(
            "corral_event_loop_lag_seconds",
            "How late a timer of the router's event loop ran, in seconds; looked at about once a second.",
            _LAG_BOUNDS_S,
        )
        self._loop_lag.of()
        for result in RELOAD_RESULTS:
            self._reloads.of(result)  # both series from the start, so that the first one counts as an increase
        self._is_catalog_in_force = True
        self._taken_over_at_s = time.time()
        build = {
            "version": _version_of("llama-corral"),
            "python": platform.python_version(),
            "llama_cpp_python": _version_of("llama-cpp-python"),
        }
        self._build = Number("corral_build", build, 1, "_info")

    # --- what happened ---

    def request_finished(
        self,
        model: str,
        route: str,
        outcome: str,
        seconds: float,
        *,
        request_id: str | None = None,
        first_byte_s: float | None = None,
        is_resumed: bool = False,
    ) -> None:
        """Count one request that ended.

        `first_byte_s` = when the first byte of its streamed answer went out; `is_resumed`: its worker was lost.
        """
        if not self._requests.has(model, outcome, route):
            for each in Outcome:  # all from the first on: what appears as a 1 is no increase
                self._requests.of(model, each.value, route)
                self._resumed.of(model, each.value)
        if is_resumed:
            self._resumed.of(model, outcome).add()
        self._requests.of(model, outcome, route).add()
        self._request_seconds.of(model, route).observe(seconds, _exemplar(request_id, seconds))
        if first_byte_s is not None:
            self._first_byte.of(model, route).observe(first_byte_s, _exemplar(request_id, first_byte_s))

    def key_refused(self, key_id: str, limit: Limit) -> None:
        """Count one request that a limit of its API key has kept out."""
        for each in Limit:
            self._key_refusals.of(key_id, each.value)
        self._key_refusals.of(key_id, limit.value).add()

    def lease_granted(self, model: str, queue_s: float, load_s: float, request_id: str | None = None) -> None:
        """Count how long one request has waited: for others, and for its worker to load."""
        self._queue_wait.of(model).observe(queue_s, _exemplar(request_id, queue_s))
        if load_s > 0:
            self._load_wait.of(model).observe(load_s, _exemplar(request_id, load_s))

    def worker_started(self, model: str) -> None:
        """Count one process."""
        self._starts.of(model).add()
        for reason in ExitReason:
            self._exits.of(model, reason.value)  # all from the first start on: what appears as a 1 is no increase
        self._kills.of(model)
        self._evictions.of(model)
        restarts = self._restarts.of(model)
        if model in self._failed:
            self._failed.discard(model)
            restarts.add()

    def worker_loaded(self, model: str, seconds_by_phase: Mapping[str, float]) -> None:
        """Count one load that ended in a ready worker."""
        for phase, seconds in seconds_by_phase.items():
            self._load_seconds.of(model, phase).observe(seconds)

    def worker_exited(self, worker: WorkerId, reason: ExitReason, *, was_killed: bool = False) -> None:
        """Count one end of a worker, or of the attempt to start one; keep what it had counted."""
        self._exits.of(worker.model, reason.value).add()
        if was_killed:
            self._kills.of(worker.model).add()
        if reason not in NO_FAILURES:
            self._failed.add(worker.model)
        elif reason is ExitReason.STOPPED:
            self._failed.discard(worker.model)
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
        self._evictions.of(model).add()

    def catalog_reloaded(self, ok: bool) -> None:
        """Count one attempt to take over a changed configuration; `ok` = it is in force now."""
        self._reloads.of("success" if ok else "failure").add()
        self._is_catalog_in_force = ok
        if ok:
            self._taken_over_at_s = time.time()

    def authentication_failed(self, reason: Failure) -> None:
        """Count one request that came without a right API key."""
        self._key_failures.of(reason.value).add()

    def status_received(self, worker: WorkerId, status: WorkerStatus) -> None:
        """Take one line of a worker's status link."""
        self._totals.update(worker, status)

    def loop_lagged(self, seconds: float) -> None:
        """Note how late one timer of the event loop ran."""
        self._loop_lag.of().observe(max(0.0, seconds))

    # --- what there is ---

    def watch_fleet(self, snapshot: Callable[[], FleetSnapshot], catalog: Callable[[], Catalog] | None = None) -> None:
        """Show the fleet that `snapshot` gives at each scrape, and what `catalog` cannot offer."""
        self._fleet = FleetFamilies(snapshot, catalog)

    def watch_clients(self, held: Callable[[], HeldForClients]) -> None:
        """Show what `held` gives at each scrape, and which of `replies` are open streams."""
        self._held = held

    # --- what is shown ---

    def families(self) -> Iterator[Family]:
        """Yield everything that there is to show now."""
        yield self._requests.family
        yield self._resumed.family
        yield self._request_seconds.family
        yield self._first_byte.family
        yield self._queue_wait.family
        yield self._load_wait.family
        yield self._key_refusals.family
        yield self._starts.family
        yield self._restarts.family
        yield self._exits.family
        yield self._kills.family
        yield self._load_seconds.family
        yield self._evictions.family
        yield self._reloads.family
        yield gauge_of(
            "corral_catalog_reload_success",
            "1 if the configuration as it now stands is in force, 0 if the last attempt to read it failed.",
            float(self._is_catalog_in_force),
        )
        yield gauge_of(
            "corral_catalog_reload_timestamp_seconds",
            "When the configuration in force was taken over, in seconds since the Unix epoch.",
            self._taken_over_at_s,
        )
        if self._fleet is not None:
            yield from self._fleet.families()
        yield from self._workers.families()
        if self._held is not None:
            yield from client_families(self.replies, self._held())
        yield self._key_failures.family
        yield self._loop_lag.family
        yield Family("corral_build", Kind.INFO, "Always 1: the versions of what is running.", [self._build])
        yield from self._process.families()

    def render(self, accept: str | None = None) -> tuple[bytes, str]:
        """Return the page and its `Content-Type`: OpenMetrics if `accept` asks for it, else Prometheus text."""
        if page.wants_openmetrics(accept or ""):
            return page.encode_openmetrics(self.families()), page.OPENMETRICS
        return page.encode_text(self.families()), page.TEXT

    def render_json(self) -> bytes:
        """Return the same families as JSON: see `page`."""
        return page.encode_json(self.families())


def _exemplar(request_id: str | None, value: float) -> Exemplar | None:
    return None if request_id is None else Exemplar(request_id, value, time.time())


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
