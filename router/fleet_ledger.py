"""The fleet's books: all models, who is awake, where each lease is, and the steps that change them.

Each step keeps the books true and notes the action that the outside has to perform. Must not decide *whether* a
step is due: `pump.py` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from router import reasons
from router.events import (
    Action,
    ExitReason,
    FleetLimits,
    GrantLease,
    LeaseId,
    LeaseRequested,
    ModelPolicy,
    RefuseLease,
    SpawnWorker,
    StopWorker,
    WorkerId,
)
from router.lifecycle import WorkerState, advance
from router.reasons import Refusal
from router.resident import ModelRecord, Resident
from router.waiting import Waiter


class FleetLedger:
    """Everything that the fleet remembers."""

    def __init__(self, limits: FleetLimits) -> None:
        self.limits = limits
        self.now_s = -math.inf
        """Of the event that is being handled."""
        self.is_shutting_down = False
        self.records: dict[str, ModelRecord] = {}
        self.awake: dict[str, ModelRecord] = {}
        """Those of `records` about which something may have to be decided; models at rest cost nothing."""
        self.leases: dict[LeaseId, ModelRecord] = {}
        """Queued or granted."""
        self.actions: list[Action] = []
        self._incarnations: dict[tuple[str, int], int] = {}  # outlives removed models: ids stay unique

    # --- looking things up -------------------------------------------------------------------------------

    @property
    def residents(self) -> list[Resident]:
        """All live workers. Whoever has one is awake."""
        return [resident for record in self.awake.values() for resident in record.residents.values()]

    @property
    def is_full(self) -> bool:
        """No further worker may start."""
        return self.limits.max_loaded is not None and len(self.residents) >= self.limits.max_loaded

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
            for resident in record.residents.values():
                resident.leave_by(self.now_s + limits.drain_timeout_s)
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
            record.line.join(Waiter(event.lease_id, event.priority, event.key_id, self.now_s))
            self.leases[event.lease_id] = record
            self.wake(record)

    def release(self, lease_id: LeaseId) -> None:
        """The lease is nowhere, wherever it was; a load that it caused goes on."""
        record = self.leases.pop(lease_id, None)
        if record is None:
            return
        record.line.leave(lease_id)
        for resident in record.residents.values():
            if lease_id in resident.leases:
                del resident.leases[lease_id]
                resident.last_used_s = self.now_s

    def grant(self, record: ModelRecord, resident: Resident) -> None:
        """`resident` has no free lease, or nobody waits."""
        while record.line and resident.has_free_lease:
            waiter = record.line.pop_next(resident.num_leases_by_key)
            resident.leases[waiter.lease_id] = waiter.key_id
            resident.last_used_s = self.now_s
            self.actions.append(GrantLease(waiter.lease_id, resident.worker))

    def refuse_all(self, record: ModelRecord, refusal: Refusal) -> None:
        """Nobody waits for this model, nor does anybody wish it loaded."""
        for waiter in list(record.line):
            self.refuse_waiter(record, waiter, refusal)
        record.wish_at_s = None

    def refuse_waiter(self, record: ModelRecord, waiter: Waiter, refusal: Refusal) -> None:
        """`waiter` waits no longer and is told why."""
        record.line.leave(waiter.lease_id)
        del self.leases[waiter.lease_id]
        self._refuse(waiter.lease_id, refusal)

    def _refuse(self, lease_id: LeaseId, refusal: Refusal) -> None:
        self.actions.append(RefuseLease(lease_id, refusal.kind, refusal.detail, refusal.retry_after_s))

    # --- workers -----------------------------------------------------------------------------------------

    def spawn(self, record: ModelRecord, *, is_preload: bool = False) -> None:
        """A new incarnation is on its way and holds a place."""
        replica = 0  # one replica a model
        incarnation = self._incarnations.get((record.policy.name, replica), 0) + 1
        self._incarnations[record.policy.name, replica] = incarnation
        worker = WorkerId(record.policy.name, replica, incarnation)
        record.residents[replica] = Resident(
            worker,
            fingerprint=record.policy.fingerprint,
            since_s=self.now_s,
            last_sign_s=self.now_s,
            last_used_s=self.now_s,
            is_preload=is_preload,
            state=advance(record.rest, WorkerState.STARTING),
        )
        record.num_starts += 1
        self.actions.append(SpawnWorker(worker))

    def drain(self, resident: Resident) -> None:
        """`resident` takes no new leases, and stops at once if it has none."""
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
            if record.line or record.wish_at_s is not None:
                assert not self.is_shutting_down, f"{name}: somebody waits although the router stops"
                assert not record.is_removed, f"{name}: somebody waits for a removed model"
                assert record.residents or self.is_full, f"{name}: somebody waits although there is room"
        assert counted == self.leases, "the table of leases is not what the models hold"

    def _check_resident(self, record: ModelRecord, replica: int, resident: Resident) -> None:
        worker = resident.worker
        assert (worker.model, worker.replica) == (record.policy.name, replica), f"{worker}: misfiled"
        assert worker.incarnation == self._incarnations[worker.model, replica], f"{worker}: not the newest"
        assert record.rest is WorkerState.UNLOADED, f"{worker}: lives while its model is {record.rest}"
        assert len(resident.leases) <= resident.max_leases, f"{worker}: leased too often, or before it is ready"
        if resident.state is WorkerState.READY:
            assert not resident.must_leave, f"{worker}: still serves although it has to go"
            assert not (record.line and resident.has_free_lease), f"{worker}: idle while requests wait"
        if resident.state is WorkerState.DRAINING:
            assert resident.leases, f"{worker}: drains without a lease"
        if resident.state is WorkerState.STOPPING and resident.leases:
            assert resident.drain_until_s is not None, f"{worker}: stopped under its running requests"
