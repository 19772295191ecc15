"""The routes that change what is loaded: `POST /models/load` and `/models/unload`.

Each only tells the supervisor what is wanted and answers at once; what follows outlives the client that asked.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from router.auth import Scope
from router.body import check_media_type, parse_body, read_body
from router.catalog import ModelSpec
from router.errors import BadRequest
from router.json_reply import json_response
from router.listing import state_of
from router.routes import Route
from router.services import SERVICES, Services

_MAX_BODY_BYTES = 64 * 1024


async def post_load(request: web.Request) -> web.StreamResponse:
    """Start the model if it is not loaded, and forget why it failed before. `GET /models` tells how far it is."""
    return await _order(request, lambda services, spec: services.supervisor.load(spec.name))


async def post_unload(request: web.Request) -> web.StreamResponse:
    """Give the model no new requests, let the running ones end, then stop it."""
    return await _order(request, lambda services, spec: services.supervisor.unload(spec.name))


ROUTES = (
    Route("POST", "/models/load", post_load, scopes=(Scope.ADMIN,)),
    Route("POST", "/models/unload", post_unload, scopes=(Scope.ADMIN,)),
)


async def _order(request: web.Request, give: Callable[[Services, ModelSpec], None]) -> web.StreamResponse:
    services = request.app[SERVICES]
    spec = await _named_model(request, services)
    give(services, spec)
    supervisor = services.supervisor
    state = state_of(supervisor, spec, supervisor.snapshot().models.get(spec.name))
    return json_response({"success": True, "model": spec.name, "state": state})


async def _named_model(request: web.Request, services: Services) -> ModelSpec:
    """Return the model that the body names. Raises: BadRequest, ModelNotFound."""
    check_media_type(request)
    with services.body_memory.share() as share:
        fields = (await parse_body(await read_body(request, _MAX_BODY_BYTES, share))).fields
    if unknown := sorted(fields.keys() - {"model"}):
        raise BadRequest(f'`{unknown[0]}` is not an option here; the body is {{"model": NAME}}', param=unknown[0])
    name = fields.get("model")
    if not isinstance(name, str) or not name:
        raise BadRequest('`model` must name a model or an alias: {"model": NAME}', param="model")
    return services.supervisor.catalog.resolve(name).spec
