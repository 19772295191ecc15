"""`GET /status`: everything that is told of the server at once; `GET /requests`: the last requests that have ended.

Reads snapshots only: it must never ask a worker, wake one or keep one awake, and shows no text of any request.
"""

from __future__ import annotations

from itertools import islice

from aiohttp import web

from router.account import Outcome
from router.auth import Scope
from router.errors import BadRequest
from router.json_reply import json_response
from router.recent_requests import MAX_KEPT, shown
from router.routes import Route
from router.services import SERVICES, current_exchange
from router.status_views import Scene, view_devices, view_models, view_queue, view_server, view_slots

_DEFAULT_LIMIT = 100


async def get_status(request: web.Request) -> web.StreamResponse:
    """Answer with the server, its models, devices, slots and queue as they are now."""
    grant = current_exchange().grant
    scene = Scene.of(request.app[SERVICES], grant.visible, tells_folders=grant.tells_folders)
    is_admin = Scope.ADMIN in grant.scopes
    return json_response(
        {
            "server": view_server(scene, in_full=is_admin),
            "models": view_models(scene),
            "devices": view_devices(scene),
            "slots": view_slots(scene),
            "queue": view_queue(scene, with_keys=is_admin),
        }
    )


async def get_requests(request: web.Request) -> web.StreamResponse:
    """Answer with the last requests that have ended, the newest first, maybe only those of `?model=` or `?outcome=`."""
    services, query = request.app[SERVICES], request.query
    limit, name, wanted = _limit(query.get("limit")), query.get("model"), query.get("outcome")
    model = services.supervisor.catalog.resolve(name).spec.name if name else None
    outcomes = [outcome.value for outcome in Outcome]
    if wanted and wanted not in outcomes:
        raise BadRequest(f"`{wanted[:80]}` is no outcome; there are {', '.join(outcomes)}", param="outcome")
    with_key = Scope.ADMIN in current_exchange().grant.scopes
    found = services.recent.find(model=model, outcome=Outcome(wanted) if wanted else None)
    return json_response([dict(shown(record, with_key=with_key)) for record in islice(found, limit)])


ROUTES = (
    Route("GET", "/status", get_status, scopes=(Scope.INFERENCE, Scope.METRICS)),
    Route("GET", "/requests", get_requests, scopes=(Scope.METRICS,)),
)


def _limit(text: str | None) -> int:
    if not text:
        return _DEFAULT_LIMIT
    if text.isascii() and text.isdigit() and 1 <= int(text[:5]) <= MAX_KEPT and len(text) <= 5:
        return int(text)
    raise BadRequest(f"`limit` must be a whole number from 1 to {MAX_KEPT}", param="limit")
