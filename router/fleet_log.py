"""The log lines that tell an operator what became of each model: one for each change of a worker's state.

Owns the words. Must not decide or remember anything but what the next line needs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from router.departures import departure_note
from router.events import (
    Departure,
    Event,
    ExitReason,
    PinSet,
    ShutdownRequested,
    StopCause,
    WorkerExit,
    WorkerExited,
    WorkerId,
)
from router.fleet_views import FleetSnapshot, ModelView
from router.lifecycle import WorkerState

logger = logging.getLogger("router.fleet")

_BY_IDLENESS = frozenset({StopCause.IDLE, StopCause.KEEP_ALIVE, StopCause.ROOM, StopCause.LIMITS})
"""Causes that take those that are idle, the longest first."""
_EVICTIONS = frozenset({StopCause.ROOM, StopCause.LIMITS})
_HAS_SERVED = frozenset({WorkerState.READY, WorkerState.DRAINING})


def fields(model: str, state: str, seconds: float | None = None) -> dict[str, dict[str, Any]]:
    """Return the `extra=` of a line about a model: fields for collectors of JSON, which the text says in words."""
    named = {"model": model, "state": state}
    return {"_fields": named if seconds is None else named | {"seconds": round(seconds, 3)}}


class FleetLog:
    """Compares snapshots and writes what has changed."""

    def __init__(self, on_eviction: Callable[[str], None] | None = None) -> None:
        """`on_eviction` gets the model of each worker that has gone because another one needed its place."""
        self._on_eviction = on_eviction
        self._states: dict[str, WorkerState] = {}
        self._idle_s: dict[str, float] = {}
        self._departures: dict[WorkerId, Departure] = {}

    def note(self, event: Event, fleet: FleetSnapshot, now_s: float) -> None:
        """Write the lines for what `event` has led to."""
        match event:
            case ShutdownRequested():
                logger.info("stopping all workers")
            case WorkerExited(worker, exit_):
                self._note_exit(worker, exit_, fleet.models.get(worker.model))
            case PinSet(model, pin) if (view := fleet.models.get(model)) is not None:
                source = "as its configuration says" if pin is None else "by request"
                pinned = "pinned" if view.is_pinned else "not pinned any more"
                logger.info("%s: %s (%s)", model, pinned, source, extra=fields(model, view.state.value))
            case _:
                pass
        for name, view in fleet.models.items():
            if self._states.get(name, WorkerState.UNLOADED) is not view.state:
                self._note_state(view, now_s)
            self._states[name] = view.state
        for name in self._states.keys() - fleet.models.keys():
            del self._states[name]
        residents = (one for view in fleet.models.values() for one in view.residents)
        self._departures = {one.worker: one.departure for one in residents if one.departure is not None}

    def load_refused(self, model: str, detail: str) -> None:
        """Write why a load is not done that nobody but the log will hear of."""
        logger.warning("%s: not loaded: %s", model, detail, extra=fields(model, WorkerState.UNLOADED.value))

    def note_ready(self, model: str, seconds: float) -> None:
        """Write how long the load took."""
        logger.info("%s: ready in %.1f s", model, seconds, extra=fields(model, WorkerState.READY.value, seconds))

    def _note_exit(self, worker: WorkerId, exit_: WorkerExit, view: ModelView | None) -> None:
        """Write why a worker is gone: what the fleet has made of it, which knows more than the process."""
        if view is not None and view.last_exit is not None:
            exit_ = view.last_exit
        model = worker.model
        if exit_.reason is ExitReason.STOPPED:
            self._note_unload(model, self._departures.get(worker), self._idle_s.pop(model, 0.0))
            return
        reason = " / ".join(exit_.detail.split("\n"))
        if exit_.reason is ExitReason.NO_ROOM:
            logger.info("%s: not started: %s", model, reason, extra=fields(model, WorkerState.UNLOADED.value))
            return
        logger.warning("%s: failed: %s%s", model, reason, _describe_next_try(view), extra=_failure_fields(model, view))

    def _note_unload(self, model: str, departure: Departure | None, idle_s: float) -> None:
        """Write that a worker is gone as it should be, and why; how long it was idle where that had a part in it."""
        cause = None if departure is None else departure.cause
        note = "" if departure is None else departure_note(departure)
        idle = f"idle for {idle_s:.0f} s" if idle_s >= 1 and cause in _BY_IDLENESS else ""
        notes = ", ".join(filter(None, (note, idle)))
        told = fields(model, WorkerState.UNLOADED.value, idle_s if idle else None)
        logger.info("%s: unloaded%s", model, f" ({notes})" if notes else "", extra=told)
        if cause in _EVICTIONS and self._on_eviction is not None:
            self._on_eviction(model)

    def _note_state(self, view: ModelView, now_s: float) -> None:
        told = fields(view.name, view.state.value)
        match view.state:
            case WorkerState.DRAINING:
                num = sum(resident.num_leases for resident in view.residents)
                requests = "1 request still runs" if num == 1 else f"{num} requests still run"
                logger.info("%s: taking no more requests; %s", view.name, requests, extra=told)
            case WorkerState.STOPPING:
                is_idle = self._states.get(view.name) in _HAS_SERVED and not any(
                    resident.num_leases for resident in view.residents
                )
                if is_idle:
                    self._idle_s[view.name] = now_s - max(resident.last_used_s for resident in view.residents)
                logger.debug("%s: stopping", view.name, extra=told)
            case WorkerState.READY if self._states.get(view.name) is WorkerState.DRAINING:
                logger.info("%s: taking requests again", view.name, extra=told)
            case _:
                logger.debug("%s: %s", view.name, view.state.value, extra=told)


def _failure_fields(model: str, view: ModelView | None) -> dict[str, dict[str, Any]]:
    """Return the fields of a failure's line; its seconds are those to the next try."""
    if view is None:
        return fields(model, WorkerState.FAILED.value)
    return fields(model, view.state.value, view.retry_in_s)


def _describe_next_try(view: ModelView | None) -> str:
    """Return what follows a failure, as the end of its line."""
    if view is None or view.retry_in_s is None:
        return ""
    if view.state is WorkerState.FAILED:
        return (
            f"; tried again when the file or the configuration changes, on request, or for a request in "
            f"{view.retry_in_s:.0f} s or later"
        )
    return f"; next try in {view.retry_in_s:.0f} s at the earliest"
