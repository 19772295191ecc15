"""How models look in lists: OpenAI's `/v1/models` and llama-server's `/models`.

Owns the fields and numbers shown to clients; docs/status.md explains them. Reads snapshots only: it must never ask or
wake a worker. A list of a thousand models is made anew for every request, so an entry looks nothing up twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from router.capabilities import capabilities, promised_capabilities
from router.catalog import AliasSpec, ModelSpec
from router.catalog_view import CatalogView
from router.device import DeviceKind, Footprint
from router.exits import signal_name
from router.fetch.protocol import FetchProgress
from router.fleet_views import FleetSnapshot, ModelView, ResidentView
from router.lifecycle import WorkerState
from router.name_patterns import WILDCARD
from router.shown_states import (
    DOWNLOADING,
    UNAVAILABLE,
    llama_server_state,
    shown_reason,
    shown_state,
)
from worker.contract import ModelFacts, WorkerStatus

if TYPE_CHECKING:
    from router.supervisor import Supervisor

__all__ = [
    "DOWNLOADING",
    "UNAVAILABLE",
    "Look",
    "as_seen",
    "find_model",
    "list_models",
    "list_statuses",
    "model_entry",
    "reason_of",
    "state_of",
    "usable_context",
]

_CPU = DeviceKind.CPU.value
_LOADING = frozenset({WorkerState.STARTING, WorkerState.LOADING})


KeptEntries = dict[str, tuple[tuple[object, ...], list[dict[str, Any]]]]
"""By model: the entries of a model at rest, and all that they were made of."""


def list_models(
    supervisor: Supervisor, created: int, kept: KeptEntries | None = None, *, usable: CatalogView | None = None
) -> list[dict[str, Any]]:
    """Return OpenAI model objects: each model that is `usable`, followed by its aliases that are not hidden.

    Mutates: `kept`, where entries are found that have not changed since the last time.
    """
    kept = {} if kept is None else kept
    usable = usable or CatalogView(supervisor.catalog)
    look = Look.at(supervisor)
    entries = []
    for spec in usable.models.values():
        entries += _entries_under(usable, spec, _entries_of(look, spec, created, kept))
    return entries


def _entries_under(usable: CatalogView, spec: ModelSpec, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of those of the model's names that may be used."""
    if usable.tells_all:
        return entries
    if usable.is_whole:
        return [as_seen(usable, spec, entry) for entry in entries]
    names = {alias.name for alias in usable.aliases_of(spec)} | ({spec.name} if usable.opens(spec) else set())
    return [as_seen(usable, spec, entry) for entry in entries if entry["id"] in names]


def as_seen(view: CatalogView, spec: ModelSpec, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a model without names that may not be used: its own, and those of others in sentences."""
    if view.tells_all:
        return entry
    wordy = [key for key in ("reason", "last_exit", "status") if key in entry]
    seen: dict[str, Any] = {key: _without_strangers(view, entry[key]) for key in wordy}
    names = view.aliases_of(spec)
    seen["aliases"] = [alias.name for alias in names if alias.listed]
    seen["alias_patterns"] = [alias.name for alias in names if WILDCARD in alias.name]
    return entry | seen


def _without_strangers(view: CatalogView, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_strangers(view, one) for key, one in value.items()}
    return view.without_strangers(value) if isinstance(value, str) else value


def model_entry(look: Look, spec: ModelSpec, created: int, kept: KeptEntries) -> dict[str, Any]:
    """Return the model object of a model under its own name. Mutates: `kept`, as `list_models` does."""
    return _entries_of(look, spec, created, kept)[0]


def _entries_of(look: Look, spec: ModelSpec, created: int, kept: KeptEntries) -> list[dict[str, Any]]:
    """Return the entries of a model and of its listed aliases; of a model at rest those that were made before."""
    supervisor, view = look.supervisor, look.fleet.models.get(spec.name)
    is_at_rest = view is not None and not (view.residents or view.last_exit or spec.name in look.fetches)
    key = (spec, view, supervisor.header_of(spec), supervisor.context_of(spec), created)
    if is_at_rest and (found := kept.get(spec.name)) is not None and _is_same(found[0], key):
        return found[1]
    entry = _model_entry(look, spec, created)
    entries = [entry, *(_alias_entry(entry, alias) for alias in spec.aliases.values() if alias.listed)]
    if is_at_rest:
        kept[spec.name] = key, entries
    else:
        kept.pop(spec.name, None)
    return entries


def _is_same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return all(a is b or (isinstance(a, int) and a == b) for a, b in zip(one, other, strict=True))


def find_model(supervisor: Supervisor, created: int, name: str, *, usable: CatalogView | None = None) -> dict[str, Any]:
    """Return the OpenAI model object of a model or alias. Raises: ModelNotFound."""
    usable = usable or CatalogView(supervisor.catalog)
    found = usable.resolve(name)
    entry = as_seen(usable, found.spec, _model_entry(Look.at(supervisor), found.spec, created))
    return entry if found.alias is None else _alias_entry(entry, found.alias)


def list_statuses(supervisor: Supervisor, created: int, *, usable: CatalogView | None = None) -> list[dict[str, Any]]:
    """Return the models as llama-server's router lists them, under a name that may be used; aliases are a field."""
    look = Look.at(supervisor)
    usable = usable or CatalogView(supervisor.catalog)
    return [
        as_seen(usable, spec, _status_entry(look, spec, created)) | {"id": usable.name_of(spec)}
        for spec in usable.models.values()
    ]


def _status_entry(look: Look, spec: ModelSpec, created: int) -> dict[str, Any]:
    return {
        "id": spec.name,
        "object": "model",
        "created": created,
        "owned_by": "corral",
        "aliases": _listed_aliases(spec),
        "alias_patterns": _alias_patterns(spec),
        "tags": list(spec.tags),
        "status": llama_server_status(look, spec),
    }


def state_of(supervisor: Supervisor, spec: ModelSpec, view: ModelView | None) -> str:
    """Return the state of a model, one of `shown_states.STATES`."""
    return shown_state(spec, view, is_fetching=spec.name in supervisor.fetches())


def reason_of(spec: ModelSpec, view: ModelView | None) -> str | None:
    """Return why a model cannot be used now; None when nothing is known against it."""
    return shown_reason(spec, view)


@dataclass(frozen=True, slots=True)
class Look:
    """One instant of everything that is shown."""

    supervisor: Supervisor
    fleet: FleetSnapshot
    fetches: Mapping[str, FetchProgress]

    @classmethod
    def at(cls, supervisor: Supervisor, fleet: FleetSnapshot | None = None) -> Look:
        """Return how things stand now, or in `fleet`."""
        return cls(supervisor, supervisor.snapshot() if fleet is None else fleet, supervisor.fetches())

    def state(self, spec: ModelSpec) -> str:
        """Return the state of a model in our words."""
        return shown_state(spec, self.fleet.models.get(spec.name), is_fetching=spec.name in self.fetches)

    def reason(self, spec: ModelSpec) -> str | None:
        """Return why it cannot be used now."""
        return shown_reason(spec, self.fleet.models.get(spec.name))

    def progress(self, spec: ModelSpec) -> dict[str, Any] | None:
        """Return how far its download or load is: a phase and, where it is known, a fraction; None = neither runs."""
        if (fetched := self.fetches.get(spec.name)) is not None:
            return {
                "phase": fetched.phase,
                "fraction": _fraction(fetched.done_bytes, fetched.total_bytes),
                "done_bytes": fetched.done_bytes,
                "total_bytes": fetched.total_bytes,
                "detail": fetched.detail,
            }
        view = self.fleet.models.get(spec.name)
        loading = None if view is None else next((one for one in view.residents if one.state in _LOADING), None)
        return None if loading is None else self.load_progress(loading)

    def load_progress(self, resident: ResidentView) -> dict[str, Any]:
        """Return how far a worker's load is."""
        status = self.supervisor.status(resident.worker)
        if status is None:
            return {"phase": WorkerState.STARTING.value, "fraction": None}
        return {"phase": status.phase.value, "fraction": None if status.progress is None else round(status.progress, 3)}

    def statuses(self, view: ModelView | None) -> list[tuple[ResidentView, WorkerStatus]]:
        """Return the model's workers that have reported, with what they said last."""
        told = ((resident, self.supervisor.status(resident.worker)) for resident in (view.residents if view else ()))
        return [(resident, status) for resident, status in told if status is not None]


def llama_server_status(look: Look, spec: ModelSpec) -> dict[str, Any]:
    """Return `{"value": …}` in llama-server's words, with `failed`, the reason and the progress where they apply."""
    view = look.fleet.models.get(spec.name)
    status: dict[str, Any] = {"value": llama_server_state(spec, view, is_fetching=spec.name in look.fetches)}
    if (reason := shown_reason(spec, view)) is not None:
        status |= {"failed": True, "reason": reason}
        if view is not None and view.last_exit is not None and view.last_exit.exit_code is not None:
            status["exit_code"] = view.last_exit.exit_code
    if status["value"] == "loading" and (progress := look.progress(spec)) is not None:
        status["progress"] = {"stages": ["text_model"], "current": "text_model", "value": progress["fraction"] or 0.0}
    return status


def _model_entry(look: Look, spec: ModelSpec, created: int) -> dict[str, Any]:
    view = look.fleet.models.get(spec.name)
    statuses = look.statuses(view) if view is not None and view.residents else []
    facts = next((status.facts for _, status in statuses if status.facts is not None), None)
    context = look.supervisor.context_of(spec) if facts is None else usable_context(facts)
    entry: dict[str, Any] = {
        "id": spec.name,
        "object": "model",
        "created": created,
        "owned_by": "corral",
        "root": spec.name,
        "parent": None,
        "state": look.state(spec),
        "context_length": context,
        "max_model_len": context,
        "aliases": _listed_aliases(spec),
        "alias_patterns": _alias_patterns(spec),
        "description": spec.description,
        "tags": list(spec.tags),
    }
    if spec.remote is not None:
        return entry | {"remote": True}
    if (header := look.supervisor.header_of(spec)) is not None:
        entry["size_bytes"] = header.size_bytes
        if facts is None:
            entry["capabilities"] = promised_capabilities(header)
    entry["slots"] = spec.slots if facts is None else facts.slots
    entry["kv_tokens"] = _pool(spec, context) if facts is None else facts.kv_cells
    entry["replicas"] = spec.replicas
    if (reason := shown_reason(spec, view)) is not None:
        entry["reason"] = reason
    if view is None:
        return entry
    if view.residents:
        entry |= _running(look, view, statuses, facts)
    if (view.residents or spec.name in look.fetches) and (progress := look.progress(spec)) is not None:
        entry["progress"] = progress
    if (view.footprint is not None or statuses) and (memory := _memory(look.fleet, view, statuses)) is not None:
        entry["memory"] = memory
    if view.last_exit is not None:
        entry["last_exit"] = _last_exit(view)
    if view.retry_in_s is not None:
        entry["retry_in_s"] = round(view.retry_in_s, 1)
    return entry


def _alias_entry(entry: Mapping[str, Any], alias: AliasSpec) -> dict[str, Any]:
    return {**entry, "id": alias.name, "parent": entry["id"]}


def _running(
    look: Look, view: ModelView, statuses: Iterable[tuple[ResidentView, WorkerStatus]], facts: ModelFacts | None
) -> dict[str, Any]:
    """Return what only a model with workers has to show."""
    shown: dict[str, Any] = {}
    if facts is not None:
        shown = {
            "num_params": facts.num_params,
            "capabilities": capabilities(facts),
            "gpu_layers": facts.gpu_layers,
            "total_layers": facts.total_layers,
        }
    told = {resident.worker: status for resident, status in statuses}
    devices = [name for resident in view.residents for name in _devices(told.get(resident.worker))]
    if devices:
        shown["devices"] = list(dict.fromkeys(devices))
    workers = [_worker(look, resident, told.get(resident.worker)) for resident in view.residents]
    return shown | {"workers": workers}


def _worker(look: Look, resident: ResidentView, status: WorkerStatus | None) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "replica": resident.worker.replica,
        "state": resident.state.value,
        "running_requests": resident.num_leases,
        "devices": _devices(status),
        "used_bytes": None if status is None else _used_bytes(status),
    }
    if resident.state in _LOADING:
        shown["progress"] = look.load_progress(resident)
    if resident.is_outdated:
        shown["is_outdated"] = True
    return shown


def _devices(status: WorkerStatus | None) -> list[str]:
    """Return the devices that a worker really uses."""
    if status is None or status.facts is None:
        return []
    return [name.strip() for name in status.facts.device.split(",") if name.strip()]


def usable_context(facts: ModelFacts) -> int:
    """Return the tokens that one request may really use."""
    return facts.context if facts.can_generate else facts.embedding_context or facts.context


def _pool(spec: ModelSpec, context: int | None) -> int | None:
    """Return the tokens that all slots together will have."""
    return spec.kv_tokens or (None if context is None else context * spec.slots)


def _memory(
    fleet: FleetSnapshot, view: ModelView, statuses: Iterable[tuple[ResidentView, WorkerStatus]]
) -> dict[str, Any] | None:
    """Return what one worker needs, how that is known, and what all of them use; None when neither is known."""
    used = [size for _, status in statuses if (size := _used_bytes(status)) is not None]
    reserved = next((sum(one.placement.reserved.values()) for one in view.residents if one.placement.reserved), None)
    needed, source = reserved, None
    if view.footprint is not None:
        has_gpus = any(device.kind != _CPU for device in fleet.devices)
        needed = needed or _needed_bytes(view.footprint, has_gpus=has_gpus)
        source = view.footprint.source.value
    if needed is None and not used:
        return None
    return {"needed_bytes": needed, "source": source, "used_bytes": sum(used) if used else None}


def _needed_bytes(footprint: Footprint, *, has_gpus: bool) -> int:
    if not has_gpus or not footprint.gpu_bytes:
        return footprint.cpu_bytes
    return footprint.gpu_bytes + footprint.gpu_compute_bytes + footprint.host_bytes


def _used_bytes(status: WorkerStatus) -> int | None:
    """Return its share of main memory and what it has allocated on GPUs; None when unknown."""
    own = status.memory_bytes.get("pss") or status.memory_bytes.get("rss")
    elsewhere = sum(
        sum(sizes.values()) for name, sizes in status.device_bytes.items() if not name.lower().startswith(_CPU)
    )
    return None if own is None else own + elsewhere


def _last_exit(view: ModelView) -> dict[str, Any]:
    exit_, ago_s = view.last_exit, view.last_exit_ago_s
    assert exit_ is not None
    return {
        "reason": exit_.reason.value,
        "cause": None if exit_.departure is None else exit_.departure.cause.value,
        "detail": exit_.detail,
        "code": exit_.exit_code,
        "signal": signal_name(exit_.exit_code),
        "at": None if ago_s is None else round(time.time() - ago_s),
        "ago_s": None if ago_s is None else round(ago_s, 1),
    }


def _fraction(done: int, total: int | None) -> float | None:
    return round(min(1.0, done / total), 3) if total else None


def _listed_aliases(spec: ModelSpec) -> list[str]:
    return [alias.name for alias in spec.aliases.values() if alias.listed] if spec.aliases else []


def _alias_patterns(spec: ModelSpec) -> list[str]:
    return [name for name in spec.aliases if WILDCARD in name] if spec.aliases else []
