"""What an answer consists of, piece by piece: text, reasoning, calls of tools. Dialects format it.

Plain data, and the protocol of what tells them apart in a model's text. Must not know a dialect nor a model family.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the visible text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of a tool begins."""

    index: int
    """Its place among the calls of this answer."""
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments: a piece of the text of a JSON object."""

    index: int
    text: str


Delta = TextDelta | ReasoningDelta | CallStart | CallArguments


class OutputParser(Protocol):
    """Tells apart what a model has written; one for each choice.

    Calls come one after another, as a model writes them: arguments belong to the call that began last, and nothing else
    comes between a call's start and the last of its arguments. Tokens count with the first piece that comes out when or
    after they went in.
    """

    def push(self, text: str) -> list[Delta]:
        """Return what is certain now."""

    def flush(self, *, is_cut: bool = False) -> list[Delta]:
        """Return what was held back; at the end of the answer. One that `is_cut` was not ended by the model."""


class PlainText:
    """Everything is text."""

    def push(self, text: str) -> list[Delta]:
        """Return it."""
        return [TextDelta(text)] if text else []

    def flush(self, *, is_cut: bool = False) -> list[Delta]:
        """Return nothing: nothing is held back."""
        return []


def goes_on(before: Delta, delta: Delta) -> bool:
    """Return whether `delta` is more of what `before` was a piece of."""
    match delta:
        case CallStart():
            return False
        case CallArguments(index):
            return isinstance(before, CallArguments) and before.index == index
        case _:
            return type(before) is type(delta)


def join_run(deltas: Sequence[Delta]) -> Delta:
    """Return as one what are pieces of the same; a call's start is one by itself."""
    first = deltas[0]
    if isinstance(first, CallStart):
        return first
    return replace(first, text="".join(one.text for one in deltas if not isinstance(one, CallStart)))


def text_of(deltas: Iterable[Delta]) -> str:
    """Return the visible text alone."""
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
