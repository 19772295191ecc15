"""What the rest of the router may see of the fleet: frozen snapshots, for display and metrics.

Owns the view types and how they are filled. Must not change anything, and nobody may decide on a view: it is
stale at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from router.device import NOWHERE, Device, Footprint, Placement
from router.events import Departure, WorkerExit, WorkerId
from router.fleet_ledger import FleetLedger
from router.lifecycle import WorkerState
from router.reasons import too_large, waits_for
from router.resident import ModelRecord, Resident


@dataclass(frozen=True, slots=True)
class ResidentView:
    """One live worker."""

    worker: WorkerId
    state: WorkerState
    num_leases: int
    max_leases: int
    since_s: float
    """Of the present state."""
    last_used_s: float
    idle_unload_at_s: float | None
    """When idleness will unload it; None = not idle, pinned, or never."""
    idle_limit_s: float | None = None
    """How long it may be idle; None = idleness does not unload it."""
    placement: Placement = NOWHERE
    """Where it runs and what is reserved for it."""
    is_outdated: bool = False
    """It was started with a configuration that has changed since."""
    departure: Departure | None = None
    """Why it drains or stops; None = it does not, or nobody sent it off."""


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model, loaded or not."""

    name: str
    state: WorkerState
    queue_length: int
    oldest_wait_s: float | None
    residents: tuple[ResidentView, ...]
    last_exit: WorkerExit | None
    last_exit_ago_s: float | None
    retry_in_s: float | None
    """In BACKOFF and FAILED: after how long a request may start it again."""
    num_starts: int
    blocked_by: str | None
    """What its waiting requests wait for, in words."""
    footprint: Footprint | None = None
    """What a worker of it needs; None = not known yet."""
    impossible: str | None = None
    """Why it can never be loaded on this machine, in words; None = it can, as far as is known."""
    is_pinned: bool = False
    is_pin_ordered: bool = False
    """Somebody has ordered it while the model is served; otherwise its configuration says so."""
    last_to_exit: WorkerId | None = None
    """Whose exit `last_exit` is."""


@dataclass(frozen=True, slots=True)
class WaiterView:
    """One request that waits for a place on a worker."""

    request_id: str | None
    model: str
    waits_s: float
    priority: int
    key_id: str | None


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One device with what is reserved on it. Units: bytes."""

    id: str
    kind: str
    description: str
    total_bytes: int
    usable_bytes: int
    reserved_bytes: int
    used_by_others_bytes: int | None
    """None = not measured yet."""
    budget_bytes: int | None = None
    """Most that models may use together; None = all but the headroom."""
    headroom_bytes: int = 0
    free_bytes: int | None = None
    """What workers may still get; None = what others use is not known."""


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """All models at one instant. A removed model stays until its worker has exited."""

    models: Mapping[str, ModelView]
    is_shutting_down: bool
    devices: tuple[DeviceView, ...] = ()


def view_device(device: Device, ledger: FleetLedger, reserved_bytes: int) -> DeviceView:
    """Return how `device` looks now."""
    others_bytes = ledger.used_by_others.get(device.id)
    return DeviceView(
        id=device.id,
        kind=device.kind.value,
        description=device.description,
        total_bytes=device.total_bytes,
        usable_bytes=device.usable_bytes,
        reserved_bytes=reserved_bytes,
        used_by_others_bytes=others_bytes,
        budget_bytes=device.budget_bytes,
        headroom_bytes=device.headroom_bytes,
        free_bytes=None if others_bytes is None else max(0, ledger.capacity(device) - reserved_bytes),
    )


def view_waiters(ledger: FleetLedger, now_s: float) -> list[WaiterView]:
    """Return all requests that wait, by priority and then by age.

    Among those of one model and priority, a key that has had fewer tokens goes first when a place gets free.
    """
    waiters = [
        WaiterView(waiter.request_id, name, max(0.0, now_s - waiter.since_s), waiter.priority, waiter.key_id)
        for name, record in ledger.awake.items()
        for waiter in record.line
    ]
    return sorted(waiters, key=lambda waiter: (-waiter.priority, -waiter.waits_s))


def view_model(record: ModelRecord, ledger: FleetLedger, now_s: float) -> ModelView:
    """Return how `record` looks now, among all residents of the fleet."""
    is_untouched = not (record.residents or record.line or record.last_exit) and record.wish_at_s is None
    if not is_untouched:
        return _view_model(record, ledger, now_s)
    # Of a thousand models nearly all are at rest, and look the same each time somebody looks.
    key = (record.policy, record.footprint, ledger.devices, record.pin_order)
    if record.kept_view is None or any(one is not other for one, other in zip(record.kept_view[0], key, strict=True)):
        record.kept_view = key, _view_model(record, ledger, now_s)
    view: ModelView = record.kept_view[1]
    return view


def _view_model(record: ModelRecord, ledger: FleetLedger, now_s: float) -> ModelView:
    shown = next((resident for resident in record.all_serving if resident.state is WorkerState.READY), record.serving)
    shown = shown or next(iter(record.residents.values()), None)
    state = record.rest_state(now_s) if shown is None else shown.state
    oldest = record.line.oldest
    is_waiting = oldest is not None or record.wish_at_s is not None
    return ModelView(
        name=record.policy.name,
        state=state,
        queue_length=len(record.line),
        oldest_wait_s=None if oldest is None else now_s - oldest.since_s,
        residents=tuple(_view_resident(record, resident) for resident in record.residents.values()),
        last_exit=record.last_exit,
        last_to_exit=record.last_to_exit,
        last_exit_ago_s=None if record.last_exit is None else now_s - record.last_exit_at_s,
        retry_in_s=(
            max(0.0, record.retry_at_s - now_s) if state in (WorkerState.BACKOFF, WorkerState.FAILED) else None
        ),
        num_starts=record.num_starts,
        blocked_by=(
            waits_for(record, ledger.residents, ledger.limits, ledger.shortage(record)) if is_waiting else None
        ),
        footprint=record.footprint,
        impossible=None if ledger.options_of(record) else too_large(record, ledger.devices).detail,
        is_pinned=record.is_pinned,
        is_pin_ordered=record.pin_order is not None,
    )


def _view_resident(record: ModelRecord, resident: Resident) -> ResidentView:
    return ResidentView(
        worker=resident.worker,
        state=resident.state,
        num_leases=len(resident.leases),
        max_leases=resident.max_leases,
        since_s=resident.since_s,
        last_used_s=resident.last_used_s,
        idle_unload_at_s=record.idle_unload_at_s(resident),
        idle_limit_s=record.idle_limit_s(resident),
        placement=resident.placement,
        is_outdated=record.is_outdated(resident),
        departure=resident.departure if resident.is_leaving else None,
    )
