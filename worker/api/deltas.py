"""What an answer consists of, piece by piece: text, reasoning, calls of tools. Dialects format it.

Plain data, and the protocol of what tells them apart in a model's text. Must not know a dialect nor a model family.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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
    comes between a call's start and the last of its arguments.
    """

    def push(self, text: str) -> list[Delta]:
        """Return what is certain now."""

    def flush(self) -> list[Delta]:
        """Return what was held back; at the end of the answer."""


class PlainText:
    """Everything is text."""

    def push(self, text: str) -> list[Delta]:
        """Return it."""
        return [TextDelta(text)] if text else []

    def flush(self) -> list[Delta]:
        """Return nothing: nothing is held back."""
        return []


def join_deltas(deltas: Iterable[Delta]) -> list[Delta]:
    """Return the same answer in as few pieces as possible."""
    joined: list[Delta] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        match delta:
            case TextDelta(text) if isinstance(last, TextDelta):
                joined[-1] = TextDelta(last.text + text)
            case ReasoningDelta(text) if isinstance(last, ReasoningDelta):
                joined[-1] = ReasoningDelta(last.text + text)
            case CallArguments(index, text) if isinstance(last, CallArguments) and last.index == index:
                joined[-1] = CallArguments(index, last.text + text)
            case _:
                joined.append(delta)
    return joined


def text_of(deltas: Iterable[Delta]) -> str:
    """Return the visible text alone."""
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
