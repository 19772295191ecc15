"""What a check has found: how bad it is, what it is, and what to do about it.

Owns these words. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad something is."""

    OK = "ok"
    WARN = "warn"
    """It works, but not as well as it could, or not for long."""
    FAIL = "fail"
    """Models cannot be served like this."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    level: Level
    text: str
    advice: tuple[str, ...] = ()
    """What to do, a step each; a step that is a command begins with `$ `."""


def ok(text: str) -> Finding:
    """Return that something is as it should be."""
    return Finding(Level.OK, text)


def warn(text: str, *advice: str) -> Finding:
    """Return that something could be better."""
    return Finding(Level.WARN, text, advice)


def fail(text: str, *advice: str) -> Finding:
    """Return that something must be changed."""
    return Finding(Level.FAIL, text, advice)
