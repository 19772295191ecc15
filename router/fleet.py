"""Who waits, who is granted, which worker starts and which one goes: the only place that decides it.

`Fleet.handle(event, now_s)` notes the facts that an event brings, then runs one decision tree over everything
that may now have to change (`pump.py`), and returns what is to be done as plain data. Must not await, log,
sleep, read a clock or touch a process: `supervisor.py` performs the actions and brings back events.

An operator's unload of a ready model lets its running requests end; requests that wait, or come later, load it
again once it has gone. While it is not ready yet, those that wait for it are refused instead: the operator has
cancelled the very load they wait for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import assert_never

from router.events import (
    Action,
    CatalogChanged,
    Event,
    FleetLimits,
    LeaseReleased,
    LeaseRequested,
    LoadRequested,
    ModelPolicy,
    ShutdownRequested,
    Tick,
    UnloadRequested,
    WorkerExited,
    WorkerProgressed,
    WorkerReady,
    WorkerStarted,
)
from router.fleet_ledger import FleetLedger
from router.fleet_views import FleetSnapshot, ModelView, ResidentView, view_model
from router.lifecycle import WorkerState
from router.pump import pump
from router.resident import ModelRecord

__all__ = ["Fleet", "FleetSnapshot", "ModelView", "ResidentView"]


class Fleet:
    """All models with their queues, leases and workers.

    Preloads start with the first event, whatever it is: send a `Tick` once actions can be performed.
    """

    def __init__(self, models: Mapping[str, ModelPolicy], limits: FleetLimits) -> None:
        self._ledger = FleetLedger(limits)
        self._ledger.adopt(models, limits)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Return what is to be done now, in this order; the fleet already counts on it.

        Events about workers that are gone, or about leases that have ended, change nothing. Units: seconds of a
        monotonic clock.
        """
        self._ledger.now_s = max(self._ledger.now_s, now_s)
        self._ledger.actions = []
        self._apply(event)
        pump(self._ledger)
        return self._ledger.actions

    @property
    def next_deadline_s(self) -> float | None:
        """When the next `Tick` is due; an earlier one would change nothing. None = only events matter."""
        ledger = self._ledger
        if ledger.now_s == -math.inf:
            return 0.0 if ledger.awake else None
        deadlines = [at_s for record in ledger.awake.values() for at_s in self._deadlines(record)]
        # What is due already has been handled, as far as it can be before something else happens.
        return min((at_s for at_s in deadlines if at_s is not None and at_s > ledger.now_s), default=None)

    def _deadlines(self, record: ModelRecord) -> list[float | None]:
        """Return the times at which something about `record` is due by the clock alone."""
        deadlines = [record.queue_deadline_s, record.wish_deadline_s]
        demand_since_s = record.demand_since_s
        if demand_since_s is not None:
            deadlines.append(demand_since_s + self._ledger.limits.max_wait_s)
        if record.is_preload_due and record.rest is WorkerState.BACKOFF:
            deadlines.append(record.retry_at_s)
        for resident in record.residents.values():
            deadlines += (record.load_deadline_s(resident), record.idle_unload_at_s(resident))
            if resident.state is WorkerState.DRAINING:
                deadlines.append(resident.drain_until_s)
        return deadlines

    def snapshot(self, now_s: float) -> FleetSnapshot:
        """Return how everything stands, for display only."""
        ledger = self._ledger
        residents = ledger.residents
        return FleetSnapshot(
            models={
                name: view_model(record, residents, ledger.limits, now_s) for name, record in ledger.records.items()
            },
            is_shutting_down=ledger.is_shutting_down,
        )

    def check_integrity(self) -> None:
        """Every invariant that can be seen between two events holds. Raises: AssertionError."""
        self._ledger.check()

    # --- facts -------------------------------------------------------------------------------------------

    def _apply(self, event: Event) -> None:
        """Note what `event` says; what follows from it is the pump's business."""
        ledger = self._ledger
        match event:
            case LeaseRequested():
                ledger.admit(event)
            case LeaseReleased(lease_id):
                ledger.release(lease_id)
            case WorkerStarted() | WorkerProgressed() | WorkerReady() | WorkerExited():
                self._note_worker(event)
            case LoadRequested(model):
                self._note_load(model)
            case UnloadRequested(model):
                self._note_unload(model)
            case CatalogChanged(models, limits):
                ledger.adopt(models, limits)
            case ShutdownRequested(drain_s):
                ledger.is_shutting_down = True
                for resident in ledger.residents:
                    resident.leave_by(ledger.now_s + drain_s)
            case Tick():
                pass
            case _:
                assert_never(event)

    def _note_worker(self, event: WorkerStarted | WorkerProgressed | WorkerReady | WorkerExited) -> None:
        """What a live worker reports is noted; the report of one that is gone is ignored."""
        found = self._ledger.find(event.worker)
        if found is None:
            return
        record, resident = found
        now_s = self._ledger.now_s
        match event:
            case WorkerStarted():
                resident.last_sign_s = now_s
                if resident.state is WorkerState.STARTING:
                    resident.move(WorkerState.LOADING, now_s)
            case WorkerProgressed():
                resident.last_sign_s = now_s
            case WorkerReady(max_leases=max_leases):
                if resident.is_loading:
                    record.note_ready(resident, max_leases, now_s)
            case WorkerExited(exit=exit_):
                # Whoever holds these leases sees the broken reply itself; releasing them later changes nothing.
                for lease_id in resident.leases:
                    del self._ledger.leases[lease_id]
                record.note_exit(resident, exit_, now_s)
            case _:
                assert_never(event)

    def _note_load(self, model: str) -> None:
        """Somebody wishes `model` loaded, and its earlier failures are forgotten."""
        record = self._ledger.records.get(model)
        if record is None:
            return
        record.forgive()
        serving = record.serving
        if serving is not None and serving.state is WorkerState.READY:
            serving.last_used_s = self._ledger.now_s
        elif record.wish_at_s is None:
            record.wish_at_s = self._ledger.now_s
            self._ledger.wake(record)

    def _note_unload(self, model: str) -> None:
        """Nobody wishes `model` loaded any more, and its workers have to go."""
        record = self._ledger.records.get(model)
        if record is None:
            return
        record.wish_at_s = None
        record.is_preload_due = False
        if record.line and not record.residents:
            record.turned_away = "unloaded by request before it could be loaded"
        for resident in record.residents.values():
            if resident.is_loading:
                record.turned_away = "unloaded by request while it was loading"
            resident.leave_by(self._ledger.now_s + self._ledger.limits.drain_timeout_s)
