"""Finds the texts of control tokens, such as `<|im_start|>`, in other text.

Owns the search alone; what a find means is decided elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


class ControlTexts:
    """A fixed set of texts; finding them takes time that grows with the searched text, not with the set."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(filter(None, texts))
        lengths: dict[str, set[int]] = {}
        seconds: dict[str, set[str]] = {}
        for text in self._texts:
            seconds.setdefault(text[0], set()).add(text[1:2])
            if len(text) > 1:
                lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {start: sorted(found) for start, found in lengths.items()}
        """By their first two characters."""
        self._starts = re.compile("|".join(_start(*item) for item in sorted(seconds.items())) or r"(?!)")

    def find(self, text: str) -> list[tuple[int, int]]:
        """Return `(start, end)` of every occurrence, overlapping ones included, in order."""
        found: list[tuple[int, int]] = []
        for match in self._starts.finditer(text):
            start = match.start()
            if text[start] in self._texts:
                found.append((start, start + 1))
            for length in self._lengths.get(text[start : start + 2], ()):
                end = start + length
                if end <= len(text) and text[start:end] in self._texts:
                    found.append((start, end))
        return found


def _start(first: str, seconds: set[str]) -> str:
    """Return a pattern for where a text may begin: its first character, told apart by the one after it."""
    if "" in seconds:  # the first character is a text by itself
        return re.escape(first)
    return f"{re.escape(first)}(?=[{''.join(map(re.escape, sorted(seconds)))}])"
