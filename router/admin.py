"""The routes that change what is loaded and what is served.

`POST /models/load`, `/models/unload` and `/admin/pin` only tell the supervisor what is wanted and answer at once;
`POST /admin/reload` answers with its verdict. What follows outlives the client that asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from aiohttp import web

from router.auth import Scope
from router.body import check_media_type, parse_body, read_body
from router.catalog import ModelSpec
from router.catalog_problems import CatalogError, first_problems
from router.dialects import Dialect
from router.errors import BadRequest, ModelTooLarge, ShuttingDown
from router.json_reply import json_response
from router.listing import state_of
from router.routes import Route
from router.services import SERVICES, Services
from router.status_views import pin_source

_MAX_BODY_BYTES = 64 * 1024
_UNSAID = object()


async def post_load(request: web.Request) -> web.StreamResponse:
    """Start the model if it is not loaded, and forget why it failed before. `GET /models` tells how far it is."""
    return await _order(request, _load)


async def post_unload(request: web.Request) -> web.StreamResponse:
    """Give the model no new requests, let the running ones end, then stop it."""
    return await _order(request, lambda services, spec: services.supervisor.unload(spec.name))


async def post_reload(request: web.Request) -> web.StreamResponse:
    """Read the configuration again; answer with what has changed, or 422 with all that is wrong if nothing has."""
    services = request.app[SERVICES]
    if request.can_read_body and (unknown := sorted(await read_fields(request, services))):
        raise BadRequest(f"`{unknown[0]}` is not an option here; send no body", param=unknown[0])
    reloader = services.reloader
    try:
        diff = await reloader.reload("POST /admin/reload")
    except CatalogError as error:
        return broken_catalog(error)
    return json_response({"success": True, "models": len(services.supervisor.catalog.models)} | diff.to_json())


async def post_pin(request: web.Request) -> web.StreamResponse:
    """Pin the model or not until the server stops; null = as its configuration says. Nothing is loaded for it."""
    services = request.app[SERVICES]
    fields = await read_fields(request, services)
    spec = _here(_named_model(services, fields, ("pin",)), "pinned")
    pin = fields.get("pin", _UNSAID)
    if pin is not None and not isinstance(pin, bool):
        raise BadRequest(
            '`pin` must be true, false, or null for what the configuration says: {"model": NAME, "pin": true}',
            param="pin",
        )
    _refuse_at_end(services, "nothing is pinned")
    services.supervisor.pin(spec.name, pin)
    view = services.supervisor.snapshot().models[spec.name]
    return json_response(
        {"success": True, "model": spec.name, "is_pinned": view.is_pinned, "pin_source": pin_source(view)}
    )


ROUTES = (
    Route("POST", "/admin/pin", post_pin, scopes=(Scope.ADMIN,)),
    Route("POST", "/admin/reload", post_reload, scopes=(Scope.ADMIN,)),
    Route("POST", "/models/load", post_load, scopes=(Scope.ADMIN,), dialect=Dialect.LLAMA),
    Route("POST", "/models/unload", post_unload, scopes=(Scope.ADMIN,), dialect=Dialect.LLAMA),
)


def _load(services: Services, spec: ModelSpec) -> None:
    _refuse_at_end(services, "no model is loaded")
    view = services.supervisor.snapshot().models.get(spec.name)
    if view is not None and view.impossible is not None and not view.residents:
        raise ModelTooLarge(view.impossible)
    services.supervisor.load(spec.name)


def _refuse_at_end(services: Services, what: str) -> None:
    """Raises: ShuttingDown when the server is stopping, and an order would come to nothing."""
    if services.supervisor.snapshot().is_shutting_down:
        raise ShuttingDown(f"the server is stopping: {what} any more")


async def _order(request: web.Request, give: Callable[[Services, ModelSpec], None]) -> web.StreamResponse:
    services = request.app[SERVICES]
    spec = _here(_named_model(services, await read_fields(request, services)), "loaded or unloaded")
    give(services, spec)
    supervisor = services.supervisor
    state = state_of(supervisor, spec, supervisor.snapshot().models.get(spec.name))
    return json_response({"success": True, "model": spec.name, "state": state})


def broken_catalog(error: CatalogError) -> web.Response:
    """Return every problem, and all of them once more as the message that clients show."""
    problems = [one.to_json() for one in first_problems(error.problems)]
    message = f"nothing has changed: {error.summary}"
    shown = {"message": message, "type": "invalid_request_error", "param": None, "code": error.code}
    return json_response({"success": False, "error": shown, "errors": problems}, status=422)


async def read_fields(
    request: web.Request, services: Services, *, max_bytes: int = _MAX_BODY_BYTES
) -> Mapping[str, Any]:
    """Return what the body says. Raises: BadRequest."""
    check_media_type(request)
    with services.body_memory.share() as share:
        return (await parse_body(await read_body(request, max_bytes, share))).fields


def _here(spec: ModelSpec, what: str) -> ModelSpec:
    """Return `spec` if the model runs here. Raises: BadRequest."""
    if spec.remote is not None:
        raise BadRequest(f"`{spec.name}` is answered by another server (`url`): nothing is {what} here", param="model")
    return spec


def _named_model(services: Services, fields: Mapping[str, Any], others: Collection[str] = ()) -> ModelSpec:
    """Return the model that the body names. Raises: BadRequest, ModelNotFound."""
    if unknown := sorted(fields.keys() - {"model", *others}):
        more = "".join(f', "{name}": …' for name in others)
        raise BadRequest(
            f'`{unknown[0][:80]}` is not an option here; the body is {{"model": NAME{more}}}', param=unknown[0][:80]
        )
    name = fields.get("model")
    if not isinstance(name, str) or not name:
        raise BadRequest('`model` must name a model or an alias: {"model": NAME}', param="model")
    return services.supervisor.catalog.resolve(name).spec
