"""Decides what every step does: who gets a slot, what is reused, which rows run, who makes room.

Pure: no clock, no I/O, no llama.cpp. The engine calls `plan`, performs the plan, and hands the result to
`commit`; recovery from a failure is simply the next plan. Must not know text or sampling.

Invariants (`check_integrity`): a slot runs at most one sequence; the cells of a running slot are exactly its
computed tokens; the cells of a holder are exactly its tokens; a plan never needs more cells than are free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Sequence_

import numpy as np

from worker.contract import SlotReport, SlotState
from worker.engine.adapters import AdapterTurns
from worker.engine.admission import admission_turns, has_leader, parking_order, prefill_line
from worker.engine.batch import (
    Chunk,
    Fetch,
    ForwardFailed,
    KvOp,
    NotFinite,
    Restore,
    Sampled,
    Save,
    Share,
    StepPlan,
    StepResult,
    TokenArray,
)
from worker.engine.budget import SchedulerOptions, prefill_rows
from worker.engine.cost import CostTable
from worker.engine.recovery import Recovery
from worker.engine.request import FinishReason, Output, Pick, RequestId
from worker.engine.sequence import Sequence
from worker.engine.slot import Slot
from worker.engine.slot_table import SlotTable

Drafts = Mapping[RequestId, TokenArray]
NO_DRAFTS: Drafts = {}
_NOTHING: TokenArray = np.empty(0, dtype=np.int32)

CANNOT_REPEAT = "a pass has failed in a way after which this answer would not be reproducible; ask again"


class Scheduler:
    """Slots, the line of waiting sequences, and the KV store behind them."""

    def __init__(self, options: SchedulerOptions) -> None:
        self.options = options
        self.slots = SlotTable(options)
        self.kv = self.slots.kv
        self._waiting: list[Sequence] = []
        self._is_admission_due = False
        """Whether anything has happened since the last look that could let a waiting sequence in."""
        self._recovery = Recovery(options.max_rows)
        self._turns = AdapterTurns()
        self.num_parked = 0
        """How often a running sequence had to make room for others."""

    # --- what the engine asks ---------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether the next plan will have rows or operations."""
        return bool(self._waiting) or self.kv.has_ops or bool(self.slots.running)

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    def submit(self, sequence: Sequence) -> None:
        """Queue the sequence. Raises: ValueError if it could never run."""
        room = min(self.options.context, self.options.num_cells)
        if sequence.num_prompt < 1:
            raise ValueError("a request needs at least one prompt token")
        if sequence.num_prompt + 1 > room:
            raise ValueError(f"prompt of {sequence.num_prompt} tokens, the context is {room}")
        if sequence.is_continued and (sequence.num_left <= 0 or sequence.num_tokens >= room):
            raise ValueError("the answer is as long as it may be already")
        self._waiting.append(sequence)
        self._is_admission_due = True

    def abort(self, request_id: RequestId, now_s: float) -> None:
        """Forget the sequence, wherever it is; idempotent. Its slot is idle after this call."""
        self._drop(request_id, now_s)

    def finish(self, request_id: RequestId, num_tokens: int, now_s: float) -> Output | None:
        """End the sequence after `num_tokens` of its answer; None if it has ended already."""
        sequence = self._drop(request_id, now_s)
        if sequence is None:
            return None
        return Output(
            request_id,
            num_generated=num_tokens,
            finish=FinishReason.STOP,
            timings=sequence.timings(now_s, num_tokens),
            slot=self._shown_slot(sequence),
        )

    def reports(self) -> tuple[SlotReport, ...]:
        """Return all slots as `/slots` shows them. May be called from another thread."""
        return self.slots.reports()

    def kv_cells(self) -> dict[str, int]:
        """Return cells by kind: used, shared, idle (held for reuse alone), total."""
        return self.kv.report(self.slots.busy_ids)

    # --- plan -------------------------------------------------------------------------------------------

    def generating(self) -> list[tuple[int, Sequence]]:
        """Return (slot id, sequence) of all running sequences if all of them generate, else nothing.

        Beside a prefill no drafts are wanted: its rows need the time. Other adapters than those in use do not count.
        """
        every = [(slot.id, slot.sequence) for slot in self.slots if slot.sequence is not None]
        running = [(slot_id, one) for slot_id, one in every if one.request.adapters == self._turns.current]
        return [] if any(sequence.is_prefilling for _, sequence in running) else running

    def plan(self, now_s: float, costs: CostTable, drafts: Drafts = NO_DRAFTS) -> StepPlan:
        """Return the next step. Every plan must be performed and committed before the next is asked for."""
        self._admit(now_s)
        self.slots.demote_idle(now_s)
        chunks = self._choose_chunks(now_s, costs, drafts)
        chunks = self._make_room(chunks, now_s)
        return StepPlan(self.kv.take_ops(), tuple(chunks), self._turns.current)

    def _admit(self, now_s: float) -> None:
        """Give free slots to waiting sequences, in turns of their keys. Followers of a leader are passed over."""
        if not self._is_admission_due:
            return
        self._is_admission_due = False
        num_running = Counter(sequence.request.key for sequence in self.slots.running)
        for sequence in admission_turns(self._waiting, num_running, len(self.slots)):
            if self.slots.is_full:
                return
            match = self.slots.best_match(sequence)
            if self.options.can_share and has_leader(sequence, match, self.slots.running):
                continue
            if not self.slots.fits(sequence, match):
                return  # nobody passes a large request, or it would starve
            self._waiting.remove(sequence)
            self.slots.start(sequence, match, now_s)
            num_running[sequence.request.key] += 1

    def _choose_chunks(self, now_s: float, costs: CostTable, drafts: Drafts) -> list[Chunk]:
        """Return all generating rows, then prefill chunks within the row budget; of one group of equal adapters."""
        running = self._turns.choose(self._recovery.admit(self.slots.running), now_s)
        generating = [s for s in running if not s.is_prefilling]
        prefilling = prefill_line((s for s in running if s.is_prefilling), now_s)
        if not prefilling:
            return self._with_drafts(generating, drafts)
        chunks = [self.slots.of(sequence).next_chunk(1) for sequence in generating]
        kept_waiting = [one.request for one in self.slots.running if not one.is_prefilling]  # of other groups, too
        most = prefill_rows(self.options, costs, kept_waiting)
        budget = min(self._recovery.max_rows - len(generating), most)
        for sequence in prefilling:
            num_rows = min(sequence.num_pending, budget)
            if num_rows <= 0:
                break
            budget -= num_rows
            chunks.append(self.slots.of(sequence).next_chunk(num_rows))
        return chunks

    def _with_drafts(self, generating: list[Sequence], drafts: Drafts) -> list[Chunk]:
        """Return a row for each sequence and rows for drafts, as far as there is room that nobody else needs."""
        chunks = []
        room = min(self.kv.ledger.num_free, self._recovery.max_rows) - len(generating)
        for sequence in generating:
            most = min(room, sequence.num_left - 1, self.options.context - sequence.num_tokens - 1)
            drafted = drafts.get(sequence.request_id, _NOTHING)[: max(0, most)]
            sequence.draft(drafted)
            chunks.append(self.slots.of(sequence).next_chunk(1, len(drafted)))
            room -= len(drafted)
        return chunks

    def _make_room(self, chunks: list[Chunk], now_s: float) -> list[Chunk]:
        """Return the chunks that the pool has cells for, after giving up holders, then running sequences."""
        while self.kv.ledger.num_free < sum(len(chunk.tokens) for chunk in chunks):
            if self.kv.demote_one(now_s):
                continue
            victim = self._park_youngest(now_s)
            chunks = [chunk for chunk in chunks if chunk.request_id != victim]
        return chunks

    def _park_youngest(self, now_s: float) -> RequestId:
        """Send the youngest of the least important running sequences, of the key with most, back to the line."""
        victim = min(self.slots.running, key=parking_order(self.slots.running))
        self.slots.park(victim, now_s)
        self._waiting.append(victim)
        self._is_admission_due = True
        self.num_parked += 1
        return victim.request_id

    # --- commit -----------------------------------------------------------------------------------------

    def commit(self, plan: StepPlan, result: StepResult, now_s: float) -> list[Output]:
        """Record what the step did and return what it brought, in the order of the plan's chunks."""
        match result:
            case Sampled(picks):
                return self._commit_sampled(plan, picks, now_s)
            case ForwardFailed():
                return self._commit_failed(plan, result, now_s)
            case NotFinite(request_ids):
                return self._commit_not_finite(plan, request_ids, now_s)

    def _commit_sampled(self, plan: StepPlan, picks: tuple[tuple[Pick, ...], ...], now_s: float) -> list[Output]:
        self._recovery.succeeded(has_outputs=plan.num_outputs > 0)
        remaining = iter(picks)
        outputs: list[Output] = []
        for chunk in plan.chunks:
            self.kv.ledger.append(chunk.seq_id, len(chunk.tokens))
            slot = self.slots[chunk.seq_id]
            sequence = slot.sequence
            assert sequence is not None
            self._is_admission_due |= chunk.num_prompt_rows > 0  # followers wait for a prefill to come on
            if not chunk.num_outputs:
                sequence.num_computed += len(chunk.tokens)
                if (output := self._advance_prompt(slot, sequence, now_s)) is not None:
                    outputs.append(output)
                continue
            picked = next(remaining)
            sequence.num_computed += len(chunk.tokens) - chunk.num_outputs + len(picked)
            sequence.num_drafted += len(chunk.drafts)
            sequence.num_accepted += len(picked) - 1
            self.kv.trim(slot.id, sequence.num_computed)  # wrong drafts go
            if slot.state is SlotState.PROCESSING_PROMPT:
                slot.advance(SlotState.DONE_PROMPT)
            outputs.append(self._advance(slot, sequence, picked, now_s))
        return outputs

    def _advance_prompt(self, slot: Slot, sequence: Sequence, now_s: float) -> Output | None:
        """Return how far the prompt is, if its client wants to know; or the end of what wants no answer."""
        request = sequence.request
        is_over = request.max_tokens == 0 and sequence.num_pending == 0
        wants_progress = request.wants_progress and sequence.num_generated == 0
        if not is_over and not wants_progress:
            return None
        if is_over:
            self._release(slot, now_s)
        return Output(
            sequence.request_id,
            num_generated=sequence.num_generated,
            finish=FinishReason.LENGTH if is_over else None,
            timings=sequence.timings(now_s) if is_over else None,
            progress=sequence.progress(now_s) if wants_progress else None,
            slot=self._shown_slot(sequence) if is_over else None,
        )

    def _advance(self, slot: Slot, sequence: Sequence, picked: tuple[Pick, ...], now_s: float) -> Output:
        """Add sampled tokens to the sequence, up to its end."""
        is_first = sequence.first_token_at_s is None and not sequence.is_continued
        finish: FinishReason | None = None
        added: list[Pick] = []
        for pick in picked:
            if pick.token in self.options.end_tokens:
                finish = FinishReason.STOP
                break
            sequence.append(pick.token, now_s)
            added.append(pick)
            if pick.is_last:
                finish = FinishReason.STOP
                break
            if sequence.num_generated >= sequence.request.max_tokens or sequence.num_tokens >= self.options.context:
                finish = FinishReason.LENGTH
                break
        if finish is not None:
            self._release(slot, now_s)
        elif slot.state is SlotState.DONE_PROMPT:
            slot.advance(SlotState.GENERATING)
        request = sequence.request
        has_timings = finish is not None or is_first or request.wants_timings
        return Output(
            sequence.request_id,
            tuple(pick.token for pick in added),
            sequence.num_generated,
            finish,
            sequence.timings(now_s) if has_timings else None,
            picks=tuple(added) if request.num_logprobs is not None else (),
            progress=sequence.progress(now_s) if is_first and request.wants_progress else None,
            slot=self._shown_slot(sequence) if has_timings else None,
            is_continued=sequence.is_continued,
        )

    def _commit_failed(self, plan: StepPlan, failed: ForwardFailed, now_s: float) -> list[Output]:
        """Prepare the next plan to do better; return the ends of sequences that cannot go on."""
        match failed.code:
            case 1:
                return self._recover_from_full(plan, now_s)
            case -1:
                return self._isolate_invalid(plan, now_s)
            case _:
                self.slots.resync(failed.num_cached or {})
                unlike = [chunk for chunk in plan.chunks if not self._can_repeat(chunk)]
                return [self.fail(chunk.request_id, CANNOT_REPEAT, now_s) for chunk in unlike]

    def _can_repeat(self, chunk: Chunk) -> bool:
        """Whether the sequence of a failed chunk can go on in passes that are cut as if nothing had failed."""
        sequence, fixed_rows = self.slots[chunk.seq_id].sequence, self.options.fixed_rows
        if fixed_rows is None or sequence is None or sequence.num_computed == chunk.start:
            return True
        return sequence.num_generated == 0 and sequence.num_computed % fixed_rows == 0

    def _recover_from_full(self, plan: StepPlan, now_s: float) -> list[Output]:
        """The pool has fewer usable cells than the ledger believes: holders, chunk size, then a sequence go."""
        is_hopeless = self._recovery.was_full()
        if self.kv.demote_one(now_s):
            while self.kv.demote_one(now_s):
                pass
        elif self.options.fixed_rows is None and self._recovery.shrink(len(plan.chunks)):
            pass
        elif len(self.slots.running) > 1:
            self._park_youngest(now_s)
        elif is_hopeless:
            return [self.fail(plan.chunks[0].request_id, "the KV cache has no room for this request", now_s)]
        return []

    def _isolate_invalid(self, plan: StepPlan, now_s: float) -> list[Output]:
        """One row of the batch is wrong: run its sequences one by one, so that only the culprit fails."""
        if len(plan.chunks) == 1:
            request_id = plan.chunks[0].request_id
            return [self.fail(request_id, "llama.cpp refused the tokens of this request", now_s)]
        self._recovery.suspect(chunk.request_id for chunk in plan.chunks)
        return []

    def _commit_not_finite(self, plan: StepPlan, request_ids: tuple[RequestId, ...], now_s: float) -> list[Output]:
        """Numbers that are not finite spread from cell to cell: start afresh, and find out alone whose they are.

        Who shows them first may be a victim, so that everybody who runs is tested.
        """
        for chunk in plan.chunks:  # the cells are there, and go with all others
            self.kv.ledger.append(chunk.seq_id, len(chunk.tokens))
        ended = []
        if self._recovery.is_tested(request_ids[0]):
            message = "the model computed numbers that are not finite for this request"
            ended.append(self.fail(request_ids[0], message, now_s))
        else:
            others = [s.request_id for s in self.slots.running if s.request_id not in request_ids]
            self._recovery.suspect([*request_ids, *others])
        self.slots.wipe()
        return ended

    def operations_failed(self, failed: Sequence_[KvOp | Fetch], num_cached: Mapping[int, int]) -> None:
        """Give up a plan whose operations could not all be performed; its chunks must not be run.

        `num_cached` tells how many tokens each running slot really has in the cache.
        """
        self.kv.forget_blobs({op.blob_id for op in failed if isinstance(op, Fetch | Restore | Save)})
        self.kv.forget_holders({op.dst for op in failed if isinstance(op, Share)})
        self.slots.resync(num_cached)

    def fail(self, request_id: RequestId, message: str, now_s: float) -> Output:
        """End the sequence with an error; what it has computed is not kept."""
        sequence = self._drop(request_id, now_s, keep=False)
        return Output(
            request_id,
            num_generated=sequence.num_generated if sequence else 0,
            finish=FinishReason.ERROR,
            timings=sequence.timings(now_s) if sequence else None,
            error=message,
            slot=self._shown_slot(sequence) if sequence else None,
        )

    # --- ends -------------------------------------------------------------------------------------------

    def _drop(self, request_id: RequestId, now_s: float, *, keep: bool = True) -> Sequence | None:
        """Take the sequence out of its slot or the line; None if it is in neither."""
        self._recovery.forget(request_id)
        slot = self.slots.find(request_id)
        if slot is not None:
            running = slot.sequence
            self._release(slot, now_s, keep=keep)
            return running
        for sequence in self._waiting:
            if sequence.request_id == request_id:
                self._waiting.remove(sequence)
                return sequence
        return None

    def _release(self, slot: Slot, now_s: float, *, keep: bool = True) -> None:
        self.slots.release(slot, now_s, keep=keep)
        self._is_admission_due = True

    # --- lookups ----------------------------------------------------------------------------------------

    def _shown_slot(self, sequence: Sequence) -> int | None:
        """Return the number under which clients see the sequence's slot; None if it never had one."""
        return None if sequence.slot_id is None else self.options.first_slot + sequence.slot_id

    def check_integrity(self) -> None:
        """Assert the invariants of the module."""
        self.slots.check_integrity()
        ids = [s.request_id for s in self._waiting] + [s.request_id for s in self.slots.running]
        assert len(ids) == len(set(ids)), "a sequence is in two places"
