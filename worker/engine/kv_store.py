"""The KV cache as the scheduler sees it: the ledger of cells, the finished prefixes, the operations to come.

Turns "start from this prefix", "keep this", "make room" into KV operations and keeps the books in the order
in which the backend will perform them. Must not know slots' states, priorities or time budgets.
"""

from __future__ import annotations

from collections.abc import Iterable

from worker.engine.batch import Clear, KvOp, Share, TokenArray, Trim
from worker.engine.kv_ledger import KvLedger
from worker.engine.prefix_cache import Match, PrefixCache, common_prefix

MAX_SEQ_IDS = 256
"""Source: LLAMA_MAX_SEQ; an id beyond it aborts the process."""

MIN_KEPT = 16
"""A finished prefix of fewer tokens is not worth a holder."""


class KvStore:
    """Cells of running sequences (ids below `num_slots`) and of holders (the other ids)."""

    def __init__(self, num_cells: int, num_slots: int, *, can_share: bool) -> None:
        self.ledger = KvLedger(num_cells)
        self.cache = PrefixCache()
        self.can_share = can_share
        self._num_slots = num_slots
        self._ops: list[KvOp] = []
        self._spare_ids = list(range(MAX_SEQ_IDS - 1, num_slots - 1, -1)) if can_share else []

    @property
    def has_ops(self) -> bool:
        """Whether operations wait to be performed."""
        return bool(self._ops)

    def take_ops(self) -> tuple[KvOp, ...]:
        """Return the operations since the last call, in order."""
        ops, self._ops = tuple(self._ops), []
        return ops

    def match(self, tokens: TokenArray, salt: str, running: Iterable[tuple[int, TokenArray]]) -> Match | None:
        """Return the longest reusable prefix among holders and `running` (id, computed tokens).

        Where prefixes cannot be shared or cut, only a holder that is wholly a prefix of `tokens` is of use.
        """
        best = self.cache.match(tokens, salt)
        if not self.can_share:
            holder = self.cache.get(best.seq_id) if best else None
            return best if best and holder and best.num_tokens == len(holder.tokens) else None
        for seq_id, computed in running:
            num_tokens = common_prefix(computed, tokens)
            if num_tokens and (best is None or num_tokens > best.num_tokens):
                best = Match(seq_id, num_tokens)
        return best

    def begin(self, slot_id: int, match: Match | None, now_s: float) -> None:
        """Give the slot the matched cells, and no others."""
        if self.can_share:
            if match is not None:
                self.ledger.share(match.seq_id, slot_id, match.num_tokens)
                self._ops.append(Share(match.seq_id, slot_id, match.num_tokens))
                self.cache.touch(match.seq_id, now_s)
        elif match is None:
            self.evict(slot_id)
        else:
            assert match.seq_id == slot_id, "a prefix that cannot move is continued where it is"
            self.cache.remove(slot_id)

    def keep(self, slot_id: int, tokens: TokenArray, salt: str, now_s: float) -> None:
        """Hold what the slot has computed for later prompts, if it is worth it, and empty the slot."""
        if len(tokens) < MIN_KEPT:
            self.clear(slot_id)
            return
        if not self.can_share:
            self.cache.put(slot_id, tokens, salt, now_s)
            return
        covering = self.cache.covering(tokens, salt)
        if covering is not None:
            self.cache.touch(covering, now_s)
            self.clear(slot_id)
            return
        for seq_id in self.cache.covered_by(tokens, salt):
            self.evict(seq_id)
        if not self._spare_ids:
            self.evict_one()
        holder_id = self._spare_ids.pop()
        self.ledger.share(slot_id, holder_id, len(tokens))
        self._ops.append(Share(slot_id, holder_id, len(tokens)))
        self.cache.put(holder_id, tokens, salt, now_s)
        self.clear(slot_id)

    def clear(self, seq_id: int) -> None:
        """Take all cells from the sequence id."""
        self.ledger.trim(seq_id, 0)
        self._ops.append(Clear(seq_id))
        if seq_id >= self._num_slots:
            self._spare_ids.append(seq_id)

    def resync(self, seq_id: int, num_cached: int) -> int:
        """Make books and cache agree after a failed pass; return how many tokens both have now.

        `num_cached` is what the cache really holds: what the books do not know is dropped from the cache, and
        what the cache does not hold from the books. A memory that cannot be cut is emptied: what a failed pass
        did to its state cannot be undone.
        """
        if not self.can_share:
            self.clear(seq_id)
            return 0
        recorded = self.ledger.length(seq_id)
        if num_cached > recorded:
            self._ops.append(Trim(seq_id, recorded))
            return recorded
        self.ledger.trim(seq_id, num_cached)
        return num_cached

    def evict(self, seq_id: int) -> None:
        """Give up the holder with this id; ids that hold nothing are ignored."""
        if seq_id in self.cache:
            self.cache.remove(seq_id)
            self.clear(seq_id)

    def evict_one(self) -> bool:
        """Give up the holder used longest ago; False if there is none."""
        seq_id = self.cache.least_recently_used()
        if seq_id is None:
            return False
        self.evict(seq_id)
        return True

    def check_integrity(self) -> None:
        """Assert that holders own exactly the cells of their tokens and that no id is lost or used twice."""
        self.ledger.check_integrity()
        held = set(self.cache.seq_ids())
        for seq_id in held:
            holder = self.cache.get(seq_id)
            assert holder is not None
            assert self.ledger.length(seq_id) == len(holder.tokens)
        assert not held & set(self._spare_ids)
        if self.can_share:
            assert len(held) + len(self._spare_ids) == MAX_SEQ_IDS - self._num_slots, "a holder id is lost"
