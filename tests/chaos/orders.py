"""Faults that lie in a folder until a process takes one: how a test tells a worker to misbehave once.

Owns the files. Each order is taken by one process alone, so that the worker that comes afterwards is sound.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def give(folder: Path, kind: str, order: str) -> None:
    """The next process that looks for an order of this kind finds it."""
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / f".{kind}"
    written.write_text(order)
    written.rename(folder / kind)


def take(folder: Path, kind: str) -> str | None:
    """Return the order, which nobody else gets; None = there is none."""
    mine = folder / f".{kind}-{os.getpid()}"
    try:
        os.rename(folder / kind, mine)
    except OSError:
        return None
    order = mine.read_text()
    mine.unlink()
    return order


def is_waiting(folder: Path, kind: str) -> bool:
    """Whether nobody has taken the order yet."""
    return (folder / kind).exists()


def withdraw(folder: Path, kind: str) -> None:
    """Nobody will take it any more."""
    with suppress(OSError):
        (folder / kind).unlink()
