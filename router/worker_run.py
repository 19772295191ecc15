"""One incarnation of a worker, from the decision to start it to its reaped end.

Owns its file, process, status link and HTTP session, and turns what happens to them into events. Must not decide
when a worker starts or stops (`fleet.py` does), nor know other workers. Whatever happens, a run emits exactly one
`WorkerExited`, and nothing after it.

    bring files -> hook before_load -> spare or new process -> WorkerStarted -> WorkerProgressed ... -> WorkerReady
                                                                                        -> ... -> WorkerExited
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from router.catalog import ModelSpec
from router.device import NOWHERE, Device, Placement
from router.events import (
    ExitReason,
    StopWorker,
    WorkerExit,
    WorkerExited,
    WorkerId,
    WorkerProgressed,
    WorkerReady,
    WorkerStarted,
)
from router.fetch.protocol import FetchProgress, SourceError
from router.fleet_log import fields
from router.gguf_header import GgufError
from router.ground import Ground
from router.hooks import HookEvent, HookFailed, Occasion
from router.launch import build_launch_spec, capped_context, capped_threads, worker_environment
from router.log_tail import LogTail
from router.process import WorkerProcess
from router.readahead import ReadAhead
from router.reasons import gigabytes
from router.status import has_moved
from router.worker_devices import find_mismatch, status_outside
from router.worker_files import Delivery, WorkerFiles
from router.worker_session import WorkerSession
from worker.contract import Control, ControlOp, LaunchSpec, ModelFacts, Phase, WorkerStatus, default_max_leases

logger = logging.getLogger(__name__)

_PROGRESS_EVERY_S = 1.0
_SPEED_OVER_S = 1.0
"""Over at least so long it is seen how fast a worker is."""

T = TypeVar("T")


class _Stopped(Exception):
    """Told to stop before there was a process."""


class WorkerRun:
    """See the module. Everything is called from the event loop."""

    def __init__(
        self, worker: WorkerId, spec: ModelSpec, ground: Ground, num_threads: int, placement: Placement = NOWHERE
    ) -> None:
        self.worker = worker
        self.spec = spec
        self.placement = placement
        """May be changed until the process is told what to load."""
        self.mismatch: str | None = None
        """How it does not run where it was placed, in words; None = it does, or is not loaded yet."""
        self.spawned_at_s = time.monotonic()
        self.ready_at_s: float | None = None
        self.session: WorkerSession | None = None
        """Over the worker's socket, from READY on."""
        self.log = LogTail()
        self.num_threads = num_threads
        self.num_leases = 0
        self.is_over = asyncio.Event()
        """`WorkerExited` was emitted."""
        self._unused = asyncio.Event()
        self._unused.set()
        self._ground = ground
        self._socket_path = ground.runtime.new_socket_path()
        self._delivery = Delivery(spec, ground.store, ground.headers, self._note_progress)
        self._files: WorkerFiles | None = None
        self._preparation: asyncio.Task[Any] | None = None
        self._readahead = ReadAhead()
        self._is_prepared = False
        """Its hook `before_load` has done its part, so `after_unload` is due at the end."""
        self._process: WorkerProcess | None = None
        self._stop: tuple[StopWorker, str] | None = None
        self._stops: set[asyncio.Task[WorkerExit]] = set()
        self._status: WorkerStatus | None = None
        self._mark: WorkerStatus | None = None
        """The last line that is at least `_SPEED_OVER_S` younger than the one before it."""
        self.earlier_status: WorkerStatus | None = None
        """A line that is one or two of these times older than the last one, for who wants to know speeds."""
        self._told_progress_at_s = -float("inf")

    @property
    def status(self) -> WorkerStatus | None:
        """The last line of the status link."""
        return self._status

    @property
    def _context_cap(self) -> int | None:
        machine = self._ground.machine
        return machine.context_cap(self.spec) if machine is not None else None

    def adopt(self, spec: ModelSpec | None) -> None:
        """What `spec` says holds from now on, unless it takes another worker to run it."""
        if spec is not None and spec.fingerprint() == self.spec.fingerprint():
            self.spec = spec

    @property
    def fetch_progress(self) -> FetchProgress | None:
        """How far the download is, while a file is being fetched."""
        return self._delivery.progress

    @property
    def uses_cpu(self) -> bool:
        """Whether it needs a share of the cores: something of the model is computed there."""
        facts = self._status.facts if self._status else None
        if facts is not None:
            return facts.device.lower().startswith("cpu") or facts.gpu_layers < facts.total_layers
        return True

    @property
    def pid(self) -> int | None:
        """Of its process; None before there is one and when it is over."""
        return None if self._process is None or self.is_over.is_set() else self._process.pid

    @property
    def is_alive(self) -> bool:
        """The process exists and was not told to stop."""
        return self._process is not None and self._stop is None and not self.is_over.is_set()

    # --- what the supervisor asks ---

    async def run(self) -> None:
        """Return when the worker is gone and nobody uses its session any more."""
        exit_ = WorkerExit(ExitReason.SPAWN_FAILED, "the router failed to start it; see the router's log")
        try:
            exit_ = await self._live()
        finally:
            self.is_over.set()
            if self._process is not None:
                self._process.kill()  # it is gone, unless a fault of ours has ended this run before it
            self._end_load()
            self._socket_path.unlink(missing_ok=True)
            was_killed = self._process is not None and self._process.is_escalated
            self._ground.metrics.worker_exited(self.worker, exit_.reason, was_killed=was_killed)
            self._ground.emit(WorkerExited(self.worker, exit_))
            if self._is_prepared:
                self._hook_later("after_unload")
        # Bytes that the worker wrote before its end may still be on their way to a client: they are in the session.
        try:
            await self._unused.wait()
        finally:
            if self.session is not None:
                await self.session.close()

    def stop(self, order: StopWorker) -> None:
        """The worker is on its way out; how far it had come does not matter."""
        if self._stop is None:
            self._stop = (order, self._explain_stop(order))
        if self._process is not None:
            self._stop_process(self._process, order.grace_s)
        elif self._preparation is not None:
            self._preparation.cancel()

    def kill(self) -> None:
        """SIGKILL now, with no grace at all, also for a process that is only just being made."""
        if self._stop is not None:
            self._stop = (dataclasses.replace(self._stop[0], grace_s=0.0), self._stop[1])
        if self._process is not None:
            self._process.kill()
        elif self._preparation is not None:
            self._preparation.cancel()

    def lend(self) -> None:
        """One more request uses the session."""
        self.num_leases += 1
        self._unused.clear()

    def take_back(self) -> None:
        """One request fewer uses the session."""
        self.num_leases -= 1
        if not self.num_leases:
            self._unused.set()

    def tell_threads(self, share: int) -> None:
        """The worker is to use `share` threads from its next pass on; repeated numbers are not sent."""
        num_threads = capped_threads(self.spec, share)
        if num_threads != self.num_threads and self._process is not None:
            self.num_threads = num_threads
            self._process.send(Control(ControlOp.THREADS, num_threads))

    # --- life ---

    async def _live(self) -> WorkerExit:
        try:
            process = await self._start()
        except (_Stopped, asyncio.CancelledError):
            if self._stop is None:
                raise
            order, detail = self._stop
            return WorkerExit(order.reason, detail)
        except SourceError as error:
            if error.details:
                words = " / ".join(error.details.splitlines())
                logger.info("%s: what its download printed: %s", self.worker.model, words)
            reason = ExitReason.BAD_MODEL if error.is_permanent else ExitReason.SOURCE_FAILED
            return WorkerExit(reason, str(error))
        except HookFailed as error:
            return WorkerExit(ExitReason.HOOK_FAILED, str(error))
        except GgufError as error:
            return WorkerExit(ExitReason.BAD_MODEL, f"the model's file is no good: {error}")
        except OSError as error:
            return WorkerExit(ExitReason.SPAWN_FAILED, f"cannot start {self._ground.command[0]}: {error}")
        exit_ = await process.wait()
        if self._ground.machine is not None:
            await self._ground.machine.wait_for_memory(self.worker, self.placement)
        return exit_

    async def _start(self) -> WorkerProcess:
        """Return the process, told to stop already if that was asked in the meantime."""
        ground = self._ground
        files = self._files = await self._unless_stopped(self._delivery.bring())
        self._begin_load(files)
        await self._unless_stopped(self._prepare())
        if ground.machine is not None:
            await self._unless_stopped(ground.machine.size(self.worker, self.spec, files.path))
        devices = ground.devices
        launch = self._launch_spec(files, devices)
        self.num_threads = launch.num_threads
        env = worker_environment(ground.environ, self.spec.env, self.placement, devices)
        process, what = await self._launch_process(launch, env)
        self._process = process
        self.log = process.log
        ground.metrics.worker_started(self.worker.model)
        words = f"loading ({files.describe()}, {what} {process.pid})"
        logger.info("%s: %s", self.worker.model, words, extra=fields(self.worker.model, "loading"))
        ground.emit(WorkerStarted(self.worker))
        if self._stop is not None:
            self._stop_process(process, self._stop[0].grace_s)
        return process

    async def _launch_process(self, launch: LaunchSpec, env: Mapping[str, str]) -> tuple[WorkerProcess, str]:
        """Return the process that has been told what to load, and what kind of process it is. Raises: OSError."""
        ground = self._ground
        spare = ground.spares.take(env) if ground.spares is not None else None
        if spare is not None:
            spare.launch(launch, self._on_status)
            return spare, "spare process"
        process = await WorkerProcess.spawn(
            ground.command, launch, env=env, cwd=ground.runtime.path, on_status=self._on_status
        )
        return process, "process"

    def _launch_spec(self, files: WorkerFiles, devices: Mapping[str, Device]) -> LaunchSpec:
        return build_launch_spec(
            self.spec,
            self.worker,
            model_path=files.path,
            lora_paths=files.lora_paths,
            draft_path=files.draft_path,
            socket_path=self._socket_path,
            trained_context=capped_context(files.header.trained_context, self._context_cap),
            num_threads=self.num_threads,
            placement=self.placement,
            devices=devices,
            calibration_dir=self._ground.cache_folder("calibration"),
            prompts_dir=self._ground.cache_folder("prompts"),
            check_cells=self._ground.checks_cells,
            # A router that logs warnings only still wants a failed load's reason among the worker's last words.
            log_level="DEBUG" if logger.isEnabledFor(logging.DEBUG) else "INFO",
        )

    async def _prepare(self) -> None:
        """The hook `before_load` has succeeded. Raises: HookFailed."""
        await self._ground.hooks.run(self._occasion("before_load"), self._ground.environ)
        self._is_prepared = True

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, which an order to stop cancels."""
        if self._stop is not None:
            work.close()
            raise _Stopped
        self._preparation = asyncio.get_running_loop().create_task(work)
        result: T = await self._preparation
        if self._stop is not None:
            raise _Stopped
        return result

    def _begin_load(self, files: WorkerFiles) -> None:
        self._readahead.start(files.all_paths)
        if self._ground.spares is not None:
            self._ground.spares.load_begins(self.worker)

    def _end_load(self) -> None:
        self._readahead.cancel()
        if self._ground.spares is not None:
            self._ground.spares.load_ends(self.worker)

    def _occasion(self, event: HookEvent) -> Occasion:
        assert self._files is not None
        return Occasion(event, self.spec, self._files.path)

    def _hook_later(self, event: HookEvent) -> None:
        self._ground.hooks.run_later(self._occasion(event), self._ground.environ)

    def _stop_process(self, process: WorkerProcess, grace_s: float) -> None:
        assert self._stop is not None
        order, detail = self._stop
        task = asyncio.get_running_loop().create_task(process.stop(grace_s, order.reason, detail))
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    def _explain_stop(self, order: StopWorker) -> str:
        if order.reason is not ExitReason.LOAD_TIMEOUT:
            return "stopped by the router"
        return f"{self._describe_stage()} {time.monotonic() - self.spawned_at_s:.0f} s after the start"

    def _describe_stage(self) -> str:
        if self._process is None:
            fetched = self.fetch_progress
            if self._is_prepared:
                return "its process was being started"
            if self._files is not None:
                return "its hook `before_load` was running"
            return "its file was being fetched" + (f" ({gigabytes(fetched.done_bytes)} were here)" if fetched else "")
        status = self._status
        if status is None:
            return "the worker had not said anything yet"
        progress = "" if status.progress is None else f" at {status.progress:.0%}"
        return f"the worker was {status.phase.value}{progress}"

    # --- signs of life ---

    def _note_progress(self) -> None:
        """Tell the fleet, but not more often than its load timeout can be concerned with."""
        now_s = time.monotonic()
        every_s = min(_PROGRESS_EVERY_S, self.spec.load_timeout_s / 4 or _PROGRESS_EVERY_S)
        if now_s - self._told_progress_at_s >= every_s:
            self._told_progress_at_s = now_s
            self._ground.emit(WorkerProgressed(self.worker))

    def _on_status(self, status: WorkerStatus) -> None:
        if self.is_over.is_set():
            return
        status = status_outside(status, self.placement, self._ground.devices)
        before, self._status = self._status, status
        if self._mark is None or status.at_s - self._mark.at_s >= _SPEED_OVER_S:
            self.earlier_status, self._mark = self._mark, status
        self._ground.metrics.status_received(self.worker, status)
        if self.ready_at_s is not None or self._stop is not None:
            return
        if status.phase is Phase.READY:
            self._become_ready(status)
        elif has_moved(before, status):
            self._note_progress()

    def _become_ready(self, status: WorkerStatus) -> None:
        self.ready_at_s = time.monotonic()
        self.session = WorkerSession(self._socket_path)
        self._end_load()
        phases = dict(status.load_seconds)
        if self._delivery.seconds is not None:
            phases["fetch"] = self._delivery.seconds
        phases["total"] = self.ready_at_s - self.spawned_at_s
        self._ground.metrics.worker_loaded(self.worker.model, phases)
        max_leases = status.max_leases or default_max_leases(self.spec.slots)
        self._ground.emit(WorkerReady(self.worker, max_leases, self.spec.slots))
        self._hook_later("after_load")
        if self._ground.machine is not None and self._files is not None:
            self._ground.machine.learn(self.worker, self.spec, self._files.path, status)
        if status.facts is not None:
            self._check_placement(status.facts)

    def _check_placement(self, facts: ModelFacts) -> None:
        self.mismatch = find_mismatch(self.placement, facts)
        if self.mismatch is not None:
            logger.error("%s: %s", self.worker.model, self.mismatch, extra=fields(self.worker.model, "ready"))
