"""Why a worker is gone, in words: as the detail of its exit, and as the note in its line of the log.

Owns the words. Must not decide why: that is told as data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from router.events import Departure, ExitReason, StopCause, WorkerExit

OUTDATED = Departure(StopCause.CONFIGURATION)
OVER_LIMITS = Departure(StopCause.LIMITS)

_DETAILS: Mapping[StopCause, str] = {
    StopCause.IDLE: "unloaded, because it was idle for {seconds} (idle_unload_s)",
    StopCause.KEEP_ALIVE: "unloaded, as a request asked for (keep_alive {seconds})",
    StopCause.ROOM: "unloaded to make room for {model}",
    StopCause.LIMITS: "unloaded, because more was loaded than the limits in the configuration allow",
    StopCause.CONFIGURATION: "unloaded, because its configuration has changed",
    StopCause.REPLICAS: "unloaded, because fewer replicas are configured now",
    StopCause.REMOVED: "unloaded, because it was removed from the configuration",
    StopCause.REQUEST: "unloaded by request (POST /models/unload)",
    StopCause.SHUTDOWN: "unloaded, because the server stops",
}
_NOTES: Mapping[StopCause, str] = {
    StopCause.IDLE: "",
    StopCause.KEEP_ALIVE: "keep_alive {seconds}",
    StopCause.ROOM: "to make room for {model}",
    StopCause.LIMITS: "more was loaded than the limits allow",
    StopCause.CONFIGURATION: "its configuration has changed",
    StopCause.REPLICAS: "fewer replicas are configured",
    StopCause.REMOVED: "removed from the configuration",
    StopCause.REQUEST: "by request",
    StopCause.SHUTDOWN: "the server stops",
}


def departure_detail(departure: Departure) -> str:
    """Return a clause for people who ask why the model is not loaded."""
    return _filled(_DETAILS, departure)


def exit_in_words(
    exit_: WorkerExit,
    *,
    timed_out_after_s: float | None = None,
    departure: Departure | None = None,
    hung_detail: str | None = None,
) -> WorkerExit:
    """Return how a worker ended as operators are told it: with the cause that the router knows and the process not.

    `timed_out_after_s`: its load was given up after so long without progress. `departure`: why it was sent off.
    `hung_detail`: how it was seen that it gave no sign of life.
    """
    if timed_out_after_s is not None:
        words = f"it made no progress for {timed_out_after_s:g} s while loading (load_timeout_s)"
        detail = f"{words}; {exit_.detail}" if exit_.detail else words
        exit_ = replace(exit_, reason=ExitReason.LOAD_TIMEOUT, detail=detail)
    if exit_.reason is ExitReason.STOPPED and departure is not None:
        exit_ = replace(exit_, detail=departure_detail(departure), departure=departure)
    if hung_detail is not None:
        exit_ = replace(exit_, reason=ExitReason.HUNG, detail=hung_detail)
    return exit_


def departure_note(departure: Departure) -> str:
    """Return what the log says beside how long the worker was idle; "" = nothing but that."""
    return _filled(_NOTES, departure)


def _filled(words: Mapping[StopCause, str], departure: Departure) -> str:
    model = "another model" if departure.for_model is None else f"'{departure.for_model}'"
    return words[departure.cause].format(seconds=f"{departure.limit_s or 0:g} s", model=model)
