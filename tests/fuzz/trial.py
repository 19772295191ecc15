"""One input is tried: what went wrong, if anything, within limits of time and memory.

Owns what counts as a finding. Must not know any target, nor where inputs come from.
"""

from __future__ import annotations

import resource
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from zlib import crc32

MAX_CPU_S = 1.0
"""Of processor time for one input: a busy machine finds nothing that an idle one does not."""
MAX_GROWN_BYTES = 256 * 2**20
"""By which one input may raise the most memory that the process has ever had."""
_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


class TookTooLong(BaseException):
    """Not an `Exception`: the code under test must not catch it."""


class TookTooMuch(Exception):
    """The input cost too much memory."""


@dataclass(frozen=True)
class Finding:
    """What an input has shown."""

    kind: str
    """The exception's name."""
    place: str
    """Where it was raised: file, function and what stands there; the innermost one of this project."""
    told: str
    """The traceback."""

    @property
    def key(self) -> str:
        """The same for inputs that show the same."""
        return f"{self.kind}-{crc32(self.place.encode()):08x}"


def attempt(
    check: Callable[[bytes], None],
    data: bytes,
    max_cpu_s: float = MAX_CPU_S,
    peak_bytes: Callable[[], int] | None = None,
) -> Finding | None:
    """Return what is wrong with what `check` does for `data`; None = nothing. For the main thread only."""
    before = signal.signal(signal.SIGPROF, _stop)
    peak_bytes = peak_bytes or _peak_bytes
    peak = peak_bytes()
    try:
        signal.setitimer(signal.ITIMER_PROF, max_cpu_s)
        try:
            check(data)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if (grown := peak_bytes() - peak) > MAX_GROWN_BYTES:
            raise TookTooMuch(f"{grown >> 20} MiB")
    except (Exception, TookTooLong) as error:  # noqa: BLE001 - whatever it is, it is a finding
        return _finding(error)
    finally:
        signal.signal(signal.SIGPROF, before)
    return None


def _stop(_: int, __: FrameType | None) -> None:
    raise TookTooLong


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT


def _finding(error: BaseException) -> Finding:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.name != "_stop"]
    own = [frame for frame in frames if "/router/" in frame.filename or "/worker/" in frame.filename]
    tests = [frame for frame in frames if "/parsers/" in frame.filename]
    # Where time ran out is chance, and so are the depths of a recursion: what the check had called is not.
    chosen = (tests or own or frames) if isinstance(error, TookTooLong | RecursionError) else [*tests, *own] or frames
    last = chosen[-1] if chosen else None
    place = f"{last.filename.rsplit('/', 1)[-1]}:{last.name}:{last.line}" if last is not None else ""
    told = "".join(traceback.format_exception(error, limit=-12))
    return Finding(type(error).__name__, place, told[-4000:])
