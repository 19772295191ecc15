"""Tokens to text, as it may be sent: whole characters only, and nothing that may turn into a stop string.

Runs on the event loop while the next pass computes. Must not know dialects or requests.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol


class Pieces(Protocol):
    """What turning tokens into text needs of a vocabulary."""

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of the token; none for a control token unless `special`."""
        ...


class TextStream:
    """The text of one answer, token by token."""

    def __init__(
        self, vocabulary: Pieces, stop: Sequence[str] = (), *, show_special: bool = False, min_tokens: int = 0
    ) -> None:
        self._vocabulary = vocabulary
        self._show_special = show_special
        self._min_tokens = min_tokens
        """A stop string counts only if a token after the first so many completes it."""
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stop_string: str | None = None
        """The stop string that was found."""
        self.num_tokens = 0
        """Tokens pushed so far; once stopped, the one that completed the stop string is the last to count."""

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string was found: nothing after it will be returned."""
        return self.stop_string is not None

    @property
    def has_held_text(self) -> bool:
        """Whether pushed tokens have text that was not returned yet, unfinished characters included."""
        return bool(self._held) or bool(self._decoder.getstate()[0])

    def push(self, tokens: Sequence[int]) -> str:
        """Return the text that is safe to send now."""
        out = []
        for token in tokens:
            if self.is_stopped:
                break
            self.num_tokens += 1
            text = self._decoder.decode(self._vocabulary.piece(token, special=self._show_special))
            if text:
                out.append(self._release(text))
        return "".join(out)

    def flush(self, *, drops_unfinished: bool = False) -> str:
        """Return what was held back; at the end of the answer. An unfinished character is one U+FFFD, or is dropped."""
        if self.is_stopped:
            return ""
        rest = self._decoder.decode(b"", final=True)
        text = self._held if drops_unfinished else self._held + rest
        self._held = ""
        return text

    def _release(self, text: str) -> str:
        """Return what of the held text and `text` cannot be part of a stop string any more."""
        if not self._stop:
            return text
        num_held = len(self._held)
        text = self._held + text
        if self.num_tokens > self._min_tokens:
            found = []
            for stop in self._stop:
                # One that ends within what was held came too early to count.
                position = text.find(stop, max(0, num_held - len(stop) + 1))
                if position >= 0:
                    found.append((position, stop))
            if found:
                position, self.stop_string = min(found)
                self._held = ""
                return text[:position]
        keep = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :] if keep else ""
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
