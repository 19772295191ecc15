"""SIGHUP while a server starts: it asks for a reload, as ever, and does not end the process.

Owns the time before the event loop's own handlers are there. Must stay quick to import: it comes first.
"""

from __future__ import annotations

import os
import signal
from types import FrameType


class EarlyHangup:
    """A handler that remembers the signal; `stopping.py` looks it up and takes over from it."""

    def __init__(self) -> None:
        self.is_noted = False
        self._had_terminal = has_terminal()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._had_terminal and not has_terminal():  # the terminal has been closed: nobody is there to serve
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.is_noted = True


def note_early_hangups() -> None:
    """A SIGHUP from now on is remembered, unless it is ignored, as `nohup` wants it."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, EarlyHangup())


def has_terminal() -> bool:
    """Return whether somebody sits at a terminal; no longer once that is closed."""
    try:
        return os.isatty(0)
    except OSError:
        return False
