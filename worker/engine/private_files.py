"""Files that are for the eyes of this process's user alone: written whole or not at all, read without trusting names.

Must not know what is in them.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path

import numpy as np

from worker.engine.prompt_format import Bytes, Unusable, chunks

UNFINISHED = ".new"


def make_private_folder(path: Path) -> None:
    """The folder and the one above it exist, for their owner alone. Raises: OSError."""
    for folder in (path.parent, path):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)


def open_private(path: Path) -> BufferedReader:
    """Return the file, open for reading. Raises: Unusable if another user could have written it; OSError."""
    file = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        file.close()
        raise Unusable("it is not this user's own")
    return file


def write_private(
    path: Path, head: bytes, kv: Bytes, *, used_at: float, may_go_on: Callable[[], bool] = lambda: True
) -> bool:
    """The file holds the head, the bytes and their sums, whole; False, and nothing is there, if it may not go on.

    Raises: OSError, and nothing is there.
    """
    temporary = path.with_name(f"{path.stem}.{os.getpid()}{UNFINISHED}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    remove(temporary)
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(head)
            sums = []
            for chunk in chunks(kv):
                if not may_go_on():
                    return False
                sums.append(zlib.crc32(chunk))
                file.write(chunk)
            file.write(np.array(sums, dtype="<u4").tobytes())
        os.utime(temporary, (used_at, used_at))
        os.replace(temporary, path)
    finally:
        remove(temporary)
    return True


def files_in(folder: Path, *suffixes: str) -> Iterator[Path]:
    """Yield the files with one of these endings; none if there is no folder."""
    try:
        yield from (path for path in folder.iterdir() if path.suffix in suffixes)
    except FileNotFoundError:
        return


def size_and_use(path: Path) -> tuple[int, float]:
    """Return the file's bytes and the Unix time of its last use; zeros if it is gone."""
    try:
        found = path.lstat()
    except OSError:
        return 0, 0.0
    return found.st_size, found.st_mtime


def remove(path: Path) -> bool:
    """Return whether a file of this name was there and is gone."""
    try:
        path.unlink()
    except OSError:
        return False
    return True
