"""A slot's prompt out of the cache and back into it, on the engine's thread.

Owns what of a slot a client may have: what the same client has had computed there, and no token more. Must not know
files or names (`slot_files.py`); where bytes lie meanwhile is its caller's affair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from worker.engine.batch import Forget, Restore, Save, TokenArray
from worker.engine.core import EngineCore
from worker.engine.occupants import Client, Occupant, client_of
from worker.engine.prompt_files import PromptFolder
from worker.engine.prompt_format import Bytes


class SlotProblem(Exception):
    """Why nothing can be done with a slot."""


class SlotBusy(SlotProblem):
    """It answers a request of the same client."""


class SlotEmpty(SlotProblem):
    """Nothing of the client's is in it, or not any more."""


class NoRoomInCache(SlotProblem):
    """Running requests have the cells."""


class NotTaken(SlotProblem):
    """llama.cpp could not copy the state."""


@dataclass(frozen=True, slots=True, eq=False)
class SlotCopy:
    """A prompt with its keys and values, in host memory."""

    tokens: TokenArray
    cache_key: str
    kv: Bytes


class SlotStates:
    """The slots of one engine."""

    def __init__(self, core: EngineCore, clock: Callable[[], float], prompts: PromptFolder | None = None) -> None:
        self._core = core
        self._clock = clock
        self._prompts = prompts
        """Where prompts lie that are kept by themselves."""

    def copy(self, slot_id: int, client: Client) -> SlotCopy:
        """Return what the cache has of what the client has last had computed in the slot.

        No token of anybody else's, who may have gone on from there.
        Raises: SlotBusy, SlotEmpty, NoRoomInCache, NotTaken.
        """
        occupant = self._occupant(slot_id, client)
        if occupant is None:
            raise SlotEmpty
        tokens, data = self._found(occupant)
        if data is None:
            raise NotTaken
        return SlotCopy(tokens.copy(), occupant.cache_key, data)

    def _found(self, occupant: Occupant) -> tuple[TokenArray, Bytes | None]:
        """Return as much of the prompt as the cache has, with its bytes if they can be copied."""
        core, kv, now_s = self._core, self._core.scheduler.kv, self._clock()
        borrowed = kv.borrow(now_s)
        try:
            match = core.scheduler.slots.longest(occupant.tokens, occupant.cache_key)
            if match is None:
                raise SlotEmpty
            tokens = occupant.tokens[: match.num_tokens]
            if match.blob_id is not None and match.blob_tokens == match.num_tokens:
                data = core.backend.blob(match.blob_id)
                if data is not None:  # it is in host memory already, and nothing else is in it
                    return tokens, data
            if not kv.begin(borrowed, match, now_s):
                raise NoRoomInCache
            return tokens, self._copied(borrowed)
        finally:
            kv.clear(borrowed)
            core.perform()

    def _copied(self, seq_id: int) -> Bytes | None:
        core, blob_id = self._core, self._core.scheduler.kv.temporary_blob()
        is_copied = core.perform(Save(seq_id, blob_id))
        data = core.backend.blob(blob_id)
        if data is not None:
            core.perform(Forget(blob_id))
        return data if is_copied else None

    def insert(self, slot_id: int, client: Client, copy: SlotCopy) -> None:
        """The cache has the prompt, and the slot is where the client has had it computed.

        Raises: SlotBusy, NoRoomInCache, NotTaken.
        """
        scheduler, kv = self._core.scheduler, self._core.scheduler.kv
        self._occupant(slot_id, client)
        now_s = self._clock()
        known = kv.cache.covering(copy.tokens, copy.cache_key, resident=True)
        if known is not None:
            known.last_used_s = now_s
        else:
            self._restore(copy, now_s)
        scheduler.slots.occupants.note(slot_id, client, Occupant(copy.tokens, copy.cache_key))

    def _restore(self, copy: SlotCopy, now_s: float) -> None:
        core, kv, num_tokens = self._core, self._core.scheduler.kv, len(copy.tokens)
        borrowed, blob_id = kv.borrow(now_s), kv.temporary_blob()
        if not kv.make_room(num_tokens, now_s):
            kv.clear(borrowed)
            core.perform()
            raise NoRoomInCache
        core.backend.put_blob(blob_id, copy.kv)
        kv.ledger.append(borrowed, num_tokens)
        is_there = core.perform(Restore(blob_id, borrowed, num_tokens))
        core.perform(Forget(blob_id))
        if not is_there or core.backend.num_cached(borrowed) != num_tokens:
            kv.clear(borrowed)
            core.perform()
            raise NotTaken
        kv.adopt(borrowed, copy.tokens, copy.cache_key, now_s)
        core.perform()

    def erase(self, slot_id: int, client: Client) -> int:
        """Nothing is kept of what the client has last had computed in the slot; return how many tokens that was.

        A longer prompt that begins with it stays: it is another request's. Raises: SlotBusy.
        """
        scheduler, kv = self._core.scheduler, self._core.scheduler.kv
        self._occupant(slot_id, client)
        occupant = scheduler.slots.occupants.forget(slot_id, client)
        if occupant is None:
            return 0
        num_erased = 0
        for holder in kv.cache.covered_by(occupant.tokens, occupant.cache_key):
            num_erased = max(num_erased, len(holder.tokens))
            kv.drop(holder)
            if self._prompts is not None:
                self._prompts.remove(holder.tokens, holder.salt)
        self._core.perform()
        return num_erased

    def _occupant(self, slot_id: int, client: Client) -> Occupant | None:
        """Return what the client has last had computed in the slot. Raises: SlotBusy while it answers the client."""
        slots = self._core.scheduler.slots
        sequence = slots[slot_id].sequence
        if sequence is not None and client_of(sequence) == client:
            raise SlotBusy
        return slots.occupants.find(slot_id, client)
