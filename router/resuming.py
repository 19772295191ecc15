"""What is kept of running requests so that their answers can go on elsewhere when a worker dies, and whether they may.

Owns the bounds: bytes in all, bytes of one request, resumes in a row without a new token. Pure; must not know workers,
frames or HTTP, nor look into what it keeps.

A request that kills its worker would kill the next one, too, and with it the answers of everybody there. So whoever has
died twice without a new token in between goes on alone, one such request after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from worker.contract import Header

SHARE_OF_ONE = 0.25
"""The most that one request may have of all that is kept."""
STEP_BYTES = 48
"""What a step takes beside its own bytes."""
MAX_RESUMES_IN_ALL = 100
"""Of one request, whatever it comes to in between."""


@dataclass(slots=True)
class ResumeMemory:
    """Counts the bytes that are kept of all requests."""

    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Resend:
    """What another worker is asked."""

    body: bytes
    headers: Mapping[str, str]


class Journal:
    """What is kept of one request. Use it as a context: at the end nothing is."""

    def __init__(self, memory: ResumeMemory, max_in_row: int, max_bytes: int) -> None:
        """`max_in_row`: resumes without a new token; `max_bytes`: of all requests together."""
        self._memory = memory
        self._max_bytes = max_bytes
        self._max_in_row = max_in_row
        self._num_bytes = 0
        self._body: bytes | None = None
        self._identity = ""
        self._steps: list[bytes] = []
        self._is_complete = False
        """Everything that the client was told is in `_steps`."""
        self._num_in_row = 0
        self.num_resumes = 0
        """How often it went on elsewhere."""

    def keep(self, body: bytes) -> None:
        """A worker has accepted the request. Kept at most once, and only if there is room."""
        if self._max_in_row and self._body is None and self.num_resumes == 0 and self._take(len(body)):
            self._body, self._is_complete = body, True

    def note_worker(self, identity: str) -> None:
        """This worker tells its steps, or not: "" is one whose reply nobody can go on with."""
        self._identity = identity if identity and not self._steps else self._identity

    def add(self, step: bytes, *, is_new: bool = True) -> None:
        """The client is told what this step shows; `is_new`: more of the answer, and not only how far its prompt is."""
        if is_new:
            self._num_in_row = 0
        if self._is_complete and self._take(len(step) + STEP_BYTES):
            self._steps.append(step)
        else:
            self.forget()

    def note_shown(self) -> None:
        """The client was told something that no step tells."""
        self.forget()

    def forget(self) -> None:
        """Nothing is kept: the request cannot go on elsewhere."""
        self._memory.num_bytes -= self._num_bytes
        self._num_bytes, self._body, self._is_complete = 0, None, False
        self._steps.clear()

    @property
    def has_moved(self) -> bool:
        """Whether there was something new since its worker was lost, if one was."""
        return self._num_in_row == 0

    @property
    def is_suspect(self) -> bool:
        """Whether it has been lost again without a new token: it may be what kills the workers."""
        return self._num_in_row > 1

    def lose(self) -> bool:
        """Its worker is lost; return whether it may go on with another one."""
        self._num_in_row += 1
        self.num_resumes += 1
        is_allowed = self._num_in_row <= self._max_in_row and self.num_resumes <= MAX_RESUMES_IN_ALL
        return is_allowed and self._body is not None

    def resend(self) -> Resend | None:
        """Return what the next worker is asked; None while the request is as it was."""
        if self._body is None or not self.num_resumes:
            return None
        if not self._steps:
            return Resend(self._body, {})
        lines = b"".join(step + b"\n" for step in self._steps)
        return Resend(lines + self._body, {Header.RESUME: str(len(lines)), Header.RESUME_OF: self._identity})

    def _take(self, num_bytes: int) -> bool:
        memory = self._memory
        is_too_much = self._num_bytes + num_bytes > SHARE_OF_ONE * self._max_bytes
        if is_too_much or memory.num_bytes + num_bytes > self._max_bytes:
            return False
        memory.num_bytes += num_bytes
        self._num_bytes += num_bytes
        return True

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.forget()
