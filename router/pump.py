"""The one decision tree of the fleet: after every event, all that can be decided now is decided here.

Order matters and is the design: within each model first (send off who has to go, refuse the hopeless, grant,
refuse the late, retire the idle), then across models (who gets a place, who must make room), then preloads.
Must not know which event came: it looks only at the books, so no way of getting into a state is forgotten.

Decisions that are not obvious:

- Free leases are granted before anybody is evicted: a load serves those who paid for it first.
- A load that fails refuses all who waited for it with the real reason, even if the pause is short: they do not
  wait for a second attempt.
- A model that was evicted goes to the back of the line, however old its own waiters are: its turn is over, and
  the place goes to the model it was evicted for.
- A victim that drains is opened again if nobody needs its place any more.
- A load with an outdated configuration has served nobody yet and is begun again at once; a ready worker with one
  goes on until it is idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from router import reasons
from router.events import ExitReason, WorkerId
from router.fleet_ledger import FleetLedger
from router.lifecycle import WorkerState
from router.placement import Occupant, choose_victims
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


def pump(ledger: FleetLedger) -> None:
    """Everything that can be decided now is decided, and noted as actions."""
    for record in ledger.awake.values():
        _settle(ledger, record)
    _place_demands(ledger)
    _preload_next(ledger)
    for name in list(ledger.awake):
        ledger.sleep_if_settled(name)


# --- within one model -------------------------------------------------------------------------------------


def _settle(ledger: FleetLedger, record: ModelRecord) -> None:
    """Workers that have to go are on their way, the hopeless and the late refused, free leases granted."""
    if record.rest is not WorkerState.UNLOADED and ledger.now_s >= record.retry_at_s:
        record.end_pause()
    for resident in record.residents.values():
        _send_off(ledger, record, resident)
    if record.line or record.wish_at_s is not None:
        _serve_line(ledger, record)
    record.turned_away = None
    for resident in record.residents.values():
        _retire_if_idle(ledger, record, resident)


def _serve_line(ledger: FleetLedger, record: ModelRecord) -> None:
    """Whoever may be served is; whoever still waits has both hope and time left."""
    refusal = _closed(ledger, record) or _hopeless(ledger, record)
    if refusal is not None:
        ledger.refuse_all(record, refusal)
    for resident in record.residents.values():
        ledger.grant(record, resident)
    _expire(ledger, record)


def _send_off(ledger: FleetLedger, record: ModelRecord, resident: Resident) -> None:
    """`resident` is on its way out if it has to go whoever waits for it: told to, drained, or loading in vain."""
    if resident.is_loading:
        load_deadline_s = record.load_deadline_s(resident)
        if resident.must_leave or record.is_outdated(resident):
            ledger.stop(resident)
        elif load_deadline_s is not None and ledger.now_s >= load_deadline_s:
            ledger.stop(resident, ExitReason.LOAD_TIMEOUT)
    elif resident.state is WorkerState.READY and resident.must_leave:
        ledger.drain(resident)
    elif resident.state is WorkerState.DRAINING:
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
    if record.rest is not WorkerState.UNLOADED:
        return reasons.failed_model(record, ledger.now_s)
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
        refusal = refusal or reasons.queue_timeout(record, ledger.residents, ledger.limits)
        ledger.refuse_waiter(record, oldest, refusal)


def _retire_if_idle(ledger: FleetLedger, record: ModelRecord, resident: Resident) -> None:
    """`resident` is on its way out if it is idle and has been for long, or was started with an old configuration."""
    idle_unload_at_s = record.idle_unload_at_s(resident)
    if idle_unload_at_s is not None and ledger.now_s >= idle_unload_at_s:
        ledger.drain(resident)
    elif record.is_outdated(resident) and record.is_idle(resident):
        ledger.drain(resident)
        if record.comes_back:
            record.wish_at_s = ledger.now_s


# --- across models ----------------------------------------------------------------------------------------


def _place_demands(ledger: FleetLedger) -> None:
    """Models that want a worker get one where there is room; for the others room is being made, if it can."""
    demands = sorted(_demands(ledger), key=lambda demand: demand.rank)
    residents = {resident.worker: resident for resident in ledger.residents}
    max_loaded = ledger.limits.max_loaded
    num_free = len(demands) if max_loaded is None else max_loaded - len(residents)
    if not demands and num_free >= 0 and not any(r.is_evicting for r in residents.values()):
        return  # nearly always: a request came or went and nobody lacks a worker
    pool = {worker: _occupant(ledger, resident) for worker, resident in residents.items()}
    num_surplus = max(0, -num_free)  # the limit has been lowered
    while num_surplus and _claim_places(ledger, pool, residents, 1, may_drain=False):
        num_surplus -= 1
    for demand in demands:
        own = demand.record.residents.values()
        if num_free > 0 and not own:
            ledger.spawn(demand.record)
            num_free -= 1
        elif pinned := _pinned_out(ledger):
            refusal = reasons.pinned_out(demand.record.policy.name, max_loaded, pinned)
            ledger.refuse_all(demand.record, refusal)
        elif all(resident.state is WorkerState.STOPPING for resident in own):
            num_places = num_surplus + 1
            if _claim_places(ledger, pool, residents, num_places, may_drain=demand.is_overdue):
                num_surplus = 0
        # else: its own worker still drains and will leave its place behind
    for worker in pool:
        _reopen_if_evicting(ledger, residents[worker])


def _demands(ledger: FleetLedger) -> list[_Demand]:
    found = []
    for record in ledger.awake.values():
        since_s = record.demand_since_s
        if since_s is not None:
            found.append(_Demand(record, since_s, ledger.now_s >= since_s + ledger.limits.max_wait_s))
    return found


def _pinned_out(ledger: FleetLedger) -> list[str]:
    """Return the models that hold every place for good, so that nobody waits in vain for one; empty = they do not."""
    pinned = [
        resident.worker.model
        for resident in ledger.residents
        if ledger.records[resident.worker.model].is_kept(resident)
    ]
    max_loaded = ledger.limits.max_loaded
    return pinned if max_loaded is not None and len(pinned) >= max_loaded else []


def _occupant(ledger: FleetLedger, resident: Resident) -> Occupant:
    record = ledger.records[resident.worker.model]
    return Occupant(
        worker=resident.worker,
        state=resident.state,
        num_leases=len(resident.leases),
        last_used_s=resident.last_used_s,
        priority=record.policy.priority,
        is_kept=record.is_kept(resident),
    )


def _claim_places(
    ledger: FleetLedger,
    pool: dict[WorkerId, Occupant],
    residents: Mapping[WorkerId, Resident],
    num_places: int,
    *,
    may_drain: bool,
) -> bool:
    """Return whether so many more places of `pool` are spoken for now, their holders on the way out."""
    victims = choose_victims(pool.values(), num_places, may_drain=may_drain)
    if victims is None:
        return False
    for worker in victims:
        del pool[worker]
        resident = residents[worker]
        if resident.state is WorkerState.READY:
            resident.is_evicting = True
            ledger.drain(resident)
            # Its own waiters need a second worker now, and there may be a reason why it cannot start.
            _serve_line(ledger, ledger.records[worker.model])
    return True


def _reopen_if_evicting(ledger: FleetLedger, resident: Resident) -> None:
    """`resident` serves again if it only drained for a place that nobody needs any more."""
    if resident.state is not WorkerState.DRAINING or not resident.is_evicting or resident.must_leave:
        return
    resident.is_evicting = False
    resident.move(WorkerState.READY, ledger.now_s)
    record = ledger.records[resident.worker.model]
    record.wish_at_s = None
    ledger.grant(record, resident)


def _preload_next(ledger: FleetLedger) -> None:
    """One preload is on its way if any is due and there is room; those that find no room are given up."""
    if ledger.is_shutting_down or any(r.is_preload and r.is_loading for r in ledger.residents):
        return
    for record in ledger.awake.values():
        if not record.is_preload_due or record.residents or record.rest is not WorkerState.UNLOADED:
            continue
        if record.policy.unavailable is None and not ledger.is_full:
            ledger.spawn(record, is_preload=True)
            return
        record.is_preload_due = False
