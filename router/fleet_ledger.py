"""The fleet's books: all models, who is awake, where each lease and each byte is, and the steps that change them.

Each step keeps the books true and notes the action that the outside has to perform. Must not decide *whether* a
step is due: `pump.py` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import count

from router import reasons
from router.device import Device, Placement
from router.events import (
    Action,
    Departure,
    ExitReason,
    FleetLimits,
    GrantLease,
    LeaseId,
    LeaseRequested,
    ModelPolicy,
    PlaceWorker,
    RefuseLease,
    RefuseLoad,
    SpawnWorker,
    StopCause,
    StopWorker,
    WorkerId,
)
from router.lifecycle import WorkerState, advance
from router.placement import PLACES, Options, candidates, deficits, needs_of
from router.reasons import Refusal, Shortage
from router.resident import ModelRecord, Resident
from router.waiting import Waiter


class FleetLedger:
    """Everything that the fleet remembers."""

    def __init__(self, limits: FleetLimits, devices: tuple[Device, ...] = ()) -> None:
        self.limits = limits
        self.devices = devices
        """Empty = memory is not looked at."""
        self.used_by_others: Mapping[str, int] = {}
        """Bytes of each device that are no worker's."""
        self.is_home_wanted = False
        """Something has gone since a model to come home to was last started."""
        self.now_s = -math.inf
        """Of the event that is being handled."""
        self.is_shutting_down = False
        self.records: dict[str, ModelRecord] = {}
        self.awake: dict[str, ModelRecord] = {}
        """Those of `records` about which something may have to be decided; models at rest cost nothing."""
        self.leases: dict[LeaseId, ModelRecord] = {}
        """Queued or granted."""
        self.unsettled: dict[LeaseId, ModelRecord] = {}
        """Leases whose worker has gone before they were released: what they took is told then."""
        self.actions: list[Action] = []
        self._incarnations: dict[tuple[str, int], int] = {}  # outlives removed models: ids stay unique

    # --- looking things up -------------------------------------------------------------------------------

    @property
    def residents(self) -> list[Resident]:
        """All live workers. Whoever has one is awake."""
        return [resident for record in self.awake.values() for resident in record.residents.values()]

    def capacity(self, device: Device) -> int:
        """Return the bytes that workers may use together: less than is usable if others use much."""
        free_of_others = device.total_bytes - device.headroom_bytes - self.used_by_others.get(device.id, 0)
        return max(0, min(device.usable_bytes, free_of_others))

    @property
    def free(self) -> dict[str, int]:
        """What is left of each device and of the places; below 0 after a limit was lowered or others took memory."""
        residents = self.residents
        free = {device.id: self.capacity(device) for device in self.devices}
        if self.limits.max_loaded is not None:
            free[PLACES] = self.limits.max_loaded - len(residents)
        for resident in residents:
            for device_id, num_bytes in resident.placement.reserved.items():
                if device_id in free:
                    free[device_id] -= num_bytes
        return free

    @property
    def surplus(self) -> dict[str, int]:
        """By how much workers exceed what the configuration allows, whatever others use; empty = they do not."""
        room = {device.id: device.usable_bytes for device in self.devices}
        if self.limits.max_loaded is not None:
            room[PLACES] = self.limits.max_loaded
        for resident in self.residents:
            for resource, amount in needs_of(resident.placement).items():
                if resource in room:
                    room[resource] -= amount
        return {resource: -left for resource, left in room.items() if left < 0}

    @property
    def standing(self) -> object:
        """What a further round of decisions depends on: where workers are, what is wished for, who has been refused."""
        states = tuple((resident.worker, resident.state) for resident in self.residents)
        wishes = tuple(name for name, record in self.awake.items() if record.wish_at_s is not None)
        return states, wishes, sum(not isinstance(action, GrantLease) for action in self.actions)

    @property
    def has_surplus(self) -> bool:
        """Something exceeds what the configuration allows."""
        return bool(self.surplus)

    def shortage(self, record: ModelRecord) -> Shortage | None:
        """Return which memory the model lacks for its best placement; None = it lacks none."""
        free = self.free
        for option in self.options_of(record)[:1]:
            for resource, missing in deficits(option, free).items():
                device = next((device for device in self.devices if device.id == resource), None)
                if device is not None:
                    needed = option.reserved[resource]
                    return Shortage(device, needed, needed - missing, self.used_by_others.get(resource, 0))
        return None

    def options_of(self, record: ModelRecord) -> list[Placement]:
        """Return every placement that could ever hold the model."""
        cached = record.options
        if cached is None or not cached.is_for(record.policy, record.footprint, self.devices):
            placements = candidates(record.policy, record.footprint, self.devices)
            record.options = cached = Options(record.policy, record.footprint, self.devices, placements)
        return cached.placements

    @property
    def homes(self) -> list[ModelRecord]:
        """The models that come back when nothing else is loaded."""
        return [record for record in self.records.values() if record.policy.home and not record.is_removed]

    def find(self, worker: WorkerId) -> tuple[ModelRecord, Resident] | None:
        """Return the live worker of this very incarnation, with its model."""
        record = self.records.get(worker.model)
        if record is None:
            return None
        resident = record.residents.get(worker.replica)
        return (record, resident) if resident is not None and resident.worker == worker else None

    # --- models ------------------------------------------------------------------------------------------

    def adopt(self, models: Mapping[str, ModelPolicy], limits: FleetLimits) -> None:
        """Exactly `models` may be requested from now on, and all of them are looked at again."""
        self.limits = limits
        for name, policy in models.items():
            record = self.records.get(name)
            if record is None:
                self.records[name] = ModelRecord(policy, is_preload_due=policy.preload)
            else:
                record.adopt(policy)
        for name, record in list(self.records.items()):
            if name in models or record.is_removed:
                continue
            record.is_removed = True
            record.is_preload_due = False
            record.pin_order = None
            for resident in record.residents.values():
                resident.leave_by(self.now_s + limits.drain_timeout_s, StopCause.REMOVED)
            self.sleep_if_settled(name)
        self.awake = {name: record for name, record in self.records.items() if record.is_awake}

    def wake(self, record: ModelRecord) -> None:
        """`record` is looked at from now on."""
        self.awake[record.policy.name] = record

    def sleep_if_settled(self, name: str) -> None:
        """The model is at rest if nothing is open about it; if it has been removed too, it is forgotten."""
        record = self.records[name]
        if not record.is_awake:
            self.awake.pop(name, None)
            if record.is_removed:
                del self.records[name]

    # --- leases ------------------------------------------------------------------------------------------

    def admit(self, event: LeaseRequested) -> None:
        """The request stands in its model's line, or is refused."""
        if event.lease_id in self.leases:
            return
        record = self.records.get(event.model)
        if record is None:
            self._refuse(event.lease_id, reasons.unknown_model(event.model))
        elif 0 < record.policy.max_queue <= len(record.line):
            # Whoever is in line waits because nothing is free, so the newcomer could not be served either.
            self._refuse(event.lease_id, reasons.queue_full(record, self.now_s))
        else:
            waiter = Waiter(
                event.lease_id,
                event.priority,
                event.key_id,
                self.now_s,
                event.prefixes,
                event.keep_alive_s,
                event.request_id,
                event.weight,
                event.goes_first,
            )
            record.line.join(waiter)
            self.leases[event.lease_id] = record
            self.wake(record)

    def release(self, lease_id: LeaseId, tokens: int | None) -> None:
        """The lease is nowhere, wherever it was, and its key has had so many tokens; a load that it caused goes on."""
        if (gone := self.unsettled.pop(lease_id, None)) is not None:
            gone.line.settle(lease_id, tokens)
        record = self.leases.pop(lease_id, None)
        if record is None:
            return
        record.line.leave(lease_id)
        for resident in record.residents.values():
            if lease_id in resident.leases:
                del resident.leases[lease_id]
                record.line.settle(lease_id, tokens)
                resident.last_used_s = self.now_s

    def grant(self, record: ModelRecord) -> None:
        """No worker of the model has a free lease, or nobody waits."""
        while record.line:
            free = [r for r in record.residents.values() if r.can_take(record.policy.replicas)]
            if not free:
                return
            waiter = record.line.pop_next(record.num_leases_by_key)
            resident = record.choose(free, waiter.prefixes)
            resident.leases[waiter.lease_id] = waiter.key_id
            resident.prefixes.remember(waiter.prefixes)
            resident.last_used_s = self.now_s
            if waiter.keep_alive_s is not None:
                resident.keep_alive_s = waiter.keep_alive_s
            self.actions.append(GrantLease(waiter.lease_id, resident.worker))

    def refuse_all(self, record: ModelRecord, refusal: Refusal) -> None:
        """Nobody waits for this model, nor does anybody wish it loaded."""
        for waiter in list(record.line):
            self.refuse_waiter(record, waiter, refusal)
        if record.wish_at_s is not None:
            record.wish_at_s = None
            if not self.is_shutting_down:
                self.actions.append(RefuseLoad(record.policy.name, refusal.detail))

    def refuse_waiter(self, record: ModelRecord, waiter: Waiter, refusal: Refusal) -> None:
        """`waiter` waits no longer and is told why."""
        record.line.leave(waiter.lease_id)
        del self.leases[waiter.lease_id]
        self._refuse(waiter.lease_id, refusal)

    def _refuse(self, lease_id: LeaseId, refusal: Refusal) -> None:
        self.actions.append(RefuseLease(lease_id, refusal.kind, refusal.detail, refusal.retry_after_s))

    # --- workers -----------------------------------------------------------------------------------------

    def spawn(self, record: ModelRecord, placement: Placement, *, is_preload: bool = False) -> Resident:
        """Return a new incarnation, which is on its way and holds its place and its memory."""
        replica = next(number for number in count() if number not in record.residents)
        incarnation = self._incarnations.get((record.policy.name, replica), 0) + 1
        self._incarnations[record.policy.name, replica] = incarnation
        worker = WorkerId(record.policy.name, replica, incarnation)
        resident = record.residents[replica] = Resident(
            worker,
            fingerprint=record.policy.fingerprint,
            since_s=self.now_s,
            last_sign_s=self.now_s,
            last_used_s=self.now_s,
            started_at_s=self.now_s,
            placement=placement,
            is_preload=is_preload,
            state=advance(record.rest, WorkerState.STARTING),
        )
        record.num_starts += 1
        self.actions.append(SpawnWorker(worker, placement))
        return resident

    def place(self, resident: Resident, placement: Placement) -> None:
        """`resident` is placed anew before its process starts."""
        resident.placement = placement
        self.actions.append(PlaceWorker(resident.worker, placement))

    def drain(self, resident: Resident, why: Departure | None = None) -> None:
        """`resident` takes no new leases, and stops at once if it has none; None = it has to go for what it says."""
        if why is not None:
            resident.depart(why)
        resident.move(WorkerState.DRAINING, self.now_s)
        self.stop_if_drained(resident)

    def stop_if_drained(self, resident: Resident) -> None:
        """`resident` stops if nothing runs on it, or if what runs has had its time."""
        is_late = resident.drain_until_s is not None and self.now_s >= resident.drain_until_s
        if not resident.leases or is_late:
            self.stop(resident)

    def stop(self, resident: Resident, reason: ExitReason = ExitReason.STOPPED) -> None:
        """`resident` is told to exit; it holds its place until it has."""
        resident.stop_reason = reason
        resident.move(WorkerState.STOPPING, self.now_s)
        self.actions.append(StopWorker(resident.worker, self.limits.stop_grace_s, reason))

    def kill_hung(self, resident: Resident, detail: str) -> None:
        """`resident` is killed without any grace, and whatever it served ends with `detail` as the reason."""
        if resident.state is WorkerState.STOPPING:
            return
        resident.hung_detail = detail
        resident.must_leave, resident.drain_until_s = True, self.now_s
        if resident.state is WorkerState.READY:
            resident.move(WorkerState.DRAINING, self.now_s)
        resident.stop_reason = ExitReason.HUNG
        resident.move(WorkerState.STOPPING, self.now_s)
        self.actions.append(StopWorker(resident.worker, 0.0, ExitReason.HUNG))

    # --- trust, but check --------------------------------------------------------------------------------

    def check(self) -> None:
        """Every invariant that can be seen between two events holds. Raises: AssertionError."""
        counted: dict[LeaseId, ModelRecord] = {}
        for name, record in self.records.items():
            assert record.policy.name == name, f"{name}: filed under another name"
            assert record.is_awake == (name in self.awake), f"{name}: asleep although something is open"
            for waiter in record.line:
                assert waiter.lease_id not in counted, f"lease {waiter.lease_id} is in two places"
                counted[waiter.lease_id] = record
            for replica, resident in record.residents.items():
                self._check_resident(record, replica, resident)
                for lease_id in resident.leases:
                    assert lease_id not in counted, f"lease {lease_id} is in two places"
                    counted[lease_id] = record
            held = {lease_id for resident in record.residents.values() for lease_id in resident.leases}
            held |= {lease_id for lease_id, owner in self.unsettled.items() if owner is record}
            assert record.line.granted == held, f"{name}: shares are counted of other leases than those it has"
            if record.line or record.wish_at_s is not None:
                assert not self.is_shutting_down, f"{name}: somebody waits although the router stops"
                assert not record.is_removed, f"{name}: somebody waits for a removed model"
                may_start = not record.residents and not record.is_doomed
                assert not may_start or self._is_contended(record), f"{name}: somebody waits although there is room"
        assert counted == self.leases, "the table of leases is not what the models hold"

    def _is_contended(self, record: ModelRecord) -> bool:
        """Whether there is no room for the model, or others that came before it wait for the same room."""
        free = self.free
        options = self.options_of(record)
        others = any(other is not record and other.demand_since_s is not None for other in self.awake.values())
        return others or all(deficits(option, free) for option in options)

    def _check_resident(self, record: ModelRecord, replica: int, resident: Resident) -> None:
        worker = resident.worker
        assert (worker.model, worker.replica) == (record.policy.name, replica), f"{worker}: misfiled"
        assert worker.incarnation == self._incarnations[worker.model, replica], f"{worker}: not the newest"
        assert len(resident.leases) <= resident.max_leases, f"{worker}: leased too often, or before it is ready"
        if resident.state is WorkerState.READY:
            assert not resident.must_leave, f"{worker}: still serves although it has to go"
            assert not (record.line and resident.can_take(record.policy.replicas)), (
                f"{worker}: idle while requests wait"
            )
        if resident.state is WorkerState.DRAINING:
            assert resident.leases, f"{worker}: drains without a lease"
        if resident.state is WorkerState.STOPPING and resident.leases:
            assert resident.drain_until_s is not None, f"{worker}: stopped under its running requests"
