"""Who may enter: counts the requests that are being served and closes for a drain.

Must not know what a request is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from worker.errors import WorkerDraining


class Gate:
    """Open until `close()`; whoever is inside may finish."""

    def __init__(self, on_change: Callable[[], None] | None = None) -> None:
        self._on_change = on_change
        self.is_closed = False
        self.num_inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def enter(self) -> Iterator[None]:
        """The caller is counted as inside. Raises: WorkerDraining when the gate is closed."""
        if self.is_closed:
            raise WorkerDraining("This worker is shutting down and takes no new requests. Please try again.")
        self.num_inside += 1
        self._empty.clear()
        self._tell()
        try:
            yield
        finally:
            self.num_inside -= 1
            if not self.num_inside:
                self._empty.set()
            self._tell()

    def close(self) -> None:
        """Nobody enters any more."""
        self.is_closed = True

    async def wait_empty(self) -> None:
        """Everybody has left."""
        await self._empty.wait()

    def _tell(self) -> None:
        if self._on_change is not None:
            self._on_change()
