"""Why a request waits or is refused, in words for people who do not know the code.

Owns the sentences. Must not decide anything: it is told what has been decided.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from router.events import ExitReason, FleetLimits, RefusalKind
from router.lifecycle import WorkerState
from router.resident import ModelRecord, Resident

SHUTTING_DOWN_WORDS = "The server is shutting down and takes no more requests."


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request gets no lease."""

    kind: RefusalKind
    detail: str
    retry_after_s: float | None = None


def shutting_down() -> Refusal:
    """Return the refusal of everything once the router stops."""
    return Refusal(RefusalKind.SHUTTING_DOWN, SHUTTING_DOWN_WORDS)


def unknown_model(name: str) -> Refusal:
    """Return the refusal for a model that was never there."""
    return Refusal(RefusalKind.UNKNOWN_MODEL, f"There is no model '{name}'.")


def removed_model(name: str) -> Refusal:
    """Return the refusal for a model that was there a moment ago."""
    return Refusal(RefusalKind.UNKNOWN_MODEL, f"Model '{name}' has been removed from the server's configuration.")


def unavailable_model(name: str, problem: str) -> Refusal:
    """Return the refusal for a model whose configuration or file rules out a start."""
    return Refusal(RefusalKind.UNAVAILABLE, f"Model '{name}' cannot be loaded: {_clause(problem)}.")


def turned_away(name: str, why: str) -> Refusal:
    """Return the refusal for requests whose load the operator has cancelled."""
    return Refusal(RefusalKind.UNAVAILABLE, f"Model '{name}' was {why}. Send the request again to have it loaded.")


def failed_model(record: ModelRecord, now_s: float) -> Refusal:
    """Return the refusal for a model that is in BACKOFF or FAILED, with what its last worker said."""
    name = record.policy.name
    retry_after_s = max(0.0, record.retry_at_s - now_s)
    detail = _clause(record.last_exit.detail) if record.last_exit else ""
    reason = detail or (record.last_exit.reason.value if record.last_exit else "the reason is not known")
    retry = f"it will be tried again for a request that comes in {math.ceil(retry_after_s)} s or later"
    if record.rest is WorkerState.FAILED:
        words = f"Model '{name}' cannot be loaded: {reason}. That has to be put right first; otherwise {retry}."
    elif record.last_exit and record.last_exit.reason is ExitReason.SOURCE_FAILED:
        words = f"The file of model '{name}' could not be fetched: {reason}. After a pause {retry}."
    else:
        words = f"Model '{name}' failed to start or crashed: {reason}. It pauses now; {retry}."
    return Refusal(RefusalKind.UNAVAILABLE, words, retry_after_s)


def pinned_out(name: str, max_loaded: int | None, pinned: Iterable[str]) -> Refusal:
    """Return the refusal for a model that no place can ever be made for."""
    names = ", ".join(f"'{other}'" for other in pinned)
    return Refusal(
        RefusalKind.UNAVAILABLE,
        f"Model '{name}' cannot be loaded: limits.max_loaded is {max_loaded} and every place is held by a "
        f"pinned model ({names}). Raise limits.max_loaded, or unload or unpin one of them.",
    )


def queue_full(record: ModelRecord, now_s: float) -> Refusal:
    """Return the refusal for a request that finds `max_queue` others before it.

    It should come back after about as long as the oldest of them has waited, which is how fast the line moves.
    """
    oldest = record.line.oldest
    wait_s = now_s - oldest.since_s if oldest else 0.0
    return Refusal(
        RefusalKind.QUEUE_FULL,
        f"{len(record.line)} requests already wait for model '{record.policy.name}' (max_queue). "
        "Send the request again later.",
        min(max(wait_s, 1.0), 30.0),
    )


def queue_timeout(record: ModelRecord, residents: Collection[Resident], limits: FleetLimits) -> Refusal:
    """Return the refusal for a request that has waited too long, naming what it waited for."""
    return Refusal(
        RefusalKind.QUEUE_TIMEOUT,
        f"The request waited {record.policy.queue_timeout_s:g} s (queue_timeout_s) for model "
        f"'{record.policy.name}' and got no place. It was waiting for {waits_for(record, residents, limits)}. "
        "Send it again later.",
        5.0,
    )


def waits_for(record: ModelRecord, residents: Collection[Resident], limits: FleetLimits) -> str:
    """Return what requests for `record` wait for, as a noun phrase. `residents` are those of all models."""
    own = record.serving or next(iter(record.residents.values()), None)
    name = record.policy.name
    if own is not None:
        match own.state:
            case WorkerState.STARTING | WorkerState.LOADING:
                return f"'{name}' to load"
            case WorkerState.READY:
                return f"a free place on '{name}', where {_requests(own)} running"
            case _:
                return f"'{name}' to unload before it can be loaded again ({_condition(own)})"
    others = sorted(residents, key=lambda other: (not other.is_leaving, other.worker))
    if not others or limits.max_loaded is None:
        return f"'{name}' to start"
    shown = [f"'{other.worker.model}' {_condition(other)}" for other in others[:3]]
    if len(others) > 3:
        shown.append(f"{len(others) - 3} more")
    return f"room among the loaded models (limits.max_loaded is {limits.max_loaded}): {', '.join(shown)}"


def _condition(resident: Resident) -> str:
    """Return what `resident` is doing, as a predicate."""
    match resident.state:
        case WorkerState.STARTING | WorkerState.LOADING:
            return "is loading"
        case WorkerState.DRAINING:
            return f"is finishing its last requests, {_requests(resident)} running"
        case WorkerState.STOPPING:
            return "is stopping"
        case _:
            return f"is busy, {_requests(resident)} running" if resident.leases else "is idle"


def _requests(resident: Resident) -> str:
    num = len(resident.leases)
    return f"{num} request{' is' if num == 1 else 's are'}"


def _clause(text: str) -> str:
    """Return `text` without the full stop that our own sentence will set."""
    return text.strip().removesuffix(".")
