"""What is told of the server, its models, devices, slots and queue: the parts of `GET /status` and of the events.

Owns their fields; docs/status.md explains them. Reads snapshots only: it must never ask or wake a worker. What is not
known is null, never 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from router.catalog_problems import ELSEWHERE, first_problems
from router.catalog_view import CatalogView
from router.device import CPU
from router.fleet_views import DeviceView, ModelView, ResidentView
from router.lifecycle import WorkerState
from router.listing import Look, as_seen, model_entry
from router.slot_views import slot_entries
from router.version import version
from worker.contract import WorkerStatus

if TYPE_CHECKING:
    from router.catalog import ModelSpec
    from router.reload import Reloader
    from router.services import Services

_SERVING: Final = frozenset({WorkerState.READY, WorkerState.DRAINING})

MAX_QUEUE: Final = 100
"""Of the requests that wait, so many are told one by one."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One instant of everything that is told."""

    services: Services
    look: Look
    now_s: float
    """Of the monotonic clock."""
    visible: CatalogView
    """The models that are told of."""

    @classmethod
    def of(cls, services: Services, names: tuple[str, ...] = (), *, tells_folders: bool = True) -> Scene:
        """Return how things stand now, for those who may watch the models of `names`; () = everything."""
        visible = CatalogView(services.supervisor.catalog, names, tells_folders=tells_folders)
        return cls(services, Look.at(services.supervisor), time.monotonic(), visible)

    def seen_by(self, names: tuple[str, ...], *, tells_folders: bool = True) -> Scene:
        """Return the same instant for those who may watch the models of `names`."""
        if tells_folders and not names:
            return self
        visible = CatalogView(self.services.supervisor.catalog, names, tells_folders=tells_folders)
        return replace(self, visible=visible)

    def shows(self, model: str) -> bool:
        """Whether the model of this name is told of."""
        return self.visible.is_whole or model in self.visible.models

    @property
    def views(self) -> list[ModelView]:
        """What the fleet says of each model."""
        return [view for view in self.look.fleet.models.values() if self.shows(view.name)]

    @property
    def residents(self) -> Iterable[ResidentView]:
        """All live workers."""
        return (resident for view in self.views for resident in view.residents)

    def status(self, resident: ResidentView) -> WorkerStatus | None:
        """Return what a worker said last."""
        return self.services.supervisor.status(resident.worker)


# --- the server -------------------------------------------------------------------------------------------


def view_server(scene: Scene, *, in_full: bool) -> dict[str, Any]:
    """Return what is told of the server as a whole; `in_full`, to administrators."""
    services, fleet = scene.services, scene.look.fleet
    views = scene.views
    return {
        "version": version(),
        "status": "draining" if fleet.is_shutting_down else "ok",
        "started_at": services.started_at,
        "default_model": scene.visible.default_model,
        "models": len(scene.visible.models),
        "loaded": sum(view.state is WorkerState.READY for view in views),
        "queue_length": sum(view.queue_length for view in views),
        "allow_config_edits": services.settings.allow_config_edits,
        "is_open": services.keys.is_empty,
        "configuration": view_configuration(services.reloader, in_full=in_full, tells_where=scene.visible.is_whole),
    }


def view_configuration(reloader: Reloader, *, in_full: bool, tells_where: bool = True) -> dict[str, Any]:
    """Return what is served, and what is wrong with the files if they say something else by now.

    Only `in_full` in words, which are for administrators: others are told where, or that there is something.
    """
    refused, words = reloader.refused, {} if in_full else {"message": ELSEWHERE}
    return {
        "path": reloader.path.name,  # where it lies is for administrators
        "status": "valid" if refused is None else "invalid",
        "error": None
        if refused is None
        else (refused.summary if in_full else refused.outline if tells_where else refused.place),
        "problems": []
        if refused is None or not tells_where
        else [problem.to_json() | words for problem in first_problems(refused.problems)],
        "since": None if refused is None else round(refused.since_s, 3),
        "loaded_at": round(reloader.loaded_at_s, 3),  # two reloads within a second differ
    }


# --- models -----------------------------------------------------------------------------------------------


def view_models(scene: Scene) -> list[dict[str, Any]]:
    """Return what is told of every model."""
    return [view_model(scene, spec) for spec in scene.visible.models.values()]


def view_model(scene: Scene, spec: ModelSpec) -> dict[str, Any]:
    """Return the model's entry of `/v1/models`, and what operators want to know besides."""
    services, view = scene.services, scene.look.fleet.models.get(spec.name)
    entry = dict(
        as_seen(scene.visible, spec, model_entry(scene.look, spec, services.started_at, services.kept_entries))
    )
    if (name := scene.visible.name_of(spec)) != spec.name:
        entry["usable_as"] = name
    if view is None:
        running = services.remotes.num_running(spec.name) if spec.remote is not None else 0
        return entry | _at_rest(spec, running)
    return entry | {
        "is_pinned": view.is_pinned,
        "pin_source": pin_source(view),
        "priority": spec.priority,
        "preload": spec.preload,
        "queue_length": view.queue_length,
        "oldest_wait_s": None if view.oldest_wait_s is None else round(view.oldest_wait_s, 1),
        "waiting_for": _told(scene, view.blocked_by),
        "running_requests": sum(resident.num_leases for resident in view.residents),
        "tokens_per_second": _speeds(scene, view),
        "idle_unload_in_s": _idle_unload_in_s(view, scene.now_s),
        "num_starts": view.num_starts,
    }


def _told(scene: Scene, words: str | None) -> str | None:
    """Return words about a model without the names of those that are not told of."""
    return None if words is None else scene.visible.without_strangers(words)


def pin_source(view: ModelView) -> str | None:
    """Return who says whether the model is pinned; None = nobody does, so that it is not."""
    if view.is_pin_ordered:
        return "request"
    return "configuration" if view.is_pinned else None


def _at_rest(spec: ModelSpec, num_running: int) -> dict[str, Any]:
    """Return what is told of a model that is not the fleet's: another server's, or one that comes just now."""
    return {
        "is_pinned": False,
        "pin_source": None,
        "priority": spec.priority,
        "preload": False,
        "queue_length": 0,
        "oldest_wait_s": None,
        "waiting_for": None,
        "running_requests": num_running,
        "tokens_per_second": {"prompt": None, "generated": None},
        "idle_unload_in_s": None,
        "num_starts": 0,
    }


def _speeds(scene: Scene, view: ModelView) -> dict[str, float | None]:
    """Return how fast the model's workers are together, over the last second or two.

    Unknown while it is not loaded, and until a worker has reported for a second.
    """
    pairs = []
    for resident in view.residents:
        if resident.state not in _SERVING:
            continue
        now, before = scene.status(resident), scene.services.supervisor.earlier_status(resident.worker)
        if now is not None and before is not None and now.at_s > before.at_s:
            pairs.append((now, before))
    if not pairs:
        return {"prompt": None, "generated": None}
    prompt = sum(
        (now.counters.prompt_tokens_computed - before.counters.prompt_tokens_computed) / (now.at_s - before.at_s)
        for now, before in pairs
    )
    generated = sum(
        (now.counters.generated_tokens - before.counters.generated_tokens) / (now.at_s - before.at_s)
        for now, before in pairs
    )
    return {"prompt": round(prompt, 1), "generated": round(generated, 1)}


def _idle_unload_in_s(view: ModelView, now_s: float) -> float | None:
    deadlines = [resident.idle_unload_at_s for resident in view.residents if resident.idle_unload_at_s is not None]
    return round(max(0.0, min(deadlines) - now_s), 1) if deadlines else None


# --- slots, devices, queue --------------------------------------------------------------------------------


def view_slots(scene: Scene) -> list[dict[str, Any]]:
    """Return every slot of every loaded model."""
    return [
        entry for resident in scene.residents for entry in slot_entries(resident, scene.status(resident), scene.now_s)
    ]


def view_devices(scene: Scene) -> list[dict[str, Any]]:
    """Return every device, with what each worker has of it."""
    told = [(resident, scene.status(resident)) for resident in scene.residents]
    return [_view_device(device, told) for device in scene.look.fleet.devices]


def _view_device(device: DeviceView, told: Iterable[tuple[ResidentView, WorkerStatus | None]]) -> dict[str, Any]:
    return {
        "id": device.id,
        "kind": device.kind,
        "description": device.description,
        "total_bytes": device.total_bytes,
        "usable_bytes": device.usable_bytes,
        "budget_bytes": device.budget_bytes,
        "headroom_bytes": device.headroom_bytes,
        "reserved_bytes": device.reserved_bytes,
        "used_by_others_bytes": device.used_by_others_bytes,
        "free_bytes": device.free_bytes,
        "workers": [
            _view_share(device.id, resident, status) for resident, status in told if _uses(device.id, resident, status)
        ],
    }


def _uses(device_id: str, resident: ResidentView, status: WorkerStatus | None) -> bool:
    return device_id in resident.placement.reserved or (status is not None and device_id in status.device_bytes)


def _view_share(device_id: str, resident: ResidentView, status: WorkerStatus | None) -> dict[str, Any]:
    """Return what a worker has of a device; null where it has not said so."""
    sizes = {} if status is None else status.device_bytes.get(device_id, {})
    other = status.memory_bytes.get("process") if status is not None and device_id == CPU else None
    return {
        "model": resident.worker.model,
        "replica": resident.worker.replica,
        "weights_bytes": sizes.get("weights"),
        "kv_bytes": sizes.get("kv"),
        "compute_bytes": sizes.get("compute"),
        "other_bytes": other,
        "reserved_bytes": resident.placement.reserved.get(device_id),
    }


def view_queue(scene: Scene, *, with_keys: bool) -> dict[str, Any]:
    """Return the requests that wait, the most urgent first; whose keys they came with is for administrators."""
    models = scene.look.fleet.models
    waiters = [waiter for waiter in scene.services.supervisor.waiters() if scene.shows(waiter.model)]
    return {
        "length": len(waiters),
        "requests": [
            {
                "request_id": waiter.request_id,
                "model": waiter.model,
                "waits_s": round(waiter.waits_s, 1),
                "priority": waiter.priority,
                "key": waiter.key_id if with_keys else None,
                "waiting_for": _told(scene, models[waiter.model].blocked_by) if waiter.model in models else None,
            }
            for waiter in waiters[:MAX_QUEUE]
        ],
    }
