"""Why a worker was unloaded, in words: as the detail of its exit, and as the note in its line of the log.

Owns the words. Must not decide why: that is told as data.
"""

from __future__ import annotations

from collections.abc import Mapping

from router.events import Departure, StopCause

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


def departure_note(departure: Departure) -> str:
    """Return what the log says beside how long the worker was idle; "" = nothing but that."""
    return _filled(_NOTES, departure)


def _filled(words: Mapping[StopCause, str], departure: Departure) -> str:
    model = "another model" if departure.for_model is None else f"'{departure.for_model}'"
    return words[departure.cause].format(seconds=f"{departure.limit_s or 0:g} s", model=model)
