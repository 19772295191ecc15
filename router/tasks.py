"""Background tasks that are kept alive, and whose faults do not go unseen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence

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
