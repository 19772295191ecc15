"""Which device a model goes to, and whom to evict for it: pure functions over devices and residents.

Owns the order of preference: the smallest device that fits, one device before several, fewer layers on a GPU only
where the model allows it, the CPU only where it is wanted or there is no GPU. Must not know of requests, clocks or
events: `pump.py` says who wants a place, and whether it has waited long enough.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from router.device import CPU, Device, Footprint, FootprintSource, Placement
from router.events import ModelPolicy, WorkerId
from router.lifecycle import WorkerState

PLACES = "places"
"""What `limits.max_loaded` counts, next to bytes of devices: each worker takes one."""

Amounts = Mapping[str, int]
"""Bytes by device id, and a number of `PLACES`."""

_ROUGH = 0.87
"""An estimate from a header alone may be 15 % too high: it refuses nothing that could fit after all."""


@dataclass(frozen=True, slots=True)
class Options:
    """Where a model could go, and what that was derived from: it is asked for at every event, and changes rarely."""

    policy: ModelPolicy
    footprint: Footprint | None
    devices: tuple[Device, ...]
    placements: list[Placement]

    def is_for(self, policy: ModelPolicy, footprint: Footprint | None, devices: tuple[Device, ...]) -> bool:
        """Return whether it was derived from these very objects."""
        return self.policy is policy and self.footprint is footprint and self.devices is devices


@dataclass(frozen=True, slots=True)
class Occupant:
    """One resident as placement sees it."""

    worker: WorkerId
    state: WorkerState
    num_leases: int
    last_used_s: float
    priority: int
    is_kept: bool
    """Pinned, and nobody but the operator may send it away."""
    holds: Amounts
    """What it gives back when it is gone."""
    load_s: float = 1.0
    """What it costs to bring it back."""


# --- where a model could go --------------------------------------------------------------------------------


def candidates(policy: ModelPolicy, footprint: Footprint | None, devices: Sequence[Device]) -> list[Placement]:
    """Return every placement that could ever hold the model, the best first; empty = there is none.

    Whoever else is resident does not matter here. Without devices or without a footprint nothing is reserved.
    """
    if not devices or footprint is None:
        return [Placement(gpus=tuple(id_ for id_ in policy.devices if id_ != CPU))]
    options = list(_options(policy, footprint, devices))
    usable = {device.id: device.usable_bytes for device in devices}
    is_rough = footprint.source is FootprintSource.HEADER
    fitting = [option for option in options if _could_fit(option, usable, _ROUGH if is_rough else 1.0)]
    if is_rough:
        fitting = [_capped(option, usable) for option in fitting]
    return fitting


def _could_fit(option: Placement, usable: Amounts, share: float) -> bool:
    return all(share * num_bytes <= usable.get(id_, 0) for id_, num_bytes in option.reserved.items())


def _capped(option: Placement, usable: Amounts) -> Placement:
    reserved = {id_: min(num_bytes, usable[id_]) for id_, num_bytes in option.reserved.items()}
    return Placement(reserved, option.gpus, option.tensor_split, option.gpu_layers)


def _options(policy: ModelPolicy, footprint: Footprint, devices: Sequence[Device]) -> Iterable[Placement]:
    """Return placements in the order of preference, too large ones included."""
    by_id = {device.id: device for device in devices}
    cpu = Placement({CPU: footprint.cpu_bytes} if CPU in by_id else {}, gpu_layers=0)
    if policy.devices:
        chosen = [by_id[id_] for id_ in policy.devices if id_ in by_id and by_id[id_].is_gpu]
        if len(chosen) < sum(id_ != CPU for id_ in policy.devices):
            return  # one of them is not there
        gpus = chosen
        if not gpus or policy.gpu_layers == 0:
            yield cpu
            return
        yield from (_on_gpus(group, policy, footprint) for group in _groups(gpus, policy))
    else:
        gpus = [device for device in devices if device.is_gpu]
        if not gpus or policy.gpu_layers == 0:
            yield cpu
            return
        ranked = sorted(gpus, key=lambda device: (-device.prefer, device.usable_bytes, device.id))
        yield from (_on_gpus([device], policy, footprint) for device in ranked)
        largest = sorted(gpus, key=lambda device: (-device.usable_bytes, device.id))
        for count in range(2, len(gpus) + 1 if policy.is_split_allowed else 0):
            split = _on_gpus(largest[:count], policy, footprint)
            fits = all(num_bytes <= by_id[id_].usable_bytes for id_, num_bytes in split.reserved.items() if id_ != CPU)
            if fits or count == len(gpus):  # if not even all hold it, an estimate may still be too high
                yield split
                break
    if policy.is_partial_allowed:
        by_room = sorted(gpus, key=lambda device: (-device.usable_bytes, device.id))
        yield _partly(_groups(by_room, policy)[0], footprint) or cpu


def _groups(gpus: Sequence[Device], policy: ModelPolicy) -> list[Sequence[Device]]:
    """Return what the model may be placed on of `gpus`: all of them together, or each one alone."""
    return [gpus] if policy.is_split_allowed else [[gpu] for gpu in gpus]


def _on_gpus(gpus: Sequence[Device], policy: ModelPolicy, footprint: Footprint) -> Placement:
    """Return the placement on all of `gpus`, each with a share of the layers that suits its memory."""
    layers = footprint.num_layers
    asked = layers if policy.gpu_layers < 0 else min(policy.gpu_layers, layers)
    return _split(gpus, footprint, asked, is_chosen=policy.gpu_layers >= 0)


def _split(gpus: Sequence[Device], footprint: Footprint, layers: int, *, is_chosen: bool) -> Placement:
    room = [max(1, gpu.usable_bytes - footprint.gpu_compute_bytes) for gpu in gpus]
    shares = [part / sum(room) for part in room]
    ids = tuple(gpu.id for gpu in gpus)
    return Placement(
        _reserved(ids, shares, footprint, layers),
        gpus=ids,
        tensor_split=tuple(round(share, 4) for share in shares) if len(gpus) > 1 else (),
        gpu_layers=layers if is_chosen else None,
    )


def _reserved(gpus: Sequence[str], shares: Sequence[float], footprint: Footprint, layers: int) -> dict[str, int]:
    """Return the bytes that so many layers take of each GPU, and all others of main memory."""
    offloaded = footprint.gpu_bytes
    host = footprint.host_bytes
    if 0 < layers < footprint.num_layers:
        offloaded = footprint.gpu_bytes * layers // footprint.num_layers
        on_host = max(0, footprint.cpu_bytes - footprint.host_bytes)
        host += on_host * (footprint.num_layers - layers) // footprint.num_layers
    of_gpus = {
        gpu: footprint.gpu_compute_bytes + math.ceil(offloaded * share) for gpu, share in zip(gpus, shares, strict=True)
    }
    return of_gpus | {CPU: host}


def resize(
    placement: Placement, policy: ModelPolicy, footprint: Footprint | None, devices: Sequence[Device]
) -> Placement:
    """Return the same placement with what the model needs by `footprint`, whether or not it fits."""
    if not devices or footprint is None:
        return placement
    if placement.gpus:
        layers = footprint.num_layers if placement.gpu_layers is None else placement.gpu_layers
        shares = placement.tensor_split or (1.0 / len(placement.gpus),) * len(placement.gpus)
        reserved = _reserved(placement.gpus, shares, footprint, layers)
        return replace(placement, reserved=reserved)
    for option in _options(policy, footprint, devices):
        if not option.gpus:
            return replace(placement, reserved=option.reserved)
    return placement


def _partly(gpus: Sequence[Device], footprint: Footprint) -> Placement | None:
    """Return as many layers on `gpus` as they hold; None = not even one."""
    room = sum(max(0, gpu.usable_bytes - footprint.gpu_compute_bytes) for gpu in gpus)
    layers = footprint.num_layers * room // max(1, footprint.gpu_bytes)
    if layers <= 0:
        return None
    return _split(gpus, footprint, min(layers, footprint.num_layers), is_chosen=True)


# --- who is in the way -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """A placement that can be had now, or once its victims are gone."""

    placement: Placement
    victims: tuple[WorkerId, ...] = ()


def plan_placement(
    options: Sequence[Placement],
    free: Amounts,
    occupants: Collection[Occupant],
    now_s: float,
    *,
    may_drain: bool = False,
    may_evict: bool = True,
) -> Plan | None:
    """Return where a model goes now, or for whose going it waits; None if only those who must stay could make room.

    `options`: from `candidates`. `free`: what is left of each device and of `PLACES`; a resource that is missing is
    not limited.
    """
    for option in options:
        if not deficits(option, free):
            return Plan(option)
    if not may_evict:
        return None
    plans = []
    for index, option in enumerate(options):
        victims = choose_victims(occupants, deficits(option, free), now_s, may_drain=may_drain)
        if victims is not None:
            cost = (
                max(_rank(victim, may_drain) or 0 for victim in victims),
                max(victim.priority for victim in victims),
                sum(victim.load_s for victim in victims),
                index,
            )
            plans.append((cost, option, victims))
    if not plans:
        return None
    _, option, victims = min(plans, key=lambda plan: plan[0])
    return Plan(option, tuple(victim.worker for victim in victims))


def needs_of(option: Placement) -> dict[str, int]:
    """Return what a placement takes of each device and of `PLACES`."""
    return {**option.reserved, PLACES: 1}


def deficits(option: Placement, free: Amounts) -> dict[str, int]:
    """Return what is missing for `option`; empty = it fits."""
    return {
        resource: amount - free[resource]
        for resource, amount in needs_of(option).items()
        if resource in free and amount > free[resource]
    }


def choose_victims(
    occupants: Iterable[Occupant], missing: Amounts, now_s: float, *, may_drain: bool
) -> tuple[Occupant, ...] | None:
    """Return the occupants whose going gives back all that is `missing`; None if too few may go now.

    None of them goes in vain: without any one of them something would still be missing. Those on their way out
    already count as victims, so that nobody else has to go for the same room. The order: already stopping, idle,
    already draining, busy, loading (the last two only if `may_drain`); among equals the lower priority first, then who
    has been idle for longest, measured in the time that its load takes. Never one that is kept. One that loads is not
    sent off: it serves those who wait for it first, and its room is spoken for meanwhile.
    """
    ranked = []
    for occupant in occupants:
        rank = _rank(occupant, may_drain)
        if rank is not None and any(occupant.holds.get(resource, 0) for resource in missing):
            idle_loads = (now_s - occupant.last_used_s) / max(occupant.load_s, 0.1)
            ranked.append((rank, occupant.priority, -idle_loads, occupant.worker, occupant))
    chosen: list[Occupant] = []
    left = dict(missing)
    for *_, occupant in sorted(ranked, key=lambda entry: entry[:4]):
        if not left:
            break
        if any(occupant.holds.get(resource, 0) for resource in left):
            chosen.append(occupant)
            left = _without(left, occupant)
    if left:
        return None
    for occupant in reversed(chosen[:-1]):  # the last one was needed for sure
        others = [other for other in chosen if other is not occupant]
        if not _left_over(missing, others):
            chosen = others
    return tuple(chosen)


def _left_over(missing: Amounts, victims: Iterable[Occupant]) -> Amounts:
    left = dict(missing)
    for victim in victims:
        left = _without(left, victim)
    return left


def _without(missing: Amounts, occupant: Occupant) -> dict[str, int]:
    left = {resource: amount - occupant.holds.get(resource, 0) for resource, amount in missing.items()}
    return {resource: amount for resource, amount in left.items() if amount > 0}


_RANKS = {WorkerState.STOPPING: 0, WorkerState.DRAINING: 2, WorkerState.STARTING: 4, WorkerState.LOADING: 4}
"""Draining ones stand behind the idle ones: what still runs on them may take long."""


def _rank(occupant: Occupant, may_drain: bool) -> int | None:
    """Return how cheap it is to let `occupant` go, 0 = free of charge; None = it must stay."""
    if occupant.is_kept and occupant.state is not WorkerState.STOPPING:
        return None
    rank = _RANKS.get(occupant.state, 3 if occupant.num_leases else 1)
    # Busy, or loading: the load that somebody paid for serves first.
    return None if rank > 2 and not may_drain else rank
