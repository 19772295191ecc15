"""Whom to evict so that another model finds a place: one pure function over what is resident.

Places are counted here; whoever wants them measured in bytes replaces this room and nothing else. Must not
know of requests, clocks or events: `fleet.py` says who wants a place, and whether it has waited long enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from router.events import WorkerId
from router.lifecycle import WorkerState


@dataclass(frozen=True, slots=True)
class Occupant:
    """One resident as placement sees it."""

    worker: WorkerId
    state: WorkerState
    num_leases: int
    last_used_s: float
    priority: int
    is_kept: bool
    """Pinned, and nobody but the operator may send it away."""


def choose_victims(occupants: Iterable[Occupant], num_places: int, *, may_drain: bool) -> tuple[WorkerId, ...] | None:
    """Return the workers whose going makes `num_places` places, the cheapest ones; None if too few may go now.

    Workers that are on their way out already count as victims, so that nobody else has to go for the same
    place. The order: already stopping, idle, already draining, busy (only if `may_drain`); among equals the
    lower priority first, then the least recently used. Never one that loads, never one that is kept.
    """
    ranked = []
    for occupant in occupants:
        rank = _rank(occupant, may_drain)
        if rank is not None:
            ranked.append((rank, occupant.priority, occupant.last_used_s, occupant.worker))
    if len(ranked) < num_places:
        return None
    return tuple(worker for *_, worker in sorted(ranked)[:num_places])


def _rank(occupant: Occupant, may_drain: bool) -> int | None:
    """Return how cheap it is to let `occupant` go, 0 = free of charge; None = it must stay."""
    match occupant.state:
        case WorkerState.STOPPING:
            return 0
        case _ if occupant.is_kept:
            return None
        case WorkerState.DRAINING:
            return 2  # behind the idle ones: what still runs on it may take long
        case WorkerState.READY if occupant.num_leases == 0:
            return 1
        case WorkerState.READY if may_drain:
            return 3
        case _:
            return None  # busy, or loading: the load that somebody paid for serves first
