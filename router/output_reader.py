"""What a process prints, line by line: kept in its tail, and passed on to the log under a name.

Owns the pipe's reading end. Must not know what kind of process it is, nor when it ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import ExitStack
from typing import Self

from router.log_tail import LogTail, WarningsOnce

worker_logger = logging.getLogger("router.worker_output")

_warnings_once = WarningsOnce()
"""Of all workers: what one says of the machine or of its build, every other one says too."""


class OutputReader(asyncio.Protocol):
    """What a process prints; a worker's warnings are warnings in the log, all the rest is for debugging."""

    def __init__(self, name: str, log: LogTail) -> None:
        self.name = name
        """Stands before each line in the log."""
        self._log = log
        self._transport: asyncio.BaseTransport | None = None
        self._closed = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, fd: int, name: str, log: LogTail) -> Self:
        """Return a reader of `fd`, which it owns: it is closed even when this fails."""
        reader = cls(name, log)
        with ExitStack() as undo:
            pipe = undo.enter_context(os.fdopen(fd, "rb", buffering=0))
            await asyncio.get_running_loop().connect_read_pipe(lambda: reader, pipe)
            undo.pop_all()
        return reader

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._write(self._log.feed(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._write(self._log.end())
        if not self._closed.done():
            self._closed.set_result(None)

    def _write(self, lines: list[str]) -> None:
        for line in lines:
            self.show(line)

    def show(self, line: str) -> None:
        """Log the line."""
        level, text = _warnings_once.severity(line)
        worker_logger.log(logging.getLevelNamesMapping()[level], "%s: %s", self.name, text)
