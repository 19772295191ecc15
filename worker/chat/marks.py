"""How special tokens look in the text that a parser reads: wrapped in characters that no text has.

A marker of a family, such as `<tool_call>`, is a token of its own in some vocabularies and plain text in others. Where
it is a token, only that token is a marker: the same characters in plain text are text, whoever wrote them. Must not
know families or vocabularies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BEGIN, END = "\ufdd0", "\ufdd1"
"""Noncharacters of Unicode: they stand before and behind a special token's text."""


def marked(text: str) -> str:
    """Return the text of a special token as a parser reads it."""
    return f"{BEGIN}{text}{END}"


def unmarked(text: str) -> str:
    """Return `text` as people read it."""
    return text.replace(BEGIN, "").replace(END, "")


@dataclass(frozen=True, slots=True)
class Markers:
    """Which markers are tokens of their own in one vocabulary."""

    tokens: Mapping[str, int] = field(default_factory=dict)
    """A marker's text to its token."""

    def form(self, text: str) -> str:
        """Return a marker as it stands in what a parser reads."""
        return marked(text) if text in self.tokens else text

    def is_token(self, text: str) -> bool:
        """Whether the marker is a token of its own."""
        return text in self.tokens
