"""Finished prefixes kept for later prompts, and the search for the longest one that a prompt shares.

A holder is resident (a sequence id owns its cells) or a blob, in host memory or on the disk. Must not touch cells: the
KV store keeps the ledger and turns decisions into operations.

Matching compares the prompt with every holder. There are at most some hundred, one comparison of 2,000 tokens
takes a few microseconds, and it happens when a sequence may be admitted, not in every step: no tree is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
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


@dataclass(slots=True, eq=False)
class Holder:
    """A finished prefix: its tokens are exactly those in the cells of `seq_id`, or in the blob."""

    tokens: TokenArray
    salt: str
    last_used_s: float
    seq_id: int | None = None
    blob_id: int | None = None
    is_stored: bool = False
    """The blob is on the disk and must be fetched before each use."""

    @property
    def is_resident(self) -> bool:
        """Whether it owns cells, so that sharing it moves no bytes."""
        return self.seq_id is not None


@dataclass(frozen=True, slots=True)
class Match:
    """The best source of a prompt's first `num_tokens` tokens: the cells of a sequence id, or a blob."""

    num_tokens: int
    seq_id: int | None = None
    blob_id: int | None = None
    blob_tokens: int = 0
    """Length of the blob, which needs so many cells while it is restored."""


class PrefixCache:
    """All holders."""

    def __init__(self) -> None:
        self._holders: list[Holder] = []

    def __iter__(self) -> Iterator[Holder]:
        return iter(self._holders)

    def add(self, holder: Holder) -> None:
        """Remember the holder."""
        self._holders.append(holder)

    def remove(self, holder: Holder) -> None:
        """Forget the holder."""
        self._holders.remove(holder)

    def resident(self, seq_id: int) -> Holder | None:
        """Return the holder whose cells this sequence id owns."""
        return next((holder for holder in self._holders if holder.seq_id == seq_id), None)

    def match(
        self, tokens: TokenArray, salt: str, *, resident: bool, is_whole: bool = False
    ) -> tuple[Holder, int] | None:
        """Return the resident (or other) holder that shares most leading tokens.

        With `is_whole` only one whose tokens all are shared. Among equals one that is not on the disk, then the
        latest used.
        """
        best: tuple[int, bool, float, Holder] | None = None
        for holder in self._holders:
            if holder.salt != salt or holder.is_resident is not resident:
                continue
            num_tokens = common_prefix(holder.tokens, tokens)
            if is_whole and num_tokens < len(holder.tokens):
                continue
            rank = num_tokens, not holder.is_stored, holder.last_used_s
            if num_tokens and (best is None or rank > best[:3]):
                best = *rank, holder
        return (best[3], best[0]) if best else None

    def covering(self, tokens: TokenArray, salt: str, *, resident: bool) -> Holder | None:
        """Return a resident (or host) holder that begins with all of `tokens`; what is on the disk does not count."""
        for holder in self._holders:
            is_right = holder.is_resident is resident and holder.salt == salt and not holder.is_stored
            if is_right and common_prefix(holder.tokens, tokens) == len(tokens):
                return holder
        return None

    def covered_by(self, tokens: TokenArray, salt: str) -> list[Holder]:
        """Return the holders whose tokens all lie within `tokens`, which make them superfluous."""
        return [
            holder
            for holder in self._holders
            if holder.salt == salt and common_prefix(holder.tokens, tokens) == len(holder.tokens)
        ]

    def oldest(self, *, resident: bool) -> Holder | None:
        """Return the resident (or host) holder that was used longest ago; those on the disk take no room."""
        candidates = [one for one in self._holders if one.is_resident is resident and not one.is_stored]
        return min(candidates, key=lambda holder: holder.last_used_s, default=None)

    def worth_keeping(self) -> Iterator[Holder]:
        """Yield every prefix that no longer one begins with, the latest used first, and of equal ones the cheapest."""
        for holder in sorted(self._holders, key=lambda one: one.last_used_s, reverse=True):
            better = (one for one in self._holders if one.salt == holder.salt and _is_better(one, holder))
            if not any(common_prefix(one.tokens, holder.tokens) == len(holder.tokens) for one in better):
                yield holder


def _is_better(one: Holder, other: Holder) -> bool:
    """Whether `one` makes `other` superfluous if it begins with it: it is longer, or cheaper to read."""
    if len(one.tokens) != len(other.tokens):
        return len(one.tokens) > len(other.tokens)
    return (not one.is_resident, one.last_used_s, id(one)) > (not other.is_resident, other.last_used_s, id(other))
