"""What the machine, or the container that the worker runs in, has of memory, and which processor."""

from __future__ import annotations

import os
import platform
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


def cpu_name(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name as the system tells it; the architecture alone where it does not."""
    try:
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name"))
    return next((name for name in names if name), platform.processor() or platform.machine())
