"""The private directory of one running router: workers' sockets live there, and workers run in it.

Owns making it, finding a short enough place for it, removing it, and removing what dead routers left behind.
Must not know what is put into it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

_PREFIX = "corral-"
_LOCK_NAME = "pid"
_LONGEST_NAME = "/w1234567.sock"

MAX_SOCKET_PATH_BYTES = 103
"""Source: sockaddr_un.sun_path has 104 bytes on macOS and 108 on Linux, the closing zero included."""


class RuntimeDirError(OSError):
    """No place for the directory could be found; the message says what to set."""


class RuntimeDir:
    """A directory that only this user can enter, locked for as long as the router lives.

    The lock, not the process id, tells whether its router is alive: ids mean nothing across containers that share
    a folder, and they are given out again.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock
        self._num_sockets = 0

    @classmethod
    def create(cls, parent: Path | None = None) -> RuntimeDir:
        """Make a new directory in `parent`, or where the system keeps such things; remove dead routers' ones.

        Raises: RuntimeDirError.
        """
        reasons = []
        for place in [parent] if parent is not None else default_parents(os.environ):
            if len(os.fsencode(place)) + len(f"/{_PREFIX}12345678{_LONGEST_NAME}") > MAX_SOCKET_PATH_BYTES:
                reasons.append(f"{place} is too long for the name of a Unix socket")
                continue
            try:
                remove_stale(place)
                path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
            except OSError as error:
                reasons.append(f"{place}: {error.strerror or error}")
                continue
            return cls(path, _lock(path))
        raise RuntimeDirError(
            f"no directory for the workers' sockets: {'; '.join(reasons)}. "
            "Set XDG_RUNTIME_DIR to a short path that you can write to."
        )

    def new_socket_path(self) -> Path:
        """Return a path that was never used before, so that no request can reach an earlier worker's successor."""
        self._num_sockets += 1
        return self.path / f"w{self._num_sockets}.sock"

    def remove(self) -> None:
        """The directory and all in it are gone. May be called twice."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def default_parents(environ: Mapping[str, str]) -> list[Path]:
    """Return where the directory may be, best place first."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    return [*([Path(runtime)] if runtime and Path(runtime).is_absolute() else []), Path("/tmp")]


def remove_stale(parent: Path) -> None:
    """Directories of this user's routers that are no longer alive are gone from `parent`."""
    for path in parent.glob(f"{_PREFIX}*"):
        if _is_stale(path):
            shutil.rmtree(path, ignore_errors=True)


def _is_stale(path: Path) -> bool:
    try:
        owner = path.lstat()
        if not stat.S_ISDIR(owner.st_mode) or owner.st_uid != os.getuid():
            return False
        lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False  # not ours, or its router is just making it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(lock).st_size > 0  # the id is written once the lock is held
    except OSError:
        return False
    finally:
        os.close(lock)


def _lock(path: Path) -> int:
    lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(lock, f"{os.getpid()}\n".encode())
    return lock
