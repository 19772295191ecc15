"""The only engine thread: inbox -> step -> outputs, again and again while there is work.

Everything else happens on the event loop, which submits, aborts and receives; one `call_soon_threadsafe` per
step carries all outputs of that step, so that text is made while the next pass computes. Must not decide what
a step does (`scheduler.py`) nor touch llama.cpp (`llama.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from worker.contract import EngineCounters, EngineOptions, Histogram, ModelFacts, SlotReport
from worker.engine.core import Backend, EngineCore
from worker.engine.drafting import DraftModel
from worker.engine.engine_limits import scheduler_options
from worker.engine.errors import EngineStopped, ForwardAborted
from worker.engine.lane import Lane
from worker.engine.prompt_files import PromptFolder
from worker.engine.request import FinishReason, GenerationRequest, Output, RequestId
from worker.engine.rule_work import OtherThread
from worker.engine.slot_state import SlotStates
from worker.engine.statistics import merged, total
from worker.engine.vocabulary import Vocabulary

log = logging.getLogger(__name__)

Sink = Callable[[Output], None]
T = TypeVar("T")

Errand = tuple[Callable[[], object], asyncio.Future[Any], Callable[[], None] | None]
"""Work beside generation, done one piece after each step; what it brings; and what breaks it off."""

SWITCH_INTERVAL_S = 1e-4
"""How long another thread may hold the interpreter when a pass returns. The default of 5 ms would be added to
every step while the event loop is busy."""


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """What the status link and `/slots` show."""

    slots: tuple[SlotReport, ...]
    counters: EngineCounters
    histograms: dict[str, Histogram]
    kv_cells: dict[str, int]
    step: int
    step_at_s: float
    has_work: bool
    queue_length: int
    num_threads: int
    max_rows: int


class Engine:
    """Runs one model's requests. All methods are called from the event-loop thread."""

    def __init__(
        self,
        backend: Backend,
        options: EngineOptions,
        *,
        num_threads: int = 1,
        check_cells: bool = False,
        draft_model: DraftModel | None = None,
        prompts: PromptFolder | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self.facts: ModelFacts = backend.facts
        self.vocabulary: Vocabulary = backend.vocabulary
        self._backend = backend
        self._beside = OtherThread()
        self._core = EngineCore(
            backend,
            scheduler_options(backend, options),
            clock=time.monotonic,
            check_cells=check_cells,
            draft_model=draft_model,
            prompts=prompts,
            beside=self._beside,
        )
        self.slot_states = SlotStates(self._core, time.monotonic, prompts)
        """To be used within `call`."""
        self._draft_model = draft_model
        self._lane = Lane(backend, options, clock=time.monotonic, check_cells=check_cells, beside=self._beside)
        self._on_failure = on_failure
        self._on_change = on_change
        self._max_threads = options.threads
        self._num_threads = self._bounded(num_threads)
        self._applied_threads = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ids = itertools.count(1)
        self._sinks: dict[RequestId, Sink] = {}
        self._inbox: deque[Callable[[], Output | None]] = deque()
        self._errands: deque[Errand] = deque()
        self._interrupt_errand: Callable[[], None] | None = None
        """Of the errand that runs now, if it may be broken off."""
        self._wake = threading.Event()
        self._is_stopping = False
        self._is_failed = False
        self._drained: asyncio.Event = asyncio.Event()
        self._step = 0
        self._step_at_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the engine thread; the running event loop receives the outputs."""
        self._loop = asyncio.get_running_loop()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._thread.start()

    def submit(self, request: GenerationRequest, sink: Sink) -> RequestId:
        """Queue the request and return its id; `sink` gets its outputs on the event loop.

        Raises: EngineStopped; ValueError when the request could never run.
        """
        if self._is_stopping or self._is_failed:
            raise EngineStopped("the engine takes no more requests")
        room = min(self.facts.context, self.facts.kv_cells)
        num_earlier = 0 if request.earlier is None else len(request.earlier.tokens)
        if (
            not request.prompt
            or request.max_tokens < num_earlier + (request.earlier is not None)
            or len(request.prompt) + num_earlier + 1 > room
        ):
            raise ValueError(f"prompt of {len(request.prompt)} tokens and {request.max_tokens} more, room for {room}")
        request_id = RequestId(next(self._ids))
        self._end_idle_time()
        self._sinks[request_id] = sink
        self._break_off_errand()
        if request.reproducible:
            self._order(lambda: self._lane.submit(request_id, request, self._num_threads))
        else:
            self._order(lambda: self._core.submit(request_id, request))
        return request_id

    def abort(self, request_id: RequestId) -> None:
        """Forget the request: no output follows. Its place is free before the next pass. Idempotent.

        A pass that runs for aborted requests alone is broken off, where the device can.
        """
        if self._sinks.pop(request_id, None) is not None:
            self._order(lambda: self._abort(request_id))
            for core in self._cores:
                core.interrupt_for(self._sinks.__contains__)
            self._check_drained()

    def finish(self, request_id: RequestId, num_tokens: int) -> None:
        """End the request after so many tokens of its answer; an output with `finish` follows. Idempotent."""
        if request_id in self._sinks:
            self._order(lambda: self._finish(request_id, num_tokens))

    def call(self, work: Callable[[], T], interrupt: Callable[[], None] | None = None) -> asyncio.Future[T]:
        """Run `work` on the engine thread after the current step and return its result, or its exception, as a future.

        For whatever must not run beside a pass. Each call delays all running answers: keep it as short as one pass.
        `interrupt`, called from another thread, breaks off work that may give way to any other.
        Raises: EngineStopped.
        """
        if self._is_stopping or self._is_failed:
            raise EngineStopped("the engine takes no more requests")
        assert self._loop is not None
        future: asyncio.Future[T] = self._loop.create_future()
        self._break_off_errand()
        self._end_idle_time()
        self._errands.append((work, future, interrupt))
        self._wake.set()
        return future

    def save_prompts(self, until_s: float) -> asyncio.Future[None]:
        """Have finished prompts on the disk by then, if that was wanted. Raises: EngineStopped."""
        return self.call(partial(self._core.save_prompts, until_s))

    def _end_idle_time(self) -> None:
        """Time in which there was nothing to do does not count as time without a step."""
        if self.is_idle:
            self._step_at_s = time.monotonic()

    def _break_off_errand(self) -> None:
        if (interrupt := self._interrupt_errand) is not None:
            interrupt()

    def seed_costs(self, seconds: Mapping[int, float]) -> None:
        """Believe in these times of passes, by rows, until passes have been measured. On the engine thread."""
        for num_rows, pass_s in seconds.items():
            self._core.costs.seed(num_rows, pass_s)

    @property
    def num_threads(self) -> int:
        """CPU threads of a pass."""
        return self._num_threads

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for anything."""
        return not self._sinks and not self._errands

    def observe_pooled(self, num_rows: int, seconds: float) -> None:
        """Count a pass over texts to embed or rank. On the engine's thread."""
        self._core.statistics.observe_pooled(num_rows, seconds)

    @property
    def is_generating(self) -> bool:
        """Whether any request runs or waits for a slot."""
        return bool(self._sinks)

    def set_threads(self, num_threads: int) -> None:
        """Use so many CPU threads from the next pass on, at most what the options allow."""
        self._num_threads = self._bounded(num_threads)

    def snapshot(self) -> EngineSnapshot:
        """Return the state as of about now. Read without locks while the engine runs: fields may be a step apart."""
        slots, cores = self._core.scheduler.reports(), self._cores
        statistics = [core.statistics for core in cores]
        return EngineSnapshot(
            slots=(*slots, *self._lane.reports(len(slots))),
            counters=total(statistics),
            histograms=merged(statistics),
            kv_cells=self._core.scheduler.kv_cells(),
            step=self._step,
            step_at_s=self._step_at_s,
            has_work=bool(self._sinks) or bool(self._errands),
            queue_length=sum(core.scheduler.num_waiting for core in cores),
            num_threads=self._num_threads,
            max_rows=self._core.scheduler.options.max_rows,
        )

    async def drain(self) -> None:
        """Return when every submitted request has ended."""
        while self._sinks:
            self._drained.clear()
            await self._drained.wait()

    def stop(self) -> None:
        """Stop the thread, breaking off the pass that runs where the device can, and free the model."""
        self._is_stopping = True
        for core in self._cores:
            core.interrupt_for(lambda _: False)
        self._break_off_errand()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    # --- engine thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop_steps()
        except BaseException as error:
            log.critical("engine failed: %s", error, exc_info=True)
            self._post(partial(self._fail, error))
        else:
            self._lane.close()
            if self._draft_model is not None:
                self._draft_model.close()
            self._backend.close()
        self._beside.close()
        while self._errands:
            _, future, _ = self._errands.popleft()
            self._post(partial(_settle, future, None, EngineStopped("the engine has stopped")))

    def _loop_steps(self) -> None:
        while not self._is_stopping:
            if self._num_threads != self._applied_threads:
                self._applied_threads = self._num_threads
                for core in self._cores:
                    core.backend.set_threads(self._applied_threads)
                if self._draft_model is not None:
                    self._draft_model.set_threads(self._applied_threads)
            for core in self._cores:
                self._advance(core)
            if self._errands:
                self._run_errand(*self._errands[0])
                self._errands.popleft()  # only now: while it runs the engine is not idle
            if not any(core.has_work for core in self._cores) and not self._inbox and not self._errands:
                self._wake.wait()
                self._wake.clear()

    @property
    def _cores(self) -> tuple[EngineCore, ...]:
        """Whose steps take turns: all slots together, and the lane of reproducible requests once there is one."""
        lone = self._lane.core
        return (self._core,) if lone is None else (self._core, lone)

    def _advance(self, core: EngineCore) -> None:
        """Do what the event loop has ordered, then a step of `core` if it has work."""
        begun_s = time.monotonic()
        outputs = self._drain_inbox()
        has_work = core.has_work
        if has_work:
            num_before = core.num_steps
            outputs += core.step()
            if core.num_steps > num_before:
                self._step += 1
                self._step_at_s = time.monotonic()
        if outputs:
            self._post(partial(self._deliver, outputs))
        if has_work:
            core.statistics.step_seconds += time.monotonic() - begun_s

    def _abort(self, request_id: RequestId) -> None:
        for core in self._cores:
            core.abort(request_id)

    def _finish(self, request_id: RequestId, num_tokens: int) -> Output | None:
        outputs = [core.finish(request_id, num_tokens) for core in self._cores]
        return next((output for output in outputs if output is not None), None)

    def _run_errand(
        self, work: Callable[[], object], future: asyncio.Future[Any], interrupt: Callable[[], None] | None
    ) -> None:
        self._interrupt_errand = interrupt
        try:
            if interrupt is not None and (self._sinks or len(self._errands) > 1):
                raise ForwardAborted  # somebody came before it could begin
            result = work()
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the result
            settle = partial(_settle, future, None, error)
        else:
            settle = partial(_settle, future, result, None)
        self._interrupt_errand = None
        self._post(settle)
        self._step += 1
        self._step_at_s = time.monotonic()

    def _drain_inbox(self) -> list[Output]:
        outputs = []
        while self._inbox:
            output = self._inbox.popleft()()
            if output is not None:
                outputs.append(output)
        return outputs

    def _post(self, call: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed: nobody listens any more
            log.debug("outputs after the end of the event loop")

    # --- event loop -------------------------------------------------------------------------------------

    def _order(self, call: Callable[[], Output | None]) -> None:
        self._inbox.append(call)
        self._wake.set()

    def _deliver(self, outputs: list[Output]) -> None:
        for output in outputs:
            # A request that was aborted meanwhile has no sink any more.
            sink = self._sinks.get(output.request_id)
            if sink is None:
                continue
            if output.finish is not None:
                del self._sinks[output.request_id]
            sink(output)
        self._check_drained()
        if self._on_change is not None:
            self._on_change()

    def _check_drained(self) -> None:
        if not self._sinks:
            self._drained.set()

    def _fail(self, error: BaseException) -> None:
        self._is_failed = True
        sinks, self._sinks = self._sinks, {}
        for request_id, sink in sinks.items():
            sink(Output(request_id, finish=FinishReason.ABORT))
        while self._errands:  # those that came after the thread's last look
            _, future, _ = self._errands.popleft()
            _settle(future, None, EngineStopped("the engine has failed"))
        self._check_drained()
        if self._on_failure is not None:
            self._on_failure(error)

    def _bounded(self, num_threads: int) -> int:
        return max(1, num_threads if self._max_threads is None else min(num_threads, self._max_threads))


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if future.done():  # its caller has left
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
