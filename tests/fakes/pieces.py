"""The bytes of tokens where a test is about numbers alone."""

from __future__ import annotations


def no_text(_: int) -> bytes:
    """Return none."""
    return b""
