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
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from worker.engine.batch import TokenArray
from worker.engine.private_files import (
    UNFINISHED,
    files_in,
    make_private_folder,
    open_private,
    remove,
    size_and_use,
    write_private,
)
from worker.engine.prompt_format import (
    Bytes,
    Foreign,
    PromptFile,
    Unusable,
    begins_with,
    head_of,
    is_same,
    num_chunks,
    read_head,
    read_kv,
)

log = logging.getLogger(__name__)

SUFFIX = ".kv"
SLOT_SUFFIX = ".slot"
"""Of what clients have saved by name (`slot_files.py`), which lies beside the prompts and takes of their room."""
ALL_SUFFIXES = (SUFFIX, SLOT_SUFFIX, UNFINISHED)
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
        removed = [path for path in list(files_in(folder, *ALL_SUFFIXES)) if remove(path)]
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
    _num_slot_bytes: int = 0
    _listed: dict[Path, tuple[int, float]] = field(default_factory=dict)
    """Size and last use of all prompts' files while room is made."""

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
        num_removed, num_bytes = 0, self._slot_bytes()
        for path in sorted(files_in(self.path, SUFFIX, UNFINISHED), key=_used_at, reverse=True):
            if path.suffix == UNFINISHED:
                if time.time() - _used_at(path) > UNFINISHED_AGE_S:
                    remove(path)
                continue
            try:
                with open_private(path) as file:
                    found = read_head(file, path, self.subject)
            except FileNotFoundError:
                continue
            except Foreign:
                num_removed += remove(path)
            except (Unusable, OSError) as error:
                self._give_up(path, error)
            else:
                num_bytes += found.num_bytes
                if len(self.files) < MAX_FILES and num_bytes <= self.max_bytes:
                    self.files.append(found)
                else:
                    num_removed += remove(path)
        return num_removed

    def read(self, file: PromptFile) -> Bytes | None:
        """Return the KV bytes, checked; None if they are not what was written, and then the file is gone."""
        try:
            with open_private(file.path) as opened:
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
        remove(path)
        self.files = [file for file in self.files if file.path != path]

    # --- writing ----------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """The folder exists, for its owner alone, and it is known what lies in it. Raises: OSError."""
        make_private_folder(self.path)
        self._listed = {path: size_and_use(path) for path in files_in(self.path, SUFFIX, UNFINISHED)}
        self._num_slot_bytes = self._slot_bytes()

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
        num_bytes += self._num_slot_bytes
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
        if not self.make_room(num_bytes, used_at):
            return 0
        if not write_private(path, head, kv, used_at=used_at, may_go_on=lambda: self.clock() <= until_s):
            return 0
        self._listed[path] = num_bytes, used_at
        for other in self.files:
            if other.salt == salt and begins_with(tokens, other.tokens):
                self._forget(other.path)
        return num_bytes

    def remove(self, tokens: TokenArray, salt: str) -> None:
        """The prompt is not on the disk."""
        self._forget(self._path_of(tokens, salt))

    def _slot_bytes(self) -> int:
        return sum(size_and_use(path)[0] for path in files_in(self.path, SLOT_SUFFIX))

    def _path_of(self, tokens: TokenArray, salt: str) -> Path:
        told = json.dumps([self.subject, salt]).encode() + tokens.astype("<i4").tobytes()
        return self.path / f"{hashlib.sha256(told).hexdigest()[:32]}{SUFFIX}"

    def _forget(self, path: Path) -> None:
        remove(path)
        self._listed.pop(path, None)


def _used_at(path: Path) -> float:
    return size_and_use(path)[1]


def _forget_old(root: Path) -> None:
    """What nobody has used for long is gone, that of models that are not configured any more too."""
    if not root.is_dir():
        return
    for folder in root.iterdir():
        if folder.is_dir() and not folder.is_symlink():
            for path in list(files_in(folder, *ALL_SUFFIXES)):
                if abs(time.time() - _used_at(path)) > MAX_AGE_S:  # or the clock was wrong
                    remove(path)
