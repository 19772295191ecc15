"""What may end an answer before the model does, by its text: what such a limit is, and which ones a request asks for.

A limit of another kind is a room of its own and a field here. Must not know tokens or the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from worker.api.indent_limit import IndentLimit
from worker.api.line_limit import LineLimit

Clock = Callable[[], float]


class TextLimit(Protocol):
    """Watches one answer. Once it is over nothing of it counts any more."""

    @property
    def is_over(self) -> bool:
        """Whether the answer is to end with what was taken so far."""
        ...

    def take(self, text: str, *, is_last: bool) -> str:
        """Return what counts of `text`, which is to be shown next; `is_last` when the answer ends by itself."""
        ...


@dataclass(frozen=True, slots=True)
class TextLimits:
    """Which limits each answer to a request has."""

    max_predict_s: float | None = None
    """An answer ends when it has taken longer since its first token and there is a line break in its text."""
    min_indent: int = 0
    """An answer ends at the first line that begins with fewer blanks."""

    def start(self, clock: Clock) -> tuple[TextLimit, ...]:
        """Return the limits of one answer."""
        limits: list[TextLimit] = []
        if self.min_indent:
            limits.append(IndentLimit(self.min_indent))
        if self.max_predict_s is not None:
            limits.append(LineLimit(self.max_predict_s, clock))
        return tuple(limits)
