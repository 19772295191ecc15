"""All slots and the KV store behind them: who runs where, what a new sequence can reuse, whether it fits.

Starts sequences in slots and takes them out again. Must not know the line of waiting sequences, nor decide whose
turn it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from worker.contract import SlotReport
from worker.engine.admission import outstanding
from worker.engine.batch import TokenArray
from worker.engine.budget import SchedulerOptions
from worker.engine.kv_store import KvStore
from worker.engine.occupants import Occupant, Occupants, client_of
from worker.engine.prefix_cache import Match
from worker.engine.request import RequestId
from worker.engine.sequence import Sequence
from worker.engine.slot import Slot


class SlotTable:
    """The slots of one pool of KV cells."""

    def __init__(self, options: SchedulerOptions) -> None:
        self._options = options
        self._slots = tuple(Slot(i) for i in range(options.num_slots))
        self.kv = KvStore(
            options.num_cells,
            options.num_slots,
            can_share=options.can_share,
            is_windowed=options.is_windowed,
            host_tokens=options.host_tokens,
        )
        self.occupants = Occupants()

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, slot_id: int) -> Slot:
        return self._slots[slot_id]

    @property
    def running(self) -> list[Sequence]:
        """All sequences that have a slot."""
        return [slot.sequence for slot in self._slots if slot.sequence is not None]

    @property
    def busy_ids(self) -> list[int]:
        """Ids of the slots that run something."""
        return [slot.id for slot in self._slots if slot.sequence is not None]

    @property
    def is_full(self) -> bool:
        """Whether every slot runs something."""
        return all(slot.sequence is not None for slot in self._slots)

    def of(self, sequence: Sequence) -> Slot:
        """Return the slot that runs the sequence."""
        return next(slot for slot in self._slots if slot.sequence is sequence)

    def find(self, request_id: RequestId) -> Slot | None:
        """Return the slot that runs the request; None if none does."""
        for slot in self._slots:
            if slot.sequence is not None and slot.sequence.request_id == request_id:
                return slot
        return None

    def reports(self) -> tuple[SlotReport, ...]:
        """Return all slots as `/slots` shows them. May be called from another thread."""
        return tuple(slot.report(self.kv.ledger.length(slot.id)) for slot in self._slots)

    # --- in and out -------------------------------------------------------------------------------------

    def best_match(self, sequence: Sequence) -> Match | None:
        """Return the longest reusable prefix, at most all tokens but the last: one must be computed."""
        if not sequence.request.cache_prompt:
            return None
        key, tokens = sequence.cache_key, sequence.tokens[:-1]
        if not self._options.can_share and (wanted := self._wanted(sequence)) is not None:
            return self._match_in(wanted, tokens, key)
        return self.longest(tokens, key)

    def longest(self, tokens: TokenArray, key: str) -> Match | None:
        """Return the longest beginning of `tokens` that the cache has and that can be had now."""
        running = (
            (slot.id, other.tokens[: other.num_computed])
            for slot in self._slots
            if (other := slot.sequence) is not None and other.request.cache_prompt and other.cache_key == key
        )
        resident = self.kv.match(tokens, key, running)
        host = self.kv.match_host(tokens, key, resident)
        if host is None or self._num_occupied() + host.blob_tokens > self._options.num_cells:
            return resident
        return host

    def _match_in(self, slot: Slot, tokens: TokenArray, key: str) -> Match | None:
        """Return what the slot itself has: where prefixes cannot move, what others have is of no use in it."""
        holder = self.kv.cache.resident(slot.id)
        if holder is None or holder not in self.kv.cache.covered_by(tokens, key):
            return None
        return Match(len(holder.tokens), seq_id=slot.id)

    def fits(self, sequence: Sequence, match: Match | None) -> bool:
        """Whether the pool has room for this sequence beside the running ones, holders given up if need be."""
        running = self.running
        if not running:
            return True
        shared = (match.seq_id, match.num_tokens) if match and match.seq_id is not None else None
        num_shared = shared[1] if shared else 0
        kept = self.kv.ledger.count(self.busy_ids, also=shared)
        return kept + outstanding(sequence, num_shared, running) <= self._options.num_cells

    def start(self, sequence: Sequence, match: Match | None, now_s: float) -> None:
        """Put the sequence into an idle slot and share what it can reuse."""
        slot = self._choose_slot(sequence, match)
        num_cached = self.kv.begin(slot.id, match, now_s)
        slot.start(sequence)
        sequence.slot_id = slot.id
        sequence.num_computed = num_cached
        if sequence.admitted_at_s is None:
            sequence.admitted_at_s = now_s
            sequence.num_cached = min(num_cached, sequence.num_prompt)  # more where it has begun its answer elsewhere

    def _wanted(self, sequence: Sequence) -> Slot | None:
        """Return the slot that the request wishes for, if it is there and idle."""
        wanted = sequence.request.slot
        if wanted is None or not 0 <= wanted < len(self._slots) or self._slots[wanted].sequence is not None:
            return None
        return self._slots[wanted]

    def _choose_slot(self, sequence: Sequence, match: Match | None) -> Slot:
        """Return the idle slot to use: the wanted one; where prefixes cannot move, the one that has it; else the one
        idle longest."""
        if (wanted := self._wanted(sequence)) is not None:
            return wanted
        idle = [slot for slot in self._slots if slot.sequence is None]
        if match is not None and not self._options.can_share:
            return next(slot for slot in idle if slot.id == match.seq_id)
        cache = self.kv.cache
        return min(idle, key=lambda s: holder.last_used_s if (holder := cache.resident(s.id)) else -1.0)

    def release(self, slot: Slot, now_s: float, *, keep: bool = True) -> None:
        """Make the slot idle and keep what was computed for later prompts, if it is worth it."""
        sequence = slot.sequence
        assert sequence is not None
        slot.release()
        if keep and sequence.request.cache_prompt:
            tokens = sequence.tokens[: sequence.num_computed]
            self.occupants.note(slot.id, client_of(sequence), Occupant(tokens.copy(), sequence.cache_key))
            self.kv.keep(slot.id, tokens, sequence.cache_key, now_s)
        else:
            self.kv.clear(slot.id)

    def park(self, sequence: Sequence, now_s: float) -> None:
        """Take the sequence out of its slot, tokens kept.

        Its cells go to host memory if there is room, else it is computed again: nothing that was sent changes.
        """
        slot = self.of(sequence)
        slot.release()
        num_saved = sequence.num_computed if sequence.request.cache_prompt else 0
        self.kv.park(slot.id, sequence.tokens[:num_saved], sequence.cache_key, now_s)
        sequence.num_computed = 0

    # --- cells ------------------------------------------------------------------------------------------

    def demote_idle(self, now_s: float) -> None:
        """Move a finished prefix to host memory while too many idle cells slow the running sequences down.

        One in a step, so that no pass waits for many copies.
        """
        limit = self._options.max_idle_cells
        if limit is None or self.kv.num_resident_tokens <= limit or not self.running:
            return
        if self.kv.ledger.num_used - self._num_occupied() > limit:
            self.kv.demote_one(now_s)

    def _num_occupied(self) -> int:
        """Return how many cells running sequences own; holders can give up the rest."""
        return self.kv.ledger.count(self.busy_ids)

    def resync(self, num_cached: Mapping[int, int]) -> None:
        """Believe the cache, not the plan, about what running sequences have in it."""
        for slot in self._slots:
            if (sequence := slot.sequence) is not None and slot.id in num_cached:
                sequence.num_computed = self.kv.resync(slot.id, num_cached[slot.id])
                sequence.num_cached = min(sequence.num_cached, sequence.num_computed)  # it is computed after all

    def wipe(self) -> None:
        """Nothing is in the cache any more: running sequences start again, with the tokens they have."""
        self.kv.wipe()
        for sequence in self.running:
            sequence.num_computed = 0

    def check_integrity(self) -> None:
        """Assert that the cells of a running slot are its computed tokens, and those of an idle one a holder's."""
        self.kv.check_integrity()
        for slot in self._slots:
            if slot.sequence is not None:
                assert self.kv.cache.resident(slot.id) is None
                assert self.kv.ledger.length(slot.id) == slot.sequence.num_computed
            elif self.kv.cache.resident(slot.id) is None:
                assert self.kv.ledger.length(slot.id) == 0
