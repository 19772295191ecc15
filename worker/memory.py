"""How much memory this process uses, as the operating system tells it.

Must not be imported before the model is loaded: psutil is not needed until then.
"""

from __future__ import annotations

import psutil

_PROCESS = psutil.Process()


def read_rss() -> int:
    """Return the resident bytes, shared pages included. Takes microseconds."""
    return int(_PROCESS.memory_info().rss)


def read_private() -> int:
    """Return the resident bytes that no other process could share; all of them where the system cannot tell.

    Pages of mapped files are not in it, and what the process shares with others only now is. Takes microseconds.
    """
    memory = _PROCESS.memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


def read_pss() -> int | None:
    """Return the resident bytes with shared pages divided among their users; None where the system cannot tell.

    Walks the page tables, which takes milliseconds for each gigabyte: call it seldom and in a thread.
    """
    try:
        return getattr(_PROCESS.memory_full_info(), "pss", None)
    except (psutil.AccessDenied, OSError):
        return None
