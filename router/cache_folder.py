"""The folder in which fetched model files are kept: where it is, locks, free space, safe replacement.

Owns the manners of writing there. Must not know what is fetched from where. Several routers may share it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from router.fetch.protocol import SourceError

_SPARE_BYTES: Final = 64 * 2**20
"""What a fetch leaves free on the disk at least."""
_LOCK_POLL_S: Final = 0.2


def default_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where model files are kept unless told otherwise: `CORRAL_CACHE`, else the user's cache folder."""
    if own := environ.get("CORRAL_CACHE"):
        return Path(own).expanduser()
    if shared := environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "corral"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "corral"
    return Path.home() / ".cache" / "corral"


@contextlib.contextmanager
def exclusive_lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path`; while another process holds it, `on_wait` is called again and again.

    The system frees the lock when the process ends, however it ends. Only who holds the lock may remove the file, and
    its folder with it: whoever has waited for a file that is gone since makes a new one.
    """
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:  # the folder was removed between the two calls
            continue
        try:
            _wait_for_lock(descriptor, on_wait)
            if _is_at(path, descriptor):
                yield
                return
        finally:
            os.close(descriptor)


def _wait_for_lock(descriptor: int, on_wait: Callable[[], None]) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            time.sleep(_LOCK_POLL_S)
        else:
            return


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether the open file is still the one that others find at `path`."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def require_free_space(folder: Path, num_bytes: int, what: str) -> None:
    """Know that `num_bytes` fit beside `folder`'s files, with some room left. Raises: SourceError."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes + _SPARE_BYTES:
        raise SourceError(
            f"not enough disk space for {what}: it needs {mebibytes(num_bytes + _SPARE_BYTES)}, "
            f"{folder} has {mebibytes(free)} free; make room, or point CORRAL_CACHE (HF_HOME for hf: models) "
            "to a larger disk"
        )


def mebibytes(num_bytes: int) -> str:
    """Return a size as people read it."""
    return f"{num_bytes / 2**20:,.0f} MiB" if num_bytes >= 2**20 else f"{num_bytes} bytes"


def write_atomically(path: Path, text: str) -> None:
    """Have `text` in `path`: readers see the old file or the whole new one. Raises: OSError, and nothing is left."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, object]:
    """Return the JSON object in `path`; an empty one if it is missing or not one."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
