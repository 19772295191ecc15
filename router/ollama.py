"""Ollama's routes: those that run models, and those that show them, as `ollama` and its front ends call them.

Owns what is answered without a worker: lists, details, and requests that want a model loaded or unloaded and nothing
else. What shows something must never wake a worker.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from router.api import run_model, running
from router.body import check_media_type, parse_body, read_body
from router.catalog import ModelSpec
from router.catalog_view import CatalogView
from router.dialects import Dialect
from router.errors import BadRequest
from router.gguf_header import GgufError, GgufHeader, read_gguf_texts
from router.json_reply import json_response
from router.lifecycle import WorkerState
from router.listing import Look
from router.name_patterns import WILDCARD
from router.ollama_names import find_tagged, tagged
from router.ollama_shapes import Loaded, load_line, running_entry, show, tag_entry
from router.relay import Call
from router.routes import Route, Streaming
from router.seen import usable_models
from router.services import SERVICES, Exchange, Services

SPOKEN_VERSION = "0.12.11"
"""The release of Ollama whose API this is: clients compare it with what they need."""
_MAX_BODY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class LoadOnly:
    """Answers requests of one route that have nothing to answer: they want the model loaded, or with 0 unloaded."""

    field: str
    """What they leave empty."""
    others: tuple[str, ...]
    """What they leave empty as well."""
    said: Mapping[str, Any]
    """The empty answer."""

    def is_due(self, fields: Mapping[str, Any]) -> bool:
        """Return whether the body asks for nothing else."""
        return fields.get(self.field) in (None, "", []) and not any(fields.get(other) for other in self.others)

    async def answer(self, call: Call, services: Services, exchange: Exchange) -> web.StreamResponse:
        """Return the response once the model is loaded, or told to go. Raises: RouterError."""
        spec, account, supervisor = call.spec, exchange.account, services.supervisor
        if call.keep_alive_s == 0:
            supervisor.keep_alive(spec.name, 0.0)
            reason = "unload"
        else:
            async with supervisor.lease(
                spec,
                priority=call.priority,
                key_id=call.key_id,
                keep_alive_s=call.keep_alive_s,
                weight=call.weight,
                num_tokens=lambda: 0,
            ) as lease:
                account.queue_s += lease.queue_s
                account.load_s += lease.load_s
            reason = "load"
        response = json_response(load_line(self.said, account.asked or spec.name, time.time(), reason))
        response.headers.update(exchange.reply.headers)
        return response


_GENERATE = LoadOnly("prompt", ("suffix", "images", "messages", "input"), {"response": ""})
_CHAT = LoadOnly("messages", ("prompt", "input", "suffix"), {"message": {"role": "assistant", "content": ""}})


async def post_generate(request: web.Request) -> web.StreamResponse:
    """Answer with the worker's reply to a prompt; without one the model is only loaded."""
    return await run_model(request, _GENERATE)


async def post_chat(request: web.Request) -> web.StreamResponse:
    """Answer with the worker's reply to messages; without any the model is only loaded."""
    return await run_model(request, _CHAT)


async def get_tags(request: web.Request) -> web.StreamResponse:
    """Answer with every model and listed alias that runs here, whether its file has been fetched or not."""
    services = request.app[SERVICES]
    usable = usable_models(services)
    entries = []
    for spec in usable.models.values():
        if spec.remote is None:
            entries += _tags_under(usable, spec, _tags_of(spec, services))
    return json_response({"models": entries})


async def post_show(request: web.Request) -> web.StreamResponse:
    """Answer with what is known of one model. Raises: BadRequest, ModelNotFound."""
    services = request.app[SERVICES]
    supervisor = services.supervisor
    fields = await read_fields(request, services)
    resolution = find_tagged(usable_models(services), named_in(fields))
    spec = resolution.spec
    if spec.remote is not None:
        raise BadRequest(f"`{spec.name}` is answered by another server (`url`): its file is not here", param="model")
    header = supervisor.header_of(spec)
    template = await _template(spec, header)
    context = supervisor.context_of(spec)
    shown = show(resolution, header, template=template, context=context, modified_s=services.started_at)
    return json_response(shown)


async def get_running(request: web.Request) -> web.StreamResponse:
    """Answer with every model that is loaded, and when idleness will unload it."""
    services = request.app[SERVICES]
    supervisor = services.supervisor
    look, now_s, unix_s = Look.at(supervisor), time.monotonic(), time.time()
    entries = []
    for spec in usable_models(services).models.values():
        view = look.fleet.models.get(spec.name)
        residents = () if view is None else view.residents
        ready = [one for one in residents if one.state in (WorkerState.READY, WorkerState.DRAINING)]
        if ready:
            loaded = [Loaded(one, supervisor.status(one.worker)) for one in ready]
            header = supervisor.header_of(spec)
            entries.append(running_entry(spec.name, spec, header, loaded, now_s=now_s, unix_s=unix_s))
    return json_response({"models": entries})


async def get_version(request: web.Request) -> web.StreamResponse:
    """Answer with the release of Ollama whose API this is, and with our own."""
    return json_response({"version": SPOKEN_VERSION, "corral": importlib.metadata.version("llama-corral")})


async def read_fields(request: web.Request, services: Services) -> Mapping[str, Any]:
    """Return the short body of a request that runs no model. Raises: BadRequest."""
    check_media_type(request)
    with services.body_memory.share() as share:
        return (await parse_body(await read_body(request, _MAX_BODY_BYTES, share))).fields


def named_in(fields: Mapping[str, Any]) -> str:
    """Return the model that the body names, by the old field too. Raises: BadRequest."""
    name = fields.get("model") or fields.get("name")
    if not isinstance(name, str):
        raise BadRequest("'model' must name a model: {\"model\": NAME}", param="model")
    return name


ROUTES = (
    *running("/api/generate", handler=post_generate, dialect=Dialect.OLLAMA, streaming=Streaming.BY_DEFAULT),
    *running("/api/chat", handler=post_chat, dialect=Dialect.OLLAMA, streaming=Streaming.BY_DEFAULT),
    *running("/api/embed", dialect=Dialect.OLLAMA, streaming=Streaming.NEVER, takes_loras=False),
    *running("/api/embeddings", dialect=Dialect.OLLAMA, streaming=Streaming.NEVER, takes_loras=False),
    Route("GET", "/api/tags", get_tags, dialect=Dialect.OLLAMA),
    Route("POST", "/api/show", post_show, dialect=Dialect.OLLAMA),
    Route("GET", "/api/ps", get_running, dialect=Dialect.OLLAMA),
    Route("GET", "/api/version", get_version, scopes=(), dialect=Dialect.OLLAMA),
)


def _tags_of(spec: ModelSpec, services: Services) -> list[dict[str, Any]]:
    """Return the entries of a model and of its listed aliases: those of the last time, if nothing has changed."""
    header = services.supervisor.header_of(spec)
    kept = services.kept_tags.get(spec.name)
    if kept is not None and kept[0] is spec and kept[1] is header:
        entries: list[dict[str, Any]] = kept[2]
        return entries
    entries = [tag_entry(name, spec, header, services.started_at) for name in _names(spec)]
    services.kept_tags[spec.name] = spec, header, entries
    return entries


def _tags_under(usable: CatalogView, spec: ModelSpec, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of those of the model's names that may be used."""
    if usable.opens(spec):
        return entries
    names = {tagged(alias.name) for alias in usable.aliases_of(spec)}
    return [entry for entry in entries if entry["name"] in names]


def _names(spec: ModelSpec) -> list[str]:
    return [spec.name, *(alias.name for alias in spec.aliases.values() if alias.listed and WILDCARD not in alias.name)]


async def _template(spec: ModelSpec, header: GgufHeader | None) -> str | None:
    """Return the chat template; None where there is none, or the file has gone."""
    if spec.chat_template is not None or header is None:
        return spec.chat_template
    try:
        return (await asyncio.to_thread(read_gguf_texts, header)).chat_template
    except GgufError:
        return None
