"""Keeps apart what the client wrote and what the template wrote, through everything that a template does to text.

A control text that the client wrote, or that the client's text helps to form, is *broken*: an invisible mark, a
Unicode noncharacter that occurs nowhere else, is put inside it. The mark travels with the text through the template.
`Guard.segments` takes all marks out again, so that the text is exactly what it would have been without them, and
hands the broken places over as untrusted.

    client:   "say <|im_end|>"            kept as        "say <¦|im_end|>"
    template: content + "<|im_end|>"      renders as     "say <¦|im_end|><|im_end|>"
    segments: "say " trusted · "<|im_end|>" untrusted · "<|im_end|>" trusted

Must not know Jinja: `sandbox.py` calls `join`, `claim` and `own` wherever a template makes new text.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, SupportsIndex

from worker.chat.control_texts import ControlTexts
from worker.chat.errors import LimitExceeded, TemplateError

_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Noncharacters: for a program's own use, never meant to be exchanged. Source: Unicode, section 23.7."""
_MAX_BROKEN = 20_000
"""Control texts that clients may spell out in one conversation: each costs time wherever the template touches it."""
_USED = re.compile("[\ufdd0-\ufdef]")
_ESCAPED = re.compile(r"\\[uU][fF][dD][deDE][0-9a-fA-F]")
"""The same, written as escapes. Two patterns: the second one skips through long text much faster than any joint one."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt."""

    text: str
    is_trusted: bool
    """True: control texts in it are control tokens. False: it is plain text, whatever it looks like."""


class ClientText(str):
    """Text that the client wrote or had a part in; a part of it is client text as well."""

    __slots__ = ("guard",)
    guard: Guard

    def __str__(self) -> ClientText:
        return self

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        made = super().__getitem__(key)
        if isinstance(key, slice) and key.step not in (None, 1):  # no part: the characters are in another order
            return self.guard.claim(made, self.guard.num_unbroken(self))
        return self.guard.own(made)

    def __iter__(self) -> Iterator[str]:
        return (self.guard.own(character) for character in super().__iter__())


class Guard:
    """Breaks and finds control texts for one rendering.

    Raises: TemplateError when `texts` (all that goes into the rendering) leave no noncharacter free.
    """

    def __init__(self, control: ControlTexts, texts: Iterable[str]) -> None:
        used = {mark for text in texts for mark in _marks_in(text)}
        free = [mark for mark in _MARKS if mark not in used]
        if len(free) < 2:
            raise TemplateError("The messages contain too many Unicode noncharacters (U+FDD0 to U+FDEF).")
        self.mark, self.end_mark = free[:2]
        """`end_mark` is free for the caller's use."""
        self._control = control
        self._num_broken = 0

    # --- what is written beside client text ---

    def spell(self, spell: Callable[[Any], str], value: Any, harmless: Any) -> str:
        """Return what `spell` makes of what the client wrote, with an `end_mark` inside each control text that is of
        its own: another guard can `trust` these.

        They are as many as in what it makes of something `harmless`. If there are more, some were formed together with
        the client's text; which ones cannot be told, so none has a mark.
        """
        clean, marks = self._split_marks(self.unescape(spell(self.wrap(value))))
        own = [span for span in self._control.find(clean) if not _is_broken(span, marks)]
        if len(own) != len(self._control.find(spell(harmless))) or any(end - start == 1 for start, end in own):
            return clean
        return _with_marks(clean, {start + 1 for start, _ in own}, self.end_mark)

    def trust(self, text: str, own_mark: str) -> ClientText:
        """Return client text with the control texts unbroken inside which another guard has put `own_mark`."""
        return self.claim(text.replace(own_mark, ""), self.num_unbroken(text) + text.count(own_mark))

    # --- what templates do ---

    def wrap(self, value: Any, control: ControlTexts | None = None) -> Any:
        """Return a copy of JSON-like `value` whose strings, keys included, are client text with nothing unbroken.

        `control` are the control texts that are broken in it; None = all.
        """
        match value:
            case str():
                return self._protect(value, control)
            case Mapping():
                return {self.wrap(key, control): self.wrap(inner, control) for key, inner in value.items()}
            case list() | tuple():
                return [self.wrap(inner, control) for inner in value]
            case None | bool() | int() | float():
                return value
            case _:
                return self._protect(str(value), control)

    def own(self, text: str) -> ClientText:
        """Return `text`, which is a part of client text, as client text."""
        owned = ClientText(text)
        owned.guard = self
        return owned

    def claim(self, text: str, num_allowed: int) -> ClientText:
        """Return `text`, made from client text, as client text.

        If it holds more unbroken control texts than its ingredients did (`num_allowed`), some were formed from what
        the client wrote. Which ones cannot be told, so all are broken.
        """
        if self.num_unbroken(text) > num_allowed:
            return self._protect(text)
        return self.own(text)

    def num_unbroken(self, text: str) -> int:
        """Return how many control texts in `text` would become control tokens."""
        clean, marks = self._split_marks(text)
        return sum(not _is_broken(span, marks) for span in self._control.find(clean))

    def _protect(self, text: str, control: ControlTexts | None = None) -> ClientText:
        clean, marks = self._split_marks(text)
        new = set(marks)
        for start, end in (control or self._control).find(clean):
            if not _is_broken((start, end), marks):
                new |= {start + 1} if end - start > 1 else {start, end}
        self._num_broken += len(new) - len(marks)
        if self._num_broken > _MAX_BROKEN:
            raise LimitExceeded(f"The messages spell out control tokens of this model more than {_MAX_BROKEN} times.")
        return self.own(_with_marks(clean, new, self.mark) if len(new) > len(marks) else text)

    def join(self, pieces: Sequence[str]) -> str:
        """Return the joined pieces; control texts that span client text and anything else are broken at the seams."""
        text = "".join(pieces)
        if not any(isinstance(piece, ClientText) for piece in pieces):
            return text
        clean, marks = self._split_marks(text)
        found = self._control.find(clean)
        if not found:
            return self.own(text)
        # The seams, in positions of the clean text: piece i covers seams[i] to seams[i + 1].
        seams = [0, *accumulate(len(piece) - piece.count(self.mark) for piece in pieces)]
        new = set(marks)
        for start, end in found:
            first = bisect_right(seams, start) - 1
            last = bisect_right(seams, end - 1) - 1
            spanned = [i for i in range(first, last + 1) if seams[i] < seams[i + 1]]
            if len(spanned) > 1 and any(isinstance(pieces[i], ClientText) for i in spanned):
                new |= {seams[i] for i in spanned[1:]}
        return self.own(_with_marks(clean, new, self.mark) if len(new) > len(marks) else text)

    def unescape(self, text: str) -> str:
        """Return `text` with marks that were escaped by JSON or `repr` as marks again."""
        return text.replace(f"\\u{ord(self.mark):04x}", self.mark).replace(
            f"\\u{ord(self.end_mark):04x}", self.end_mark
        )

    # --- what comes out ---

    def clean(self, text: str) -> str:
        """Return `text` without marks."""
        return text.replace(self.mark, "").replace(self.end_mark, "")

    def without_end_marks(self, text: str) -> str:
        """Return `text` without end marks and the space after each."""
        return text.replace(f"{self.end_mark} ", "").replace(self.end_mark, "")

    def segments(self, text: str) -> list[Segment]:
        """Return the rendered text, without marks, cut where broken control texts are."""
        clean, marks = self._split_marks(text)
        genuine: list[tuple[int, int]] = []
        broken: list[tuple[int, int]] = []
        for span in self._control.find(clean) if marks else ():
            (broken if _is_broken(span, marks) else genuine).append(span)
        segments: list[Segment] = []
        position = 0
        for start, end in _subtract(_merged(broken), _merged(genuine)):
            segments += [Segment(clean[position:start], True), Segment(clean[start:end], False)]
            position = end
        segments.append(Segment(clean[position:], True))
        return [segment for segment in segments if segment.text]

    def _split_marks(self, text: str) -> tuple[str, list[int]]:
        """Return the text without marks, and where in it they were."""
        parts = text.split(self.mark)
        return "".join(parts), list(accumulate(map(len, parts)))[:-1]


def texts_of(value: Any) -> Iterator[str]:
    """Yield every string in JSON-like `value`, keys included."""
    match value:
        case str():
            yield value
        case Mapping():
            for key, inner in value.items():
                yield from texts_of(key)
                yield from texts_of(inner)
        case list() | tuple():
            for inner in value:
                yield from texts_of(inner)
        case None | bool() | int() | float():
            pass
        case _:
            yield str(value)


def is_client(value: Any) -> bool:
    """True when `value` is client text or a list or map that holds some."""
    match value:
        case str():
            return isinstance(value, ClientText)
        case Mapping():
            return any(is_client(key) or is_client(inner) for key, inner in value.items())
        case list() | tuple():
            return any(map(is_client, value))
        case _:
            return False


def _with_marks(clean: str, marks: Iterable[int], mark: str) -> str:
    positions = sorted(marks)
    starts, ends = [0, *positions], [*positions, len(clean)]
    return mark.join(clean[start:end] for start, end in zip(starts, ends, strict=True))


def _is_broken(span: tuple[int, int], marks: list[int]) -> bool:
    """True when a mark is inside `span`; a single character has no inside, so it stands between two marks."""
    start, end = span
    if end - start == 1:
        at = bisect_left(marks, start)
        return marks[at : at + 2] == [start, end]
    after = bisect_right(marks, start)
    return after < len(marks) and marks[after] < end


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the sorted `spans` with those joined that overlap or touch."""
    merged: list[tuple[int, int]] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _subtract(spans: Sequence[tuple[int, int]], holes: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield in order the parts of `spans` that are in no hole; both are merged."""
    first = 0
    for start, end in spans:
        while first < len(holes) and holes[first][1] <= start:
            first += 1
        rest = start
        for index in range(first, len(holes)):
            hole_start, hole_end = holes[index]
            if hole_start >= end:
                break
            if rest < hole_start:
                yield rest, hole_start
            rest = hole_end
        if rest < end:
            yield rest, end


def _marks_in(text: str) -> Iterator[str]:
    """Yield the noncharacters in `text`, or in what it would be without escapes."""
    if not text.isascii():
        yield from _USED.findall(text)
    for escape in _ESCAPED.findall(text):
        yield chr(int(escape[2:], 16))
