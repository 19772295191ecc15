"""What clients have saved by name, on the disk: in the model's folder of prompts and in the same format.

Owns where a name leads, whose files make room for whose, and which may be believed. A name never becomes part of a
path: a digest of it does, together with whose it is. Must not know slots, nor what is in cells.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from worker.engine.batch import TokenArray
from worker.engine.occupants import Client
from worker.engine.private_files import (
    UNFINISHED,
    files_in,
    make_private_folder,
    open_private,
    remove,
    size_and_use,
    write_private,
)
from worker.engine.prompt_files import SLOT_SUFFIX, SUFFIX, PromptFolder
from worker.engine.prompt_format import Bytes, Foreign, PromptFile, Unusable, head_of, num_chunks, read_head, read_kv

log = logging.getLogger(__name__)

MAX_FILES_EACH = 64
"""Files of one owner; a further one takes the place of the one used longest ago."""
SHARE_OF_SLOTS = 0.5
"""So much of the model's room on the disk is for what clients save, at most: the rest is for what is kept by itself."""


class NoRoomOnDisk(Exception):
    """The limit leaves no room for the file, whatever of its owner's goes."""


@dataclass(frozen=True, slots=True)
class SlotFolder:
    """One model's saved slots. Any thread, one call at a time."""

    path: Path
    subject: str
    max_bytes: int
    """Of the whole folder, prompts included."""

    @classmethod
    def beside(cls, prompts: PromptFolder) -> SlotFolder:
        """Return the folder that lies where the prompts do and shares their limit."""
        return cls(prompts.path, prompts.subject, prompts.max_bytes)

    def write(self, client: Client, name: str, tokens: TokenArray, cache_key: str, kv: Bytes) -> int:
        """Have it on the disk under this name, in place of what had it; return the file's bytes.

        Raises: NoRoomOnDisk; OSError. What had the name stays then.
        """
        head = head_of(self.subject, tokens, cache_key, len(kv))
        num_bytes = len(head) + len(kv) + 4 * num_chunks(len(kv))
        path = self._path_of(client, name)
        make_private_folder(self.path)
        self._make_room(path, num_bytes)
        write_private(path, head, kv, used_at=time.time())
        return num_bytes

    def read(self, client: Client, name: str) -> tuple[PromptFile, Bytes]:
        """Return what was saved under this name, checked.

        Raises: FileNotFoundError; Foreign, Unusable when it must not be used, and what is damaged is gone then;
        OSError; MemoryError.
        """
        path = self._path_of(client, name)
        try:
            with open_private(path) as opened:
                head = read_head(opened, path, self.subject)
                kv = read_kv(opened, head)
        except (FileNotFoundError, Foreign):  # what is of another configuration may be of use again
            raise
        except (Unusable, OSError) as error:
            log.warning("a saved slot is not used and removed: %s (%s)", error, path)
            remove(path)
            raise
        with suppress(OSError):  # another worker of the model may have removed it meanwhile
            os.utime(path)
        return head, kv

    def _path_of(self, client: Client, name: str) -> Path:
        owner = _digest(client.owner)[:16]
        return self.path / f"{owner}-{_digest(client.owner, client.salt, name)[:32]}{SLOT_SUFFIX}"

    def _make_room(self, path: Path, num_bytes: int) -> None:
        """The new file fits: saved files give way as `_giving_way` says, and prompts that are kept by themselves.

        Raises: NoRoomOnDisk, and nothing has gone.
        """
        saved = {one: size_and_use(one) for one in files_in(self.path, SLOT_SUFFIX) if one != path}
        gone = _giving_way(saved, _owner_of(path), num_bytes, int(self.max_bytes * SHARE_OF_SLOTS))
        for one in gone:
            remove(one)
        num_saved = num_bytes + sum(size for one, (size, _) in saved.items() if one not in gone)
        prompts = {one: size_and_use(one) for one in files_in(self.path, SUFFIX, UNFINISHED)}
        num_prompts = sum(size for size, _ in prompts.values())
        for one in sorted(prompts, key=lambda one: prompts[one][1]):
            if num_saved + num_prompts <= self.max_bytes:
                break
            num_prompts -= prompts[one][0]
            remove(one)


def _giving_way(saved: Mapping[Path, tuple[int, float]], owner: str, num_bytes: int, limit: int) -> set[Path]:
    """Return the saved files that go for a new one of so many bytes: always the longest unused of whoever has the most.

    So nobody's files go for those of somebody who has more, and nobody can keep the whole room. `saved`: bytes and
    time of the last use. Raises: NoRoomOnDisk.
    """
    left: dict[str, list[Path]] = defaultdict(list)
    for one in sorted(saved, key=lambda one: saved[one][1], reverse=True):
        left[_owner_of(one)].append(one)
    has = {whose: sum(saved[one][0] for one in files) for whose, files in left.items()}
    has[owner] = has.get(owner, 0) + num_bytes
    gone: set[Path] = set()
    while sum(has.values()) > limit or len(left[owner]) >= MAX_FILES_EACH:
        whose = owner if len(left[owner]) >= MAX_FILES_EACH else max(has, key=lambda one: (has[one], one == owner))
        if not left[whose]:  # only the new file is without one: it is larger by itself than all that any other has
            others = sum(has.values()) - num_bytes
            raise NoRoomOnDisk(
                f"it has {num_bytes:,} bytes, and {max(0, limit - others):,} of the {limit:,} for saved slots (half of "
                "`prompt_cache_disk_bytes`) can be had: the rest is of others, who have less than that each"
                if others
                else f"it has {num_bytes:,} bytes, and {limit:,} is the most for saved slots (half of "
                "`prompt_cache_disk_bytes`)"
            )
        oldest = left[whose].pop()
        has[whose] -= saved[oldest][0]
        gone.add(oldest)
    return gone


def _owner_of(path: Path) -> str:
    return path.name.partition("-")[0]


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
