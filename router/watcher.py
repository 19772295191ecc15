"""Notices that files no longer hold what was last read from them, however they were replaced.

Owns how to look and when an edit is over. Compares contents, because neither time stamps nor inodes tell on every file
system. Must not understand what the files say: it tells when they should be read again.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from router.file_names import all_parts, is_model_name

POLL_S: Final = 0.5
SETTLE_S: Final = 1.0
"""An edit is over when nothing has changed for so long: a file that is being written may be sound YAML already, with
half of its models."""
PATIENCE_S: Final = 10.0
"""A file that is written all the time is read after so long all the same."""
REREAD_S: Final = 2.0
"""Contents are compared this often even if time stamps and inodes are the same."""

_MAX_BYTES: Final = 16 * 2**20
"""More than the largest file that is ever read; what lies behind is told by the size alone."""

Marks = tuple[int, ...]
_MODEL: Final[Marks] = ()
"""Model files, of which there may be thousands, are looked at with every rereading only."""
Sight = Mapping[Path, str]
"""What each file holds: a digest, or why it has none."""


class Watched(Protocol):
    """Whoever reads the files."""

    @property
    def files(self) -> Iterable[Path]: ...

    @property
    def taken(self) -> Sight:
        """What was there when they were last read, whether it was good or not."""
        ...

    async def take_edits(self) -> None:
        """Read them again; must not raise."""
        ...


def marks_of(path: Path) -> Marks | None:
    """Return what changes with nearly every edit of a file, wherever its links lead; None if only a look tells."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    if is_model_name(path.name):
        return _MODEL
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Looker:
    """Looks at files again and again, reading only those that may have changed."""

    def __init__(self, marks_of: Callable[[Path], Marks | None] = marks_of) -> None:
        self._marks_of = marks_of
        self._seen: dict[Path, tuple[Marks, str]] = {}
        self._reread_at_s = 0.0

    def look(self, files: Iterable[Path], now_s: float) -> dict[Path, str]:
        """Return what the files hold, at most `REREAD_S` old."""
        if now_s >= self._reread_at_s:
            self._seen.clear()
            self._reread_at_s = now_s + REREAD_S
        return {path: self._content(path) for path in files}

    def _content(self, path: Path) -> str:
        marks = self._marks_of(path)
        if marks is None:
            return _content(path)
        seen = self._seen.get(path)
        if seen is None or seen[0] != marks:
            seen = self._seen[path] = marks, _content(path)
        return seen[1]


def look(files: Iterable[Path]) -> dict[Path, str]:
    """Return what the files hold now."""
    return {path: _content(path) for path in files}


def _content(path: Path) -> str:
    """Return a digest of a file; of a folder or a model file, what a catalogue is made from: names, sizes and times.

    A model file that grows is still being copied.
    """
    try:
        if path.is_dir():
            return _digest(repr(sorted(_models_in(path))).encode())
        if is_model_name(path.name):
            return repr([_size_and_time(path.with_name(part)) for part in all_parts(path.name)])
        if not path.is_file():  # a pipe would block
            return "no regular file" if path.exists() else "nothing"
        with path.open("rb") as file:
            return f"{_digest(file.read(_MAX_BYTES))} {os.fstat(file.fileno()).st_size}"
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        return f"unreadable: {getattr(error, 'strerror', None) or error}"


def _size_and_time(file: Path) -> tuple[int, int] | None:
    if not file.is_file():
        return None
    found = file.stat()
    return found.st_size, found.st_mtime_ns


def _models_in(folder: Path) -> Iterable[tuple[str, int]]:
    """Return the model files and their sizes."""
    with os.scandir(folder) as entries:
        models = [entry for entry in entries if is_model_name(entry.name) and not entry.name.startswith(".")]
        return [(entry.name, entry.stat().st_size) for entry in models if entry.is_file()]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Edit:
    """From the first change to the moment when what is there should be read."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._sight: Sight | None = None
        self._begun_at_s = 0.0
        self._changed_at_s = 0.0

    def is_over(self, sight: Sight, taken: Sight, now_s: float) -> bool:
        """Take one look and return whether the files should be read now."""
        if sight == taken:
            self._sight = None
            return False
        if self._sight is None:
            self._begun_at_s = now_s
        if sight != self._sight:
            self._sight, self._changed_at_s = sight, now_s
        if now_s - self._changed_at_s < SETTLE_S and now_s - self._begun_at_s < self._patience_s:
            return False
        self._sight = None
        return True


class Watcher:
    """Has files read again within two seconds of an edit."""

    def __init__(self, watched: Watched, *, patience_s: float = PATIENCE_S) -> None:
        self._watched = watched
        self._looker = Looker()
        self._edit = Edit(patience_s)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            await self.poll(time.monotonic())

    async def poll(self, now_s: float) -> None:
        """Take one look, in a thread, because a disk may be slow; have the files read if an edit is over."""
        sight = await asyncio.to_thread(self._looker.look, tuple(self._watched.files), now_s)
        if self._edit.is_over(sight, self._watched.taken, now_s):
            await self._watched.take_edits()
