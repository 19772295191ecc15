"""Counted repetitions inside one another, in regular expressions and grammars: what they come to when multiplied.

Owns the bound, which patterns of schemas share with every other notation. Must not know what is repeated.
"""

from __future__ import annotations

import re
from typing import Final

MAX_REPEATS: Final = 300
"""Of counted repetitions inside counted repetitions, multiplied: with 400 the library gives up inside an answer."""

_PARTS: Final = re.compile(
    r"""
    \\[uxpP]\{[^{}]*\} | \\.
  | \[\^?\]? (?: [^\]\\] | \\. )* \]?
  | \{ (?P<least>\d*) (?: ,(?P<most>\d*) )? \}
  | .
    """,
    re.DOTALL | re.VERBOSE,
)
_LONGEST_COUNT: Final = 9


class TooManyRepeats(ValueError):
    """More than the bound. The message says so."""

    def __init__(self) -> None:
        super().__init__(f"its repetitions inside repetitions make more than {MAX_REPEATS}")


class Repeats:
    """Follows an expression from its beginning to its end, atom by atom."""

    def __init__(self) -> None:
        self._open: list[int] = [1]
        """For each open group: the largest count that stands inside it."""
        self._closed = 1
        """The same for the atom that has just ended."""

    def atom(self, inner: int = 1) -> None:
        """There is something that may be repeated; `inner` is the largest count inside it."""
        self._closed = inner
        self._open[-1] = max(self._open[-1], inner)

    def group(self) -> None:
        """A group begins."""
        self._open.append(1)
        self._closed = 1

    def end_group(self) -> None:
        """A group ends."""
        if len(self._open) > 1:
            self.atom(self._open.pop())

    def repeat(self, count: int) -> None:
        """What has just ended may come so many times. Raises: TooManyRepeats."""
        total = max(count, 1) * self._closed
        if self._closed > 1 and total > MAX_REPEATS:
            raise TooManyRepeats
        self.atom(total)

    @property
    def most(self) -> int:
        """The largest count so far."""
        return max(self._open)


def largest_count(least: str | None, most: str | None) -> int:
    """Return the larger of two written numbers, of which the second may be missing. No digits are 0."""
    return max(int(number[:_LONGEST_COUNT]) if number else 0 for number in (least, most))


def repeats_of(pattern: str) -> int:
    """Return the largest count in a regular expression, those inside others multiplied. Raises: TooManyRepeats."""
    repeats = Repeats()
    before = ""
    for part in _PARTS.finditer(pattern):
        text = part[0]
        if text == "(":
            repeats.group()
        elif text == ")":
            repeats.end_group()
        elif part["least"] is not None and text != "{}":
            repeats.repeat(largest_count(part["least"], part["most"]))
        elif text not in ("*", "+", "?"):
            repeats.atom()
        elif not (text == "?" and before == "("):
            repeats.repeat(1)
        before = text
    return repeats.most
