"""One step of the engine: plan, KV operations, forward pass, sampling, commit. Synchronous and without threads.

`engine.py` runs it in a thread; tests call it directly. Must not know event loops or text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
from numpy import float32

from worker.contract import ModelFacts
from worker.engine.batch import Chunk, Fetch, ForwardFailed, KvOp, NotFinite, Sampled, StepPlan, StepResult, TokenArray
from worker.engine.budget import SchedulerOptions, gap_s
from worker.engine.cell_check import CellCheck
from worker.engine.constraint import ConstraintFailed
from worker.engine.cost import CostTable
from worker.engine.drafting import Drafting, DraftModel
from worker.engine.errors import ForwardAborted, ForwardError, InvalidBatch, KvCacheFull
from worker.engine.prompt_files import PromptFolder
from worker.engine.prompt_store import PromptStore
from worker.engine.request import AdapterSet, GenerationRequest, Output, Pick, RequestId
from worker.engine.rule_follower import RuleFollower
from worker.engine.rule_work import Beside, Job, RuleWork, at_once
from worker.engine.sampler import Sampler
from worker.engine.scheduler import Scheduler
from worker.engine.sequence import Sequence as TokenSequence
from worker.engine.statistics import Statistics
from worker.engine.vocabulary import Vocabulary

log = logging.getLogger(__name__)

LOOKED_AT = 1024
MAX_FAILURES = 3
"""So many failed passes in a row mean that the backend is broken."""


class Backend(Protocol):
    """What the engine needs of llama.cpp."""

    @property
    def facts(self) -> ModelFacts:
        """What loading has shown."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's tokenizer."""
        ...

    @property
    def can_share(self) -> bool:
        """Whether prefixes can be shared and cut."""
        ...

    @property
    def bytes_per_token(self) -> int:
        """Host memory that a saved token takes; 0 = sequences cannot be saved."""
        ...

    @property
    def window(self) -> int:
        """Positions that layers with a sliding window look back on; 0 = all layers see everything."""
        ...

    def apply(self, op: KvOp) -> bool:
        """Perform one KV operation; False if this memory cannot, or has not the cells any more."""
        ...

    def blob(self, blob_id: int) -> npt.NDArray[np.uint8] | None:
        """Return the bytes of a saved sequence; None if there are none."""
        ...

    def put_blob(self, blob_id: int, data: npt.NDArray[np.uint8]) -> None:
        """Host memory holds these bytes, which `blob` once returned for the same model and options."""
        ...

    def use_adapters(self, adapters: AdapterSet) -> None:
        """Have these adapters in force from the next pass on. Raises: InvalidBatch for one that is not there."""
        ...

    def forward(self, chunks: Sequence[Chunk]) -> npt.NDArray[float32]:
        """Return logits, a row for each chunk that wants them. Raises: ForwardError."""
        ...

    def interrupt(self) -> None:
        """End the pass that runs now, if the device can. Called from another thread."""
        ...

    def num_cached(self, seq_id: int) -> int:
        """Return how many tokens of the sequence are in the cache."""
        ...

    def first_cached(self, seq_id: int) -> int:
        """Return the first position of which the cache holds all there is; -1 if it holds nothing."""
        ...

    def set_threads(self, num_threads: int) -> None:
        """Use so many CPU threads from the next pass on."""
        ...

    def lone(self, max_rows: int) -> Backend:
        """Return a backend for one sequence, on the same weights, with a context of its own. Raises: LoadFailed."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class EngineCore:
    """Scheduler, samplers and backend of one model."""

    def __init__(
        self,
        backend: Backend,
        options: SchedulerOptions,
        *,
        clock: Callable[[], float],
        check_cells: bool = False,
        draft_model: DraftModel | None = None,
        prompts: PromptFolder | None = None,
        beside: Beside = at_once,
    ) -> None:
        self.backend = backend
        self.scheduler = Scheduler(options)
        self._stored: PromptStore | None = None
        if prompts is not None and options.can_share:
            self._stored = PromptStore(prompts, self.scheduler.kv, backend, clock)
        self.costs = CostTable()
        self.statistics = Statistics()
        self._clock = clock
        self._cells = CellCheck() if check_cells else None
        self._samplers: dict[RequestId, Sampler] = {}
        self.num_steps = 0
        """Steps that did something: what only turns on the spot is no sign of life."""
        self.drafting = Drafting(options.max_drafted_each, options.max_drafted, draft_model)
        self._num_vocab = backend.facts.num_vocab
        self._num_failures = 0
        self._adapters: AdapterSet = ()
        self._in_pass: frozenset[RequestId] = frozenset()
        """Requests with rows in the pass that runs now."""
        self._is_interrupted = False
        self._unsampled: dict[RequestId, str] = {}
        """Requests whose samplers failed in this step, and why."""
        self._rule_work = RuleWork(beside)

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return self.scheduler.has_work

    def submit(self, request_id: RequestId, request: GenerationRequest) -> None:
        """Queue a request. Raises: ValueError if it could never run."""
        sequence = TokenSequence(request_id, request, self._clock())
        self.scheduler.submit(sequence)
        ends, pieces = self.scheduler.options.end_tokens, self.backend.vocabulary.piece
        self._samplers[request_id] = Sampler(request, self._num_vocab, ends, pieces)

    def abort(self, request_id: RequestId) -> None:
        """Forget a request; idempotent."""
        self.scheduler.abort(request_id, self._clock())
        if request_id in self._samplers:
            self._forget(request_id)
            self.statistics.aborted += 1

    def finish(self, request_id: RequestId, num_tokens: int) -> Output | None:
        """End a request after so many tokens of its answer; None if it has ended already."""
        output = self.scheduler.finish(request_id, num_tokens, self._clock())
        if output is not None:
            self._forget(request_id)
            self.statistics.finished += 1
        return output

    def _forget(self, request_id: RequestId) -> None:
        self._samplers.pop(request_id, None)
        self.drafting.forget(request_id)
        self.statistics.forget(request_id)

    def interrupt_for(self, is_wanted: Callable[[RequestId], bool]) -> None:
        """End the running pass if nobody wants its rows any more. The one method that other threads may call.

        At worst it ends a pass too late to be of use, or one that has just begun, which is then run again.
        """
        in_pass = self._in_pass
        if in_pass and not any(is_wanted(request_id) for request_id in in_pass):
            self._is_interrupted = True
            self.backend.interrupt()

    def step(self) -> list[Output]:
        """Run one step and return what it brought. Raises: ForwardError when the backend is beyond recovery."""
        plan = self.scheduler.plan(self._clock(), self.costs, self._draft())
        if plan.before or plan.chunks:
            self.num_steps += 1
        if not self._perform(plan.before):
            return []
        if self._cells is not None:
            self.check_cells()
        if not plan.chunks:
            return []
        result = self._forward(plan)
        if self._cells is not None:
            self._cells.passed(plan, result, self.scheduler)
        now_s = self._clock()
        outputs = self._without_unsampled(self.scheduler.commit(plan, result, now_s), now_s)
        self.statistics.parked = self.scheduler.num_parked
        self.statistics.demoted, self.statistics.dropped = self.scheduler.kv.num_demoted, self.scheduler.kv.num_dropped
        self.statistics.observe_outputs(outputs, now_s)
        outputs = [self._with_state(output) for output in outputs]
        for output in outputs:
            if output.finish is not None:
                self._forget(output.request_id)
        if self._cells is not None:
            self.check_cells()
        return outputs

    def _with_state(self, output: Output) -> Output:
        sampler = self._samplers.get(output.request_id)
        if sampler is None or not sampler.state or output.finish is not None:
            return output
        return replace(output, sampler_state=sampler.state)

    def save_prompts(self, until_s: float) -> None:
        """Finished prompts are on the disk, if that was wanted, as many as can be written by `until_s`."""
        if self._stored is not None and self.perform():
            self._stored.save(until_s)

    def perform(self, *more: KvOp) -> bool:
        """Whether all operations that are pending, and then these, could be done: see `_perform`."""
        return self._perform([*self.scheduler.kv.take_ops(), *more])

    def _perform(self, ops: Sequence[KvOp | Fetch]) -> bool:
        """Whether all operations could be done; if not, the scheduler knows what the cache really holds."""
        failed = [op for op in ops if not self._apply(op)]
        if not failed:
            return True
        self._note_failure(f"operations on the KV cache failed: {failed}")
        if self._stored is not None:
            self._stored.note_failed(failed)
        slot_ids = [slot.id for slot in self.scheduler.slots]
        self.scheduler.operations_failed(failed, {seq_id: self.backend.num_cached(seq_id) for seq_id in slot_ids})
        return False

    def _apply(self, op: KvOp | Fetch) -> bool:
        if isinstance(op, Fetch):
            is_done = self._stored is not None and self._stored.fetch(op.blob_id)
        else:
            is_done = self.backend.apply(op)
        if is_done and self._cells is not None:
            self._cells.applied(op, self.scheduler.kv.cache)
        return is_done

    def _without_unsampled(self, outputs: list[Output], now_s: float) -> list[Output]:
        """Return the outputs with an error in place of what no sampler could make."""
        if not self._unsampled:
            return outputs
        kept = [output for output in outputs if output.request_id not in self._unsampled]
        kept += [self.scheduler.fail(request_id, why, now_s) for request_id, why in self._unsampled.items()]
        self._unsampled.clear()
        return kept

    def _draft(self) -> dict[RequestId, TokenArray]:
        """Return what may come next in each sequence, as far as verifying it is worth its time."""
        generating = self.scheduler.generating()
        if not generating or not self.scheduler.options.can_share:  # a memory that cannot be cut keeps wrong drafts
            return {}
        target_s = gap_s(self.scheduler.options, self.costs, [sequence.request for _, sequence in generating])
        rules: dict[RequestId, RuleFollower] = {}
        for _, sequence in generating:
            if (rule := self._samplers[sequence.request_id].rule) is not None:
                rules[sequence.request_id] = rule
        if most := self.scheduler.options.max_drafted_each:
            self._rule_work.begin([(rule, partial(rule.look_ahead, most)) for rule in rules.values()])()
        return self.drafting.propose(generating, self.costs, max_seconds=target_s, rules=rules)

    def _prepare_rules(self, plan: StepPlan) -> Callable[[], None]:
        """Have found out, beside the pass, what may come in constrained answers. What is returned waits for it."""
        jobs: list[Job] = []
        for chunk in plan.chunks:
            if chunk.num_outputs and (rule := self._samplers[chunk.request_id].rule) is not None:
                sequence = self.scheduler.slots[chunk.seq_id].sequence
                assert sequence is not None
                jobs.append((rule, partial(rule.prepare, sequence.num_generated, chunk.drafts.tolist())))
        return self._rule_work.begin(jobs)

    def _forward(self, plan: StepPlan) -> StepResult:
        started_s = self._clock()
        self._in_pass = frozenset(chunk.request_id for chunk in plan.chunks)
        rules_are_ready = self._prepare_rules(plan)
        try:
            is_change = plan.adapters != self._adapters
            if is_change:
                self.backend.use_adapters(plan.adapters)
                self._adapters = plan.adapters
            logits = self.backend.forward(plan.chunks)
        except ForwardError as error:
            if isinstance(error, ForwardAborted) and self._is_interrupted:
                return ForwardFailed(error.code, self._really_cached(plan))
            self._note_failure(f"a forward pass of {plan.num_rows} rows failed: {type(error).__name__} {error}")
            # A full cache and a wrong row have a remedy that the scheduler applies; others are only tried again.
            if isinstance(error, KvCacheFull | InvalidBatch):
                return ForwardFailed(error.code)
            self._num_failures += 1
            if self._num_failures >= MAX_FAILURES:
                raise
            return ForwardFailed(error.code, self._really_cached(plan))
        finally:
            self._in_pass = frozenset()
            self._is_interrupted = False
            computed_s = self._clock()
            rules_are_ready()
        self._num_failures = 0
        seconds = computed_s - started_s
        if not is_change:  # else the time holds more than the pass
            self.costs.observe(plan.num_rows, seconds)
        self.statistics.observe_forward(plan, seconds)
        broken = self._not_finite(plan, logits)
        if broken:
            self._note_failure(f"the numbers of {len(broken)} requests are not finite; the KV cache is cleared")
            if self._stored is not None:
                self._stored.distrust()
            return NotFinite(broken)
        return Sampled(tuple(self._picks(plan, logits)))

    def _really_cached(self, plan: StepPlan) -> dict[int, int]:
        return {chunk.seq_id: self.backend.num_cached(chunk.seq_id) for chunk in plan.chunks}

    def _note_failure(self, what: str) -> None:
        self.statistics.failed_steps += 1
        log.warning("%s", what)

    def _not_finite(self, plan: StepPlan, logits: npt.NDArray[float32]) -> tuple[RequestId, ...]:
        """Return the requests whose logits cannot be used.

        A part of each row tells: a hidden state that is not finite makes all logits so.
        """
        owners = [chunk.request_id for chunk in plan.chunks for _ in range(chunk.num_outputs)]
        sums = logits[:, :LOOKED_AT].sum(axis=1)
        if np.isfinite(sums).all():
            return ()
        return tuple(dict.fromkeys(owner for owner, total in zip(owners, sums, strict=True) if not np.isfinite(total)))

    def _picks(self, plan: StepPlan, logits: npt.NDArray[float32]) -> Iterator[tuple[Pick, ...]]:
        """Yield what each chunk with outputs brings."""
        first_row = 0
        for chunk in plan.chunks:
            if chunk.num_outputs:
                rows = logits[first_row : first_row + chunk.num_outputs]
                first_row += chunk.num_outputs
                picks = tuple(self._verify(chunk, rows))
                self.drafting.observe(chunk, picks)
                self.statistics.drafted += len(chunk.drafts)
                self.statistics.accepted += len(picks) - 1
                yield picks

    def _verify(self, chunk: Chunk, rows: npt.NDArray[float32]) -> Iterator[Pick]:
        """Yield the token after each row, as long as the draft that made the row was right.

        Every token is drawn as it would be without drafts: they change the speed, never the answer.
        """
        sequence = self.scheduler.slots[chunk.seq_id].sequence
        assert sequence is not None
        sampler = self._samplers[chunk.request_id]
        drafts = chunk.drafts
        for num_right, row in enumerate(rows):
            try:
                pick = sampler.sample(row, sequence.tokens_with(num_right), sequence.num_generated + num_right)
            except (ArithmeticError, LookupError, ValueError) as error:
                # Numbers beyond all sense in one request: it ends, the others must not.
                if num_right == 0:  # else the tokens before are told first, and the next pass fails at this one
                    self._unsampled[chunk.request_id] = _why_unsampled(error)
                    yield Pick(0)
                return
            yield pick
            if pick.is_last:
                return
            if num_right < len(drafts) and pick.token != drafts[num_right]:
                return

    def check_cells(self) -> None:
        """Compare every sequence's recorded tokens with what was done and with what the cache holds.

        For tests and debugging: asks the backend for every sequence. Raises: AssertionError.
        """
        self.scheduler.check_integrity()
        if self._cells is not None:
            self._cells.compare(self.scheduler, self.backend)


def _why_unsampled(error: Exception) -> str:
    if isinstance(error, ConstraintFailed):
        return f"the answer had to end: {error}"
    log.warning("sampling failed: %r", error)
    return "no token could be sampled with these sampling parameters"
