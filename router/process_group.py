"""Signals to a process group, and whether anybody of it is left.

Owns the differences between systems. Must not wait or decide when to send what (`process.py` does).
"""

from __future__ import annotations

import os
import signal

import psutil


def signal_group(group: int, number: signal.Signals) -> None:
    """Send the signal to every process of the group; nobody there is fine."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return
    except PermissionError:
        # macOS says this of a group that consists of zombies only.
        return


def living_members(group: int) -> list[int]:
    """Return the ids of the group's processes that still run; zombies hold nothing and do not count.

    An orphan's zombie stays until init reaps it, and in a container init may be a router that never does.
    """
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return []  # the common answer costs one system call
    except PermissionError:
        pass
    members = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue
    return members
