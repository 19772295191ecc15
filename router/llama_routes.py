"""llama-server's routes that the router answers itself: properties and LoRA adapters.

Reads snapshots and files only: it must never ask a worker or wake one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from aiohttp import web

from router.auth import Scope
from router.body import check_media_type, read_body
from router.candidates import ANY, find_candidate, find_unnamed
from router.catalog import MAX_LORA_SCALE, LoraSpec, ModelSpec, Resolution
from router.dialects import Dialect
from router.errors import BadRequest, NotAvailableYet
from router.gguf_header import GgufError, GgufHeader, GgufTexts, read_gguf_texts
from router.json_reply import json_response
from router.listing import Look, usable_context
from router.llama_props import model_props, router_props
from router.routes import Route
from router.seen import usable_models
from router.services import SERVICES, Services

_MAX_BODY_BYTES = 64 * 1024


async def get_props(request: web.Request) -> web.StreamResponse:
    """Answer with a model's properties, without a name those of the one that is meant; the router's if none is."""
    services = request.app[SERVICES]
    supervisor = services.supervisor
    said = request.query.get("model")
    usable = usable_models(services)
    name = said or find_unnamed(supervisor, usable)
    resolution = None if name is None else usable.resolve(name)
    if resolution is None or (not said and resolution.spec.remote is not None):
        return json_response(router_props(supervisor.catalog.limits.max_loaded))
    spec = _local(resolution.spec)
    look = Look.at(supervisor)
    statuses = look.statuses(look.fleet.models.get(spec.name))
    facts = next((status.facts for _, status in statuses if status.facts is not None), None)
    header = supervisor.header_of(spec)
    props = model_props(
        resolution,
        header=header,
        texts=await _texts(header),
        context=supervisor.context_of(spec) if facts is None else usable_context(facts),
        num_slots=spec.slots if facts is None else facts.slots,
        is_loaded=facts is not None,
    )
    return json_response(props)


async def post_props(request: web.Request) -> web.StreamResponse:
    """Refuse: properties are configured."""
    raise NotAvailableYet(
        "properties cannot be changed while the server runs by this route: write them into models.yaml, whose edits "
        "are picked up within two seconds"
    )


async def get_loras(request: web.Request) -> web.StreamResponse:
    """Answer with the model's adapters and the scales that its requests get unless they say otherwise."""
    services = request.app[SERVICES]
    spec = _local(_candidate(request, services).spec)
    scales = services.lora_scales.of(spec)
    return json_response(
        [
            {"id": id_, "name": lora.name, "path": _file_name(lora.source), "scale": scales.get(lora.name, 0.0)}
            for id_, lora in enumerate(spec.loras)
        ]
    )


async def post_loras(request: web.Request) -> web.StreamResponse:
    """Set these scales for requests to come; adapters that are not named get 0. Kept until the router stops."""
    services = request.app[SERVICES]
    check_media_type(request)
    with services.body_memory.share() as share:
        raw = await read_body(request, _MAX_BODY_BYTES, share)
    entries = _read_list(raw)
    spec = _local(_candidate(request, services).spec)
    scales: dict[str, float] = {}
    for number, entry in enumerate(entries):
        lora, scale = _read_entry(spec, number, entry)
        if lora.name in scales:
            raise BadRequest(f"the adapter `{lora.name}` is named twice", param=f"[{number}].id")
        scales[lora.name] = scale
    services.lora_scales.set(spec.name, scales)
    return json_response({"success": True})


ROUTES = (
    Route("GET", "/props", get_props, dialect=Dialect.LLAMA),
    Route("POST", "/props", post_props, scopes=(Scope.ADMIN,), is_shown=False, dialect=Dialect.LLAMA),
    Route("GET", "/lora-adapters", get_loras, dialect=Dialect.LLAMA),
    Route("POST", "/lora-adapters", post_loras, scopes=(Scope.ADMIN,), dialect=Dialect.LLAMA),
)


def _candidate(request: web.Request, services: Services) -> Resolution:
    return find_candidate(services.supervisor, usable_models(services), request.query.get("model"), ANY)


def _local(spec: ModelSpec) -> ModelSpec:
    """Return `spec` if it runs here. Raises: BadRequest."""
    if spec.remote is not None:
        raise BadRequest(f"`{spec.name}` is answered by another server (`url`): ask that one", param="model")
    return spec


async def _texts(header: GgufHeader | None) -> GgufTexts | None:
    if header is None:
        return None
    try:
        return await asyncio.to_thread(read_gguf_texts, header)
    except GgufError:  # the file has gone or changed since; a load will tell
        return None


def _file_name(source: str) -> str:
    return source.rstrip("/").rpartition("/")[2]


def _read_list(raw: bytes) -> list[Any]:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the request body is not valid JSON: {error.msg}") from None
    if not isinstance(value, list):
        raise BadRequest('the request body must be a list such as [{"id": 0, "scale": 0.5}]')
    return value


def _read_entry(spec: ModelSpec, number: int, entry: Any) -> tuple[LoraSpec, float]:
    """Return the adapter and the scale that one entry of the list sets. Raises: BadRequest."""
    if not isinstance(entry, dict):
        raise BadRequest(f'entry {number} of the list must be an object such as {{"id": 0, "scale": 0.5}}')
    id_, scale = entry.get("id"), entry.get("scale")
    if isinstance(id_, bool) or not isinstance(id_, int) or not 0 <= id_ < len(spec.loras):
        names = ", ".join(f"{index}: {lora.name}" for index, lora in enumerate(spec.loras)) or "none"
        raise BadRequest(
            f"'id' of entry {number} must be one of an adapter of `{spec.name}` ({names})", param=f"[{number}].id"
        )
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not abs(scale) <= MAX_LORA_SCALE:  # nor NaN
        raise BadRequest(
            f"'scale' of entry {number} must be a number from -{MAX_LORA_SCALE} to {MAX_LORA_SCALE}",
            param=f"[{number}].scale",
        )
    return spec.loras[id_], float(scale)
