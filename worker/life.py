"""One worker's life: load, serve, drain, exit; and its status at any moment.

Owns the order of these and the exit code. Must not know requests, prompts or llama.cpp's calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import signal
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker.contract import Control, ControlOp, ExitCode, LaunchSpec, Phase, WorkerStatus, default_max_leases
from worker.engine.errors import LoadFailed, OutOfMemory
from worker.lifeline import Lifeline
from worker.loading import Loaded, load
from worker.reporter import Reporter, StatusLink

if TYPE_CHECKING:
    from aiohttp import web

    from worker.api.gate import Gate
    from worker.engine.embedder import Embedder
    from worker.engine.engine import Engine

log = logging.getLogger("worker")

IMPORTED_WHILE_READING = (
    "worker.app",
    "worker.chat.template",
    "worker.memory",
    "worker.engine.engine",
    "worker.engine.embedder",
    "worker.engine.llama_probe",
    "numpy.ctypeslib",
    "numpy.ma",
    "numpy.random",
)
"""What serving needs and loading does not. NumPy's own parts are imported when first used, which would be the first
request."""

PSS_PERIOD_S = 15.0
PROGRESS_GAP_S = 0.1
"""Between lines about the progress of loading."""

KEEP_PROMPTS_S = 3.0
"""A worker that leaves writes prompts to the disk for so long at most: somebody waits for its place."""
TERM_GRACE_S = 4.0
"""After a SIGTERM it is gone by then, requests and prompts included, or would soon be killed."""


class Life:
    """The worker from its launch spec to its exit code. Everything happens on the event loop."""

    def __init__(
        self, spec: LaunchSpec, lifeline: Lifeline, link: StatusLink, started_at_s: float, *, spawn_s: float = 0.0
    ) -> None:
        """`spawn_s` is how long it took until `started_at_s`."""
        self._spec = spec
        self._lifeline = lifeline
        self._link = link
        self._started_at_s = started_at_s
        self._phase = Phase.STARTING
        self._progress: float | None = None
        self._progress_at_s = 0.0
        self._num_threads = spec.num_threads
        self._loaded: Loaded | None = None
        self._engine: Engine | None = None
        self._embedder: Embedder | None = None
        self._gate: Gate | None = None
        self._has_template = False
        self._load_seconds = {"spawn": round(spawn_s, 4)}
        self._pss: int | None = None
        self._reporter = Reporter(link, self.status)
        self._is_leaving = False
        self._terminated_at_s: float | None = None
        """When the first SIGTERM came."""
        self._failure: str | None = None

    async def live(self) -> ExitCode:
        """Return the exit code when the worker has nothing left to do."""
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(signal_number, self._terminate)
        self._lifeline.set_on_control(self._on_control)
        self._enter(Phase.LOADING)
        regular = self._tend(self._reporter.run(), "the status reports")
        try:
            loaded = await self._load()
            if loaded is None:
                return ExitCode.OK if self._failure is None else self._fail(self._failure, ExitCode.ENGINE_FAILED)
        except LoadFailed as error:
            code = ExitCode.NO_MEMORY if isinstance(error, OutOfMemory) else ExitCode.BAD_MODEL
            return self._fail(str(error), code)
        except MemoryError:
            return self._fail("not enough memory to load the model", ExitCode.NO_MEMORY)
        runner = await self._serve(loaded)
        measuring = self._tend(self._measure_pss(), "the measuring of memory")
        calibrating = self._tend(self._calibrate(loaded), "the calibration")
        code = await self._until_done()
        if code is ExitCode.OK and loaded.prompts is not None:
            await self._keep_prompts()
        for task in (regular, measuring, calibrating):
            task.cancel()
        await runner.cleanup()
        if code is ExitCode.OK:
            self._reporter.send()  # what it has counted since the last line would be lost
        return code

    def status(self) -> WorkerStatus:
        """Return the snapshot that the status link shows."""
        status = WorkerStatus(
            phase=self._phase,
            progress=self._progress,
            at_s=time.monotonic(),
            max_leases=default_max_leases(self._spec.engine.slots),
            num_threads=self._num_threads,
            load_seconds=self._load_seconds,
        )
        if self._engine is None:
            return status
        now = self._engine.snapshot()
        facts = replace(self._engine.facts, has_chat_template=self._has_template)
        return replace(
            status,
            step=now.step,
            step_at_s=now.step_at_s,
            has_work=now.has_work or (self._embedder is not None and self._embedder.has_work),
            queue_length=now.queue_length,
            num_threads=now.num_threads,
            max_rows=now.max_rows if self._embedder is None or facts.can_generate else self._embedder.shape.usual_rows,
            facts=facts,
            slots=now.slots,
            counters=now.counters,
            histograms=now.histograms,
            kv_cells=now.kv_cells if facts.can_generate else {},
            memory_bytes=self._memory(facts.size_bytes),
            device_bytes={} if self._loaded is None else self._loaded.device_bytes,
        )

    def fail(self, reason: str) -> None:
        """The router knows why this worker ends. For errors that nothing else has caught."""
        self._fail(reason, ExitCode.ENGINE_FAILED)

    # --- the stages -------------------------------------------------------------------------------------

    async def _load(self) -> Loaded | None:
        """Return the loaded model; None when the worker was told to leave or has failed meanwhile.

        Raises: as `load`.
        """
        importlib.import_module("worker.engine.llama")
        self._load_seconds |= {"import": round(time.monotonic() - self._started_at_s, 4)}
        executor = ThreadPoolExecutor(1, thread_name_prefix="load")
        loading = self._loop.run_in_executor(executor, load, self._spec, self._on_progress)
        # The weights are read without the interpreter's lock, so these imports cost no time of their own.
        for name in IMPORTED_WHILE_READING:
            importlib.import_module(name)
        leaving = asyncio.create_task(self._news.wait())
        either: set[asyncio.Future[Any]] = {loading, leaving}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        return None if self._is_leaving or self._failure is not None else await loading

    async def _serve(self, loaded: Loaded) -> web.AppRunner:
        """Requests are answered, and the router knows."""
        from aiohttp import web

        from worker.api.gate import Gate
        from worker.api.served import ServedModel
        from worker.app import make_app, make_runner
        from worker.engine.embedder import Embedder
        from worker.engine.engine import Engine
        from worker.engine.pair_prompt import pair_prompt
        from worker.engine.pooling import Pooling
        from worker.engine.saved_slots import saved_slots_of

        spec, backend = self._spec, loaded.backend
        self._loaded = loaded
        engine = self._engine = Engine(
            backend,
            spec.engine,
            num_threads=self._num_threads,
            check_cells=spec.check_cells,
            draft_model=loaded.draft_model,
            prompts=loaded.prompts,
            on_failure=self._on_engine_failure,
            on_change=self._reporter.nudge,
        )
        engine.start()
        embedder = self._embedder = Embedder(
            engine, backend.pooled, target_gap_ms=spec.engine.itl_target_ms, on_failure=self._on_engine_failure
        )
        saved_slots = saved_slots_of(
            engine, loaded.prompts, can_share=backend.can_share, disk_bytes=spec.engine.prompt_cache_disk_bytes
        )
        gate = self._gate = Gate(self._reporter.nudge)
        model = ServedModel(
            name=spec.model,
            engine=engine,
            vocabulary=backend.vocabulary,
            template=loaded.template,
            template_problem=loaded.template_problem,
            template_source=loaded.template_source,
            template_kwargs=spec.chat_template_kwargs,
            allows_request_templates=spec.allow_request_templates,
            drops_billing_header=spec.drop_billing_header,
            max_tokens=spec.max_tokens,
            loras=spec.engine.loras,
            embedder=embedder,
            saved_slots=saved_slots if backend.facts.can_generate else None,
            speech=loaded.speech,
            identity=loaded.identity,
            pair_prompt=pair_prompt(backend.vocabulary) if backend.pooled.shape.pooling is Pooling.RANK else None,
        )
        self._has_template = loaded.template is not None
        runner = make_runner(make_app(model, gate))
        await runner.setup()
        await web.UnixSite(runner, spec.socket_path).start()
        self._load_seconds |= loaded.seconds
        self._enter(Phase.READY)
        if loaded.template_problem:
            log.warning("the chat template cannot be used: %s", loaded.template_problem)
        return runner

    async def _until_done(self) -> ExitCode:
        """Return when everybody has left the closed gate, or the engine has failed."""
        assert self._gate is not None
        await self._news.wait()
        self._gate.close()
        if self._failure is None:
            self._enter(Phase.DRAINING)
            self._news.clear()
            drained = asyncio.create_task(self._gate.wait_empty())
            broken = asyncio.create_task(self._news.wait())
            await asyncio.wait({drained, broken}, return_when=asyncio.FIRST_COMPLETED)
        if self._failure is None:
            return ExitCode.OK
        code = self._fail(self._failure, ExitCode.ENGINE_FAILED)
        await asyncio.wait({asyncio.create_task(self._gate.wait_empty())}, timeout=1.0)
        return code

    async def _keep_prompts(self) -> None:
        """Finished prompts are on the disk for the next worker of this model, as far as the time allows."""
        from worker.engine.errors import EngineStopped

        assert self._engine is not None
        now_s = time.monotonic()
        until_s = now_s + KEEP_PROMPTS_S
        if self._terminated_at_s is not None:
            until_s = min(until_s, self._terminated_at_s + TERM_GRACE_S)
        with contextlib.suppress(EngineStopped, TimeoutError):
            async with asyncio.timeout(max(0.0, until_s - now_s) + 0.5):
                await self._engine.save_prompts(until_s)

    async def _calibrate(self, loaded: Loaded) -> None:
        """Find out, or know from an earlier time, what passes cost here."""
        from worker.engine.calibrator import Calibrator
        from worker.engine.llama import LlamaBackend

        folder, backend = self._spec.calibration_dir, loaded.backend
        if folder is None or loaded.subject is None or not isinstance(backend, LlamaBackend):
            return
        assert self._engine is not None
        calibrator = Calibrator(self._engine, self._spec.engine, loaded.subject, Path(folder), backend.probe)
        await calibrator.run(backend.context.flash_attn)

    def _tend(self, work: Coroutine[None, None, None], what: str) -> asyncio.Task[None]:
        """Return the task of `work`; its end by a fault ends this life, with the reason."""
        task = asyncio.create_task(work, name=what)
        task.add_done_callback(self._on_task_end)
        return task

    async def _measure_pss(self) -> None:
        from worker.memory import read_pss

        while True:
            self._pss = await asyncio.to_thread(read_pss)
            await asyncio.sleep(PSS_PERIOD_S)

    # --- what happens from outside ----------------------------------------------------------------------

    def _on_progress(self, fraction: float) -> bool:
        """Note the progress; called in the loading thread. False once the worker is leaving."""
        now_s = time.monotonic()
        if fraction >= 1.0 or now_s - self._progress_at_s >= PROGRESS_GAP_S:
            self._progress_at_s = now_s
            self._loop.call_soon_threadsafe(self._show_progress, fraction)
        return not self._is_leaving and self._failure is None

    def _show_progress(self, fraction: float) -> None:
        if self._phase is Phase.LOADING:
            self._progress = fraction
            self._reporter.send()
            if fraction >= 1.0:
                self._enter(Phase.WARMING)

    def _on_engine_failure(self, error: BaseException) -> None:
        self._give_up(f"the engine failed: {error}")

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("unexpected error", exc_info=error)
            self._give_up(f"{task.get_name()} failed: {error!r}")

    def _give_up(self, reason: str) -> None:
        """The worker ends with `reason` as soon as it may; the first one counts."""
        if self._failure is None:
            self._failure = reason
        self._news.set()

    def _on_control(self, order: Control) -> None:
        """Pass the order on; called in the lifeline's thread."""
        self._loop.call_soon_threadsafe(self._obey, order)

    def _obey(self, order: Control) -> None:
        match order.op:
            case ControlOp.THREADS:
                self._num_threads = max(1, order.num_threads)
                if self._engine is not None:
                    self._engine.set_threads(self._num_threads)
            case ControlOp.DRAIN:
                self._leave()

    def _terminate(self) -> None:
        """The worker leaves, and has little time."""
        if self._terminated_at_s is None:
            self._terminated_at_s = time.monotonic()
        self._leave()

    def _leave(self) -> None:
        """The worker drains: what is running may finish, however often it is told."""
        if not self._is_leaving:
            self._is_leaving = True
            self._news.set()

    # --- status -----------------------------------------------------------------------------------------

    def _enter(self, phase: Phase) -> None:
        if phase is not self._phase:
            log.info("%s", phase)
        self._phase = phase
        self._progress = None
        self._reporter.send()

    def _fail(self, reason: str, code: ExitCode) -> ExitCode:
        log.error("failed: %s", reason)
        self._phase = Phase.FAILED
        try:
            last = self.status()
        except Exception:  # noqa: BLE001 - the snapshot may be what has failed; the reason must get out all the same
            last = WorkerStatus(phase=Phase.FAILED, at_s=time.monotonic())
        self._link.send_last(replace(last, error=reason))
        return code

    def _memory(self, weights: int) -> dict[str, int]:
        from worker.memory import read_private, read_rss

        memory = {"rss": read_rss(), "private": read_private(), "weights": weights}
        if self._loaded is not None and self._loaded.private_bytes:
            memory["process"] = max(0, memory["private"] - self._loaded.private_bytes)
        return memory if self._pss is None else memory | {"pss": self._pss}
