"""The line of requests that wait for one model, and who of them comes next.

Owns the order: priority, then whoever had a place already, then the tokens that a key has had by its weight
(`fair_share.py`), then how few of its requests run, then age. Must not know what they wait for, nor read a clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from router.events import LeaseId
from router.fair_share import FairShare


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
    weight: float = 1.0
    """Of its key: how many times the tokens of one of weight 1 it is to get."""
    goes_first: bool = False
    """It comes before all others of its priority, whatever its key has had."""


class WaitingLine:
    """Waiters of one model in the order of their arrival, and what those that have left it for a worker take."""

    def __init__(self) -> None:
        self._waiters: dict[LeaseId, Waiter] = {}
        self._shares: dict[int, FairShare] = {}
        """By priority; those of which nobody waits or runs are gone."""
        self._granted: dict[LeaseId, int] = {}
        """The priorities of those that run."""

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

    @property
    def granted(self) -> frozenset[LeaseId]:
        """Those that were next and have not been settled."""
        return frozenset(self._granted)

    def join(self, waiter: Waiter) -> None:
        """`waiter` stands at the end."""
        self._shares.setdefault(waiter.priority, FairShare()).join(waiter.key_id)
        self._waiters[waiter.lease_id] = waiter

    def leave(self, lease_id: LeaseId) -> None:
        """Nobody of this id is in the line."""
        waiter = self._waiters.pop(lease_id, None)
        if waiter is not None:
            self._shares[waiter.priority].leave(waiter.key_id)
            self._forget_if_idle(waiter.priority)

    def pop_next(self, num_leases: Mapping[str | None, int]) -> Waiter:
        """Return who is served next, out of the line now; `settle` is due when its request has ended.

        `num_leases` holds the leases that each key has on this model; keys that are absent have none.
        Raises: ValueError when nobody waits.
        """

        # min() keeps the first of equals, and the line is in order of arrival: age needs no field here.
        def place(waiter: Waiter) -> tuple[float, ...]:
            used = self._used(waiter), num_leases.get(waiter.key_id, 0)
            return (-waiter.priority, not waiter.goes_first, *used)

        chosen = min(self, key=place)
        share = self._shares[chosen.priority]
        share.charge(chosen.lease_id, chosen.key_id, chosen.weight)
        share.leave(chosen.key_id)
        del self._waiters[chosen.lease_id]
        self._granted[chosen.lease_id] = chosen.priority
        return chosen

    def settle(self, lease_id: LeaseId, tokens: int | None) -> None:
        """The granted request is over and took so many tokens; None = nobody knows how many."""
        priority = self._granted.pop(lease_id)
        self._shares[priority].settle(lease_id, tokens)
        self._forget_if_idle(priority)

    def _used(self, waiter: Waiter) -> float:
        return self._shares[waiter.priority].used(waiter.key_id)

    def _forget_if_idle(self, priority: int) -> None:
        """When nobody of a priority waits or runs, all keys begin anew."""
        if self._shares[priority].is_idle:
            del self._shares[priority]
