"""The KV cache as the scheduler sees it: the ledger of cells, the finished prefixes, the operations to come.

Turns "start from this prefix", "keep this", "make room" into KV operations and keeps the books in the order
in which the backend will perform them. Must not know slots' states, priorities or time budgets.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from worker.engine.batch import Clear, Fetch, Forget, KvOp, Restore, Save, Share, TokenArray, Trim, Wipe
from worker.engine.kv_ledger import KvLedger
from worker.engine.prefix_cache import Holder, Match, PrefixCache, common_prefix

MAX_SEQ_IDS = 256
"""Source: LLAMA_MAX_SEQ; an id beyond it aborts the process."""

MAX_WINDOWED_IDS = MAX_SEQ_IDS // 2
"""Where layers have a window, each id has a second one, which holds its cells in place."""

MIN_KEPT = 16
"""A finished prefix of fewer tokens is not worth a holder."""

MIN_RESTORED = 32
"""A blob must give so many tokens more than the cells already do, or copying it back is not worth it."""


class KvStore:
    """Cells of running sequences (ids below `num_slots`) and of holders (ids above it), and blobs.

    The id `num_slots` itself is left to the backend, which needs one to copy sequences through.
    """

    def __init__(
        self, num_cells: int, num_slots: int, *, can_share: bool, is_windowed: bool = False, host_tokens: int = 0
    ) -> None:
        self.ledger = KvLedger(num_cells)
        self.cache = PrefixCache()
        self.can_share = can_share
        self._is_windowed = is_windowed
        self._num_ids = MAX_WINDOWED_IDS if is_windowed else MAX_SEQ_IDS
        self.host_tokens = host_tokens if can_share else 0
        """Tokens that all blobs together may hold."""
        self.num_demoted = 0
        """Finished prefixes that lost their cells to make room."""
        self.num_dropped = 0
        """Blobs that lost their place in host memory to make room."""
        self._num_slots = num_slots
        self._ops: list[KvOp | Fetch] = []
        self._spare_ids = list(range(self._num_ids - 1, num_slots, -1)) if can_share else []
        self._blob_ids = itertools.count(1)

    @property
    def has_ops(self) -> bool:
        """Whether operations wait to be performed."""
        return bool(self._ops)

    @property
    def num_host_tokens(self) -> int:
        """Tokens in blobs that are in host memory."""
        return sum(len(one.tokens) for one in self.cache if not one.is_resident and not one.is_stored)

    @property
    def num_resident_tokens(self) -> int:
        """Tokens of resident holders; cells that they share with each other are counted for each."""
        return sum(len(holder.tokens) for holder in self.cache if holder.is_resident)

    def take_ops(self) -> tuple[KvOp | Fetch, ...]:
        """Return the operations since the last call, in order."""
        ops, self._ops = tuple(self._ops), []
        return ops

    # --- reuse ------------------------------------------------------------------------------------------

    def match(self, tokens: TokenArray, salt: str, running: Iterable[tuple[int, TokenArray]]) -> Match | None:
        """Return the longest reusable prefix among holders and `running` (id, computed tokens).

        Where prefixes cannot be shared or cut, only a holder that is wholly a prefix of `tokens` is of use.
        """
        if not self.can_share:
            whole = max(self.cache.covered_by(tokens, salt), key=lambda holder: len(holder.tokens), default=None)
            return Match(len(whole.tokens), seq_id=whole.seq_id) if whole else None
        found = self.cache.match(tokens, salt, resident=True)
        best = Match(found[1], seq_id=found[0].seq_id) if found else None
        for seq_id, computed in running:
            num_tokens = common_prefix(computed, tokens)
            if num_tokens and (best is None or num_tokens > best.num_tokens):
                best = Match(num_tokens, seq_id=seq_id)
        return best

    def match_host(self, tokens: TokenArray, salt: str, resident: Match | None) -> Match | None:
        """Return a blob that is worth restoring although `resident` can be had for nothing."""
        found = self.cache.match(tokens, salt, resident=False, is_whole=self._is_windowed)
        if found is None or found[1] < (resident.num_tokens if resident else 0) + MIN_RESTORED:
            return None
        return Match(found[1], blob_id=found[0].blob_id, blob_tokens=len(found[0].tokens))

    def begin(self, slot_id: int, match: Match | None, now_s: float) -> int:
        """Give the slot the matched cells, and no others; return how many tokens it has now."""
        if not self.can_share:
            self._begin_in_place(slot_id, match)
        elif match is not None and match.seq_id is not None:
            self.ledger.share(match.seq_id, slot_id, match.num_tokens)
            self._ops.append(Share(match.seq_id, slot_id, match.num_tokens))
            holder = self.cache.resident(match.seq_id)
            if holder is not None:
                holder.last_used_s = now_s
        elif match is not None and not self._restore(slot_id, match, now_s):
            return 0
        return match.num_tokens if match else 0

    def _restore(self, slot_id: int, match: Match, now_s: float) -> bool:
        """Bring a blob back; False if making room for it has cost the blob itself."""
        holder = next(holder for holder in self.cache if holder.blob_id == match.blob_id)
        holder.last_used_s = now_s
        has_room = self.make_room(len(holder.tokens), now_s)
        if not has_room or holder not in self.cache or holder.blob_id is None:
            return False
        self.ledger.append(slot_id, match.num_tokens)
        restore = Restore(holder.blob_id, slot_id, match.num_tokens)
        self._ops += [Fetch(holder.blob_id), restore, Forget(holder.blob_id)] if holder.is_stored else [restore]
        return True

    def offer(self, tokens: TokenArray, salt: str, last_used_s: float) -> int:
        """Know a prompt that is on the disk; return the id of its blob. For a memory that can share alone."""
        assert self.can_share, "blobs are of no use"
        blob_id = next(self._blob_ids)
        self.cache.add(Holder(tokens, salt, last_used_s, blob_id=blob_id, is_stored=True))
        return blob_id

    def temporary_blob(self) -> int:
        """Return an id that no other blob has."""
        return next(self._blob_ids)

    def borrow(self, now_s: float) -> int:
        """Return the id of an empty sequence, until it is adopted or cleared. For a memory that can share alone."""
        if not self._spare_ids:
            self.demote_one(now_s)
        return self._spare_ids.pop()

    def make_room(self, num_cells: int, now_s: float) -> bool:
        """So many cells are free, finished prefixes given up if need be; False if running sequences have them."""
        while self.ledger.num_free < num_cells and self.demote_one(now_s):
            pass
        return self.ledger.num_free >= num_cells

    def adopt(self, seq_id: int, tokens: TokenArray, salt: str, now_s: float) -> None:
        """Keep a borrowed sequence for later prompts: its cells hold exactly these tokens."""
        for holder in self.cache.covered_by(tokens, salt):
            self.drop(holder)
        self.cache.add(Holder(tokens, salt, now_s, seq_id=seq_id))

    def _begin_in_place(self, slot_id: int, match: Match | None) -> None:
        holder = self.cache.resident(slot_id)
        if holder is None:
            return
        self.cache.remove(holder)
        if match is None:
            self.clear(slot_id)

    def keep(self, slot_id: int, tokens: TokenArray, salt: str, now_s: float) -> None:
        """Hold what the slot has computed for later prompts, if it is worth it, and empty the slot."""
        if len(tokens) < MIN_KEPT:
            self.clear(slot_id)
            return
        if not self.can_share:
            self.cache.add(Holder(tokens.copy(), salt, now_s, seq_id=slot_id))
            return
        covering = self.cache.covering(tokens, salt, resident=True)
        if covering is not None:
            covering.last_used_s = now_s
            self.clear(slot_id)
            return
        for holder in self.cache.covered_by(tokens, salt):
            self.drop(holder)
        if not self._spare_ids:
            self.demote_one(now_s)
        holder_id = self._spare_ids.pop()
        self.ledger.share(slot_id, holder_id, len(tokens))
        self._ops.append(Share(slot_id, holder_id, len(tokens)))
        self.cache.add(Holder(tokens.copy(), salt, now_s, seq_id=holder_id))
        self.clear(slot_id)

    def park(self, slot_id: int, tokens: TokenArray, salt: str, now_s: float) -> None:
        """Move what the slot has computed to host memory, if it may go there, and empty the slot."""
        if MIN_KEPT <= len(tokens) <= self.host_tokens:
            self._save(slot_id, Holder(tokens.copy(), salt, now_s))
        self.clear(slot_id)

    # --- room -------------------------------------------------------------------------------------------

    def demote_one(self, now_s: float) -> bool:
        """Take the cells of the holder used longest ago; its tokens go to host memory. False if there is none."""
        holder = self.cache.oldest(resident=True)
        if holder is None:
            return False
        seq_id = holder.seq_id
        assert seq_id is not None
        self.num_demoted += 1
        self.cache.remove(holder)
        if len(holder.tokens) <= self.host_tokens:
            self._save(seq_id, Holder(holder.tokens, holder.salt, holder.last_used_s))
        self.clear(seq_id)
        return True

    def _save(self, seq_id: int, holder: Holder) -> None:
        covering = self.cache.covering(holder.tokens, holder.salt, resident=False)
        if covering is not None:
            covering.last_used_s = max(covering.last_used_s, holder.last_used_s)
            return
        for covered in self.cache.covered_by(holder.tokens, holder.salt):
            if not covered.is_resident:
                self.drop(covered)
        while self.num_host_tokens + len(holder.tokens) > self.host_tokens:
            oldest = self.cache.oldest(resident=False)
            assert oldest is not None
            self.num_dropped += 1
            self.drop(oldest)
        holder.blob_id = next(self._blob_ids)
        self._ops.append(Save(seq_id, holder.blob_id))
        self.cache.add(holder)

    def drop(self, holder: Holder) -> None:
        """Forget the holder and free what it holds."""
        self.cache.remove(holder)
        if holder.seq_id is not None:
            self.clear(holder.seq_id)
        if holder.blob_id is not None and not holder.is_stored:
            self._ops.append(Forget(holder.blob_id))

    def forget_blobs(self, blob_ids: Iterable[int]) -> None:
        """Drop the holders of blobs that turned out to be of no use."""
        lost = set(blob_ids)
        for holder in [holder for holder in self.cache if holder.blob_id in lost]:
            self.drop(holder)

    def forget_holders(self, seq_ids: Iterable[int]) -> None:
        """Drop the holders that did not get their cells."""
        for holder in [holder for seq_id in seq_ids if (holder := self.cache.resident(seq_id)) is not None]:
            self.drop(holder)

    def clear(self, seq_id: int) -> None:
        """Take all cells from the sequence id."""
        self.ledger.trim(seq_id, 0)
        self._ops.append(Clear(seq_id))
        if seq_id > self._num_slots:
            self._spare_ids.append(seq_id)

    def trim(self, seq_id: int, num_tokens: int) -> None:
        """Keep the first `num_tokens` cells of the sequence."""
        if self.ledger.length(seq_id) > num_tokens:
            self.ledger.trim(seq_id, num_tokens)
            self._ops.append(Trim(seq_id, num_tokens))

    def wipe(self) -> None:
        """Forget every sequence, finished prefixes and blobs included, and make all cells as new."""
        for holder in list(self.cache):
            self.drop(holder)
        for seq_id in self.ledger.owners():
            self.ledger.trim(seq_id, 0)
        self._ops.append(Wipe())

    def resync(self, seq_id: int, num_cached: int) -> int:
        """Make books and cache agree after a failure; return how many tokens both have now.

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

    def report(self, running: Iterable[int]) -> dict[str, int]:
        """Return cells by kind: used, shared, idle (held for reuse alone), total."""
        used = self.ledger.num_used
        return {
            "used": used,
            "shared": self.ledger.num_shared,
            "idle": used - self.ledger.count(running),
            "total": self.ledger.num_cells,
        }

    def check_integrity(self) -> None:
        """Assert that holders own exactly the cells of their tokens and that no id is lost or used twice."""
        self.ledger.check_integrity()
        held = [holder.seq_id for holder in self.cache if holder.seq_id is not None]
        for holder in self.cache:
            assert (holder.seq_id is None) != (holder.blob_id is None), "a holder is in one place"
            if holder.seq_id is not None:
                assert self.ledger.length(holder.seq_id) == len(holder.tokens)
        assert len(held) == len(set(held)), "two holders with one id"
        assert not set(held) & set(self._spare_ids)
        assert self.num_host_tokens <= self.host_tokens
        if self.can_share:
            assert len(held) + len(self._spare_ids) == self._num_ids - 1 - self._num_slots, "a holder id is lost"
