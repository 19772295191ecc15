"""`corral serve` on an odd machine: few descriptors, small files, a clock that jumps, an event loop that stands still.

Owns these oddities, which exist in tests alone. Run as `python -m tests.chaos.odd_server serve ...` with

CHAOS_MAX_FILES=N   so many descriptors may be open
CHAOS_MAX_BYTES=N   no file may grow beyond that, in workers neither: as on a full disk, writing fails
CHAOS_CLOCK=PATH    a file with seconds by which the clock of the wall is wrong
SIGUSR1             the event loop stands still for `BLOCK_S`
"""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

BLOCK_S = 3.0


def _bend_clock(path: Path) -> None:
    right, right_ns = time.time, time.time_ns

    def offset_s() -> float:
        try:
            return float(path.read_text() or 0)
        except (OSError, ValueError):
            return 0.0

    time.time = lambda: right() + offset_s()
    time.time_ns = lambda: right_ns() + int(offset_s() * 1e9)


def main() -> None:
    """Serve."""
    if max_files := int(os.environ.get("CHAOS_MAX_FILES", "0")):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, max_files))
    if max_bytes := os.environ.get("CHAOS_MAX_BYTES"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(max_bytes), int(max_bytes)))
    if clock := os.environ.get("CHAOS_CLOCK"):
        _bend_clock(Path(clock))
    signal.signal(signal.SIGUSR1, lambda *_: time.sleep(BLOCK_S))
    from router.cli import main as corral

    corral()


if __name__ == "__main__":
    main()
