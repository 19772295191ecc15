"""What the simulated machine reckons that each key has had, in whole fractions: who of two keys is to be next.

Written from the rules alone, so that the fleet's accounts are not judged by themselves.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction

from router.events import LeaseId
from tests.fakes.world_parts import Request


@dataclass
class _Class:
    """The requests of one model and one priority."""

    had: dict[str | None, Fraction] = field(default_factory=dict)
    least: dict[str | None, Fraction] = field(default_factory=dict)
    last_took: dict[str | None, int] = field(default_factory=dict)
    waiting: set[LeaseId] = field(default_factory=set)
    running: dict[LeaseId, int] = field(default_factory=dict)
    served_at: Fraction = Fraction(0)


class WorldShares:
    """The accounts of all models."""

    def __init__(self) -> None:
        self._classes: defaultdict[tuple[str, int], _Class] = defaultdict(_Class)
        self._requests: dict[LeaseId, Request] = {}

    def arrive(self, request: Request) -> None:
        """The request waits from now on."""
        mine = self._classes[request.model, request.priority]
        if not any(self._requests[other].key_id == request.key_id for other in mine.waiting):
            start = min([mine.served_at, *(mine.had[self._requests[other].key_id] for other in mine.waiting)])
            start = max(mine.had.get(request.key_id, Fraction(0)), start)
            mine.had[request.key_id] = mine.least[request.key_id] = start
        self._requests[request.lease_id] = request
        mine.waiting.add(request.lease_id)

    def had(self, request: Request) -> Fraction:
        """Return what the key of a waiting request has had, by its weight."""
        return self._classes[request.model, request.priority].had[request.key_id]

    def grant(self, request: Request) -> None:
        """The request runs from now on."""
        mine = self._classes[request.model, request.priority]
        mine.waiting.discard(request.lease_id)
        mine.served_at = max(mine.served_at, mine.had[request.key_id])
        guess = mine.last_took.get(request.key_id, 256)
        mine.running[request.lease_id] = guess
        mine.had[request.key_id] += guess / Fraction(request.weight)

    def end(self, lease_id: LeaseId, tokens: int | None) -> None:
        """The request is over, wherever it was."""
        request = self._requests.pop(lease_id, None)
        if request is None:
            return
        mine, key = self._classes[request.model, request.priority], request.key_id
        mine.waiting.discard(lease_id)
        guess = mine.running.pop(lease_id, None)
        if guess is not None and tokens is not None:
            right = mine.had[key] + (tokens - guess) / Fraction(request.weight)
            mine.had[key] = max(right, mine.least[key])
            mine.last_took[key] = max(64, tokens)
        if not mine.waiting and not mine.running:
            del self._classes[request.model, request.priority]
