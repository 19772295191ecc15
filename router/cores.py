"""How many CPU cores this process may keep busy: what the affinity mask, the container and the hardware allow.

Owns that one number. Must not divide it (`threads.py` does).
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def count_cores(cgroup: Path = _CGROUP) -> int:
    """Return the number of cores that workers may share, at least 1.

    Physical ones where the system tells: two busy llama.cpp threads on one core take turns and gain nothing.
    """
    counts = [os.cpu_count() or 1]
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        counts.append(len(os.sched_getaffinity(0)))
    if physical := psutil.cpu_count(logical=False):
        counts.append(physical)
    if (quota := cpu_quota(cgroup)) is not None:
        counts.append(max(1, math.floor(quota)))
    return max(1, min(counts))


def cpu_quota(cgroup: Path) -> float | None:
    """Return the CPUs that the container's limit is worth; None = no limit. Source: cgroup v2 `cpu.max`, v1 `cfs`."""
    try:
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return None
    try:
        return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None
    except ValueError:  # "max"
        return None
