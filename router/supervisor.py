"""Owns the fleet and performs what it decides: processes, leases, timers, threads.

Must not decide who is served, started or stopped (`fleet.py` does). Every event goes through `_dispatch`, which
calls the fleet synchronously; nothing awaits between a decision and its effects, so there are no locks. Slow work
is a `WorkerRun`, a task that reports back by events.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import assert_never

from router.catalog import Catalog, ModelSpec
from router.core_shares import CoreShares
from router.device import NOWHERE, Placement
from router.devices import DeviceMonitor
from router.events import (
    Action,
    CatalogChanged,
    DevicesChanged,
    DevicesMeasured,
    Event,
    ExitReason,
    GrantLease,
    KeepAliveSet,
    LeaseId,
    LeaseReleased,
    LeaseRequested,
    LoadRequested,
    ModelSized,
    PinSet,
    PlaceWorker,
    RefuseLease,
    RefuseLoad,
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
from router.fleet_views import WaiterView
from router.gguf_header import GgufHeader
from router.ground import Ground
from router.launch import capped_context, effective_context, worker_command, worker_environment, worker_folders
from router.leases import Lease, Tickets
from router.log_tail import LogTail
from router.machine_watch import MachineWatch, make_machine_watch
from router.metrics import RouterMetrics
from router.model_headers import ModelHeaders
from router.runs import Runs
from router.runtime_dir import RuntimeDir
from router.spares import SparePool
from router.tasks import Tasks
from router.worker_files import ModelFiles
from router.worker_run import WorkerRun
from worker.contract import WorkerStatus

_START_WAIT_S = 2.0
"""How long the start waits for model headers: the first listing should show contexts, a slow disk may not stop it."""
_TIMER_MARGIN_S = 0.001
"""Timers of some loops count whole milliseconds: a little late is right, a little early is a busy loop."""
_AFTER_FAULT_S = 1.0
"""Pause before the next tick after a fault of ours: time goes on for all models, but not in a busy loop of faults."""
_OFTEN = (LeaseRequested, LeaseReleased, ModelSized, DevicesChanged, DevicesMeasured)
"""Events that come often, or for each of a thousand models at once, and are worth no line in the log by themselves."""


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
        cache_dir: Path | None = None,
        device_monitor: DeviceMonitor | None = None,
        is_confined: bool = False,
        checks_cells: bool = False,
    ) -> None:
        """`runtime_dir`: in which the private one is made; None = `$XDG_RUNTIME_DIR` or `/tmp`. `cache_dir`: for what
        passes and models cost here; None = nothing is kept. `device_monitor`: None = memory is not looked at."""
        self.catalog = catalog
        self._store, self._metrics = store, metrics
        self._runtime_parent = runtime_dir
        self._worker_command, self._cache_dir = worker_command, cache_dir
        self._is_confined, self._checks_cells = is_confined, checks_cells
        self._monitor = device_monitor
        self._machine: MachineWatch | None = None
        self._spares: SparePool | None = None
        self._headers = ModelHeaders(store)
        self._fleet = Fleet(catalog.policies(), catalog.fleet_limits())
        self._log = FleetLog(on_eviction=metrics.model_evicted)
        self._events: deque[Event] = deque()
        self._is_draining_events = True  # until there is everything that actions are performed with
        self._timer: asyncio.TimerHandle | None = None
        self._tickets = Tickets()
        self._runs = Runs()
        self._listeners: list[Callable[[FleetSnapshot], None]] = []
        self._tasks = Tasks()
        self._shares = CoreShares(num_cores, self._runs)
        self._ground: Ground | None = None
        self._survey: asyncio.Task[None] | None = None

    # --- life ---

    async def start(self) -> None:
        """Leases may be asked for; preloads are on their way. Raises: RuntimeDirError."""
        runtime = RuntimeDir.create(self._runtime_parent)
        places = worker_folders(runtime.path, self._cache_dir) if self._is_confined else ()
        command, environ = worker_command(self._worker_command, writes=places), dict(os.environ)
        if self._monitor is not None:
            self._machine = make_machine_watch(
                self._monitor,
                cache_dir=self._cache_dir,
                store=self._store,
                headers=self._headers,
                emit=self._dispatch,
                runs=self._runs.values,
                waits_for_room=lambda: self._fleet.waits_for_room,
                may_probe=self._worker_command is None,
            )
            self._machine.on_lag = self._metrics.loop_lagged
            self._tasks.spawn(self._machine.discover(self.catalog), "finding devices")  # workers wait for it
        devices = {} if (machine := self._machine) is None else machine.devices
        self._spares = SparePool(command, env=worker_environment(environ, {}, NOWHERE, devices), cwd=runtime.path)
        self._ground = Ground(
            store=self._store,
            headers=self._headers,
            metrics=self._metrics,
            runtime=runtime,
            command=command,
            environ=environ,
            cache_dir=self._cache_dir,
            emit=self._dispatch,
            spares=self._spares,
            checks_cells=self._checks_cells,
            machine=machine,
        )
        self._metrics.watch_fleet(self.snapshot, lambda: self.catalog)
        await asyncio.wait({self.look_at_files()}, timeout=_START_WAIT_S)
        if machine is not None:
            self._survey = self._tasks.spawn(self._look_again(machine, self.catalog), "survey of needs")
            machine.start()
        self._is_draining_events = False
        self._dispatch(Tick())
        self._spares.resize(self.catalog.spares)

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
        await self._runs.see_off(None if is_hurried else drain_s + grace_s)
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()
        await ground.hooks.close()
        if self._spares is not None:
            await self._spares.close()
        if self._machine is not None:
            await self._machine.close()
        ground.runtime.remove()
        self._ground = None

    # --- what handlers ask ---

    @asynccontextmanager
    async def lease(
        self,
        spec: ModelSpec,
        *,
        priority: int = 0,
        key_id: str | None = None,
        prefixes: tuple[int, ...] = (),
        keep_alive_s: float | None = None,
        request_id: str | None = None,
        weight: float = 1.0,
        goes_first: bool = False,
        num_tokens: Callable[[], int | None] = lambda: None,
    ) -> AsyncIterator[Lease]:
        """Hold a place on a worker of `spec` inside the block; loads the model if need be.

        The place is given back however the block is left, and so is the place in the queue. `num_tokens` is asked then,
        see `LeaseReleased`; for everything else see `LeaseRequested`.

        Raises: ModelNotFound, ModelUnavailable, ModelTooLarge, TooManyRequests, QueueTimeout, ShuttingDown.
        """
        ticket = self._tickets.open()
        try:
            if self._machine is not None and not self._fleet.is_resident(spec.name):
                self._machine.measure()
            asked = (priority, key_id, prefixes, keep_alive_s, request_id, weight, goes_first)
            self._dispatch(LeaseRequested(ticket.lease_id, spec.name, *asked))
            lease = ticket.lease(await ticket.granted)
            self._metrics.lease_granted(spec.name, lease.queue_s, lease.load_s, request_id)
            yield lease
        finally:
            self._tickets.close(ticket)
            self._shares.are_due |= ticket.run is not None and ticket.run.num_leases == 0
            self._dispatch(LeaseReleased(ticket.lease_id, num_tokens()))

    def load(self, model: str) -> None:
        """The model is on its way to being ready; an earlier failure is forgotten. Outlives the caller."""
        self._dispatch(LoadRequested(model))

    def unload(self, model: str) -> None:
        """The model takes no new requests on its present worker and will be gone. Outlives the caller."""
        self._dispatch(UnloadRequested(model))

    def keep_alive(self, model: str, seconds: float) -> None:
        """The model's present workers stay for so long when they are idle; negative = idleness never unloads them."""
        self._dispatch(KeepAliveSet(model, seconds))

    def pin(self, model: str, pin: bool | None) -> None:
        """The model is pinned or not, whatever its configuration says; None = as that says. Loads nothing."""
        self._dispatch(PinSet(model, pin))

    def is_pinned(self, model: str) -> bool:
        """Return whether the model is pinned now, by its configuration or by `pin`."""
        return self._fleet.is_pinned(model)

    def look_at_files(self) -> asyncio.Task[None]:
        """Return the task after which it is known what all files say of themselves that are here."""
        return self._tasks.spawn(self._headers.survey(list(self.catalog.models.values())), "survey")

    def set_catalog(self, catalog: Catalog) -> None:
        """From now on `catalog` is what is served; workers that still fit it are left alone."""
        self.catalog = catalog
        self._runs.adopt(catalog)
        self.look_at_files()
        self._dispatch(CatalogChanged(catalog.policies(), catalog.fleet_limits()))
        if self._spares is not None:
            self._spares.resize(catalog.spares)
        if self._machine is not None:
            if self._survey is not None:
                self._survey.cancel()
            self._survey = self._tasks.spawn(self._look_again(self._machine, catalog), "survey of needs")

    async def _look_again(self, machine: MachineWatch, catalog: Catalog) -> None:
        await machine.discover(catalog)
        await machine.survey(catalog)

    def tick(self) -> None:
        """What is due is done. Raises: whatever the handling of events fails with, which is a fault of ours."""
        self._dispatch(Tick())

    def snapshot(self) -> FleetSnapshot:
        """Return how every model stands, for display."""
        return self._fleet.snapshot(time.monotonic())

    def status(self, worker: WorkerId) -> WorkerStatus | None:
        """Return the last line of a live worker's status link."""
        return self._runs.status(worker)

    def earlier_status(self, worker: WorkerId) -> WorkerStatus | None:
        """Return a line of the same link that is one or two seconds older; None = there is none yet."""
        return self._runs.earlier_status(worker)

    def waiters(self) -> list[WaiterView]:
        """Return who waits for a place now, the most urgent first; for display."""
        return self._fleet.waiters(time.monotonic())

    def fetches(self) -> dict[str, FetchProgress]:
        """Return how far each download is, by model."""
        return self._runs.fetches()

    def hung(self) -> Mapping[WorkerId, str]:
        """Return the workers that give no sign of life, each with how that was seen."""
        return self._machine.hung if self._machine is not None else {}

    def watch(self, listener: Callable[[FleetSnapshot], None]) -> Callable[[], None]:
        """Have `listener` called after every change of a model, a load's progress included; returns how to stop it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def logs(self, model: str) -> list[tuple[WorkerId, LogTail]]:
        """Return what the model's live workers printed; that of the last dead one if none is alive."""
        return self._runs.logs(model)

    def header_of(self, spec: ModelSpec) -> GgufHeader | None:
        """Return what the model's file says of itself; None = it is not here, or has not been read."""
        return self._headers.get(spec)

    def context_of(self, spec: ModelSpec) -> int | None:
        """Return the tokens that one request may use; None = unknown until the model's file is here."""
        header = self._headers.get(spec)
        cap = self._machine.context_cap(spec) if self._machine is not None else None
        return None if header is None else effective_context(spec, capped_context(header.trained_context, cap))

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
        self._shares.tell()

    def _handle(self, event: Event) -> None:
        now_s = time.monotonic()
        actions = self._fleet.handle(event, now_s)
        match event:
            case WorkerReady(worker):
                self._note_ready(worker)
            case WorkerExited(worker):
                self._shares.are_due |= self._runs.remove(worker)
        for action in actions:
            self._perform(action)
        has_moved = any(isinstance(action, SpawnWorker | StopWorker) for action in actions)
        if has_moved or not isinstance(event, _OFTEN):
            fleet = self._fleet.snapshot(now_s)
            self._log.note(event, fleet, now_s)
            for listener in list(self._listeners):
                listener(fleet)

    def _perform(self, action: Action) -> None:
        match action:
            case SpawnWorker(worker, placement):
                self._start_run(worker, placement)
            case PlaceWorker(worker, placement):
                self._runs[worker].placement = placement
            case StopWorker(worker):
                if (run := self._runs.get(worker)) is not None:
                    run.stop(action)
                else:
                    self._dispatch(WorkerExited(worker, WorkerExit(ExitReason.STOPPED, "it was never started")))
            case GrantLease(lease_id, worker):
                self._grant(lease_id, worker)
            case RefuseLease():
                self._tickets.refuse(action)
            case RefuseLoad(model, detail):
                self._log.load_refused(model, detail)
            case _:
                assert_never(action)

    def _start_run(self, worker: WorkerId, placement: Placement) -> None:
        spec = self.catalog.models.get(worker.model)
        if spec is None or self._ground is None:
            self._dispatch(WorkerExited(worker, WorkerExit(ExitReason.STOPPED, "the model is no longer configured")))
            return
        run = WorkerRun(worker, spec, self._ground, self._shares.first_share(worker), placement)
        self._runs.add(run)
        self._tasks.spawn(run.run(), f"worker {worker}")

    def _grant(self, lease_id: LeaseId, worker: WorkerId) -> None:
        run = self._runs[worker]
        if not self._tickets.grant(lease_id, run):
            self._dispatch(LeaseReleased(lease_id, 0))
        self._shares.are_due |= run.num_leases == 1

    def _note_ready(self, worker: WorkerId) -> None:
        run = self._runs.get(worker)
        if run is not None and run.ready_at_s is not None and run.is_alive:
            self._log.note_ready(worker.model, run.ready_at_s - run.spawned_at_s)
            self._shares.are_due = True

    # --- timers, threads, tasks ---

    def _set_timer(self, least_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_s = self._fleet.next_deadline_s
        if deadline_s is not None and self._ground is not None:
            delay_s = max(least_s, deadline_s - time.monotonic() + _TIMER_MARGIN_S)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.tick)
