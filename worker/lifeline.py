"""The worker's stdin: the launch spec, later orders, and the proof that the router is alive.

Owns file descriptor 0 and one thread that reads it from the very start, so that nothing (a long load, a stuck event
loop) can keep a worker alive after its router. Must not know what orders mean.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from worker.contract import Control, ExitCode, LaunchSpec

_PR_SET_PDEATHSIG = 1
_PARENT_CHECK_S = 1.0
_MAX_LINE_BYTES = 16 * 2**20
"""A launch spec carries a chat template at most; more is not a router."""

OnControl = Callable[[Control], None]


def die_with_parent() -> None:
    """On Linux the kernel kills this process when the thread that started it ends; elsewhere nothing changes.

    Source: prctl(2), PR_SET_PDEATHSIG.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


class Lifeline:
    """Reads stdin in a thread of its own. End of file, or another parent, ends the process at once."""

    def __init__(
        self,
        fd: int = 0,
        *,
        exit_now: Callable[[int], NoReturn] = os._exit,
        parent_of: Callable[[], int] = os.getppid,
    ) -> None:
        self._fd = fd
        self._exit_now = exit_now
        self._parent_of = parent_of
        self._parent = parent_of()
        self._lock = threading.Lock()
        self._has_first_line = threading.Event()
        self.told_at_s = 0.0
        """Monotonic seconds at which the launch spec was there; meaningless before `is_told`."""
        self._spec: LaunchSpec | None = None
        self._problem = ""
        self._early: list[Control] = []
        self._on_control: OnControl | None = None
        self._socket_path: str | None = None

    def start(self) -> None:
        """The thread reads."""
        threading.Thread(target=self.read, name="lifeline", daemon=True).start()

    @property
    def is_told(self) -> bool:
        """Whether `wait_spec` would not wait."""
        return self._has_first_line.is_set()

    def wait_told(self) -> None:
        """The first line on stdin is there."""
        self._has_first_line.wait()

    def wait_spec(self) -> LaunchSpec:
        """Return the launch spec as soon as it is there. Raises: ValueError when the first line is none."""
        self.wait_told()
        if self._spec is None:
            raise ValueError(self._problem)
        return self._spec

    def set_on_control(self, on_control: OnControl) -> None:
        """Orders go to `on_control`, in the lifeline's thread; those that came before, now and in this one."""
        with self._lock:
            self._on_control = on_control
            early, self._early = self._early, []
            for order in early:
                on_control(order)

    def read(self) -> None:
        """Read until the router is gone, then end the process; the thread's body."""
        pending = b""
        while (data := self._read_some()) is not None:
            pending += data
            *lines, pending = pending.split(b"\n")
            for line in lines:
                self._take(line)
            if len(pending) > _MAX_LINE_BYTES:
                break
        self._vanish()

    def _read_some(self) -> bytes | None:
        """Return what came on stdin; None when the router is gone."""
        while not select.select([self._fd], [], [], _PARENT_CHECK_S)[0]:
            if self._parent_of() != self._parent:
                return None
        try:
            return os.read(self._fd, 65536) or None
        except OSError:
            return None

    def _take(self, line: bytes) -> None:
        if not self._has_first_line.is_set():
            try:
                self._spec = LaunchSpec.from_line(line)
                self._socket_path = self._spec.socket_path
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self._problem = f"the first line on stdin is not a launch spec: {error!r}"
            self.told_at_s = time.monotonic()
            self._has_first_line.set()
            return
        try:
            order = Control.from_line(line)
        except (ValueError, KeyError, TypeError):
            _say("an order on stdin was not understood")
            return
        with self._lock:
            if self._on_control is None:
                self._early.append(order)
            else:
                self._on_control(order)

    def _vanish(self) -> None:
        """End without any clean-up that could wait for something; only the socket's name is taken away."""
        if self._socket_path is not None:
            with suppress(OSError):
                os.unlink(self._socket_path)
        _say("the router is gone, exiting")
        self._exit_now(ExitCode.OK)


def _say(text: str) -> None:
    """The line is on stderr, unless nobody reads it: this thread must never wait."""
    with suppress(OSError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, f"worker: {text}\n".encode())
