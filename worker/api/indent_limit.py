"""The end of an answer at the first line that is indented less than asked: llama-server's `n_indent`, for editors.

Must not know tokens or the engine.
"""

from __future__ import annotations


class IndentLimit:
    """Of one answer: every line but the first must begin with so many blanks; an empty line has none."""

    def __init__(self, min_blanks: int) -> None:
        self._min_blanks = min_blanks
        self._num_blanks: int | None = None
        """Of the line that begins now; None = its first letter was seen."""
        self.is_over = False

    def take(self, text: str, *, is_last: bool = False) -> str:
        """Return what of `text` counts: the line that ends the answer only to its first letter."""
        if self.is_over:
            return ""
        for place, letter in enumerate(text):
            if self._num_blanks is not None:
                if letter in " \t":
                    self._num_blanks += 1
                    continue
                if self._num_blanks < self._min_blanks:
                    self.is_over = True
                    return text[:place]
            self._num_blanks = 0 if letter == "\n" else None
        return text
