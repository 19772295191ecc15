"""Owns the fleet and performs what it decides: processes, leases, timers, threads.

Must not decide who is served, started or stopped (`fleet.py` does). Every event goes through `_dispatch`, which
calls the fleet synchronously; nothing awaits between a decision and its effects, so there are no locks. Slow work
is a `WorkerRun`, a task that reports back by events.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import assert_never

import aiohttp

from router.catalog import Catalog, ModelSpec
from router.errors import (
    ModelNotFound,
    ModelTooLarge,
    ModelUnavailable,
    QueueTimeout,
    RouterError,
    ShuttingDown,
    TooManyRequests,
)
from router.events import (
    Action,
    CatalogChanged,
    Event,
    ExitReason,
    GrantLease,
    LeaseId,
    LeaseReleased,
    LeaseRequested,
    LoadRequested,
    RefusalKind,
    RefuseLease,
    ShutdownRequested,
    SpawnWorker,
    StopWorker,
    Tick,
    UnloadRequested,
    WorkerExit,
    WorkerExited,
    WorkerId,
    WorkerReady,
)
from router.fetch.protocol import FetchProgress
from router.fleet import Fleet, FleetSnapshot
from router.fleet_log import FleetLog
from router.launch import effective_context, worker_command
from router.log_tail import LogTail
from router.metrics import RouterMetrics
from router.model_headers import ModelHeaders
from router.runtime_dir import RuntimeDir
from router.threads import share_threads
from router.worker_run import Ground, ModelFiles, WorkerRun
from worker.contract import WorkerStatus

logger = logging.getLogger(__name__)

_SURVEY_WAIT_S = 2.0
"""How long the start waits for model headers: the first listing should show contexts, a slow disk may not stop it."""
_REAP_MARGIN_S = 5.0
"""Beyond drain and grace, how long `close` waits for processes before it kills what is left."""
_TIMER_MARGIN_S = 0.001
"""Timers of some loops count whole milliseconds: a little late is right, a little early is a busy loop."""
_AFTER_FAULT_S = 1.0
"""Pause before the next tick after a fault of ours: time goes on for all models, but not in a busy loop of faults."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to send one request to a worker."""

    worker: WorkerId
    session: aiohttp.ClientSession
    """Over that worker's Unix socket; takes URLs that are only a path."""
    queue_s: float
    """How long the request waited for other requests or models."""
    load_s: float
    """How long it waited for this worker to load."""


@dataclass(slots=True)
class _Ticket:
    """A lease that was asked for and not given back yet."""

    asked_at_s: float
    granted: asyncio.Future[WorkerRun]
    run: WorkerRun | None = None


class Supervisor:
    """The doer beside the fleet. To be used on one event loop, between `start` and `close`."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        store: ModelFiles,
        num_cores: int,
        metrics: RouterMetrics,
        runtime_dir: Path | None = None,
        worker_command: Sequence[str] | None = None,
        calibration_dir: Path | None = None,
    ) -> None:
        """`runtime_dir` is the folder in which the private one is made; None = `$XDG_RUNTIME_DIR` or `/tmp`.

        `calibration_dir` is where workers keep what they have measured; None = they measure nothing.
        """
        self.catalog = catalog
        self._store = store
        self._num_cores = num_cores
        self._metrics = metrics
        self._runtime_parent = runtime_dir
        self._worker_command = worker_command
        self._calibration_dir = calibration_dir
        self._headers = ModelHeaders(store)
        self._fleet = Fleet(catalog.policies(), catalog.fleet_limits())
        self._log = FleetLog()
        self._events: deque[Event] = deque()
        self._is_draining_events = False
        self._timer: asyncio.TimerHandle | None = None
        self._lease_ids = count(1)
        self._tickets: dict[LeaseId, _Ticket] = {}
        self._runs: dict[WorkerId, WorkerRun] = {}
        self._last_logs: dict[str, LogTail] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._are_shares_due = False
        self._ground: Ground | None = None

    # --- life ---

    async def start(self) -> None:
        """Leases may be asked for; preloads are on their way. Raises: RuntimeDirError."""
        runtime = RuntimeDir.create(self._runtime_parent)
        self._ground = Ground(
            store=self._store,
            headers=self._headers,
            metrics=self._metrics,
            runtime=runtime,
            command=worker_command(self._worker_command),
            environ=dict(os.environ),
            calibration_dir=self._calibration_dir,
            emit=self._dispatch,
        )
        self._metrics.watch_fleet(self.snapshot)
        survey = self._spawn_task(self._headers.survey(list(self.catalog.models.values())), "survey")
        await asyncio.wait({survey}, timeout=_SURVEY_WAIT_S)
        self._dispatch(Tick())

    async def close(self, drain_s: float = 5.0, *, is_hurried: bool = False) -> None:
        """All workers are reaped and the runtime directory is gone. Running requests get `drain_s` to finish.

        What still runs some seconds after that is killed; if `is_hurried`, everything is, at once. May be called again,
        with less patience, when this was cancelled.
        """
        ground = self._ground
        if ground is None:
            return
        self._dispatch(ShutdownRequested(drain_s))
        grace_s = self.catalog.fleet_limits().stop_grace_s
        if is_hurried or not await self._wait_for_exits(drain_s + grace_s + _REAP_MARGIN_S):
            for run in self._runs.values():
                run.kill()
            if not await self._wait_for_exits(_REAP_MARGIN_S):
                logger.error("giving up on workers that survive SIGKILL: %s", ", ".join(map(str, self._runs)))
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        ground.runtime.remove()
        self._ground = None

    async def _wait_for_exits(self, timeout_s: float) -> bool:
        """Return whether every run is over after at most `timeout_s`."""
        waits = [asyncio.ensure_future(run.is_over.wait()) for run in self._runs.values()]
        if not waits:
            return True
        try:
            _, pending = await asyncio.wait(waits, timeout=timeout_s)
        finally:
            for wait in waits:
                wait.cancel()
        return not pending

    # --- what handlers ask ---

    @asynccontextmanager
    async def lease(self, spec: ModelSpec, *, priority: int = 0, key_id: str | None = None) -> AsyncIterator[Lease]:
        """Hold a place on a worker of `spec` inside the block; loads the model if need be.

        The place is given back however the block is left, and so is the place in the queue.

        Raises: ModelNotFound, ModelUnavailable, TooManyRequests, QueueTimeout, ShuttingDown.
        """
        lease_id = LeaseId(next(self._lease_ids))
        ticket = _Ticket(time.monotonic(), asyncio.get_running_loop().create_future())
        self._tickets[lease_id] = ticket
        try:
            self._dispatch(LeaseRequested(lease_id, spec.name, priority, key_id))
            run = await ticket.granted
            yield self._make_lease(ticket, run)
        finally:
            del self._tickets[lease_id]
            if ticket.run is not None:
                ticket.run.take_back()
                self._are_shares_due |= ticket.run.num_leases == 0
            self._dispatch(LeaseReleased(lease_id))

    def load(self, model: str) -> None:
        """The model is on its way to being ready; an earlier failure is forgotten. Outlives the caller."""
        self._dispatch(LoadRequested(model))

    def unload(self, model: str) -> None:
        """The model takes no new requests on its present worker and will be gone. Outlives the caller."""
        self._dispatch(UnloadRequested(model))

    def set_catalog(self, catalog: Catalog) -> None:
        """From now on `catalog` is what is served; workers that still fit it are left alone."""
        self.catalog = catalog
        self._spawn_task(self._headers.survey(list(catalog.models.values())), "survey")
        self._dispatch(CatalogChanged(catalog.policies(), catalog.fleet_limits()))

    def snapshot(self) -> FleetSnapshot:
        """Return how every model stands, for display."""
        return self._fleet.snapshot(time.monotonic())

    def status(self, worker: WorkerId) -> WorkerStatus | None:
        """Return the last line of a live worker's status link."""
        run = self._runs.get(worker)
        return run.status if run is not None else None

    def fetch_progress(self, model: str) -> FetchProgress | None:
        """Return how far the download of a model's file is; None = there is none."""
        return next((run.fetch_progress for run in self._runs_of(model) if run.fetch_progress), None)

    def fetches(self) -> dict[str, FetchProgress]:
        """Return how far each download is, by model."""
        return {run.worker.model: run.fetch_progress for run in self._runs.values() if run.fetch_progress}

    def log_tail(self, model: str) -> str:
        """Return the last lines that the model's worker printed, the last dead one's if none is alive."""
        log = next((run.log for run in self._runs_of(model)), None) or self._last_logs.get(model)
        return log.text() if log is not None else ""

    def context_of(self, spec: ModelSpec) -> int | None:
        """Return the tokens that one request may use; None = unknown until the model's file is here."""
        header = self._headers.get(spec)
        return effective_context(spec, header.trained_context if header is not None else None)

    # --- events in, actions out ---

    def _dispatch(self, event: Event) -> None:
        """The fleet has handled `event` and everything that followed from it, unless this is called meanwhile."""
        self._events.append(event)
        if self._is_draining_events:
            return
        self._is_draining_events = True
        least_s = _AFTER_FAULT_S
        try:
            while self._events:
                self._handle(self._events.popleft())
            least_s = _TIMER_MARGIN_S
        finally:
            self._is_draining_events = False
            self._set_timer(least_s)
        self._share_cores()

    def _handle(self, event: Event) -> None:
        now_s = time.monotonic()
        actions = self._fleet.handle(event, now_s)
        match event:
            case WorkerReady(worker):
                self._note_ready(worker)
            case WorkerExited(worker):
                self._forget(worker)
        for action in actions:
            self._perform(action)
        has_moved = any(isinstance(action, SpawnWorker | StopWorker) for action in actions)
        if has_moved or not isinstance(event, LeaseRequested | LeaseReleased):
            self._log.note(event, self._fleet.snapshot(now_s), now_s)

    def _perform(self, action: Action) -> None:
        match action:
            case SpawnWorker(worker):
                self._start_run(worker)
            case StopWorker(worker):
                if (run := self._runs.get(worker)) is not None:
                    run.stop(action)
            case GrantLease(lease_id, worker):
                self._grant(lease_id, worker)
            case RefuseLease(lease_id):
                ticket = self._tickets.get(lease_id)
                if ticket is not None and not ticket.granted.done():
                    ticket.granted.set_exception(_refusal(action))
            case _:
                assert_never(action)

    def _start_run(self, worker: WorkerId) -> None:
        spec = self.catalog.models.get(worker.model)
        if spec is None or self._ground is None:
            gone = WorkerExit(ExitReason.STOPPED, "the model is no longer configured")
            self._dispatch(WorkerExited(worker, gone))
            return
        share = share_threads(self._num_cores, self._busy() | {worker: False})[worker]
        run = self._runs[worker] = WorkerRun(worker, spec, self._ground, share)
        self._spawn_task(run.run(), f"worker {worker}")

    def _grant(self, lease_id: LeaseId, worker: WorkerId) -> None:
        ticket, run = self._tickets.get(lease_id), self._runs[worker]
        if ticket is None:
            self._dispatch(LeaseReleased(lease_id))
            return
        if ticket.granted.done():
            return  # its receiver was cancelled and is about to release it
        run.lend()
        self._are_shares_due |= run.num_leases == 1
        ticket.run = run
        ticket.granted.set_result(run)

    def _make_lease(self, ticket: _Ticket, run: WorkerRun) -> Lease:
        assert run.session is not None, "granted before it was ready"
        assert run.ready_at_s is not None, "granted before it was ready"
        wait_s = time.monotonic() - ticket.asked_at_s
        load_s = max(0.0, run.ready_at_s - max(ticket.asked_at_s, run.spawned_at_s))
        queue_s = max(0.0, wait_s - load_s)
        self._metrics.queue_waited(run.worker.model, queue_s)
        return Lease(run.worker, run.session, queue_s, load_s)

    def _note_ready(self, worker: WorkerId) -> None:
        run = self._runs.get(worker)
        if run is not None and run.ready_at_s is not None and run.is_alive:
            self._log.note_ready(worker.model, run.ready_at_s - run.spawned_at_s)
            self._are_shares_due = True

    def _forget(self, worker: WorkerId) -> None:
        run = self._runs.pop(worker, None)
        if run is not None:
            self._last_logs[worker.model] = run.log
            self._are_shares_due = True

    # --- timers, threads, tasks ---

    def _set_timer(self, least_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_s = self._fleet.next_deadline_s
        if deadline_s is not None and self._ground is not None:
            delay_s = max(least_s, deadline_s - time.monotonic() + _TIMER_MARGIN_S)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._dispatch, Tick())

    def _busy(self) -> dict[WorkerId, bool]:
        """Return which workers that compute on the CPU have work now."""
        return {worker: run.num_leases > 0 for worker, run in self._runs.items() if run.is_alive and run.uses_cpu}

    def _share_cores(self) -> None:
        """Every worker that computes on the CPU knows its share of the cores."""
        if not self._are_shares_due:
            return
        self._are_shares_due = False
        for worker, share in share_threads(self._num_cores, self._busy()).items():
            self._runs[worker].tell_threads(share)

    def _runs_of(self, model: str) -> list[WorkerRun]:
        return [run for worker, run in self._runs.items() if worker.model == model]

    def _spawn_task(self, coroutine: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Return the task, which is kept alive; a fault in it goes to the log."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._end_task)
        return task

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed: this is a fault of the router", task.get_name(), exc_info=error)


def _refusal(action: RefuseLease) -> RouterError:
    """Return the error that a refused request ends with."""
    match action.kind:
        case RefusalKind.UNKNOWN_MODEL:
            return ModelNotFound(action.detail, param="model")
        case RefusalKind.UNAVAILABLE:
            return ModelUnavailable(action.detail, retry_after_s=action.retry_after_s)
        case RefusalKind.TOO_LARGE:
            return ModelTooLarge(action.detail)
        case RefusalKind.QUEUE_FULL:
            return TooManyRequests(action.detail, retry_after_s=action.retry_after_s)
        case RefusalKind.QUEUE_TIMEOUT:
            return QueueTimeout(action.detail, retry_after_s=action.retry_after_s)
        case RefusalKind.SHUTTING_DOWN:
            return ShuttingDown(action.detail, retry_after_s=action.retry_after_s)
        case _:
            assert_never(action.kind)
