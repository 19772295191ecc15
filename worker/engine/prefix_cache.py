"""Finished prefixes that stay in the KV cache, and the search for the longest one that a prompt shares.

Owns which sequence id holds which tokens after their request has ended. Must not touch cells: the scheduler
keeps the ledger and turns decisions into KV operations.

Matching compares the prompt with every holder. There are at most 256 sequence ids, one comparison of 2,000
tokens takes a few microseconds, and it happens once per admission, not per step: no tree is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from worker.engine.batch import TokenArray


def common_prefix(a: TokenArray, b: TokenArray) -> int:
    """Return how many leading tokens are equal."""
    n = min(len(a), len(b))
    if n == 0 or a[0] != b[0]:
        return 0
    different = a[:n] != b[:n]
    first = int(different.argmax())
    return first if different[first] else n


@dataclass(slots=True)
class Holder:
    """A finished prefix: its tokens are exactly the tokens in the cells of `seq_id`."""

    seq_id: int
    tokens: TokenArray
    salt: str
    last_used_s: float


@dataclass(frozen=True, slots=True)
class Match:
    """The best source of a prompt's first `num_tokens` tokens."""

    seq_id: int
    num_tokens: int


class PrefixCache:
    """All holders, by sequence id."""

    def __init__(self) -> None:
        self._holders: dict[int, Holder] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def __contains__(self, seq_id: int) -> bool:
        return seq_id in self._holders

    def get(self, seq_id: int) -> Holder | None:
        """Return the holder with this id."""
        return self._holders.get(seq_id)

    def put(self, seq_id: int, tokens: TokenArray, salt: str, now_s: float) -> None:
        """Remember that `seq_id` holds `tokens`."""
        self._holders[seq_id] = Holder(seq_id, tokens.copy(), salt, now_s)

    def remove(self, seq_id: int) -> None:
        """Forget the holder."""
        del self._holders[seq_id]

    def match(self, tokens: TokenArray, salt: str) -> Match | None:
        """Return the holder that shares most leading tokens with `tokens`, the latest used among equals."""
        best: Match | None = None
        best_used_s = 0.0
        for holder in self._holders.values():
            if holder.salt != salt:
                continue
            num_tokens = common_prefix(holder.tokens, tokens)
            if num_tokens == 0:
                continue
            if best is None or (num_tokens, holder.last_used_s) > (best.num_tokens, best_used_s):
                best, best_used_s = Match(holder.seq_id, num_tokens), holder.last_used_s
        return best

    def touch(self, seq_id: int, now_s: float) -> None:
        """Note that the holder was of use; sequence ids that are no holders are ignored."""
        if seq_id in self._holders:
            self._holders[seq_id].last_used_s = now_s

    def covering(self, tokens: TokenArray, salt: str) -> int | None:
        """Return a holder that begins with all of `tokens`."""
        for holder in self._holders.values():
            if holder.salt == salt and common_prefix(holder.tokens, tokens) == len(tokens):
                return holder.seq_id
        return None

    def covered_by(self, tokens: TokenArray, salt: str) -> list[int]:
        """Return the holders whose tokens all lie within `tokens`, which make them superfluous."""
        return [
            holder.seq_id
            for holder in self._holders.values()
            if holder.salt == salt and common_prefix(holder.tokens, tokens) == len(holder.tokens)
        ]

    def least_recently_used(self) -> int | None:
        """Return the holder to give up first."""
        if not self._holders:
            return None
        return min(self._holders.values(), key=lambda holder: holder.last_used_s).seq_id

    def seq_ids(self) -> tuple[int, ...]:
        """Return the ids of all holders."""
        return tuple(sorted(self._holders))
