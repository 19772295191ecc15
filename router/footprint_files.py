"""Footprints on the disk: a small file each, whose name is the digest of the model's files and options.

Must not decide what is believed. Whatever is wrong with a file, it is as if it were not there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from router.cache_folder import write_atomically
from router.footprint_parts import Knowledge

logger = logging.getLogger(__name__)

MAX_FILES: Final = 4096
"""The oldest go first: files and options that nobody has any more."""
_MAX_FILE_BYTES: Final = 64 * 1024
_FORMAT = 1


def digest(subject: object) -> str:
    """Return the name under which the knowledge of `subject`, a JSON value, is kept."""
    return hashlib.sha256(json.dumps(subject, sort_keys=True, default=str).encode()).hexdigest()[:32]


class FootprintFiles:
    """The files of one folder. All calls look at the disk."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def read(self, key: str) -> Knowledge:
        """Return what is kept under `key`; nothing known if there is no such file or no usable one."""
        if self._folder is None:
            return Knowledge()
        path = self._path(key)
        try:
            raw = json.loads(_read_regular(path))
            if not isinstance(raw, dict) or raw.get("format") != _FORMAT:
                raise ValueError("it is of another version of this program")
            return Knowledge.from_plain(raw.get("known"))
        except FileNotFoundError:
            return Knowledge()
        except (OSError, ValueError, RecursionError) as error:
            logger.info("%s is ignored: %s", path, error)
            return Knowledge()

    def write(self, key: str, known: Knowledge, model: str) -> None:
        """Have `known` on the disk, whole or not at all; a disk that cannot be written to is only logged."""
        if self._folder is None:
            return
        path = self._path(key)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            is_new = not path.exists()
            write_atomically(path, json.dumps({"format": _FORMAT, "model": model, "known": known.to_plain()}))
            if is_new:
                self._remove_oldest()
        except OSError as error:
            logger.warning("what models need cannot be kept in %s and is measured anew: %s", self._folder, error)

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{key}.json"

    def _remove_oldest(self) -> None:
        found = sorted(self._files())
        for _, path in found[: max(0, len(found) - MAX_FILES)]:
            with suppress(OSError):
                path.unlink()

    def _files(self) -> Iterator[tuple[int, Path]]:
        assert self._folder is not None
        for path in self._folder.glob("*.json"):
            with suppress(OSError):
                yield path.stat().st_mtime_ns, path


def _read_regular(path: Path) -> bytes:
    """Return what is in a file. Raises: OSError; ValueError for a pipe or a device, which could block for ever."""
    # Without waiting for whoever writes to a pipe.
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        return file.read(_MAX_FILE_BYTES)
