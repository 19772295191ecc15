"""Why a request waits or is refused, in words for people who do not know the code.

Owns the sentences. Must not decide anything: it is told what has been decided.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from router.device import Device, Footprint
from router.events import ExitReason, FleetLimits, RefusalKind
from router.lifecycle import WorkerState
from router.resident import ModelRecord, Resident

_OPERATOR_STEP = "Put it right, then POST /admin/reload or restart the server."
"""What an operator does about a model whose configuration or file rules out a start."""
SHUTTING_DOWN_WORDS = "The server is shutting down and takes no more requests."


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request gets no lease."""

    kind: RefusalKind
    detail: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Shortage:
    """Memory that a model lacks on one device. Units: bytes."""

    device: Device
    needed: int
    free: int
    """Below 0 when others have taken what workers had."""
    used_by_others: int

    @property
    def words(self) -> str:
        """What is lacking, and what bounds it: the configured budget, or what other programs use."""
        name = self.device.id
        need = f"it needs {gigabytes(self.needed)} on {name}, where {gigabytes(max(0, self.free))} "
        unbudgeted = self.device.total_bytes - self.device.headroom_bytes - self.used_by_others
        if self.device.budget_bytes is not None and self.device.budget_bytes <= unbudgeted:
            return f"{need}of the {gigabytes(self.device.budget_bytes)} for models (devices.{name}.budget) are free"
        return f"{need}are free and other programs use {gigabytes(self.used_by_others)}"


def shutting_down() -> Refusal:
    """Return the refusal of everything once the router stops."""
    return Refusal(RefusalKind.SHUTTING_DOWN, SHUTTING_DOWN_WORDS)


def unknown_model(name: str) -> Refusal:
    """Return the refusal for a model that was never there."""
    return Refusal(RefusalKind.UNKNOWN_MODEL, f"There is no model '{name}'.")


def removed_model(name: str) -> Refusal:
    """Return the refusal for a model that was there a moment ago."""
    return Refusal(RefusalKind.UNKNOWN_MODEL, f"Model '{name}' has been removed from the server's configuration.")


def unavailable_model(name: str, problem: str) -> Refusal:
    """Return the refusal for a model whose configuration or file rules out a start."""
    return Refusal(RefusalKind.UNAVAILABLE, f"Model '{name}' cannot be loaded: {clause(problem)}. {_OPERATOR_STEP}")


def turned_away(name: str, why: str) -> Refusal:
    """Return the refusal for requests whose load the operator has cancelled."""
    return Refusal(RefusalKind.UNAVAILABLE, f"Model '{name}' was {why}. Send the request again to have it loaded.")


def failed_model(record: ModelRecord, now_s: float) -> Refusal:
    """Return the refusal for a model that is in BACKOFF or FAILED, with what its last worker said."""
    name = record.policy.name
    retry_after_s = max(0.0, record.retry_at_s - now_s)
    detail = clause(record.last_exit.detail) if record.last_exit else ""
    reason = detail or (record.last_exit.reason.value if record.last_exit else "the reason is not known")
    retry = f"a request after {math.ceil(retry_after_s)} s tries again"
    if record.rest is WorkerState.FAILED:
        words = f"Model '{name}' cannot be loaded: {reason}. Put it right, then POST /models/load; otherwise {retry}."
    elif record.last_exit and record.last_exit.reason is ExitReason.SOURCE_FAILED:
        words = f"The file of model '{name}' could not be fetched: {reason}. It pauses now; {retry}."
    else:
        words = f"Model '{name}' failed to start or crashed: {reason}. It pauses now; {retry}."
    return Refusal(RefusalKind.UNAVAILABLE, words, retry_after_s)


def not_preloaded(record: ModelRecord, shortage: Shortage | None, limits: FleetLimits) -> Refusal:
    """Return why a model is not loaded at the start: what is loaded already is not unloaded for a preload."""
    limit = f"limits.max_loaded is {limits.max_loaded}"
    return Refusal(
        RefusalKind.UNAVAILABLE,
        f"Model '{record.policy.name}' is not preloaded, because there is no room beside what is loaded: "
        f"{limit if shortage is None else shortage.words}. Its first request loads it.",
    )


def pinned_out(record: ModelRecord, max_loaded: int | None, pinned: Iterable[str]) -> Refusal:
    """Return the refusal for a model that no room can ever be made for."""
    names = ", ".join(f"'{other}'" for other in pinned)
    limit = "" if max_loaded is None else f" (limits.max_loaded is {max_loaded})"
    need = "" if record.footprint is None else f", and it needs {gigabytes(_least(record.footprint))}"
    return Refusal(
        RefusalKind.UNAVAILABLE,
        f"Model '{record.policy.name}' cannot be loaded: pinned models ({names}) leave no room for it{limit}{need}. "
        "Unload or unpin one of them, or allow for more.",
    )


def too_large(record: ModelRecord, devices: Sequence[Device]) -> Refusal:
    """Return the refusal for a model that fits on no device, whatever else is unloaded."""
    policy, footprint = record.policy, record.footprint
    known = {device.id: device for device in devices}
    if missing := [id_ for id_ in policy.devices if id_ not in known]:
        words = f"its `device` {', '.join(missing)} is not there; there is {', '.join(known)}"
    elif footprint is None:
        words = "there is no device for it"
    else:
        wanted = [known[id_] for id_ in policy.devices] or list(devices)
        offers = "; ".join(_offer(device) for device in wanted)
        words = f"it needs {_demand(footprint, wanted)}, and it would have to fit into this: {offers}"
    if missing:
        return Refusal(
            RefusalKind.TOO_LARGE, f"Model '{policy.name}' has no place to run: {words}. Correct its `device`."
        )
    advice = "Lower its `context`, `slots` or cache types, take a smaller file"
    if budgets := [f"devices.{device.id}.budget" for device in devices if device.budget_bytes is not None]:
        advice += f", raise {' or '.join(budgets)}"
    if policy.gpu_layers != 0 and any(device.is_gpu for device in devices) and not policy.is_partial_allowed:
        advice += ", or allow the CPU to compute a part of it with `gpu_layers: auto`"
    return Refusal(RefusalKind.TOO_LARGE, f"Model '{policy.name}' does not fit on this machine: {words}. {advice}.")


def _demand(footprint: Footprint, devices: Iterable[Device]) -> str:
    if not any(device.is_gpu for device in devices):
        return f"{gigabytes(footprint.cpu_bytes)} of memory"
    gpu = footprint.gpu_bytes + footprint.gpu_compute_bytes
    return f"{gigabytes(gpu)} of GPU memory and {gigabytes(footprint.host_bytes)} of main memory"


def _offer(device: Device) -> str:
    """Return what a device has for models, and why no more."""
    why = f"of {gigabytes(device.total_bytes)}"
    if device.budget_bytes is not None and device.budget_bytes <= device.total_bytes - device.headroom_bytes:
        why += f", budget {gigabytes(device.budget_bytes)}"
    elif device.headroom_bytes:
        why += f", headroom {gigabytes(device.headroom_bytes)}"
    return f"{device.id} has {gigabytes(device.usable_bytes)} for models ({why})"


def _least(footprint: Footprint) -> int:
    return min(footprint.cpu_bytes, footprint.gpu_bytes + footprint.gpu_compute_bytes or footprint.cpu_bytes)


def gigabytes(num_bytes: int) -> str:
    """Return an amount for people, in decimal units as files are listed."""
    return f"{num_bytes / 1e9:.1f} GB" if abs(num_bytes) >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


def queue_full(record: ModelRecord, now_s: float) -> Refusal:
    """Return the refusal for a request that finds `max_queue` others before it.

    It should come back after about as long as the oldest of them has waited, which is how fast the line moves.
    """
    oldest = record.line.oldest
    wait_s = now_s - oldest.since_s if oldest else 0.0
    return Refusal(
        RefusalKind.QUEUE_FULL,
        f"{len(record.line)} requests already wait for model '{record.policy.name}' (max_queue). "
        "Send the request again later.",
        min(max(wait_s, 1.0), 30.0),
    )


def queue_timeout(
    record: ModelRecord, residents: Collection[Resident], limits: FleetLimits, shortage: Shortage | None
) -> Refusal:
    """Return the refusal for a request that has waited too long, naming what it waited for."""
    awaited = waits_for(record, residents, limits, shortage)
    return Refusal(
        RefusalKind.QUEUE_TIMEOUT,
        f"The request waited {record.policy.queue_timeout_s:g} s (queue_timeout_s) for model "
        f"'{record.policy.name}' and got no place. It was waiting for {awaited}. "
        "Send it again later.",
        5.0,
    )


def waits_for(
    record: ModelRecord, residents: Collection[Resident], limits: FleetLimits, shortage: Shortage | None
) -> str:
    """Return what requests for `record` wait for, as a noun phrase. `residents` are those of all models."""
    own = record.serving or next(iter(record.residents.values()), None)
    name = record.policy.name
    if own is not None:
        match own.state:
            case WorkerState.STARTING | WorkerState.LOADING:
                return f"'{name}' to load"
            case WorkerState.READY:
                return f"a free place on '{name}', where {_requests(own)} running or next"
            case _:
                return f"'{name}' to unload before it can be loaded again ({_condition(own)})"
    others = sorted(residents, key=lambda other: (not other.is_leaving, other.worker))
    shown = [f"'{other.worker.model}' {_condition(other)}" for other in others[:3]]
    if len(others) > 3:
        shown.append(f"{len(others) - 3} more")
    if shortage is not None:
        return f"memory: {shortage.words}" + (f"; {', '.join(shown)}" if shown else "")
    if not others or limits.max_loaded is None:
        return f"'{name}' to start"
    return f"room among the loaded models (limits.max_loaded is {limits.max_loaded}): {', '.join(shown)}"


def _condition(resident: Resident) -> str:
    """Return what `resident` is doing, as a predicate."""
    match resident.state:
        case WorkerState.STARTING | WorkerState.LOADING:
            return "is loading"
        case WorkerState.DRAINING:
            return f"is finishing its last requests, {_requests(resident)} running"
        case WorkerState.STOPPING:
            return "is stopping"
        case _:
            return f"is busy, {_requests(resident)} running" if resident.leases else "is idle"


def _requests(resident: Resident) -> str:
    num = len(resident.leases)
    return f"{num} request{' is' if num == 1 else 's are'}"


def clause(text: str) -> str:
    """Return `text` without the full stop that our own sentence will set."""
    return text.strip().removesuffix(".")
