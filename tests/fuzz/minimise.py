"""A shorter input that shows the same: `python -m tests.fuzz.minimise TARGET FILE` says what it shows and shortens it.

Runs as a process of its own, without any counting of branches: what takes too long only because of that is no finding.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.loop import subject_of
from tests.fuzz.trial import attempt

WITHIN_S = 20.0


def shortest(data: bytes, shows: Callable[[bytes], bool], until_s: float) -> bytes:
    """Return `data` without all that is not needed: halves first, single bytes at last."""
    size = max(1, len(data) // 2)
    while True:
        at = 0
        before = len(data)
        while at < len(data) and time.monotonic() < until_s:
            candidate = data[:at] + data[at + size :]
            if shows(candidate):
                data = candidate
            else:
                at += size
        if time.monotonic() >= until_s:
            return data
        if size == 1 and len(data) == before:
            return data
        size = max(1, size // 2)


def main(name: str, path: Path) -> int:
    """Return 0 if the input shows something, 1 if it does not."""
    check = subject_of(name).check
    data = path.read_bytes()
    first = attempt(check, data)
    if first is None:
        return 1

    def shows(candidate: bytes) -> bool:
        found = attempt(check, candidate)
        return found is not None and found.key == first.key

    data = shortest(data, shows, time.monotonic() + WITHIN_S)
    last = attempt(check, data) or first
    path.write_bytes(data)
    sys.stdout.write(f"{last.key}\n{last.told}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
