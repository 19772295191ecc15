"""The states of a worker, every legal move between them, and how long a failure keeps a model waiting.

Owns the transition table and the back-off rule. Must not know of leases, queues or other models: `fleet.py`
decides when to move, this room only says whether the move exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

MAX_BACKOFF_S = 60.0
"""The longest pause between two starts of a model that keeps failing."""

MAX_CRASH_PAUSE_S = 5.0
"""The longest pause after crashes of workers that can be loaded: requests wait for its end."""

MAX_LOST_LOADS = 2
"""So many loads in a row may crash of a model that could be loaded before, until its requests are refused."""

STABLE_S = 60.0
"""A worker that has been ready for so long makes up for all earlier failures of its model."""

FAILED_COOL_DOWN_S = 300.0
"""How long a bad file is not tried again by itself; it may have been replaced on disk in the meantime."""


class WorkerState(StrEnum):
    """Where one incarnation of a worker is, or what its model is while it has none."""

    UNLOADED = "unloaded"
    """No process; the next request starts one."""
    STARTING = "starting"
    """Asked for: its file is being fetched or its process made."""
    LOADING = "loading"
    """The process exists and reads the model."""
    READY = "ready"
    """Takes leases."""
    DRAINING = "draining"
    """Takes no new leases; the running ones end first."""
    STOPPING = "stopping"
    """Told to exit and not reaped yet."""
    BACKOFF = "backoff"
    """No process; the last ones failed, and a timer runs before the next start."""
    FAILED = "failed"
    """No process; the file or the configuration must change, or somebody asks for a load."""


LIVE = frozenset(
    {
        WorkerState.STARTING,
        WorkerState.LOADING,
        WorkerState.READY,
        WorkerState.DRAINING,
        WorkerState.STOPPING,
    }
)
"""States in which there is, or is about to be, a process that holds a place."""

_AFTER_EXIT = frozenset({WorkerState.UNLOADED, WorkerState.BACKOFF, WorkerState.FAILED})

TRANSITIONS: Mapping[WorkerState, frozenset[WorkerState]] = MappingProxyType(
    {
        WorkerState.UNLOADED: frozenset({WorkerState.STARTING}),
        WorkerState.STARTING: frozenset({WorkerState.LOADING, WorkerState.STOPPING}) | _AFTER_EXIT,
        WorkerState.LOADING: frozenset({WorkerState.READY, WorkerState.STOPPING}) | _AFTER_EXIT,
        WorkerState.READY: frozenset({WorkerState.DRAINING}) | _AFTER_EXIT,
        # Back to READY: it drained for another model whose requests have all left since.
        WorkerState.DRAINING: frozenset({WorkerState.STOPPING, WorkerState.READY}) | _AFTER_EXIT,
        WorkerState.STOPPING: _AFTER_EXIT,
        WorkerState.BACKOFF: frozenset({WorkerState.UNLOADED}),
        WorkerState.FAILED: frozenset({WorkerState.UNLOADED}),
    }
)
"""Every legal move. A live worker may exit at any time, so each live state leads to all states without one."""


class IllegalTransition(RuntimeError):
    """The fleet wanted a move that the table does not have: a fault of the router, never of a request."""


def advance(old: WorkerState, new: WorkerState) -> WorkerState:
    """Return `new`, which may follow `old`.

    Raises: IllegalTransition when `TRANSITIONS` does not have the move.
    """
    if new not in TRANSITIONS[old]:
        raise IllegalTransition(f"a worker cannot go from {old} to {new}")
    return new


def backoff_s(attempt: int, *, is_crash: bool = False) -> float:
    """Return the pause after the `attempt`-th failure in a row: 1, 2, 4 … seconds, at most `MAX_BACKOFF_S`.

    A model that can never load therefore costs about five starts in its first minute and one a minute later.
    `is_crash`: it can be loaded, so that it pauses for at most `MAX_CRASH_PAUSE_S`.
    """
    if attempt < 1:
        return 0.0
    return min(2.0 ** min(attempt - 1, 16), MAX_CRASH_PAUSE_S if is_crash else MAX_BACKOFF_S)
