"""What the scheduler remembers of failed passes, so that the next plans do better.

Passes get smaller while the cache is fuller than the books say, and sequences run one by one while one of them
is under suspicion. Pure; must not know cells or slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from worker.engine.request import RequestId
from worker.engine.sequence import Sequence

MAX_FULL = 3
"""A lone sequence is given up after so many refusals in a row for want of cells."""


class Recovery:
    """The state between failed passes; a success clears it step by step."""

    def __init__(self, max_rows: int) -> None:
        self._all_rows = max_rows
        self.max_rows = max_rows
        """Rows that the next pass may have."""
        self._suspects: deque[RequestId] = deque()
        self._num_full = 0

    def admit(self, running: list[Sequence]) -> list[Sequence]:
        """Return those of the running sequences that may be in the next pass: all, or one suspect."""
        while self._suspects and all(s.request_id != self._suspects[0] for s in running):
            self._suspects.popleft()  # it was parked; if it is the culprit it will be suspected again
        if not self._suspects:
            return running
        return [s for s in running if s.request_id == self._suspects[0]]

    def succeeded(self, *, has_outputs: bool) -> None:
        """A pass went through; a suspect is cleared as soon as something has been sampled of it."""
        self.max_rows = self._all_rows
        self._num_full = 0
        if self._suspects and has_outputs:
            self._suspects.popleft()

    def was_full(self) -> bool:
        """Count a pass without cells; True if that has happened too often in a row."""
        self._num_full += 1
        return self._num_full > MAX_FULL

    def shrink(self, num_chunks: int) -> bool:
        """Halve the rows of the next pass; False if it has as few as so many chunks need."""
        smallest = max(1, num_chunks)
        if self.max_rows <= smallest:
            return False
        self.max_rows = max(smallest, self.max_rows // 2)
        return True

    def suspect(self, request_ids: Iterable[RequestId]) -> None:
        """One of these has made a pass invalid: they will run one by one."""
        self._suspects = deque(request_ids)

    def is_tested(self, request_id: RequestId) -> bool:
        """Whether the request runs alone because it is under suspicion."""
        return bool(self._suspects) and self._suspects[0] == request_id

    def forget(self, request_id: RequestId) -> None:
        """The request has ended."""
        if request_id in self._suspects:
            self._suspects.remove(request_id)
