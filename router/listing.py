"""How models look in lists: OpenAI's `/v1/models` and llama-server's `/models`.

Owns names, states and numbers shown to clients. Reads snapshots only: it must never ask or wake a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

from router.catalog import AliasSpec, ModelSpec
from router.fleet_views import FleetSnapshot, ModelView
from router.lifecycle import WorkerState

if TYPE_CHECKING:
    from router.supervisor import Supervisor

UNAVAILABLE = "unavailable"
DOWNLOADING = "downloading"


def list_models(supervisor: Supervisor, created: int) -> list[dict[str, Any]]:
    """Return OpenAI model objects: each model, followed by its aliases that are not hidden."""
    fleet = supervisor.snapshot()
    entries = []
    for spec in supervisor.catalog.models.values():
        entries.append(_model_entry(supervisor, fleet, spec, None, created))
        entries += [
            _model_entry(supervisor, fleet, spec, alias, created) for alias in spec.aliases.values() if alias.listed
        ]
    return entries


def find_model(supervisor: Supervisor, created: int, name: str) -> dict[str, Any]:
    """Return the OpenAI model object of a model or alias. Raises: ModelNotFound."""
    found = supervisor.catalog.resolve(name)
    return _model_entry(supervisor, supervisor.snapshot(), found.spec, found.alias, created)


def list_statuses(supervisor: Supervisor, created: int) -> list[dict[str, Any]]:
    """Return the models as llama-server's router lists them; aliases are a field, not entries."""
    fleet = supervisor.snapshot()
    return [
        {
            "id": spec.name,
            "object": "model",
            "created": created,
            "owned_by": "corral",
            "aliases": _listed_aliases(spec),
            "tags": list(spec.tags),
            "status": _llama_server_status(supervisor, spec, fleet.models.get(spec.name)),
        }
        for spec in supervisor.catalog.models.values()
    ]


def state_of(supervisor: Supervisor, spec: ModelSpec, view: ModelView | None) -> str:
    """Return the state of a model in our words, which are those of its worker and two more."""
    if spec.problem is not None:
        return UNAVAILABLE
    if view is None:
        return WorkerState.UNLOADED.value
    if view.state is WorkerState.STARTING and supervisor.fetch_progress(spec.name) is not None:
        return DOWNLOADING
    return view.state.value


def reason_of(spec: ModelSpec, view: ModelView | None) -> str | None:
    """Return why a model cannot be used now; None when nothing is known against it."""
    if spec.problem is not None:
        return spec.problem
    if view is not None and view.state in (WorkerState.BACKOFF, WorkerState.FAILED) and view.last_exit is not None:
        return view.last_exit.detail
    return None


def _model_entry(
    supervisor: Supervisor, fleet: FleetSnapshot, spec: ModelSpec, alias: AliasSpec | None, created: int
) -> dict[str, Any]:
    view = fleet.models.get(spec.name)
    context = supervisor.context_of(spec)
    entry: dict[str, Any] = {
        "id": spec.name if alias is None else alias.name,
        "object": "model",
        "created": created,
        "owned_by": "corral",
        "root": spec.name,
        "parent": None if alias is None else spec.name,
        "state": state_of(supervisor, spec, view),
        "context_length": context,
        "max_model_len": context,
        "aliases": _listed_aliases(spec),
        "description": spec.description,
        "tags": list(spec.tags),
    }
    if (reason := reason_of(spec, view)) is not None:
        entry["reason"] = reason
    if view is not None and view.last_exit is not None:
        entry["last_exit"] = {
            "reason": view.last_exit.reason.value,
            "detail": view.last_exit.detail,
            "exit_code": view.last_exit.exit_code,
            "ago_s": None if view.last_exit_ago_s is None else round(view.last_exit_ago_s, 1),
        }
    if (progress := supervisor.fetch_progress(spec.name)) is not None:
        entry["progress"] = {
            "phase": progress.phase,
            "done_bytes": progress.done_bytes,
            "total_bytes": progress.total_bytes,
            "detail": progress.detail,
        }
    return entry


def _listed_aliases(spec: ModelSpec) -> list[str]:
    return [alias.name for alias in spec.aliases.values() if alias.listed]


def _llama_server_status(supervisor: Supervisor, spec: ModelSpec, view: ModelView | None) -> dict[str, Any]:
    """Return `{"value": …}` in llama-server's words, with `failed` and the reason where it applies."""
    status: dict[str, Any] = {"value": "unloaded"}
    if view is not None:
        status["value"] = _llama_server_word(view.state)
    if state_of(supervisor, spec, view) == DOWNLOADING:
        status["value"] = DOWNLOADING
    if (reason := reason_of(spec, view)) is not None:
        status |= {"failed": True, "reason": reason}
        if view is not None and view.last_exit is not None and view.last_exit.exit_code is not None:
            status["exit_code"] = view.last_exit.exit_code
    return status


def _llama_server_word(state: WorkerState) -> str:
    match state:
        case WorkerState.UNLOADED | WorkerState.BACKOFF | WorkerState.FAILED:
            return "unloaded"
        case WorkerState.STARTING | WorkerState.LOADING:
            return "loading"
        case WorkerState.READY:
            return "loaded"
        case WorkerState.DRAINING | WorkerState.STOPPING:
            return "unloading"
        case _:
            assert_never(state)
