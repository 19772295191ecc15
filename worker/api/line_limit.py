"""The time after which an answer ends with the line it has: llama-server's `t_max_predict_ms`, meant for editors.

Counts from the answer's first token as the reply sees it. The clock is given. Must not know tokens or the engine.
"""

from __future__ import annotations

from collections.abc import Callable


class LineLimit:
    """Of one answer: it is over once it has taken `max_s` and there is a line break in its text.

    It may be over in the middle of a later line; an answer of one line is never cut.
    """

    def __init__(self, max_s: float, clock: Callable[[], float]) -> None:
        self._max_s = max_s
        self._clock = clock
        self._first_at_s: float | None = None
        self._has_line = False
        self.is_over = False

    def take(self, text: str, *, is_last: bool) -> str:
        """Return `text`, all of which counts; an answer that ends by itself is not over its time."""
        if not is_last:
            now_s = self._clock()
            if self._first_at_s is None:
                self._first_at_s = now_s
            self._has_line = self._has_line or "\n" in text
            self.is_over = self.is_over or (self._has_line and now_s - self._first_at_s > self._max_s)
        return text
