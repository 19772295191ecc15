"""One incarnation of a worker, from the decision to start it to its reaped end.

Owns its file, process, status link and HTTP session, and turns what happens to them into events. Must not decide
when a worker starts or stops (`fleet.py` does), nor know other workers. Whatever happens, a run emits exactly one
`WorkerExited`, and nothing after it.

    find or fetch files -> read their headers -> spawn -> WorkerStarted -> WorkerProgressed ... -> WorkerReady -> ...
                                                                                        -> WorkerExited
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import aiohttp

from router.catalog import ModelSpec
from router.events import (
    Event,
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
from router.gguf_header import GgufError, GgufHeader, read_gguf_header
from router.launch import build_launch_spec, capped_threads, default_max_leases, worker_environment
from router.log_tail import LogTail
from router.lora_files import check_lora, lora_error, lora_reference
from router.metrics import RouterMetrics
from router.model_headers import Locator, ModelHeaders
from router.process import WorkerProcess
from router.references import Reference, parse_reference
from router.runtime_dir import RuntimeDir
from router.status import has_moved
from worker.contract import Control, ControlOp, Phase, WorkerStatus

logger = logging.getLogger(__name__)

_SOCK_CONNECT_S = 10.0
_READ_BUFFER_BYTES = 2**18
_PROGRESS_EVERY_S = 1.0
_FETCH_LOG_EVERY_S = 10.0


class ModelFiles(Locator, Protocol):
    """What is needed of a model store here."""

    async def fetch(
        self, reference: Reference, base_dir: Path, on_progress: Callable[[FetchProgress], None]
    ) -> Path: ...


class _Stopped(Exception):
    """Told to stop before there was a process."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What all runs of one router share."""

    store: ModelFiles
    headers: ModelHeaders
    metrics: RouterMetrics
    runtime: RuntimeDir
    command: Sequence[str]
    environ: Mapping[str, str]
    calibration_dir: Path | None
    emit: Callable[[Event], None]


class WorkerRun:
    """See the module. Everything is called from the event loop."""

    def __init__(self, worker: WorkerId, spec: ModelSpec, ground: Ground, num_threads: int) -> None:
        self.worker = worker
        self.spec = spec
        self.fetch_progress: FetchProgress | None = None
        """While its file is being fetched."""
        self.spawned_at_s = time.monotonic()
        self.ready_at_s: float | None = None
        self.session: aiohttp.ClientSession | None = None
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
        self._preparation: asyncio.Task[_Files] | None = None
        self._process: WorkerProcess | None = None
        self._stop: tuple[StopWorker, str] | None = None
        self._stops: set[asyncio.Task[WorkerExit]] = set()
        self._status: WorkerStatus | None = None
        self._told_progress_at_s = self._logged_fetch_at_s = -float("inf")
        self._fetch_s: float | None = None

    @property
    def status(self) -> WorkerStatus | None:
        """The last line of the status link."""
        return self._status

    @property
    def uses_cpu(self) -> bool:
        """Whether it needs a share of the cores: something of the model is computed there."""
        facts = self._status.facts if self._status else None
        if facts is not None:
            return facts.device.lower().startswith("cpu") or facts.gpu_layers < facts.total_layers
        return True

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
            self._socket_path.unlink(missing_ok=True)
            was_killed = self._process is not None and self._process.is_escalated
            self._ground.metrics.worker_exited(self.worker, exit_.reason, was_killed=was_killed)
            self._ground.emit(WorkerExited(self.worker, exit_))
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
        except GgufError as error:
            return WorkerExit(ExitReason.BAD_MODEL, f"the model's file is no good: {error}")
        except OSError as error:
            return WorkerExit(ExitReason.SPAWN_FAILED, f"cannot start {self._ground.command[0]}: {error}")
        return await process.wait()

    async def _start(self) -> WorkerProcess:
        """Return the process, told to stop already if that was asked in the meantime."""
        self._preparation = asyncio.get_running_loop().create_task(self._prepare())
        files = await self._preparation
        if self._stop is not None:
            raise _Stopped
        ground = self._ground
        launch = build_launch_spec(
            self.spec,
            self.worker,
            model_path=files.path,
            lora_paths=files.lora_paths,
            draft_path=files.draft_path,
            socket_path=self._socket_path,
            trained_context=files.header.trained_context,
            num_threads=self.num_threads,
            calibration_dir=ground.calibration_dir,
            # A router that logs warnings only still wants a failed load's reason among the worker's last words.
            log_level="DEBUG" if logger.isEnabledFor(logging.DEBUG) else "INFO",
        )
        self.num_threads = launch.num_threads
        process = await WorkerProcess.spawn(
            ground.command,
            launch,
            env=worker_environment(ground.environ, self.spec.env),
            cwd=ground.runtime.path,
            on_status=self._on_status,
        )
        self._process = process
        self.log = process.log
        ground.metrics.worker_started(self.worker.model)
        what = f"loading ({files.describe()}, process {process.pid})"
        logger.info("%s: %s", self.worker.model, what, extra=fields(self.worker.model, "loading"))
        ground.emit(WorkerStarted(self.worker))
        if self._stop is not None:
            self._stop_process(process, self._stop[0].grace_s)
        return process

    async def _prepare(self) -> _Files:
        """Return the files of the model and its adapters. Raises: SourceError, GgufError."""
        spec = self.spec
        try:
            reference = parse_reference(spec.source)
        except ValueError as error:
            raise SourceError(str(error), is_permanent=True) from None
        path = await self._bring(reference)
        header = await self._ground.headers.read(spec, path)
        lora_paths = []
        for lora in spec.loras:
            try:
                lora_path = await self._bring(lora_reference(lora))
            except SourceError as error:
                raise lora_error(lora, error) from None
            await asyncio.to_thread(check_lora, lora, lora_path, header)
            lora_paths.append(lora_path)
        return _Files(path, header, tuple(lora_paths), await self._bring_draft())

    async def _bring_draft(self) -> Path | None:
        """Return the draft model's file, if there is one. Raises: SourceError that names it."""
        if self.spec.draft_source is None:
            return None
        try:
            path = await self._bring(parse_reference(self.spec.draft_source))
            await asyncio.to_thread(read_gguf_header, path)
        except SourceError as error:
            message = f"draft model: {error.message}"
            raise SourceError(message, is_permanent=error.is_permanent, details=error.details) from None
        except (ValueError, GgufError, OSError) as error:
            raise SourceError(f"draft model: {error}", is_permanent=True) from None
        return path

    async def _bring(self, reference: Reference) -> Path:
        """Return a file, after fetching it if need be. Raises: SourceError."""
        store, base_dir = self._ground.store, self.spec.base_dir
        path = await asyncio.to_thread(store.locate, reference, base_dir)
        if path is not None:
            return path
        told = fields(self.worker.model, "downloading")
        logger.info("%s: fetching %s", self.worker.model, reference.short(), extra=told)
        try:
            path = await store.fetch(reference, base_dir, self._on_fetch_progress)
        finally:
            self.fetch_progress = None
        self._fetch_s = time.monotonic() - self.spawned_at_s
        self._note_progress()
        return path

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
            return "its file was being fetched" + (f" ({fetched.done_bytes / 1e6:.0f} MB were here)" if fetched else "")
        status = self._status
        if status is None:
            return "the worker had not said anything yet"
        progress = "" if status.progress is None else f" at {status.progress:.0%}"
        return f"the worker was {status.phase.value}{progress}"

    # --- signs of life ---

    def _on_fetch_progress(self, progress: FetchProgress) -> None:
        self.fetch_progress = progress
        self._note_progress()
        now_s = time.monotonic()
        if now_s - self._logged_fetch_at_s >= _FETCH_LOG_EVERY_S and progress.total_bytes:
            self._logged_fetch_at_s = now_s
            logger.info("%s: %s", self.worker.model, progress.text, extra=fields(self.worker.model, "downloading"))

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
        before, self._status = self._status, status
        self._ground.metrics.status_received(self.worker, status)
        if self.ready_at_s is not None:
            return
        if status.phase is Phase.READY:
            self._become_ready(status)
        elif has_moved(before, status):
            self._note_progress()

    def _become_ready(self, status: WorkerStatus) -> None:
        self.ready_at_s = time.monotonic()
        self.session = aiohttp.ClientSession(
            "http://worker",  # a name for the Host header; the connector always goes to the socket
            connector=aiohttp.UnixConnector(str(self._socket_path), limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_SOCK_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=_READ_BUFFER_BYTES,
        )
        phases = dict(status.load_seconds)
        if self._fetch_s is not None:
            phases["fetch"] = self._fetch_s
        phases["total"] = self.ready_at_s - self.spawned_at_s
        self._ground.metrics.worker_loaded(self.worker.model, phases)
        self._ground.emit(WorkerReady(self.worker, status.max_leases or default_max_leases(self.spec.slots)))


@dataclass(frozen=True, slots=True)
class _Files:
    """What a worker loads, all of it on this machine."""

    path: Path
    header: GgufHeader
    lora_paths: tuple[Path, ...]
    """In the order of the model's adapters."""
    draft_path: Path | None = None

    def describe(self) -> str:
        """Return the words for the log."""
        header = self.header
        parts = f", first of {header.split_count} files" if header.split_count > 1 else ""
        count = len(self.lora_paths)
        adapters = "" if not count else ", 1 LoRA adapter" if count == 1 else f", {count} LoRA adapters"
        return f"{self.path.name}, {header.size_bytes / 1e6:.0f} MB{parts}{adapters}"
