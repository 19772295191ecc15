"""How long this process has existed.

Must not be wrong by more than the system's own clock tick: start times in Unix seconds are, by up to a second on Linux,
because they are counted from a boot time in whole seconds.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

_STAT = Path("/proc/self/stat")


def process_age_s() -> float:
    """Return the seconds since this process was made. Source: proc(5), `starttime` in clock ticks since the boot."""
    if sys.platform == "linux":
        fields = _STAT.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
    import psutil

    return max(0.0, time.time() - float(psutil.Process().create_time()))
