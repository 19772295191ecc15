"""Answers of text and sections, in which one call stands behind another. Must not know how these are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.spelling import spelled


@dataclass(frozen=True, slots=True)
class SectionSigns:
    """What stands around calls."""

    open: str
    close: str
    """Both are empty where there are no sections."""
    call: str
    """In front of each call."""
    may_be_bare: bool = True
    """A call is one without a section around it, too: models forget the beginning of the section."""
    may_lack_call: bool = False
    """So is what stands in a section without that in front."""


def read_sections(scan: Scanner, signs: SectionSigns, read_call: Callable[[Scanner], Reading[None]]) -> Reading[None]:
    """Read a whole answer. `read_call` reads what stands behind the beginning of a call.

    What it read is text unless it began a call; otherwise it has said what of it is.
    """
    open_, close, call = (spelled(scan.markers, one) for one in (signs.open, signs.close, signs.call))
    beginnings = [one for one in (open_, call) if one and (one == open_ or signs.may_be_bare)]
    following = [one for one in (call, close) if one]
    found = yield from scan.until(*beginnings)
    while found is not None:
        scan.remember(found)
        num_calls = scan.num_calls
        if found == open_:
            yield from scan.space()
            found = (yield from scan.skip(call)) or (open_ if signs.may_lack_call else None)
        if found is not None:
            yield from read_call(scan)
        if scan.num_calls == num_calls:
            scan.give_back()
            found = yield from scan.until(*beginnings)
            continue
        scan.forget()
        yield from scan.space()
        found = yield from scan.skip(*following)
        if found != call:
            found = yield from scan.until(*beginnings)
