"""The pieces of a vocabulary as a reader of answers gets them: some special tokens are shown, and marked as such."""

from __future__ import annotations

from collections.abc import Mapping

from worker.chat.marks import marked
from worker.engine.detokenizer import Pieces


class MarkedPieces:
    """`Pieces` in which the tokens of `markers`, text to token, are marked."""

    def __init__(self, vocabulary: Pieces, markers: Mapping[str, int]) -> None:
        self._vocabulary = vocabulary
        self._marked = {token: marked(text).encode() for text, token in markers.items()}

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of the token."""
        return self._marked.get(token) or self._vocabulary.piece(token, special=special)
