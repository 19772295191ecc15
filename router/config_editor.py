"""Reads and writes the text of the configuration that is served, for administrators who are not on the machine.

Owns the one file that a server was started with: when it may be written, that nobody's edit is overwritten unseen, and
that a text which cannot be taken over does not stay. Must not understand the text nor bring it into force:
`reload.py` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from router.auth import KeyRing
from router.catalog_diff import CatalogDiff
from router.catalog_files import MAX_CATALOG_BYTES
from router.catalog_problems import CatalogError
from router.errors import Conflict, DiskFull, Forbidden, NotWritten, ShuttingDown
from router.reload import Reloader

EDITS_ARE_OFF: Final = (
    "the configuration is not written over HTTP: edit the file itself, or start the server with "
    "CORRAL_ALLOW_CONFIG_EDITS=true. Whoever may write it may have commands run as the server (`hooks`)"
)
WITHHELD: Final = (
    "other users of this machine may not read the file, but without API keys whoever reaches this server could read it "
    "here: start the server with CORRAL_ADMIN_KEYS to see and edit it with such a key, or let everybody read the file"
)
PUT: Final = "PUT /admin/config"

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConfigText:
    """The file as it lies on the disk."""

    text: str | None
    """None = there is no text that may be shown."""
    sha256: str | None
    why_not: str | None
    """Why it cannot be written; None = it can."""


class ConfigEditor:
    """See the module. To be used on one event loop."""

    def __init__(self, reloader: Reloader, *, keys: KeyRing, may_edit: bool) -> None:
        """`keys` tell whether everybody may ask: then the text of a file that is not for everybody is not shown."""
        self._reloader = reloader
        self._path = reloader.path
        self._keys = keys
        self._may_edit = may_edit
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def read(self) -> ConfigText:
        """Return what the file holds now, whether it is in force or not."""
        return await asyncio.to_thread(self._read)

    async def save(self, text: str, sha256: str) -> tuple[CatalogDiff, str]:
        """`text` is what the file holds, and is in force; return what has changed and the new digest.

        `sha256`: of what the file held when the editing began. Outlives the caller.

        Raises: Forbidden; Conflict when the file holds something else by now; CatalogError, with every problem;
        NotWritten when the disk refuses. Then, and after any other failure, the file holds what it held.
        """
        if not self._may_edit:
            raise Forbidden(EDITS_ARE_OFF)
        return await self._outlive(self._save(text, sha256))

    async def _outlive(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.get_running_loop().create_task(work, name="edit of the configuration")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _save(self, text: str, sha256: str) -> tuple[CatalogDiff, str]:
        async with self._turn:
            before = await asyncio.to_thread(self._read)
            if before.why_not is not None:
                raise Forbidden(f"{self._path.name} cannot be written: {before.why_not}")
            if before.sha256 != sha256:
                raise _changed(self._path)
            checked = await self._reloader.check(text)
            if checked.problems:
                raise CatalogError(checked.problems)
            raw = text.encode("utf-8")
            replaced = await asyncio.to_thread(_replace, self._path, raw, sha256)
            is_in_force = False
            try:
                diff = await self._reloader.reload(PUT)
                is_in_force = True
            finally:  # whatever it was, a fault of ours included: the next start must not find this text
                if not is_in_force:
                    await asyncio.to_thread(_restore, self._path, replaced, raw)
                    with contextlib.suppress(CatalogError, ShuttingDown):
                        await self._reloader.reload(f"{PUT}: the text of before is back")
            return diff, _digest(raw)

    def _read(self) -> ConfigText:
        if (why_not := _textless(self._path)) is not None:
            return ConfigText(None, None, why_not)
        try:
            if self._keys.is_empty and not self._path.stat().st_mode & stat.S_IROTH:
                return ConfigText(None, None, WITHHELD)
            raw = _read_bytes(self._path)
            text = raw.decode("utf-8-sig") if len(raw) <= MAX_CATALOG_BYTES else None
            if text is None:
                return ConfigText(None, None, f"it is larger than {MAX_CATALOG_BYTES // 2**20} MiB")
            return ConfigText(text, _digest(raw), self._why_not(self._path))
        except UnicodeDecodeError:
            return ConfigText(None, None, "it is not UTF-8 text")
        except OSError as error:
            return ConfigText(None, None, f"it cannot be read: {error.strerror or error}")

    def _why_not(self, path: Path) -> str | None:
        if not self._may_edit:
            return EDITS_ARE_OFF
        target = path.resolve()
        if not os.access(target.parent, os.W_OK | os.X_OK):
            return f"the server may not write in the folder {target.parent}"
        if not os.access(target, os.W_OK):
            return f"the server may not write {target}"
        return None


def _textless(path: Path) -> str | None:
    """Return why what is served has no text; None = it should have."""
    if path.is_dir():
        return "the models of a folder are served: models come and go with its files"
    if path.suffix.lower() not in (".yaml", ".yml"):
        return "one model file is served, and there is no models.yaml"
    return None if path.is_file() else "the file is not there, or is none"


def _read_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_CATALOG_BYTES + 1)


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _changed(path: Path) -> Conflict:
    return Conflict(
        f"{path.name} has been changed since the editing began: read it again (GET /admin/config) and make the change "
        f"there"
    )


def _replace(path: Path, raw: bytes, sha256: str) -> bytes:
    """Return what `path` held, which holds `raw` now: at no moment half of it, whatever fails.

    The mode stays, and owner and group as far as this process may set them; of a link, what it leads to is replaced.
    Raises: Conflict when it holds something else than `sha256` by now; NotWritten when the disk refuses.
    """
    target = path.resolve()
    try:
        before = _read_bytes(target)
        if _digest(before) != sha256:
            raise _changed(path)
        _write_beside(target, raw)
    except OSError as error:
        words = f"nothing has changed: {path.name} cannot be written: {error.strerror or error}"
        if error.errno == errno.EBUSY:
            words += "; a file that is mounted by itself cannot be replaced: mount its folder"
        if error.errno in _NO_ROOM:
            raise DiskFull(f"{words}; make room on that disk, then save again") from None
        raise NotWritten(words) from None
    return before


def _write_beside(target: Path, raw: bytes) -> None:
    found = target.stat()
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)
            _hand_over(file.fileno(), found)
            os.fchmod(file.fileno(), stat.S_IMODE(found.st_mode))
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _hand_over(descriptor: int, found: os.stat_result) -> None:
    """The file has the owner and the group that `found` tells, or at least the group, as far as it may be given."""
    for owner in (found.st_uid, -1):
        try:
            os.fchown(descriptor, owner, found.st_gid)
        except PermissionError:  # another owner's file that this one may write
            continue
        return


def _restore(path: Path, before: bytes, ours: bytes) -> None:
    """`path` holds `before` again, unless somebody has replaced `ours` meanwhile."""
    target = path.resolve()
    with contextlib.suppress(OSError):
        if _read_bytes(target) == ours:
            _write_beside(target, before)
