"""Names with `*` in them, and which of them a given name fits.

Owns the order in which patterns are tried. Must not know what they stand for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

WILDCARD = "*"
"""Stands for any run of characters, none at all included."""


@dataclass(frozen=True, slots=True)
class _Pattern(Generic[T]):
    """A pattern cut at its wildcards."""

    rank: int
    """The lower one counts where several fit."""
    first: str
    middle: tuple[str, ...]
    last: str
    value: T

    def fits(self, name: str) -> bool:
        """Whether `name` is of this form. Takes time in proportion to the name, whatever the pattern is."""
        if not name.startswith(self.first) or not name.endswith(self.last):
            return False
        at, end = len(self.first), len(name) - len(self.last)
        for part in self.middle:
            found = name.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return at <= end


class NameSet:
    """Names and patterns of names, fixed when made."""

    def __init__(self, names: Iterable[str]) -> None:
        all_names = tuple(names)
        self._names = frozenset(all_names)
        self._patterns = NamePatterns((name, True) for name in all_names if WILDCARD in name)

    def __contains__(self, name: str) -> bool:
        """Whether `name` is one of the names, or fits one of the patterns."""
        return name in self._names or self._patterns.find(name) is not None


class NamePatterns(Generic[T]):
    """Patterns with what each stands for, fixed when made.

    Of several that fit, the one with the most literal text counts, and of equal ones the first. They are kept by the
    text before their first wildcard, so that a name is compared with few of them.
    """

    def __init__(self, patterns: Iterable[tuple[str, T]]) -> None:
        ranked = sorted(patterns, key=lambda pair: pair[0].count(WILDCARD) - len(pair[0]))
        self._by_first: dict[str, list[_Pattern[T]]] = {}
        for rank, (pattern, value) in enumerate(ranked):
            first, *middle, last = pattern.split(WILDCARD)
            cut = _Pattern(rank, first, tuple(filter(None, middle)), last, value)
            self._by_first.setdefault(first, []).append(cut)
        self._lengths = sorted(set(map(len, self._by_first)))

    def find(self, name: str) -> T | None:
        """Return what the best pattern for `name` stands for; None = it fits none."""
        near = (self._by_first.get(name[:length], ()) for length in self._lengths)
        best = [found for few in near if (found := next((one for one in few if one.fits(name)), None)) is not None]
        return min(best, key=lambda pattern: pattern.rank).value if best else None
