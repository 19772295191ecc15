"""The one decision tree of the fleet: after every event, all that can be decided now is decided here.

Order matters and is the design: within each model first (send off who has to go, refuse the hopeless, grant,
refuse the late, retire the idle and the outdated), then across models (who gets room, who must make it), then what
is only welcome if there is room: further replicas, preloads, the model to come home to. Must not know which event
came: it looks only at the books, so no way of getting into a state is forgotten.

Decisions that are not obvious:

- Free leases are granted before anybody is evicted: a load serves those who paid for it first.
- A load that fails refuses all who waited for it with the real reason, even if the pause is short: they do not
  wait for a second attempt. After a crash of a worker that was ready they do: it can be loaded.
- A model that was evicted goes to the back of the line, however old its own waiters are: its turn is over, and
  the room goes to the model it was evicted for.
- Who waits for room that is becoming free has a claim on it, and on what is free already: smaller models that come
  later do not take it away bit by bit. Who has waited too long has a claim on the room of those that load, too.
- A victim that drains is opened again if nobody needs its room any more.
- A load with an outdated configuration has served nobody yet and is begun again at once. A ready worker with one
  goes on until it is idle, until its successor is ready (started beside it if there is room), or until it has been
  busy for `max_wait_s`; if the new configuration cannot start, it serves on.
"""

from __future__ import annotations

from dataclasses import dataclass

from router import reasons
from router.departures import OUTDATED, OVER_LIMITS
from router.device import Placement
from router.events import Departure, ExitReason, RefuseLoad, StopCause, WorkerId
from router.fleet_ledger import FleetLedger
from router.lifecycle import WorkerState
from router.placement import PLACES, Occupant, choose_victims, deficits, needs_of, plan_placement
from router.reasons import Refusal
from router.resident import ModelRecord, Resident


@dataclass(frozen=True, slots=True)
class _Demand:
    """A model that wants a worker and has none that serves or loads."""

    record: ModelRecord
    since_s: float
    is_overdue: bool

    @property
    def rank(self) -> tuple[bool, int, float]:
        """Who has waited too long comes first, by age alone; then by priority, then by age."""
        priority = 0 if self.is_overdue else self.record.line.max_priority + self.record.policy.priority
        return (not self.is_overdue, -priority, self.since_s)


MAX_ROUNDS = 8
"""What one round decides may open a way for another model; more than two or three never follow."""


def pump(ledger: FleetLedger) -> None:
    """Everything that can be decided now is decided, and noted as actions."""
    for _ in range(MAX_ROUNDS):
        before = ledger.standing
        for record in ledger.awake.values():
            _settle(ledger, record)
        _Room(ledger).share_out()
        if ledger.standing == before:
            break
    for name in list(ledger.awake):
        ledger.sleep_if_settled(name)


# --- within one model -------------------------------------------------------------------------------------


def _settle(ledger: FleetLedger, record: ModelRecord) -> None:
    """Workers that have to go are on their way, the hopeless and the late refused, free leases granted."""
    record.end_pause_if_over(ledger.now_s)
    for resident in record.residents.values():
        _send_off(ledger, record, resident)
    if record.line or record.wish_at_s is not None:
        _serve_line(ledger, record)
    record.turned_away = None
    for resident in record.residents.values():
        _retire_if_idle(ledger, record, resident)
        _replace_if_outdated(ledger, record, resident)


def _serve_line(ledger: FleetLedger, record: ModelRecord) -> None:
    """Whoever may be served is; whoever still waits has both hope and time left."""
    refusal = _closed(ledger, record) or _hopeless(ledger, record)
    if refusal is not None:
        ledger.refuse_all(record, refusal)
    ledger.grant(record)
    _expire(ledger, record)


def _send_off(ledger: FleetLedger, record: ModelRecord, resident: Resident) -> None:
    """`resident` is on its way out if it has to go whoever waits for it: told to, drained, or loading in vain."""
    if resident.is_loading:
        load_deadline_s = record.load_deadline_s(resident)
        if resident.must_leave or record.is_outdated(resident):
            resident.depart(OUTDATED)
            ledger.stop(resident)
        elif load_deadline_s is not None and ledger.now_s >= load_deadline_s:
            ledger.stop(resident, ExitReason.LOAD_TIMEOUT)
    elif resident.state is WorkerState.READY and resident.must_leave:
        ledger.drain(resident)
    elif resident.state is WorkerState.DRAINING:
        if resident.is_retired and not record.is_outdated(resident) and not resident.must_leave:
            resident.is_retired = False  # the configuration is what it was
            resident.move(WorkerState.READY, ledger.now_s)
        else:
            ledger.stop_if_drained(resident)


def _closed(ledger: FleetLedger, record: ModelRecord) -> Refusal | None:
    """Return why requests for this model are not wanted any more; None = they are."""
    if ledger.is_shutting_down:
        return reasons.shutting_down()
    if record.is_removed:
        return reasons.removed_model(record.policy.name)
    if record.turned_away is not None:
        return reasons.turned_away(record.policy.name, record.turned_away)
    return None


def _hopeless(ledger: FleetLedger, record: ModelRecord) -> Refusal | None:
    """Return why no worker can be started for this model now; None = it can, or one is there."""
    if record.serving is not None:
        return None
    if record.policy.unavailable is not None:
        return reasons.unavailable_model(record.policy.name, record.policy.unavailable)
    if record.rest is not WorkerState.UNLOADED and not record.is_pausing:
        return reasons.failed_model(record, ledger.now_s)
    if not ledger.options_of(record):
        return reasons.too_large(record, ledger.devices)
    return None


def _expire(ledger: FleetLedger, record: ModelRecord) -> None:
    """Nobody waits for longer than `queue_timeout_s`."""
    wish_deadline_s = record.wish_deadline_s
    if wish_deadline_s is not None and ledger.now_s >= wish_deadline_s:
        record.wish_at_s = None
    refusal: Refusal | None = None
    while (oldest := record.line.oldest) is not None:
        deadline_s = record.queue_deadline_s
        if deadline_s is None or ledger.now_s < deadline_s:
            return
        refusal = refusal or reasons.queue_timeout(record, ledger.residents, ledger.limits, ledger.shortage(record))
        ledger.refuse_waiter(record, oldest, refusal)


def _retire_if_idle(ledger: FleetLedger, record: ModelRecord, resident: Resident) -> None:
    """`resident` is on its way out if it is idle and has been for long, or was started with an old configuration."""
    idle_unload_at_s = record.idle_unload_at_s(resident)
    if idle_unload_at_s is not None and ledger.now_s >= idle_unload_at_s:
        ledger.drain(resident, record.idle_departure(resident))
    elif record.is_outdated(resident) and record.is_idle(resident) and not record.is_doomed:
        _retire_outdated(ledger, record, resident)
    elif record.is_one_too_many(resident) and record.is_idle(resident):
        ledger.drain(resident, Departure(StopCause.REPLICAS))


def _replace_if_outdated(ledger: FleetLedger, record: ModelRecord, resident: Resident) -> None:
    """`resident` drains if it has a successor, or has been outdated and busy for too long."""
    if resident.state is not WorkerState.READY:
        return
    if not record.is_outdated(resident):
        resident.outdated_since_s = None
        return
    if resident.outdated_since_s is None:
        resident.outdated_since_s = ledger.now_s
    current = record.current
    replace_by_s = record.replace_by_s(resident, ledger.limits.max_wait_s)
    is_late = replace_by_s is not None and ledger.now_s >= replace_by_s
    if any(other.state is WorkerState.READY for other in current) or (is_late and not current):
        _retire_outdated(ledger, record, resident)


def _retire_outdated(ledger: FleetLedger, record: ModelRecord, resident: Resident) -> None:
    """`resident` drains; its model comes back by itself if it should always be there."""
    resident.is_retired = True
    ledger.drain(resident, OUTDATED)
    if record.comes_back and not record.all_serving:
        record.wish_at_s = ledger.now_s


# --- across models ----------------------------------------------------------------------------------------


class _Room:
    """What is left of devices and places while one pump shares it out."""

    def __init__(self, ledger: FleetLedger) -> None:
        self._ledger = ledger
        self._free: dict[str, int] = {}
        """Now."""
        self._soon: dict[str, int] = {}
        """Once everybody who was sent off is gone, less what is claimed."""
        self._pool: dict[WorkerId, Occupant] = {}
        """Who could still make room; whoever goes for somebody is no longer here."""
        self._residents: dict[WorkerId, Resident] = {}

    def share_out(self) -> None:
        """Whoever can get room has it; for the others it is being made, if it can."""
        ledger = self._ledger
        demands = sorted(_demands(ledger), key=lambda demand: demand.rank)
        has_wishes = any(record.wants_another or record.is_preload_due for record in ledger.awake.values())
        self._residents = {resident.worker: resident for resident in ledger.residents}
        has_evicting = any(resident.is_evicting for resident in self._residents.values())
        is_home_due = ledger.is_home_wanted and not self._residents
        if not (demands or has_wishes or has_evicting or is_home_due or ledger.has_surplus):
            return  # nearly always: a request came or went and nobody lacks a worker
        self._free = ledger.free
        self._soon = dict(self._free)
        self._pool = {worker: self._occupant(resident) for worker, resident in self._residents.items()}
        self._reduce()
        for demand in demands:
            self._place(demand)
        self._refuse_pinned_out(demands)
        for worker in self._pool:
            _reopen_if_evicting(ledger, self._residents[worker])
        has_unplaced = any(demand.record.demand_since_s is not None for demand in demands)
        if not has_unplaced and not ledger.is_shutting_down:
            self._grow()
            self._preload_next()
            self._bring_home()

    def _occupant(self, resident: Resident) -> Occupant:
        record = self._ledger.records[resident.worker.model]
        return Occupant(
            worker=resident.worker,
            state=resident.state,
            num_leases=len(resident.leases),
            last_used_s=resident.last_used_s,
            priority=record.policy.priority,
            is_kept=record.is_kept(resident),
            holds=needs_of(resident.placement),
            load_s=record.load_s,
        )

    def _reduce(self) -> None:
        """Idle workers go where a limit has been lowered below what is resident: as few as do, else all who may."""
        surplus = self._ledger.surplus
        enough = choose_victims(self._pool.values(), surplus, self._ledger.now_s, may_drain=False)
        if enough is not None:
            for victim in enough:
                self._send_off(victim.worker, OVER_LIMITS)
            return
        for resource, amount in surplus.items():
            missing = amount
            while missing > 0:
                victims = choose_victims(self._pool.values(), {resource: 1}, self._ledger.now_s, may_drain=False)
                if not victims:
                    break
                for victim in victims:
                    missing -= victim.holds.get(resource, 0)
                    self._send_off(victim.worker, OVER_LIMITS)

    def _place(self, demand: _Demand) -> None:
        """`demand` is placed or refused, or its room is on the way; else only those who must stay could make room."""
        ledger, record = self._ledger, demand.record
        own = record.residents.values()
        options = ledger.options_of(record)
        if not own and (placement := self._fits(record)) is not None:
            self._spawn(record, placement)
        elif any(resident.state is not WorkerState.STOPPING for resident in own):
            pass  # its own worker still drains and will leave its room behind
        elif not self._pinned_out(options):
            may_drain = demand.is_overdue
            plan = plan_placement(options, self._soon, self._pool.values(), ledger.now_s, may_drain=may_drain)
            if plan is not None:
                for worker in plan.victims:
                    self._send_off(worker, Departure(StopCause.ROOM, for_model=record.policy.name))
                self._claim(plan.placement)

    def _refuse_pinned_out(self, demands: list[_Demand]) -> None:
        """Nobody waits for room that pinned models hold for good, those that start just now included."""
        ledger = self._ledger
        for record in (demand.record for demand in demands):
            is_waiting = record.demand_since_s is not None and all(
                resident.state is WorkerState.STOPPING for resident in record.residents.values()
            )
            if is_waiting and (pinned := self._pinned_out(ledger.options_of(record))):
                ledger.refuse_all(record, reasons.pinned_out(record, ledger.limits.max_loaded, pinned))

    def _spawn(self, record: ModelRecord, placement: Placement, *, is_preload: bool = False) -> None:
        resident = self._ledger.spawn(record, placement, is_preload=is_preload)
        self._residents[resident.worker] = resident
        self._pool[resident.worker] = self._occupant(resident)
        for resource, amount in needs_of(placement).items():
            if resource in self._free:
                self._free[resource] -= amount
        self._claim(placement)

    def _claim(self, placement: Placement) -> None:
        """Nobody who comes later gets the room of `placement`, be it free already or only soon."""
        for resource, amount in needs_of(placement).items():
            if resource in self._soon:
                self._soon[resource] -= amount
                self._free[resource] = min(self._free[resource], self._soon[resource])

    def _send_off(self, worker: WorkerId, why: Departure) -> None:
        """`worker` makes room, and nobody else has to go for the same room."""
        for resource, amount in self._pool.pop(worker).holds.items():
            if resource in self._soon:
                self._soon[resource] += amount
        resident = self._residents[worker]
        if resident.state is WorkerState.READY:
            resident.is_evicting = True
            self._ledger.drain(resident, why)
            # Its own waiters need a second worker now, and there may be a reason why it cannot start.
            _serve_line(self._ledger, self._ledger.records[worker.model])

    def _pinned_out(self, options: list[Placement]) -> list[str]:
        """Return the models that hold all the room there is for good, so that nobody waits in vain for it."""
        ledger = self._ledger
        kept = [resident for resident in ledger.residents if ledger.records[resident.worker.model].is_kept(resident)]
        room = {device.id: device.usable_bytes for device in ledger.devices}
        if ledger.limits.max_loaded is not None:
            room[PLACES] = ledger.limits.max_loaded
        for resident in kept:
            for resource, amount in needs_of(resident.placement).items():
                if resource in room:
                    room[resource] -= amount
        if not kept or any(not deficits(option, room) for option in options):
            return []
        return [resident.worker.model for resident in kept]

    # --- what is welcome if there is room -----------------------------------------------------------------

    def _fits(self, record: ModelRecord) -> Placement | None:
        """Return where one more worker of the model goes without anybody having to go; None = nowhere."""
        plan = plan_placement(self._ledger.options_of(record), self._free, (), self._ledger.now_s, may_evict=False)
        return None if plan is None else plan.placement

    def _grow(self) -> None:
        """Further replicas and successors of outdated workers start where there is room for them."""
        for record in self._ledger.awake.values():
            if not record.wants_another or record.is_doomed or record.is_removed:
                continue
            placement = self._fits(record)
            if placement is not None:
                self._spawn(record, placement)
            else:
                record.is_preload_due = False

    def _preload_next(self) -> None:
        """One preload is on its way if any is due and there is room; those that find no room are given up."""
        ledger = self._ledger
        if any(resident.is_preload and resident.is_loading for resident in ledger.residents):
            return
        for record in ledger.awake.values():
            if not record.is_preload_due or record.residents or record.rest is not WorkerState.UNLOADED:
                continue
            placement = self._fits(record) if record.policy.unavailable is None else None
            if placement is not None:
                self._spawn(record, placement, is_preload=True)
                return
            record.is_preload_due = False
            if record.policy.unavailable is None:
                refusal = reasons.not_preloaded(record, ledger.shortage(record), ledger.limits)
                if not ledger.options_of(record):
                    refusal = reasons.too_large(record, ledger.devices)
                ledger.actions.append(RefuseLoad(record.policy.name, refusal.detail))

    def _bring_home(self) -> None:
        """The models to come home to are on their way if nothing else is loaded any more."""
        ledger = self._ledger
        if not ledger.is_home_wanted or ledger.residents:
            return
        for record in ledger.homes:
            record.end_pause_if_over(ledger.now_s)
            placement = None if record.is_doomed else self._fits(record)
            if placement is not None:
                ledger.is_home_wanted = False
                ledger.wake(record)
                self._spawn(record, placement, is_preload=True)


def _demands(ledger: FleetLedger) -> list[_Demand]:
    found = []
    for record in ledger.awake.values():
        since_s = record.demand_since_s
        if since_s is not None and not record.is_pausing:
            overdue_at_s = since_s + record.max_wait_s(ledger.limits.max_wait_s)
            found.append(_Demand(record, since_s, ledger.now_s >= overdue_at_s))
    return found


def _reopen_if_evicting(ledger: FleetLedger, resident: Resident) -> None:
    """`resident` serves again if it only drained for room that nobody needs any more."""
    if resident.state is not WorkerState.DRAINING or not resident.is_evicting or resident.must_leave:
        return
    resident.is_evicting = False
    resident.move(WorkerState.READY, ledger.now_s)
    record = ledger.records[resident.worker.model]
    record.wish_at_s = None
    _replace_if_outdated(ledger, record, resident)
    ledger.grant(record)
    _retire_if_idle(ledger, record, resident)
