"""Has Python's compiled form of what a worker imports stored, before the worker may write nowhere.

Owns noticing that some of it is missing or old. Installers that compile leave nothing to do here; without it, workers
that are confined would compile the same modules at every start.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

PACKAGES = ("aiohttp", "jinja2", "jsonschema", "llama_cpp", "llguidance", "numpy")
"""The largest ones of others. An installer compiles all of a package or nothing."""

_compiling: list[subprocess.Popen[bytes]] = []


def store_bytecode(import_all: Callable[[], None], own: Path = Path(__file__).parent) -> None:
    """What others have made is imported now if it is not compiled; the `own` modules are, meanwhile, in a process."""
    if sys.dont_write_bytecode:
        return
    if any(_is_lacking(source) for source in own.rglob("*.py")):
        import subprocess  # seldom needed, and it takes time to import

        command = (sys.executable, "-P", "-m", "compileall", "-q", os.fspath(own))
        nowhere = subprocess.DEVNULL
        _compiling.append(subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere))
    if any(_is_lacking(source) for source in _sources(PACKAGES)):
        import_all()


def _sources(packages: Sequence[str]) -> list[Path]:
    found = []
    for package in packages:
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        if spec is not None and spec.origin is not None:
            found.append(Path(spec.origin))
    return found


def _is_lacking(source: Path) -> bool:
    """Return whether the compiled form is missing or old, and could be stored."""
    try:
        is_old = os.stat(importlib.util.cache_from_source(str(source))).st_mtime < os.stat(source).st_mtime
    except OSError:
        is_old = True
    return is_old and os.access(source.parent, os.W_OK)
