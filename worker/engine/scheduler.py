"""Decides what every step does: who gets a slot, what is reused, which rows run, who makes room.

Pure: no clock, no I/O, no llama.cpp. The engine calls `plan`, performs the plan, and hands the result to
`commit`; recovery from a failure is simply the next plan. Must not know text or sampling.

Invariants (`check_integrity`): a slot runs at most one sequence; the cells of a running slot are exactly its
computed tokens; the cells of a holder are exactly its tokens; a plan never needs more cells than are free.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Sequence_

from worker.contract import SlotReport, SlotState
from worker.engine.admission import admission_order, has_leader, outstanding, prefill_order
from worker.engine.batch import Chunk, ForwardFailed, KvOp, Restore, Sampled, Save, StepPlan, StepResult
from worker.engine.budget import SchedulerOptions, prefill_rows
from worker.engine.cost import CostTable
from worker.engine.kv_store import KvStore
from worker.engine.prefix_cache import Match
from worker.engine.recovery import Recovery
from worker.engine.request import FinishReason, Output, Pick, RequestId
from worker.engine.sequence import Sequence
from worker.engine.slot import Slot


class Scheduler:
    """Slots, the line of waiting sequences, and the KV store behind them."""

    def __init__(self, options: SchedulerOptions) -> None:
        self.options = options
        self.slots = tuple(Slot(i) for i in range(options.num_slots))
        self.kv = KvStore(
            options.num_cells,
            options.num_slots,
            can_share=options.can_share,
            host_tokens=options.host_tokens,
        )
        self._waiting: list[Sequence] = []
        self._is_admission_due = False
        """Whether anything has happened since the last look that could let a waiting sequence in."""
        self._recovery = Recovery(options.max_rows)
        self.num_parked = 0
        """How often a running sequence had to make room for others."""

    # --- what the engine asks ---------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether the next plan will have rows or operations."""
        return bool(self._waiting) or self.kv.has_ops or any(slot.sequence for slot in self.slots)

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    def submit(self, sequence: Sequence) -> None:
        """Queue the sequence. Raises: ValueError if it could never run."""
        room = min(self.options.context, self.options.num_cells)
        if sequence.num_prompt < 1 or sequence.request.max_tokens < 1:
            raise ValueError("a request needs at least one prompt token and room for one answer token")
        if sequence.num_prompt + 1 > room:
            raise ValueError(f"prompt of {sequence.num_prompt} tokens, the context is {room}")
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
        )

    def reports(self) -> tuple[SlotReport, ...]:
        """Return all slots as `/slots` shows them. May be called from another thread."""
        return tuple(slot.report(self.kv.ledger.length(slot.id)) for slot in self.slots)

    def kv_cells(self) -> dict[str, int]:
        """Return cells by kind: used, shared, idle (held for reuse alone), total."""
        return self.kv.report(slot.id for slot in self.slots if slot.sequence is not None)

    # --- plan -------------------------------------------------------------------------------------------

    def plan(self, now_s: float, costs: CostTable) -> StepPlan:
        """Return the next step. Every plan must be performed and committed before the next is asked for."""
        self._admit(now_s)
        self._demote_idle(now_s)
        chunks = self._choose_chunks(now_s, costs)
        chunks = self._make_room(chunks, now_s)
        return StepPlan(self.kv.take_ops(), tuple(chunks))

    def _admit(self, now_s: float) -> None:
        """Give free slots to waiting sequences: by priority, then age. Followers of a leader are passed over."""
        if not self._is_admission_due:
            return
        self._is_admission_due = False
        self._waiting.sort(key=lambda s: admission_order(s, len(self.slots)))
        for sequence in list(self._waiting):
            if all(slot.sequence for slot in self.slots):
                return
            match = self._best_match(sequence)
            running = self._running()
            if self.options.can_share and has_leader(sequence, match, running):
                continue
            if not self._fits(sequence, match, running):
                return  # nobody passes a large request, or it would starve
            self._waiting.remove(sequence)
            self._start(sequence, match, now_s)

    def _best_match(self, sequence: Sequence) -> Match | None:
        """Return the longest reusable prefix, at most all tokens but the last: one must be computed."""
        if not sequence.request.cache_prompt:
            return None
        key = sequence.cache_key
        running = (
            (slot.id, other.tokens[: other.num_computed])
            for slot in self.slots
            if (other := slot.sequence) is not None and other.request.cache_prompt and other.cache_key == key
        )
        tokens = sequence.tokens[:-1]
        resident = self.kv.match(tokens, key, running)
        host = self.kv.match_host(tokens, key, resident)
        if host is None or self._occupied() + host.blob_tokens > self.options.num_cells:
            return resident
        return host

    def _demote_idle(self, now_s: float) -> None:
        """Move a finished prefix to host memory while too many idle cells slow the running sequences down.

        One in a step, so that no pass waits for many copies.
        """
        limit = self.options.max_idle_cells
        if limit is None or self.kv.num_resident_tokens <= limit or not self._running():
            return
        if self.kv.ledger.num_used - self._occupied() > limit:
            self.kv.demote_one(now_s)

    def _occupied(self) -> int:
        """Return how many cells running sequences own; holders can give up the rest."""
        return self.kv.ledger.count(slot.id for slot in self.slots if slot.sequence is not None)

    def _fits(self, sequence: Sequence, match: Match | None, running: list[Sequence]) -> bool:
        """Whether the pool has room for this sequence beside the running ones, holders given up if need be."""
        if not running:
            return True
        slot_ids = [slot.id for slot in self.slots if slot.sequence is not None]
        shared = (match.seq_id, match.num_tokens) if match and match.seq_id is not None else None
        num_shared = shared[1] if shared else 0
        kept = self.kv.ledger.count(slot_ids, also=shared)
        return kept + outstanding(sequence, num_shared, running) <= self.options.num_cells

    def _start(self, sequence: Sequence, match: Match | None, now_s: float) -> None:
        """Put the sequence into a slot and share what it can reuse."""
        slot = self._choose_slot(match)
        num_cached = self.kv.begin(slot.id, match, now_s)
        slot.start(sequence)
        sequence.num_computed = num_cached
        if sequence.admitted_at_s is None:
            sequence.admitted_at_s = now_s
            sequence.num_cached = num_cached

    def _choose_slot(self, match: Match | None) -> Slot:
        """Return the idle slot to use: where prefixes cannot move, the one that has it; else the one idle longest."""
        idle = [slot for slot in self.slots if slot.sequence is None]
        if match is not None and not self.options.can_share:
            return next(slot for slot in idle if slot.id == match.seq_id)
        cache = self.kv.cache
        return min(idle, key=lambda s: holder.last_used_s if (holder := cache.resident(s.id)) else -1.0)

    def _choose_chunks(self, now_s: float, costs: CostTable) -> list[Chunk]:
        """Return all generating rows, then prefill chunks within the row budget."""
        running = self._recovery.admit(self._running())
        generating = [s for s in running if not s.is_prefilling]
        prefilling = [s for s in running if s.is_prefilling]
        prefilling.sort(key=lambda s: prefill_order(s, now_s))
        chunks = [self._slot_of(sequence).next_chunk(1) for sequence in generating]
        if not prefilling:
            return chunks
        budget = min(self._recovery.max_rows - len(generating), prefill_rows(self.options, costs, len(generating)))
        for sequence in prefilling:
            num_rows = min(sequence.num_pending, budget)
            if num_rows <= 0:
                break
            budget -= num_rows
            chunks.append(self._slot_of(sequence).next_chunk(num_rows))
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
        """Send the youngest of the least important running sequences back to the line, tokens kept.

        Its cells go to host memory if there is room, else it is computed again: nothing that was sent changes.
        """
        victim = min(self._running(), key=lambda s: (s.request.priority, -s.submitted_at_s, -s.request_id))
        slot = self._slot_of(victim)
        slot.release()
        num_saved = victim.num_computed if victim.request.cache_prompt else 0
        self.kv.park(slot.id, victim.tokens[:num_saved], victim.cache_key, now_s)
        victim.num_computed = 0
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

    def _commit_sampled(self, plan: StepPlan, picks: tuple[tuple[Pick, ...], ...], now_s: float) -> list[Output]:
        self._recovery.succeeded()
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
                continue
            picked = next(remaining)
            sequence.num_computed += len(chunk.tokens) - chunk.num_outputs + len(picked)
            self.kv.trim(slot.id, sequence.num_computed)  # wrong guesses go
            if slot.state is SlotState.PROCESSING_PROMPT:
                slot.advance(SlotState.DONE_PROMPT)
            outputs.append(self._advance(slot, sequence, picked, now_s))
        return outputs

    def _advance(self, slot: Slot, sequence: Sequence, picked: tuple[Pick, ...], now_s: float) -> Output:
        """Add sampled tokens to the sequence, up to its end."""
        is_first = sequence.first_token_at_s is None
        finish: FinishReason | None = None
        added: list[Pick] = []
        for pick in picked:
            if pick.token in self.options.end_tokens:
                finish = FinishReason.STOP
                break
            sequence.append(pick.token, now_s)
            added.append(pick)
            if sequence.num_generated >= sequence.request.max_tokens or sequence.num_tokens >= self.options.context:
                finish = FinishReason.LENGTH
                break
        if finish is not None:
            self._release(slot, now_s)
        elif slot.state is SlotState.DONE_PROMPT:
            slot.advance(SlotState.GENERATING)
        return Output(
            sequence.request_id,
            tuple(pick.token for pick in added),
            sequence.num_generated,
            finish,
            sequence.timings(now_s) if finish or is_first else None,
            picks=tuple(added) if sequence.request.num_logprobs is not None else (),
        )

    def _commit_failed(self, plan: StepPlan, failed: ForwardFailed, now_s: float) -> list[Output]:
        """Prepare the next plan to do better; return the ends of sequences that cannot go on."""
        match failed.code:
            case 1:
                return self._recover_from_full(plan, now_s)
            case -1:
                return self._isolate_invalid(plan, now_s)
            case _:
                self._resync(failed.num_cached or {})
                return []

    def _recover_from_full(self, plan: StepPlan, now_s: float) -> list[Output]:
        """The pool has fewer usable cells than the ledger believes: holders, chunk size, then a sequence go."""
        is_hopeless = self._recovery.was_full()
        if self.kv.demote_one(now_s):
            while self.kv.demote_one(now_s):
                pass
        elif self._recovery.shrink(len(plan.chunks)):
            pass
        elif len(self._running()) > 1:
            self._park_youngest(now_s)
        elif is_hopeless:
            return [self._fail(plan.chunks[0].request_id, "the KV cache has no room for this request", now_s)]
        return []

    def _isolate_invalid(self, plan: StepPlan, now_s: float) -> list[Output]:
        """One row of the batch is wrong: run its sequences one by one, so that only the culprit fails."""
        if len(plan.chunks) == 1:
            request_id = plan.chunks[0].request_id
            return [self._fail(request_id, "llama.cpp refused the tokens of this request", now_s)]
        self._recovery.suspect(chunk.request_id for chunk in plan.chunks)
        return []

    def operations_failed(self, failed: Sequence_[KvOp], num_cached: Mapping[int, int]) -> None:
        """Give up a plan whose operations could not all be performed; its chunks must not be run.

        `num_cached` tells how many tokens each running slot really has in the cache.
        """
        self.kv.forget_blobs({op.blob_id for op in failed if isinstance(op, Restore | Save)})
        self._resync(num_cached)

    def _resync(self, num_cached: Mapping[int, int]) -> None:
        """Believe the cache, not the plan, about what running sequences have in it."""
        for slot in self.slots:
            if slot.sequence is not None and slot.id in num_cached:
                slot.sequence.num_computed = self.kv.resync(slot.id, num_cached[slot.id])

    def _fail(self, request_id: RequestId, message: str, now_s: float) -> Output:
        sequence = self._drop(request_id, now_s, keep=False)
        return Output(
            request_id,
            num_generated=sequence.num_generated if sequence else 0,
            finish=FinishReason.ERROR,
            timings=sequence.timings(now_s) if sequence else None,
            error=message,
        )

    # --- ends -------------------------------------------------------------------------------------------

    def _drop(self, request_id: RequestId, now_s: float, *, keep: bool = True) -> Sequence | None:
        """Take the sequence out of its slot or the line; None if it is in neither."""
        self._recovery.forget(request_id)
        for slot in self.slots:
            if slot.sequence is not None and slot.sequence.request_id == request_id:
                sequence = slot.sequence
                self._release(slot, now_s, keep=keep)
                return sequence
        for sequence in self._waiting:
            if sequence.request_id == request_id:
                self._waiting.remove(sequence)
                return sequence
        return None

    def _release(self, slot: Slot, now_s: float, *, keep: bool = True) -> None:
        """Make the slot idle and keep what was computed for later prompts, if it is worth it."""
        sequence = slot.sequence
        assert sequence is not None
        slot.release()
        self._is_admission_due = True
        if keep and sequence.request.cache_prompt:
            tokens = sequence.tokens[: sequence.num_computed]
            self.kv.keep(slot.id, tokens, sequence.cache_key, now_s)
        else:
            self.kv.clear(slot.id)

    # --- lookups ----------------------------------------------------------------------------------------

    def _running(self) -> list[Sequence]:
        return [slot.sequence for slot in self.slots if slot.sequence is not None]

    def _slot_of(self, sequence: Sequence) -> Slot:
        return next(slot for slot in self.slots if slot.sequence is sequence)

    def recorded_lengths(self) -> dict[int, int]:
        """Return how many tokens each sequence id has in the cache once pending operations are performed."""
        return {seq_id: self.kv.ledger.length(seq_id) for seq_id in self.kv.ledger.owners()}

    def check_integrity(self) -> None:
        """Assert the invariants of the module."""
        self.kv.check_integrity()
        for slot in self.slots:
            if slot.sequence is not None:
                assert self.kv.cache.resident(slot.id) is None
                assert self.kv.ledger.length(slot.id) == slot.sequence.num_computed
            elif self.kv.cache.resident(slot.id) is None:
                assert self.kv.ledger.length(slot.id) == 0
        ids = [s.request_id for s in self._waiting] + [s.request_id for s in self._running()]
        assert len(ids) == len(set(ids)), "a sequence is in two places"
