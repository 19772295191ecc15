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
    DevicesChanged,
    DevicesMeasured,
    Event,
    ExitReason,
    FleetLimits,
    KeepAliveSet,
    LeaseReleased,
    LeaseRequested,
    LoadRequested,
    ModelPolicy,
    ModelSized,
    PinSet,
    ShutdownRequested,
    StopCause,
    Tick,
    UnloadRequested,
    WorkerExited,
    WorkerHung,
    WorkerProgressed,
    WorkerReady,
    WorkerSized,
    WorkerStarted,
)
from router.fleet_ledger import FleetLedger
from router.fleet_views import FleetSnapshot, ModelView, ResidentView, WaiterView, view_device, view_model, view_waiters
from router.lifecycle import WorkerState
from router.placement import PLACES, plan_placement, resize
from router.pump import pump
from router.resident import ModelRecord, Resident

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
        if ledger.is_home_wanted and not ledger.residents:
            deadlines += [record.retry_at_s for record in ledger.homes if record.rest is not WorkerState.UNLOADED]
        # What is due already has been handled, as far as it can be before something else happens.
        return min((at_s for at_s in deadlines if at_s is not None and at_s > ledger.now_s), default=None)

    def _deadlines(self, record: ModelRecord) -> list[float | None]:
        """Return the times at which something about `record` is due by the clock alone."""
        deadlines = [record.queue_deadline_s, record.wish_deadline_s]
        demand_since_s = record.demand_since_s
        if demand_since_s is not None:
            deadlines.append(demand_since_s + record.max_wait_s(self._ledger.limits.max_wait_s))
        wants_more = record.is_preload_due or record.wants_another or record.is_pausing
        if wants_more and record.rest is WorkerState.BACKOFF:
            deadlines.append(record.retry_at_s)
        for resident in record.residents.values():
            deadlines += (record.load_deadline_s(resident), record.idle_unload_at_s(resident))
            if record.is_outdated(resident):
                deadlines.append(record.replace_by_s(resident, self._ledger.limits.max_wait_s))
                deadlines.append(record.retry_at_s if record.rest is not WorkerState.UNLOADED else None)
            if resident.state is WorkerState.DRAINING:
                deadlines.append(resident.drain_until_s)
        return deadlines

    @property
    def waits_for_room(self) -> bool:
        """Whether it would help to know at once that others have given memory back."""
        return any(record.demand_since_s is not None for record in self._ledger.awake.values())

    def is_resident(self, model: str) -> bool:
        """Return whether a request for `model` needs no new worker."""
        record = self._ledger.records.get(model)
        return record is not None and bool(record.all_serving)

    def is_pinned(self, model: str) -> bool:
        """Return whether idleness does not unload `model`, by its configuration or by order."""
        record = self._ledger.records.get(model)
        return record is not None and record.is_pinned

    def reserved(self) -> dict[str, int]:
        """Return the bytes of each device that are set apart for workers."""
        reserved: dict[str, int] = {}
        for resident in self._ledger.residents:
            for device_id, num_bytes in resident.placement.reserved.items():
                reserved[device_id] = reserved.get(device_id, 0) + num_bytes
        return reserved

    def snapshot(self, now_s: float) -> FleetSnapshot:
        """Return how everything stands, for display only."""
        ledger = self._ledger
        reserved = self.reserved()
        return FleetSnapshot(
            models={name: view_model(record, ledger, now_s) for name, record in ledger.records.items()},
            is_shutting_down=ledger.is_shutting_down,
            devices=tuple(view_device(device, ledger, reserved.get(device.id, 0)) for device in ledger.devices),
        )

    def waiters(self, now_s: float) -> list[WaiterView]:
        """Return who waits for a place, of all models, for display only: the most urgent first."""
        return view_waiters(self._ledger, now_s)

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
            case LeaseReleased(lease_id, tokens):
                ledger.release(lease_id, tokens)
            case WorkerStarted() | WorkerProgressed() | WorkerReady() | WorkerSized() | WorkerHung() | WorkerExited():
                self._note_worker(event)
            case LoadRequested() | UnloadRequested() | KeepAliveSet() | PinSet():
                if (record := ledger.records.get(event.model)) is not None:
                    self._note_order(record, event)
            case CatalogChanged(models, limits):
                ledger.adopt(models, limits)
            case ModelSized() | DevicesChanged() | DevicesMeasured():
                self._note_machine(event)
            case ShutdownRequested(drain_s):
                ledger.is_shutting_down = True
                for resident in ledger.residents:
                    resident.leave_by(ledger.now_s + drain_s, StopCause.SHUTDOWN)
            case Tick():
                pass
            case _:
                assert_never(event)

    def _note_worker(
        self, event: WorkerStarted | WorkerProgressed | WorkerReady | WorkerSized | WorkerHung | WorkerExited
    ) -> None:
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
            case WorkerReady(max_leases=max_leases, slots=slots):
                if resident.is_loading:
                    record.note_ready(resident, max_leases, slots, now_s)
            case WorkerSized(footprint=footprint):
                record.footprint = footprint
                self._size(record, resident)
            case WorkerHung(detail=detail):
                if not resident.is_loading:
                    self._ledger.kill_hung(resident, detail)
            case WorkerExited(exit=exit_):
                # Whoever holds these leases sees the broken reply itself; releasing them later tells what they took.
                for lease_id in resident.leases:
                    self._ledger.unsettled[lease_id] = self._ledger.leases.pop(lease_id)
                record.note_exit(resident, exit_, now_s)
                is_sent_away = record.policy.home and resident.must_leave
                self._ledger.is_home_wanted |= not is_sent_away
            case _:
                assert_never(event)

    def _size(self, record: ModelRecord, resident: Resident) -> None:
        """`resident` holds what its model really needs; before its process starts it may be placed anew or go."""
        ledger = self._ledger
        if resident.state is WorkerState.STOPPING:
            return
        if resident.state is not WorkerState.STARTING:
            placement = resize(resident.placement, record.policy, record.footprint, ledger.devices)
            if placement != resident.placement:
                ledger.place(resident, placement)
            return
        free = ledger.free
        for device_id, num_bytes in resident.placement.reserved.items():
            if device_id in free:
                free[device_id] += num_bytes
        if PLACES in free:
            free[PLACES] += 1
        options = sorted(ledger.options_of(record), key=lambda option: option.gpus != resident.placement.gpus)
        plan = plan_placement(options, free, (), ledger.now_s, may_evict=False)
        if plan is None:
            ledger.stop(resident, ExitReason.NO_ROOM)
        elif plan.placement != resident.placement:
            ledger.place(resident, plan.placement)

    def _note_machine(self, event: ModelSized | DevicesChanged | DevicesMeasured) -> None:
        """What has been found out about memory is what the next decision is made on."""
        ledger = self._ledger
        match event:
            case ModelSized(model, footprint, load_s):
                if (record := ledger.records.get(model)) is not None:
                    record.footprint = footprint
                    record.load_s = load_s or record.load_s
            case DevicesChanged(devices):
                ledger.devices = devices
            case DevicesMeasured(used_by_others):
                ledger.used_by_others = used_by_others
            case _:
                assert_never(event)

    def _note_order(self, record: ModelRecord, order: LoadRequested | UnloadRequested | KeepAliveSet | PinSet) -> None:
        """Somebody wishes the model loaded or gone, or that it stays for another time or for good."""
        match order:
            case LoadRequested():
                self._note_load(record)
            case UnloadRequested():
                self._note_unload(record)
            case KeepAliveSet(keep_alive_s=keep_alive_s):
                for resident in record.residents.values():
                    resident.keep_alive_s = keep_alive_s
            case PinSet(pin=pin):
                record.pin_order = pin
            case _:
                assert_never(order)

    def _note_load(self, record: ModelRecord) -> None:
        """Somebody wishes the model loaded, and its earlier failures are forgotten."""
        record.forgive()
        ready = [resident for resident in record.all_serving if resident.state is WorkerState.READY]
        for resident in ready:
            resident.last_used_s = self._ledger.now_s
        if not ready and record.wish_at_s is None:
            record.wish_at_s = self._ledger.now_s
            self._ledger.wake(record)

    def _note_unload(self, record: ModelRecord) -> None:
        """Nobody wishes the model loaded any more, and its workers have to go."""
        record.wish_at_s = None
        record.is_preload_due = False
        self._ledger.is_home_wanted &= not record.policy.home
        if record.line and not record.residents:
            record.turned_away = "unloaded by request before it could be loaded"
        for resident in record.residents.values():
            if resident.is_loading:
                record.turned_away = "unloaded by request while it was loading"
            resident.leave_by(self._ledger.now_s + self._ledger.limits.drain_timeout_s, StopCause.REQUEST)
