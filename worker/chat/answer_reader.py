"""Reads one answer: thoughts first, then text and calls in the form of a family.

Owns the order of these. Must not know families or vocabularies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from worker.chat.deltas import Delta
from worker.chat.marks import Markers
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.tools import Tools


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What answers to one request are made of."""

    markers: Markers = field(default_factory=Markers)
    tags: Tags | None = None
    """By which thoughts are told apart; None = they are not, or the family does it."""
    starts_inside: bool = False
    """The prompt has opened a thought."""
    family: Family | None = None
    """Whose calls are read; None = there are none."""
    tools: Tools = field(default_factory=Tools)
    make_id: Callable[[int, str], str] = lambda index, name: f"call_{index}"
    """Names a call by its place among those of its answer, and by its tool."""


class AnswerReader:
    """An `OutputParser` of one answer."""

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._scan = Scanner(form.markers, form.tools, form.make_id)
        self._reading = self._read()
        self._is_done = False

    def push(self, text: str) -> list[Delta]:
        """Return what is certain now."""
        self._scan.feed(text)
        self._go_on()
        return self._scan.take_deltas()

    def flush(self, *, is_cut: bool = False) -> list[Delta]:
        """Return what was held back; at the end of the answer."""
        self._scan.end(is_cut=is_cut)
        self._go_on()
        self._scan.close()
        return self._scan.take_deltas()

    def _go_on(self) -> None:
        if not self._is_done:
            self._is_done = next(self._reading, self) is self  # a reader yields None where it needs more

    def _read(self) -> Reading[None]:
        scan, form = self._scan, self._form
        if form.tags is not None:
            yield from self._read_thoughts(form.tags)
        if form.family is not None:
            yield from form.family.read(scan)
        yield from scan.until()

    def _read_thoughts(self, tags: Tags) -> Reading[None]:
        """Read the thoughts in front. Tags that are tokens may come later, too; in plain text they are text there."""
        scan = self._scan
        if self._form.starts_inside:
            # Some models write the tag that the prompt has written already.
            yield from scan.leading(tags.open)
            yield from scan.until(tags.close, emit=scan.reasoning)
            scan.end_thought()
        else:
            while (yield from scan.leading(tags.open)) is not None:
                yield from scan.until(tags.close, emit=scan.reasoning)
                scan.end_thought()
        if scan.markers.is_token(tags.open):
            scan.thoughts = (scan.markers.form(tags.open), scan.markers.form(tags.close))
