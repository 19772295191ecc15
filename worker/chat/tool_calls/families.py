"""All families, and which of them a chat template belongs to."""

from __future__ import annotations

from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.hermes import Hermes

FAMILIES: tuple[Family, ...] = (Hermes(),)
"""In the order in which they are asked: those with signs of their own before those that many share."""


def choose_family(source: str) -> Family | None:
    """Return the first family that a chat template with this source fits."""
    return next((family for family in FAMILIES if family.fits(source)), None)
