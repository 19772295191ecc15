"""The routes that show how the server is: `/`, `/health`, `/slots`, `/metrics`.

Reads snapshots only: it must never ask a worker, wake one or keep one awake, and must show no text of any request.
"""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING, Any

from aiohttp import hdrs, web

from router.auth import Scope
from router.dialects import Dialect
from router.errors import NoFreeSlot
from router.fleet_views import ModelView, ResidentView
from router.json_reply import json_response
from router.lifecycle import WorkerState
from router.listing import Look
from router.routes import Route
from router.services import SERVICES
from router.shown_states import DOWNLOADING, UNAVAILABLE
from worker.contract import SlotReport, SlotState

if TYPE_CHECKING:
    from router.supervisor import Supervisor

_UNHEALTHY = frozenset({UNAVAILABLE, *(state.value for state in (WorkerState.BACKOFF, WorkerState.FAILED))})
_LEAVING = frozenset({WorkerState.DRAINING.value, WorkerState.STOPPING.value})


async def get_health(request: web.Request) -> web.StreamResponse:
    """Answer 200 if the router (or `?model=`) can take requests, else 503 with the reason."""
    supervisor = request.app[SERVICES].supervisor
    if name := request.query.get("model"):
        return _model_health(supervisor, name)
    fleet = supervisor.snapshot()
    views = fleet.models.values()
    body: dict[str, Any] = {
        "status": "stopping" if fleet.is_shutting_down else "ok",
        "models": len(supervisor.catalog.models),
        "loaded": sum(view.state is WorkerState.READY for view in views),
        "queue_length": sum(view.queue_length for view in views),
        "oldest_wait_s": None,
    }
    if waiting := [(view.oldest_wait_s, view.name) for view in views if view.oldest_wait_s is not None]:
        wait_s, name = max(waiting)
        body["oldest_wait_s"] = round(wait_s, 1)
        body["oldest_wait"] = {"model": name, "waiting_for": fleet.models[name].blocked_by}
    if hung := supervisor.hung():
        body["hung"] = [
            {"model": worker.model, "replica": worker.replica, "reason": why} for worker, why in sorted(hung.items())
        ]
    if (refused := request.app[SERVICES].reloader.refused) is not None:
        body["configuration"] = {"status": "invalid", "error": refused.summary, "since": round(refused.since_s)}
    return json_response(body, status=503 if fleet.is_shutting_down else 200)


async def get_slots(request: web.Request) -> web.StreamResponse:
    """Answer with one entry for each slot of every loaded model (or of `?model=`), as last reported."""
    supervisor = request.app[SERVICES].supervisor
    name = request.query.get("model")
    wanted = supervisor.catalog.resolve(name).spec.name if name else None
    now_s = time.monotonic()
    entries = []
    for model, view in supervisor.snapshot().models.items():
        if wanted in (None, model):
            for resident in view.residents:
                entries += _slot_entries(supervisor, resident, now_s)
    if request.query.get("fail_on_no_slot") and entries and all(entry["is_processing"] for entry in entries):
        what = f"`{wanted}`" if wanted else "all models that are loaded"
        raise NoFreeSlot(f"no slot of {what} is free; requests wait in line until one is")
    return json_response(entries)


async def get_metrics(request: web.Request) -> web.StreamResponse:
    """Answer with all metrics of the router and its workers in Prometheus' text format."""
    body, content_type = request.app[SERVICES].metrics.render(request.headers.get(hdrs.ACCEPT))
    return web.Response(body=body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})


ROUTES = (
    Route("GET", "/health", get_health, scopes=()),
    Route("GET", "/slots", get_slots, scopes=(Scope.INFERENCE, Scope.METRICS), dialect=Dialect.LLAMA),
    Route("GET", "/metrics", get_metrics, scopes=(Scope.METRICS,)),
)


def _model_health(supervisor: Supervisor, name: str) -> web.Response:
    spec = supervisor.catalog.resolve(name).spec
    look = Look.at(supervisor)
    view = look.fleet.models.get(spec.name)
    state = look.state(spec)
    reason = look.reason(spec) or _hung_reason(supervisor, view)
    is_healthy = reason is None and state not in _UNHEALTHY and state not in _LEAVING
    body: dict[str, Any] = {"status": "ok" if is_healthy else "unavailable", "model": spec.name, "state": state}
    if reason is not None:
        body["reason"] = reason
    if (progress := look.progress(spec)) is not None:
        body["progress"] = progress
    if (awaited := _own_progress(look, view) or (view.blocked_by if view is not None else None)) is not None:
        body["waiting_for"] = awaited
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


def _slot_entries(supervisor: Supervisor, resident: ResidentView, now_s: float) -> list[dict[str, Any]]:
    status = supervisor.status(resident.worker)
    if status is None:
        return []
    context = status.facts.context if status.facts is not None else None
    return [_slot_entry(resident, slot, context, now_s) for slot in status.slots]


def _task_number(slot: SlotReport) -> int:
    """Return a number that tells one request from the next, which is what llama-server's dashboards look at."""
    return zlib.crc32((slot.request_id or "").encode()) >> 1


def _slot_entry(resident: ResidentView, slot: SlotReport, context: int | None, now_s: float) -> dict[str, Any]:
    is_processing = slot.state is not SlotState.IDLE
    speed = None
    if is_processing and slot.first_token_at_s is not None and now_s > slot.first_token_at_s:
        speed = round((slot.generated - 1) / (now_s - slot.first_token_at_s), 2)
    return {
        "model": resident.worker.model,
        "replica": resident.worker.replica,
        "id": slot.id,
        "id_task": _task_number(slot) if is_processing else -1,
        "state": slot.state.value,
        "is_processing": is_processing,
        "request_id": slot.request_id,
        "n_ctx": context,
        "prompt_total": slot.prompt_total,
        "prompt_processed": slot.prompt_processed,
        "prompt_cached": slot.prompt_cached,
        "generated": slot.generated,
        "tokens_per_second": speed,
        "cached_tokens": slot.cached_tokens,
        "age_s": round(now_s - slot.started_at_s, 3) if is_processing and slot.started_at_s is not None else None,
    }
