"""Saving, restoring and erasing the slots of a running engine: what is done on which thread, and one thing at a time.

Bytes are copied on the engine's thread, between two passes; files are read and written beside it, so that running
answers do not wait for a disk. Must not know HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from worker.engine.occupants import Client
from worker.engine.prompt_files import PromptFolder
from worker.engine.slot_files import SlotFolder
from worker.engine.slot_state import SlotCopy, SlotProblem, SlotStates

log = logging.getLogger(__name__)

T = TypeVar("T")


class CannotSave(SlotProblem):
    """Nothing of this model is saved to the disk; the message says why."""


class StatesEngine(Protocol):
    """What is needed of an engine."""

    @property
    def slot_states(self) -> SlotStates: ...
    def call(self, work: Callable[[], T]) -> asyncio.Future[T]: ...


@dataclass(frozen=True, slots=True)
class Moved:
    """What went to the disk or came from it."""

    num_tokens: int
    num_bytes: int


class SavedSlots:
    """One model's slots. All methods are called from the event loop."""

    def __init__(self, engine: StatesEngine, folder: SlotFolder | None, why_not: str = "") -> None:
        self._engine = engine
        self._folder = folder
        self._why_not = why_not
        self._turn = asyncio.Lock()
        """A state may have as many bytes as the cache: no two are held at a time."""
        self._running: set[asyncio.Task[Any]] = set()

    async def save(self, slot_id: int, client: Client, name: str) -> Moved:
        """What the client has last had computed in the slot is on the disk under this name.

        Raises: SlotProblem, NoRoomOnDisk, OSError, EngineStopped.
        """
        folder = self._place()
        return await self._whole(partial(self._save, folder, slot_id, client, name))

    async def restore(self, slot_id: int, client: Client, name: str) -> Moved:
        """What the client has saved under this name is in the cache. Raises: as `save`; Unusable, MemoryError."""
        folder = self._place()
        return await self._whole(partial(self._restore, folder, slot_id, client, name))

    async def erase(self, slot_id: int, client: Client) -> int:
        """Nothing of it is kept; return how many tokens that was. Raises: SlotBusy, EngineStopped."""
        return await self._engine.call(partial(self._engine.slot_states.erase, slot_id, client))

    async def _save(self, folder: SlotFolder, slot_id: int, client: Client, name: str) -> Moved:
        copy = await self._engine.call(partial(self._engine.slot_states.copy, slot_id, client))
        write = partial(folder.write, client, name, copy.tokens, copy.cache_key, copy.kv)
        num_bytes = await asyncio.to_thread(write)
        log.info("slot %d saved: %d tokens, %.1f MB", slot_id, len(copy.tokens), num_bytes / 1e6)
        return Moved(len(copy.tokens), num_bytes)

    async def _restore(self, folder: SlotFolder, slot_id: int, client: Client, name: str) -> Moved:
        head, kv = await asyncio.to_thread(folder.read, client, name)
        copy = SlotCopy(head.tokens, head.salt, kv)
        await self._engine.call(partial(self._engine.slot_states.insert, slot_id, client, copy))
        log.info("slot %d restored: %d tokens, %.1f MB", slot_id, len(head.tokens), head.num_bytes / 1e6)
        return Moved(len(head.tokens), head.num_bytes)

    def _place(self) -> SlotFolder:
        if self._folder is None:
            raise CannotSave(self._why_not)
        return self._folder

    async def _whole(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what `work` brings when its turn has come.

        A client that leaves gives its turn up; once begun the work ends all the same, for a thread that writes cannot
        be broken off.
        """
        await self._turn.acquire()
        task = asyncio.create_task(work())
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._turn.release()


def saved_slots_of(
    engine: StatesEngine, prompts: PromptFolder | None, *, can_share: bool, disk_bytes: int
) -> SavedSlots:
    """Return the slots of an engine whose prompts are kept in this folder, or which tell why they are not."""
    if prompts is not None:
        return SavedSlots(engine, SlotFolder.beside(prompts))
    if not can_share:
        why = (
            "This model remembers by a state or a window that cannot be cut, so that its slots cannot be saved. "
            "Models with sliding windows can with `swa_full: true` in models.yaml."
        )
    elif not disk_bytes:
        why = "Nothing of this model is kept on the disk: set its `prompt_cache_disk_bytes` in models.yaml."
    else:
        why = "There is no folder to save slots in: see `CORRAL_CACHE`, and the server's log."
    return SavedSlots(engine, None, why)
