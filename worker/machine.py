"""What the machine, or the container that the worker runs in, has of memory."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where a container's limit stands, for both versions of cgroups; "max" or a huge number = none."""


def machine_memory_bytes(limits: tuple[Path, ...] = CGROUP_LIMITS) -> int:
    """Return the physical memory, or the container's limit if that is lower."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in limits:
        try:
            memory = min(memory, int(path.read_text()))
        except (OSError, ValueError):
            continue
    return memory
