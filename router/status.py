"""The router's end of a worker's status link: a pipe of JSON lines becomes the last `WorkerStatus`.

Owns cutting, bounding and parsing the lines. Must not decide anything on them, and must not trust them: a worker
that writes junk, or a line without an end, costs a counter and nothing else.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from worker.contract import Phase, WorkerStatus

MAX_LINE_BYTES = 2**20
"""A whole snapshot with a hundred slots is 30 KB."""


class StatusLines:
    """Cuts the bytes of a status link into snapshots; counts what is none."""

    def __init__(self) -> None:
        self.num_garbage = 0
        """Lines that were too long or not a status."""
        self._partial = bytearray()
        self._is_skipping = False

    def feed(self, data: bytes) -> list[WorkerStatus]:
        """Return the snapshots that `data` completes, oldest first."""
        *ended, rest = data.split(b"\n")
        statuses = []
        for part in ended:
            self._add(part)
            if self._is_skipping:
                self._is_skipping = False
            elif status := self._parse(bytes(self._partial)):
                statuses.append(status)
            self._partial.clear()
        self._add(rest)
        return statuses

    def _add(self, part: bytes) -> None:
        if self._is_skipping:
            return
        self._partial += part
        if len(self._partial) > MAX_LINE_BYTES:
            self._partial.clear()
            self._is_skipping = True
            self.num_garbage += 1

    def _parse(self, line: bytes) -> WorkerStatus | None:
        try:
            return WorkerStatus.from_line(line)
        except ValueError:
            self.num_garbage += 1
            return None


class StatusLink(asyncio.Protocol):
    """Reads one worker's status pipe until its end and keeps the last snapshot."""

    def __init__(self, on_status: Callable[[WorkerStatus], None]) -> None:
        self.last: WorkerStatus | None = None
        self.error: str | None = None
        """Why the worker said that it failed."""
        self._on_status = on_status
        self._lines = StatusLines()
        self._transport: asyncio.BaseTransport | None = None
        self._closed = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, fd: int, on_status: Callable[[WorkerStatus], None]) -> Self:
        """Return a link that reads from `fd`; `on_status` gets every snapshot.

        It owns `fd`, which is closed even when this fails.
        """
        link = cls(on_status)
        with ExitStack() as undo:
            pipe = undo.enter_context(os.fdopen(fd, "rb", buffering=0))
            await asyncio.get_running_loop().connect_read_pipe(lambda: link, pipe)
            undo.pop_all()
        return link

    async def wait_closed(self) -> None:
        """Return when the last line has been read: every holder of the other end is gone, or `close` was called."""
        await asyncio.shield(self._closed)

    def close(self) -> None:
        """Stop reading, whoever still holds the other end."""
        if self._transport is not None:
            self._transport.close()

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for status in self._lines.feed(data):
            self.last = status
            if status.phase is Phase.FAILED and status.error:
                self.error = status.error
            self._on_status(status)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)


def has_moved(before: WorkerStatus | None, after: WorkerStatus) -> bool:
    """Return whether a load came on between two snapshots; that a loading worker still speaks is not enough."""
    return before is None or (before.phase, before.progress) != (after.phase, after.progress)
