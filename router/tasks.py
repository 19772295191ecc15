"""Background tasks that are kept alive, and whose faults do not go unseen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence

logger = logging.getLogger(__name__)


class Tasks:
    """The tasks of one owner."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, coroutine: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Return the task; a fault in it goes to the log."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    async def close(self) -> None:
        """Every task is over, cancelled if need be."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed: this is a fault of the router", task.get_name(), exc_info=error)


class AgainOnce:
    """Runs one task at a time and, if it is asked for meanwhile, once more after it, however often that is."""

    def __init__(self, make: Callable[[], Coroutine[None, None, None]], name: str) -> None:
        self._make = make
        self._name = name
        self._tasks = Tasks()
        self._is_running = False
        self._is_wanted = False

    def ask(self) -> None:
        """What is to be done will have begun after this moment, and be done."""
        self._is_wanted = True
        if not self._is_running:
            self._is_running = True
            self._tasks.spawn(self._run(), self._name)

    async def close(self) -> None:
        """Nothing runs any more."""
        self._is_wanted = False
        await self._tasks.close()

    async def _run(self) -> None:
        try:
            while self._is_wanted:
                self._is_wanted = False
                await self._make()
        finally:
            self._is_running = False


async def all_set(events: Sequence[asyncio.Event], timeout_s: float) -> bool:
    """Return whether all of `events` are set after at most `timeout_s`."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    if not waits:
        return True
    try:
        _, pending = await asyncio.wait(waits, timeout=timeout_s)
    finally:
        for wait in waits:
            wait.cancel()
    return not pending
