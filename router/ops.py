"""The routes that show how the server is: `/`, `/health`, `/slots`, `/metrics`.

Reads snapshots only: it must never ask a worker, wake one or keep one awake, and must show no text of any request.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from aiohttp import hdrs, web

from router.auth import Scope
from router.catalog_view import CatalogView
from router.dialects import Dialect
from router.errors import ModelNotFound, NoFreeSlot
from router.fleet_views import ModelView
from router.json_reply import json_response
from router.lifecycle import WorkerState
from router.listing import Look
from router.metrics.page import JSON
from router.routes import Route
from router.seen import visible_models
from router.services import SERVICES
from router.shown_states import DOWNLOADING, UNAVAILABLE
from router.slot_views import slot_entries

if TYPE_CHECKING:
    from router.supervisor import Supervisor

_UNHEALTHY = frozenset({UNAVAILABLE, *(state.value for state in (WorkerState.BACKOFF, WorkerState.FAILED))})
_LEAVING = frozenset({WorkerState.DRAINING.value, WorkerState.STOPPING.value})


async def get_health(request: web.Request) -> web.StreamResponse:
    """Answer 200 if the router (or `?model=`) can take requests, else 503 with the reason."""
    services = request.app[SERVICES]
    supervisor, is_open = services.supervisor, services.keys.is_empty  # with keys, strangers may ask this too
    if name := request.query.get("model"):
        return _model_health(supervisor, name, tells_names=is_open)
    fleet = supervisor.snapshot()
    views = fleet.models.values()
    body: dict[str, Any] = {
        "status": "draining" if fleet.is_shutting_down else "ok",
        "models": len(supervisor.catalog.models),
        "loaded": sum(view.state is WorkerState.READY for view in views),
        "queue_length": sum(view.queue_length for view in views),
        "oldest_wait_s": None,
    }
    if waiting := [(view.oldest_wait_s, view.name) for view in views if view.oldest_wait_s is not None]:
        wait_s, name = max(waiting)
        body["oldest_wait_s"] = round(wait_s, 1)
        if is_open:
            body["oldest_wait"] = {"model": name, "waiting_for": fleet.models[name].blocked_by}
    if hung := supervisor.hung():
        body["hung"] = [
            ({"model": worker.model, "replica": worker.replica} if is_open else {}) | {"reason": why}
            for worker, why in sorted(hung.items())
        ]
    if (refused := services.reloader.refused) is not None:
        error = refused.summary if is_open else refused.place
        body["configuration"] = {"status": "invalid", "error": error, "since": round(refused.since_s)}
    return json_response(body, status=503 if fleet.is_shutting_down else 200)


async def get_slots(request: web.Request) -> web.StreamResponse:
    """Answer with one entry for each slot of every loaded model (or of `?model=`), as last reported."""
    services = request.app[SERVICES]
    supervisor, visible = services.supervisor, visible_models(services)
    name = request.query.get("model")
    wanted = visible.resolve(name).spec.name if name else None
    now_s = time.monotonic()
    entries = []
    for model, view in supervisor.snapshot().models.items():
        if wanted in (None, model) and (visible.is_whole or model in visible.models):
            for resident in view.residents:
                entries += slot_entries(resident, supervisor.status(resident.worker), now_s)
    if request.query.get("fail_on_no_slot") and entries and all(entry["is_processing"] for entry in entries):
        what = f"`{wanted}`" if wanted else "all models that are loaded"
        raise NoFreeSlot(f"no slot of {what} is free; requests wait in line until one is")
    return json_response(entries)


async def get_metrics(request: web.Request) -> web.StreamResponse:
    """Answer with all metrics of the router and its workers in Prometheus' text format."""
    body, content_type = request.app[SERVICES].metrics.render(request.headers.get(hdrs.ACCEPT))
    return web.Response(body=body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})


async def get_metrics_json(request: web.Request) -> web.StreamResponse:
    """Answer with the same metrics as a JSON list of families."""
    body = request.app[SERVICES].metrics.render_json()
    return web.Response(body=body, content_type=JSON, headers={"Cache-Control": "no-store"})


ROUTES = (
    Route("GET", "/health", get_health, scopes=()),
    Route("GET", "/slots", get_slots, scopes=(Scope.INFERENCE, Scope.METRICS), dialect=Dialect.LLAMA),
    Route("GET", "/metrics", get_metrics, scopes=(Scope.METRICS,)),
    Route("GET", "/metrics.json", get_metrics_json, scopes=(Scope.METRICS,)),
)


def _model_health(supervisor: Supervisor, name: str, *, tells_names: bool) -> web.Response:
    found = supervisor.catalog.find(name)
    if found is None and not tells_names:
        raise ModelNotFound(f"there is no model named {name[:80]!r}", param="model")
    spec = supervisor.catalog.resolve(name).spec
    told = CatalogView(supervisor.catalog, () if tells_names else (spec.name,), tells_folders=tells_names)
    look = Look.at(supervisor)
    view = look.fleet.models.get(spec.name)
    state = look.state(spec)
    reason = look.reason(spec) or _hung_reason(supervisor, view)
    is_healthy = reason is None and state not in _UNHEALTHY and state not in _LEAVING
    body: dict[str, Any] = {"status": "ok" if is_healthy else "unavailable", "model": spec.name, "state": state}
    if reason is not None:
        body["reason"] = told.without_strangers(reason)
    if (progress := look.progress(spec)) is not None:
        body["progress"] = progress
    if (awaited := _own_progress(look, view) or (view.blocked_by if view is not None else None)) is not None:
        body["waiting_for"] = told.without_strangers(awaited)
    return json_response(body, status=200 if is_healthy else 503)


def _own_progress(look: Look, view: ModelView | None) -> str | None:
    """Return how far the model's own download or load is, in words; None when neither runs."""
    if view is None:
        return None
    if (fetched := look.fetches.get(view.name)) is not None:
        return f"its download: {fetched.text.removeprefix(DOWNLOADING).lstrip(', ')}"
    loading = [resident for resident in view.residents if resident.state is WorkerState.LOADING]
    if not loading:
        return None
    status = look.supervisor.status(loading[0].worker)
    return "its load" if status is None or status.progress is None else f"its load: {status.progress:.0%}"


def _hung_reason(supervisor: Supervisor, view: ModelView | None) -> str | None:
    """Return why the model's ready workers hang; None if one of them does not, or there is none."""
    hung = supervisor.hung()
    if view is None or not hung:
        return None
    ready = [resident.worker for resident in view.residents if resident.state is WorkerState.READY]
    reasons = [hung.get(worker) for worker in ready]
    return reasons[0] if reasons and all(reasons) else None
