"""The status link: one whole snapshot a line, soon after every transition and once a second.

Owns the status file descriptor. It is written without ever waiting for the router: while the pipe is full, snapshots
are skipped, as a later one holds all that they would have told. Must not know how a snapshot is made.
"""

from __future__ import annotations

import asyncio
import math
import os
import select
import time
from collections.abc import Callable

from worker.contract import WorkerStatus

PERIOD_S = 1.0
MIN_GAP_S = 0.1
"""Transitions of slots come with every step; lines need not."""


class StatusLink:
    """The pipe, written without blocking."""

    def __init__(self, fd: int) -> None:
        """Own `fd`. Raises: OSError when it is not open."""
        os.set_inheritable(fd, False)
        os.set_blocking(fd, False)
        self._fd = fd
        self._unwritten = b""

    def send(self, status: WorkerStatus) -> None:
        """The status is on its way, unless an earlier one still is: then this one is skipped."""
        self._flush()
        if not self._unwritten:
            self._unwritten = status.to_line()
            self._flush()

    def send_last(self, status: WorkerStatus, *, patience_s: float = 1.0) -> None:
        """The status has been written, or the router has not read for `patience_s`. Blocks that long."""
        self._unwritten += status.to_line()
        deadline_s = time.monotonic() + patience_s
        room = select.poll()  # select() would refuse descriptors from 1024 on
        room.register(self._fd, select.POLLOUT)
        while self._unwritten and (left_s := deadline_s - time.monotonic()) > 0:
            room.poll(math.ceil(1e3 * left_s))
            self._flush()

    def _flush(self) -> None:
        while self._unwritten:
            try:
                num_written = os.write(self._fd, self._unwritten)
            except BlockingIOError:
                return
            except OSError:  # the router has closed its end; stdin will tell the same
                self._unwritten = b""
                return
            self._unwritten = self._unwritten[num_written:]


class Reporter:
    """Decides when a line is due. Lives on the event loop, so that silence means that the loop is stuck."""

    def __init__(self, link: StatusLink, snapshot: Callable[[], WorkerStatus]) -> None:
        self._link = link
        self._snapshot = snapshot
        self._shown: object = None
        self._timer: asyncio.TimerHandle | None = None

    def send(self) -> None:
        """A line goes out now: for transitions of the worker itself."""
        self._send(self._snapshot())

    def nudge(self) -> None:
        """A line follows within `MIN_GAP_S` if the state of a slot or of the queue has changed. Cheap."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MIN_GAP_S, self._send_if_changed)

    async def run(self) -> None:
        """Send a line every second, for ever."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.send()

    def _send_if_changed(self) -> None:
        self._timer = None
        status = self._snapshot()
        if _visible_state(status) != self._shown:
            self._send(status)

    def _send(self, status: WorkerStatus) -> None:
        self._shown = _visible_state(status)
        self._link.send(status)


def _visible_state(status: WorkerStatus) -> object:
    """Return what people watch; numbers that only grow wait for the next regular line."""
    slots = tuple((slot.state, slot.request_id) for slot in status.slots)
    return status.phase, status.has_work, status.queue_length, slots
