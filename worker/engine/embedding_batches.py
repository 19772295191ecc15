"""Which texts share a pass: those of all requests that wait, so that each gets its turn and little room is left.

Pure bookkeeping over lengths. Must not know tokens, vectors or clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """One text: of which request, and which of its texts."""

    request: int
    index: int


class DocumentLine:
    """The texts that wait for a pass."""

    def __init__(self, *, max_documents: int) -> None:
        self._max_documents = max_documents
        self._waiting: dict[int, list[tuple[int, int]]] = {}
        """By request, in turn: lengths and indices, the shortest text first."""

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits."""
        return not self._waiting

    def add(self, request: int, lengths: Sequence[int]) -> None:
        """Queue the texts of a request. Of equally long ones the first goes first."""
        assert request not in self._waiting
        if lengths:
            self._waiting[request] = sorted((length, -index) for index, length in enumerate(lengths))

    def drop(self, request: int) -> None:
        """Forget the texts of a request that have had no pass yet. Idempotent."""
        self._waiting.pop(request, None)

    def take(self, max_tokens: int) -> list[Place]:
        """Return the texts of the next pass: at least one, and at most `max_tokens` in all unless one alone is longer.

        Every request gives one text in its turn, its longest one that still fits, until nothing fits. The next pass
        begins with the request after the one that began here, so nobody waits for a long request to end.
        """
        taken: list[Place] = []
        room = max_tokens
        giving = list(self._waiting)
        while giving and len(taken) < self._max_documents:
            for request in tuple(giving):
                at = _longest_within(self._waiting[request], room)
                if at is None and not taken:
                    at = len(self._waiting[request]) - 1  # too long for any pass of this size, so it goes alone
                if at is None or len(taken) == self._max_documents:
                    giving.remove(request)
                    continue
                length, index = self._waiting[request].pop(at)
                taken.append(Place(request, -index))
                room -= length
                if not self._waiting[request]:
                    giving.remove(request)
        if self._waiting:  # whoever has begun stands last now
            first = next(iter(self._waiting))
            self._waiting[first] = self._waiting.pop(first)
            self._waiting = {request: texts for request, texts in self._waiting.items() if texts}
        return taken


def _longest_within(texts: list[tuple[int, int]], room: int) -> int | None:
    """Return where the longest text of at most `room` tokens is; None if all are longer."""
    low, high = 0, len(texts)
    while low < high:
        middle = (low + high) // 2
        if texts[middle][0] <= room:
            low = middle + 1
        else:
            high = middle
    return low - 1 if low else None
