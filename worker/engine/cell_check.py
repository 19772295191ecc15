"""What the KV cache must hold, token by token, followed from the operations and passes that were really performed.

For tests and debugging: owns a map of its own of every sequence's tokens, and compares it with the scheduler's books
and with what the backend tells of its cells. Must not decide anything and repairs nothing: a difference is raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from worker.engine.batch import (
    Clear,
    Fetch,
    Forget,
    ForwardFailed,
    KvOp,
    Restore,
    Save,
    Share,
    StepPlan,
    StepResult,
    TokenArray,
    Trim,
    Wipe,
)
from worker.engine.prefix_cache import PrefixCache
from worker.engine.scheduler import Scheduler

_Held = npt.NDArray[np.int32]
"""Tokens and, below them, the numbers of the keys that they were computed for. Shape: (2, num_tokens)."""

_UNKNOWN = -1
"""A token, or a key, of which nobody has told what it is."""


class WrongCells(AssertionError):
    """The cache does not hold what the books say: no answer can be trusted any more."""


class Cells(Protocol):
    """What a backend tells of its cells."""

    @property
    def window(self) -> int:
        """Positions that layers with a sliding window look back on; 0 = all layers see everything."""
        ...

    def num_cached(self, seq_id: int) -> int:
        """Return how many tokens of the sequence are in the cache."""
        ...

    def first_cached(self, seq_id: int) -> int:
        """Return the first position of which the cache holds all there is; -1 if it holds nothing."""
        ...


@runtime_checkable
class ReadableCells(Protocol):
    """A backend that can tell the tokens in its cells; llama.cpp knows positions alone."""

    def tokens_in(self, seq_id: int) -> Sequence[int]:
        """Return the tokens in the cells of the sequence."""
        ...


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What the books say of one sequence id."""

    seq_id: int
    tokens: TokenArray
    key: str
    """Only sequences of equal key may have cells in common."""
    owner: str
    """Whose they are, for people."""


class CellCheck:
    """A second set of books that is kept by what was done, not by what was decided."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        self._blobs: dict[int, _Held | None] = {}
        """None = it came from the disk, and nobody has told what is in it."""
        self._keys: dict[str, int] = {}

    # --- what was done ----------------------------------------------------------------------------------

    def applied(self, op: KvOp | Fetch, cache: PrefixCache) -> None:
        """An operation has been performed; `cache` knows what lies on the disk.

        Raises: WrongCells for one that no cache may be asked for.
        """
        match op:
            case Clear(seq_id):
                self._held.pop(seq_id, None)
            case Trim(seq_id, num_tokens):
                self._held[seq_id] = self._tokens(seq_id)[:, :num_tokens]
            case Share(src, dst, num_tokens):
                if self._tokens(dst).shape[1]:
                    raise WrongCells(f"sequence {dst} was to share cells of sequence {src}, but owns some itself")
                self._held[dst] = self._tokens(src)[:, :num_tokens]
            case Save(seq_id, blob_id):
                self._blobs[blob_id] = self._tokens(seq_id)
            case Restore(blob_id, seq_id, num_tokens):
                blob = self._blobs.get(blob_id)
                if blob is None:
                    blob = np.full((2, num_tokens), _UNKNOWN, dtype=np.int32)
                self._held[seq_id] = blob[:, :num_tokens]
            case Forget(blob_id):
                self._blobs.pop(blob_id, None)
            case Wipe():
                self._held.clear()
            case Fetch(blob_id):
                holder = next((one for one in cache if one.blob_id == blob_id), None)
                self._blobs[blob_id] = None if holder is None else self._of(holder.tokens, holder.salt)

    def passed(self, plan: StepPlan, result: StepResult, scheduler: Scheduler) -> None:
        """The forward pass of `plan` has ended so; not yet committed.

        Raises: WrongCells for rows that do not follow what their sequence holds.
        """
        for chunk in plan.chunks:
            sequence = scheduler.slots[chunk.seq_id].sequence
            assert sequence is not None
            held = self._tokens(chunk.seq_id)
            if chunk.start != held.shape[1]:
                raise WrongCells(
                    f"sequence {chunk.seq_id}: rows from position {chunk.start} on were computed, "
                    f"where position {held.shape[1]} comes next"
                )
            after = np.concatenate((held, self._of(chunk.tokens, sequence.cache_key)), axis=1)
            if isinstance(result, ForwardFailed):
                after = after[:, : held.shape[1] if result.num_cached is None else result.num_cached[chunk.seq_id]]
            self._held[chunk.seq_id] = after

    # --- the comparison ---------------------------------------------------------------------------------

    def compare(self, scheduler: Scheduler, backend: Cells) -> None:
        """Compare the scheduler's books with what was done and with what the backend tells.

        Nothing while operations are pending: the books are ahead until they are performed.
        Raises: WrongCells that names the sequence, the position, what was expected and what was found.
        """
        if scheduler.kv.has_ops:
            return
        known = set()
        readable = backend if isinstance(backend, ReadableCells) else None
        for one in _recorded(scheduler):
            known.add(one.seq_id)
            self._compare_tokens(one, self._tokens(one.seq_id)[0], "were computed or shared")
            self._compare_keys(one)
            _compare_positions(one, backend, can_share=scheduler.options.can_share)
            if readable is not None:
                found = np.array(readable.tokens_in(one.seq_id), dtype=np.int32)
                self._compare_tokens(one, found, "are in the cells")
        for seq_id, held in self._held.items():
            if seq_id not in known and held.shape[1]:
                raise WrongCells(f"sequence {seq_id} owns {held.shape[1]} cells, and the books know nothing of it")

    @staticmethod
    def _compare_tokens(one: _Recorded, found: TokenArray, where: str) -> None:
        if np.array_equal(one.tokens, found):
            return
        if len(one.tokens) != len(found):
            raise WrongCells(f"{_named(one)}: {len(one.tokens)} tokens expected, {len(found)} {where}")
        wrong = np.flatnonzero((one.tokens != found) & (found != _UNKNOWN))
        if len(wrong):
            position = int(wrong[0])
            expected = f"token {one.tokens[position]} expected, {found[position]} found"
            raise WrongCells(f"{_named(one)}, position {position}: {expected} among those that {where}")

    def _compare_keys(self, one: _Recorded) -> None:
        keys = self._tokens(one.seq_id)[1]
        number = self._number(one.key)
        if (keys == number).all():
            return
        wrong = np.flatnonzero((keys != number) & (keys != _UNKNOWN))
        if len(wrong):
            expected = "a cell of its own key expected, one of another key (tenant or adapters) found"
            raise WrongCells(f"{_named(one)}, position {int(wrong[0])}: {expected}")

    def _tokens(self, seq_id: int) -> _Held:
        return self._held.get(seq_id, _NOTHING)

    def _of(self, tokens: TokenArray, key: str) -> _Held:
        return np.stack((tokens, np.full(len(tokens), self._number(key), dtype=np.int32)))

    def _number(self, key: str) -> int:
        return self._keys.setdefault(key, len(self._keys))


_NOTHING: _Held = np.empty((2, 0), dtype=np.int32)


def _recorded(scheduler: Scheduler) -> Iterator[_Recorded]:
    """Yield what the books say of every slot and every kept prefix."""
    cache = scheduler.kv.cache
    for slot in scheduler.slots:
        if (sequence := slot.sequence) is not None:
            computed = sequence.tokens[: sequence.num_computed]
            yield _Recorded(slot.id, computed, sequence.cache_key, f"request {sequence.request_id}")
        elif cache.resident(slot.id) is None:
            yield _Recorded(slot.id, _NOTHING[0], "", "an idle slot")
    for holder in cache:
        if holder.seq_id is not None:
            yield _Recorded(holder.seq_id, holder.tokens, holder.salt, "a kept prefix")


def _compare_positions(one: _Recorded, backend: Cells, *, can_share: bool) -> None:
    """Compare with the backend's positions. Layers with a window keep the last ones, a state only the very last."""
    expected, found = len(one.tokens), backend.num_cached(one.seq_id)
    if found != expected:
        raise WrongCells(f"{_named(one)}: positions 0 to {expected - 1} expected, the cache ends at {found - 1}")
    first = backend.first_cached(one.seq_id)
    if not expected:
        if first >= 0:
            raise WrongCells(f"{_named(one)}: no position expected, position {first} found")
        return
    latest = expected - 1
    if can_share:
        latest = max(0, expected - backend.window + 1) if backend.window else 0
    if not 0 <= first <= latest:
        raise WrongCells(f"{_named(one)}: positions from {latest} on expected, the cache begins at {first}")


def _named(one: _Recorded) -> str:
    return f"sequence {one.seq_id} ({one.owner})"
