"""What lies in the cache folder: which of it is what, how large and how old, and taking it away.

Owns the list of what Corral keeps there. Only files that it knows by their place and form are ever touched; whatever
else lies in the folder is somebody else's. Must not decide what goes: commands do, with whoever asks.

    packages/<folder>/        a fetched model: source.json, its files, .lock; .partial/ while it is fetched
    prompts/<model>-<hash>/   finished prompts, *.kv; slots that clients saved, *.slot; *.new while they are written
    calibration/<hash>.json   what passes cost
    footprints/<hash>.json    what models need of memory
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from router.cache_folder import read_json
from router.package_source import MANIFEST

_LOCK: Final = ".lock"
_PARTIAL: Final = ".partial"
_HASHED_FOLDER = re.compile(r"(?P<name>.+)-[0-9a-f]{12}")
_HASHED_FILE = re.compile(r"[0-9a-f]{24,32}\.json")
_PROMPT = re.compile(r".+\.(?:kv|slot|new)")
_BEING_WRITTEN_S: Final = 60.0
"""A prompt without its last name that is younger is still being written. Source: worker/engine/prompt_files.py."""


class CacheKind(StrEnum):
    """What something in the cache is."""

    DOWNLOADS = "downloads"
    """Fetched models, ready to use."""
    UNFINISHED = "unfinished"
    """What is there of models whose fetch was interrupted, to go on with."""
    PROMPTS = "prompts"
    """Finished prompts with their keys and values, and slots that clients have saved."""
    CALIBRATION = "calibration"
    """Measured times of passes."""
    FOOTPRINTS = "footprints"
    """What models need of memory, as planned or measured."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One thing that can be taken away on its own."""

    kind: CacheKind
    subject: str
    """For people: a reference, the name of a model or of its file."""
    path: Path
    """A folder of `packages/`, or one file."""
    num_bytes: int
    changed_s: float
    """Seconds since the epoch at which it was made, or last used."""
    reference: str | None = None
    """Of a download: what it was fetched for."""


class InUse(Exception):
    """It is not taken away: another process is at work on it, or was since it was looked at."""


def survey(cache_dir: Path) -> list[CacheEntry]:
    """Return everything that Corral keeps in the folder, by kind, the largest first."""
    entries = [*_downloads(cache_dir / "packages"), *_prompts(cache_dir / "prompts")]
    entries += _records(cache_dir / "calibration", CacheKind.CALIBRATION)
    entries += _records(cache_dir / "footprints", CacheKind.FOOTPRINTS)
    order = list(CacheKind)
    return sorted(entries, key=lambda entry: (order.index(entry.kind), -entry.num_bytes, entry.subject))


def remove(entry: CacheEntry) -> int:
    """What `entry` stands for is gone; return the bytes that it took. What is gone already is no failure.

    Raises: InUse; OSError when the disk refuses.
    """
    match entry.kind:
        case CacheKind.DOWNLOADS | CacheKind.UNFINISHED:
            with contextlib.suppress(FileNotFoundError):
                _remove_download(entry)
            return entry.num_bytes
        case _:
            _expect_unchanged(entry, _changed(entry.path))
            with contextlib.suppress(FileNotFoundError):
                entry.path.unlink()
            with contextlib.suppress(OSError):  # not empty: others have files there
                if entry.kind is CacheKind.PROMPTS:
                    entry.path.parent.rmdir()
            return entry.num_bytes


# --- downloads ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Manifest:
    reference: str
    names: tuple[str, ...] = field(default_factory=tuple)


def _downloads(root: Path) -> Iterator[CacheEntry]:
    for folder in _folders(root):
        if not _HASHED_FOLDER.fullmatch(folder.name):
            continue
        manifest = _manifest(folder)
        if manifest is not None:
            files = [folder / name for name in manifest.names]
            subject = manifest.reference
            changed = _changed(folder / MANIFEST)
            yield CacheEntry(CacheKind.DOWNLOADS, subject, folder, _sizes(files), changed, manifest.reference)
        partial = folder / _PARTIAL
        if partial.is_dir() and not partial.is_symlink():
            found = list(_files_below(partial))
            changed = _changed_below(partial)
            subject = manifest.reference if manifest is not None else _readable(folder.name)
            yield CacheEntry(CacheKind.UNFINISHED, subject, partial, _sizes(found), changed)


def _manifest(folder: Path) -> _Manifest | None:
    raw = read_json(folder / MANIFEST)
    reference, files = raw.get("reference"), raw.get("files")
    if not isinstance(reference, str) or not isinstance(files, list):
        return None
    names = [entry.get("name") for entry in files if isinstance(entry, Mapping)]
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        return None
    return _Manifest(reference, tuple(str(name) for name in names))


def _remove_download(entry: CacheEntry) -> None:
    """Raises: InUse; OSError, FileNotFoundError where it is gone already."""
    folder = entry.path.parent if entry.kind is CacheKind.UNFINISHED else entry.path
    with _locked(folder):
        if entry.kind is CacheKind.UNFINISHED:
            _expect_unchanged(entry, _changed_below(entry.path))
            shutil.rmtree(entry.path, ignore_errors=False)
        else:
            _expect_unchanged(entry, _changed(folder / MANIFEST))
            manifest = _manifest(folder)
            # The manifest goes first: without it the folder holds no model, whatever happens next.
            (folder / MANIFEST).unlink(missing_ok=True)
            for name in () if manifest is None else manifest.names:
                (folder / name).unlink(missing_ok=True)
        if {child.name for child in folder.iterdir()} <= {_LOCK}:
            (folder / _LOCK).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # somebody has just come to fetch it again
                folder.rmdir()


def _expect_unchanged(entry: CacheEntry, changed_s: float) -> None:
    """Raises: InUse if it was changed since `entry` was made: somebody has then said yes to something else."""
    if changed_s > entry.changed_s:
        raise InUse("it was changed or used in the meantime")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which whoever fetches into it holds. Raises: InUse; OSError."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse("another process is fetching into it") from None
        yield
    finally:
        os.close(descriptor)


# --- the rest ----------------------------------------------------------------------------------------------


def _prompts(root: Path) -> Iterator[CacheEntry]:
    for folder in _folders(root):
        if not _HASHED_FOLDER.fullmatch(folder.name):
            continue
        for path in _regular(folder):
            if not _PROMPT.fullmatch(path.name):
                continue
            changed = _changed(path)
            if path.suffix == ".new" and time.time() - changed < _BEING_WRITTEN_S:
                continue
            yield CacheEntry(CacheKind.PROMPTS, _readable(folder.name), path, _sizes([path]), changed)


def _records(root: Path, kind: CacheKind) -> Iterator[CacheEntry]:
    for path in _regular(root):
        if _HASHED_FILE.fullmatch(path.name):
            yield CacheEntry(kind, _subject_of(path, kind), path, _sizes([path]), _changed(path))


def _subject_of(path: Path, kind: CacheKind) -> str:
    raw = read_json(path)
    if kind is CacheKind.FOOTPRINTS:
        return str(raw.get("model") or "unknown")
    subject = raw.get("subject")
    return str(subject.get("model_file") or "unknown") if isinstance(subject, Mapping) else "unknown"


def _readable(folder_name: str) -> str:
    match = _HASHED_FOLDER.fullmatch(folder_name)
    return folder_name if match is None else match["name"]


def _folders(root: Path) -> list[Path]:
    return sorted(Path(entry.path) for entry in _within(root) if entry.is_dir(follow_symlinks=False))


def _regular(folder: Path) -> list[Path]:
    return sorted(Path(entry.path) for entry in _within(folder) if entry.is_file(follow_symlinks=False))


def _within(folder: Path) -> list[os.DirEntry[str]]:
    """Return what lies in a folder; of a link to one nothing, for that is somebody else's."""
    try:
        if folder.is_symlink():
            return []
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent) / name for name in names)


def _sizes(paths: Iterable[Path]) -> int:
    total = 0
    for path in paths:
        with contextlib.suppress(OSError):
            found = path.lstat()
            total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total


def _changed_below(folder: Path) -> float:
    return max(map(_changed, [folder, *_files_below(folder)]))


def _changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0
