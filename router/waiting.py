"""The line of requests that wait for one model, and who of them comes next.

Owns the order: priority, then the key's share, then age. Must not know what they wait for, nor read a clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from router.events import LeaseId


@dataclass(frozen=True, slots=True)
class Waiter:
    """One request that has not been granted or refused yet."""

    lease_id: LeaseId
    priority: int
    key_id: str | None
    since_s: float
    prefixes: tuple[int, ...] = ()
    """Hashes of the beginnings of its conversation."""
    keep_alive_s: float | None = None
    """How long its worker is to stay when it is idle; None = it does not say."""
    request_id: str | None = None
    """What the log calls it; None = it has no name."""


class WaitingLine:
    """Waiters of one model in the order of their arrival."""

    def __init__(self) -> None:
        self._waiters: dict[LeaseId, Waiter] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._waiters.values())

    def __contains__(self, lease_id: object) -> bool:
        return lease_id in self._waiters

    @property
    def oldest(self) -> Waiter | None:
        """Who has waited longest, whatever its priority."""
        return next(iter(self._waiters.values()), None)

    @property
    def max_priority(self) -> int:
        """The highest priority in the line; 0 when it is empty."""
        return max((waiter.priority for waiter in self), default=0)

    def join(self, waiter: Waiter) -> None:
        """`waiter` stands at the end."""
        self._waiters[waiter.lease_id] = waiter

    def leave(self, lease_id: LeaseId) -> None:
        """Nobody of this id is in the line."""
        self._waiters.pop(lease_id, None)

    def pop_next(self, num_leases: Mapping[str | None, int]) -> Waiter:
        """Return who is served next, out of the line now: highest priority, then smallest share, then oldest.

        `num_leases` holds the leases that each key has on this model; keys that are absent have none.
        Raises: ValueError when nobody waits.
        """
        # min() keeps the first of equals, and the line is in order of arrival: age needs no field here.
        chosen = min(self, key=lambda waiter: (-waiter.priority, num_leases.get(waiter.key_id, 0)))
        del self._waiters[chosen.lease_id]
        return chosen
