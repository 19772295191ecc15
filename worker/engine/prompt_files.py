"""Finished prompts on the disk: a private folder for each model, a file for each prompt.

Owns which files may be believed, how many there are, and when one goes. Must not know what is worth keeping
(`prompt_store.py`) nor what a file looks like inside (`prompt_format.py`).

A file holds a prompt as tokens, so that it is readable for its owner alone. Whatever is wrong with one - truncated,
changed, of another model, configuration or release of llama.cpp - it is removed, and the prompt is computed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import stat
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path

import numpy as np

from worker.engine.batch import TokenArray
from worker.engine.prompt_format import (
    Bytes,
    Foreign,
    PromptFile,
    Unusable,
    begins_with,
    chunks,
    head_of,
    is_same,
    num_chunks,
    read_head,
    read_kv,
)

log = logging.getLogger(__name__)

SUFFIX = ".kv"
UNFINISHED = ".new"
MAX_FILES = 128
"""Newest files that are known at the same time: every prompt is compared with all of them."""
MAX_AGE_S = 7 * 86_400.0
UNFINISHED_AGE_S = 60.0
"""A file that has been unfinished for so long was left by a worker that was killed."""


def folder_of(root: Path, model: str) -> Path:
    """Return the folder of the model with this name."""
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", model).lstrip(".")[:60]
    return root / f"{readable}-{hashlib.sha256(model.encode()).hexdigest()[:12]}"


def remove_all(root: Path, model: str) -> None:
    """No prompt of the model is on the disk. For a model that keeps none any more; what cannot be removed is logged."""
    folder = folder_of(root, model)
    try:
        removed = [path for path in _ours(folder) if _remove(path)]
        if folder.is_dir():
            folder.rmdir()
    except OSError as error:
        log.warning("prompts of earlier times cannot be removed from %s: %s", folder, error)
        return
    if removed:
        log.info("%d prompts of earlier times were removed from the disk: this model keeps none now", len(removed))


@dataclass(slots=True)
class PromptFolder:
    """One model's folder. Of several workers with one folder none harms another; at worst a file is gone."""

    path: Path
    subject: str
    max_bytes: int
    clock: Callable[[], float] = time.monotonic
    files: list[PromptFile] = field(default_factory=list)
    """Those that may be used, the latest used first."""
    _listed: dict[Path, tuple[int, float]] = field(default_factory=dict)
    """Size and last use of all files while room is made."""

    @classmethod
    def open(cls, root: Path, model: str, subject: str, max_bytes: int) -> PromptFolder:
        """Return the folder with what is in it known; what is too old or cannot be used is gone."""
        started_s = time.monotonic()
        folder = cls(folder_of(root, model), subject, max_bytes)
        try:
            _forget_old(root)
            num_removed = folder._look()
        except OSError as error:
            log.warning("prompts of earlier times cannot be read from %s: %s", folder.path, error)
            return folder
        if folder.files or num_removed:
            log.info(
                "prompts on the disk: %d, %d tokens, %.1f MB, found in %.3f s%s",
                len(folder.files),
                sum(len(file.tokens) for file in folder.files),
                sum(file.num_bytes for file in folder.files) / 1e6,
                time.monotonic() - started_s,
                f"; {num_removed} removed that are not of this model as it is now" if num_removed else "",
            )
        return folder

    def _look(self) -> int:
        """Know the newest usable files; return how many others were removed."""
        num_removed = num_bytes = 0
        for path in sorted(_ours(self.path), key=_used_at, reverse=True):
            if path.suffix == UNFINISHED:
                if time.time() - _used_at(path) > UNFINISHED_AGE_S:
                    _remove(path)
                continue
            try:
                with _opened(path) as file:
                    found = read_head(file, path, self.subject)
            except FileNotFoundError:
                continue
            except Foreign:
                num_removed += _remove(path)
            except (Unusable, OSError) as error:
                self._give_up(path, error)
            else:
                num_bytes += found.num_bytes
                if len(self.files) < MAX_FILES and num_bytes <= self.max_bytes:
                    self.files.append(found)
                else:
                    num_removed += _remove(path)
        return num_removed

    def read(self, file: PromptFile) -> Bytes | None:
        """Return the KV bytes, checked; None if they are not what was written, and then the file is gone."""
        try:
            with _opened(file.path) as opened:
                found = read_head(opened, file.path, self.subject)
                if not is_same(found, file):
                    raise Unusable("it has been replaced")
                return read_kv(opened, found)
        except MemoryError:
            log.warning("a prompt of %.1f MB on the disk finds no memory", file.kv_bytes / 1e6)
        except (Unusable, OSError) as error:
            self._give_up(file.path, error)
        return None

    def discard(self, file: PromptFile, why: str) -> None:
        """The file is gone, and never offered again."""
        self._give_up(file.path, Unusable(why))

    def _give_up(self, path: Path, error: Exception) -> None:
        log.warning("a prompt on the disk is not used and removed: %s (%s)", error, path)
        _remove(path)
        self.files = [file for file in self.files if file.path != path]

    # --- writing ----------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """The folder exists, for its owner alone, and it is known what lies in it. Raises: OSError."""
        for folder in (self.path.parent, self.path):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_mode & 0o077:
                folder.chmod(0o700)
        self._listed = {path: _size_and_use(path) for path in _ours(self.path)}

    def has(self, tokens: TokenArray, salt: str) -> bool:
        """Whether the prompt is on the disk."""
        return self._path_of(tokens, salt) in self._listed

    def touch(self, tokens: TokenArray, salt: str, used_at: float) -> None:
        """The prompt's file counts as used at that time. Raises: OSError."""
        path = self._path_of(tokens, salt)
        os.utime(path, (used_at, used_at))
        self._listed[path] = self._listed[path][0], used_at

    def make_room(self, num_bytes: int, used_at: float) -> bool:
        """Files used longer ago are gone until so many bytes fit into the limit; False if they do not."""
        while sum(size for size, _ in self._listed.values()) + num_bytes > self.max_bytes:
            oldest = min(self._listed, key=lambda path: self._listed[path][1], default=None)
            if oldest is None or self._listed[oldest][1] >= used_at:
                return False
            self._forget(oldest)
        return True

    def write(self, tokens: TokenArray, salt: str, kv: Bytes, *, used_at: float, until_s: float) -> int:
        """Have the prompt on the disk, whole or not at all; return its bytes, 0 if time or room did not suffice.

        What it begins with needs no file of its own any more. Raises: OSError.
        """
        head = head_of(self.subject, tokens, salt, len(kv))
        num_bytes = len(head) + len(kv) + 4 * num_chunks(len(kv))
        path = self._path_of(tokens, salt)
        temporary = path.with_name(f"{path.stem}.{os.getpid()}{UNFINISHED}")
        if not self.make_room(num_bytes, used_at):
            return 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        _remove(temporary)
        try:
            with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
                file.write(head)
                sums = []
                for chunk in chunks(kv):
                    if self.clock() > until_s:
                        return 0
                    sums.append(zlib.crc32(chunk))
                    file.write(chunk)
                file.write(np.array(sums, dtype="<u4").tobytes())
            os.utime(temporary, (used_at, used_at))
            os.replace(temporary, path)
        finally:
            _remove(temporary)
        self._listed[path] = num_bytes, used_at
        for other in self.files:
            if other.salt == salt and begins_with(tokens, other.tokens):
                self._forget(other.path)
        return num_bytes

    def _path_of(self, tokens: TokenArray, salt: str) -> Path:
        told = json.dumps([self.subject, salt]).encode() + tokens.astype("<i4").tobytes()
        return self.path / f"{hashlib.sha256(told).hexdigest()[:32]}{SUFFIX}"

    def _forget(self, path: Path) -> None:
        _remove(path)
        self._listed.pop(path, None)


# --- the disk ----------------------------------------------------------------------------------------------


def _opened(path: Path) -> BufferedReader:
    """Return the file, open for reading. Raises: Unusable if another user could have written it; OSError."""
    file = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        file.close()
        raise Unusable("it is not this user's own")
    return file


def _ours(folder: Path) -> Sequence[Path]:
    """Return the files of prompts in the folder, unfinished ones too; nothing else is ever touched."""
    try:
        return [path for path in folder.iterdir() if path.suffix in {SUFFIX, UNFINISHED}]
    except FileNotFoundError:
        return []


def _size_and_use(path: Path) -> tuple[int, float]:
    """Return the file's bytes and the Unix time of its last use; zeros if it is gone."""
    try:
        found = path.lstat()
    except OSError:
        return 0, 0.0
    return found.st_size, found.st_mtime


def _used_at(path: Path) -> float:
    return _size_and_use(path)[1]


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _forget_old(root: Path) -> None:
    """Prompts that nobody has used for long are gone, those of models that are not configured any more too."""
    if not root.is_dir():
        return
    for folder in root.iterdir():
        if folder.is_dir() and not folder.is_symlink():
            for path in _ours(folder):
                if abs(time.time() - _used_at(path)) > MAX_AGE_S:  # or the clock was wrong
                    _remove(path)
