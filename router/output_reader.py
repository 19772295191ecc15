"""What a process prints, line by line: kept in its tail, and passed on to the log under a name.

Owns the pipe's reading end, and how much of it reaches the log: a process that prints without end must cost the router
next to nothing. Must not know what kind of process it is, nor when it ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import ExitStack
from typing import ClassVar, Self, cast

from router.log_tail import LogTail, WarningsOnce

worker_logger = logging.getLogger("router.worker_output")

_NUM_LAST = 100
"""Lines at the end of what was read at once that are kept, however many came before them."""
_PAUSE_S = 0.01
"""Until the next read from a process that prints more than anybody can want: it waits, and nobody else does."""

_warnings_once = WarningsOnce()
"""Of all workers: what one says of the machine or of its build, every other one says too."""


class OutputReader(asyncio.Protocol):
    """What a process prints; a worker's warnings are warnings in the log, all the rest is for debugging."""

    logger: ClassVar = worker_logger
    level: ClassVar = logging.DEBUG
    """Of an ordinary line."""
    max_per_s: ClassVar = 500
    """Lines that go to the log in a second."""
    max_in_all: ClassVar[float] = float("inf")

    def __init__(self, name: str, log: LogTail) -> None:
        self.name = name
        """Stands before each line in the log."""
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.ReadTransport | None = None
        self._closed = self._loop.create_future()
        self._second_began_s = self._loop.time()
        self._num_this_second = 0
        self._num_logged = 0
        self._num_left_out = 0
        """Since the last line that went to the log."""

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
        self._transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Nothing is done for each of the lines that neither the log nor the tail has room for."""
        room = self._room()
        first_end, last_start, num_between = _cut(data, room + 1, _NUM_LAST)
        self._write(self._log.feed(data[:first_end]), room)
        if num_between == 0:
            return
        self._log.add([f"[{num_between} lines left out: they came too fast]"])
        if self.logger.isEnabledFor(self.level):
            self._num_left_out += num_between
        self._write(self._log.feed(data[last_start:]), self._room())
        self._pause()

    def connection_lost(self, exc: Exception | None) -> None:
        self._write(self._log.end(), self._room())
        self._tell_left_out()
        if not self._closed.done():
            self._closed.set_result(None)

    def judge(self, line: str) -> tuple[int, str]:
        """Return the level of a line in the log, and its text there."""
        level, text = _warnings_once.severity(line)
        return logging.getLevelNamesMapping()[level], text

    def _room(self) -> int:
        """Return how many lines may go to the log now."""
        now_s = self._loop.time()
        if now_s - self._second_began_s >= 1.0:
            self._second_began_s, self._num_this_second = now_s, 0
        return int(min(self.max_per_s - self._num_this_second, self.max_in_all - self._num_logged))

    def _write(self, lines: list[str], room: int) -> None:
        for line in lines:
            level, text = self.judge(line)
            if not self.logger.isEnabledFor(level):
                continue
            if room <= 0:
                self._num_left_out += 1
                continue
            room -= 1
            self._num_this_second += 1
            self._num_logged += 1
            self._tell_left_out()
            self.logger.log(level, "%s: %s", self.name, text)

    def _tell_left_out(self) -> None:
        if self._num_left_out:
            self.logger.log(self.level, "%s: %d lines left out: they came too fast", self.name, self._num_left_out)
            self._num_left_out = 0

    def _pause(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.pause_reading()
            self._loop.call_later(_PAUSE_S, self._go_on, transport)

    @staticmethod
    def _go_on(transport: asyncio.ReadTransport) -> None:
        if not transport.is_closing():
            transport.resume_reading()


def _cut(data: bytes, num_first: int, num_last: int) -> tuple[int, int, int]:
    """Return where the first lines of `data` end, where the last ones begin, and how many are between them."""
    num_between = data.count(b"\n") - num_first - num_last
    if num_between <= 0:
        return len(data), len(data), 0
    end = 0
    for _ in range(num_first):
        end = data.index(b"\n", end) + 1
    start = len(data)
    for _ in range(num_last + 1):
        start = data.rindex(b"\n", 0, start)
    return end, start + 1, num_between
