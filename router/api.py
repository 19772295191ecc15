"""The routes that run models, in every dialect but Ollama's, and those that list them.

Owns reading a request far enough to hand it to `Relay`. Must not judge fields that belong to the worker.
"""

from __future__ import annotations

import asyncio
import functools
import json
import secrets
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from aiohttp import web

from router.anthropic_models import model_info, model_page
from router.auth import Grant, Scope
from router.body import (
    SCAN_INLINE_BYTES,
    BodyShare,
    OwnedKeys,
    check_media_type,
    dump_body,
    owned_keys,
    parse_body,
    read_body,
)
from router.candidates import ANY, find_candidate
from router.catalog import ModelSpec, Resolution
from router.conversations import Kept
from router.dialects import Dialect
from router.errors import BadRequest, Forbidden
from router.json_reply import json_response
from router.listing import find_model, list_models, list_statuses
from router.ollama_names import find_tagged
from router.ollama_rules import apply_rules
from router.prefixes import continued, prefix_hashes
from router.relay import Call, Relay
from router.remote import RemoteRelay
from router.remotes import remote_fields, remote_headers
from router.responses import find_previous, keep_response
from router.routes import Route
from router.services import SERVICES, Exchange, Services, current_exchange
from worker.contract import Header


class Shortcut(Protocol):
    """What answers some requests of a route instead of a worker."""

    def is_due(self, fields: Mapping[str, Any]) -> bool:
        """Return whether a request with this body is one of them."""
        ...

    async def answer(self, call: Call, services: Services, exchange: Exchange) -> web.StreamResponse:
        """Return the response, complete. Raises: RouterError, ClientGone."""
        ...


async def run_model(request: web.Request, shortcut: Shortcut | None = None) -> web.StreamResponse:
    """Answer with what a worker says to the request. Raises: RouterError, ClientGone."""
    services, exchange = request.app[SERVICES], current_exchange()
    check_media_type(request)
    with services.body_memory.share() as share:
        call = await _read_call(request, services, exchange, share, shortcut)
        if shortcut is not None and call.takes_shortcut:
            return await shortcut.answer(call, services, exchange)
        if call.spec.remote is not None:
            return await RemoteRelay(
                call,
                call.spec.remote,
                exchange.reply,
                account=exchange.account,
                remotes=services.remotes,
                metrics=services.metrics,
                settings=services.settings,
                body_share=share,
            ).run()
        relay = Relay(
            call,
            exchange.reply,
            account=exchange.account,
            supervisor=services.supervisor,
            settings=services.settings,
            body_share=share,
        )
        return await relay.run()


async def get_models(request: web.Request) -> web.StreamResponse:
    """Answer with every model and every listed alias, whether loaded or not."""
    services = request.app[SERVICES]
    models = list_models(services.supervisor, services.started_at, services.kept_entries)
    if current_exchange().dialect is Dialect.ANTHROPIC:
        return json_response(model_page(models, request.query))
    return json_response({"object": "list", "data": models})


async def get_model(request: web.Request) -> web.StreamResponse:
    """Answer with one model or alias, hidden ones included. Raises: ModelNotFound."""
    services = request.app[SERVICES]
    model = find_model(services.supervisor, services.started_at, request.match_info["id"])
    return json_response(model_info(model) if current_exchange().dialect is Dialect.ANTHROPIC else model)


async def get_model_statuses(request: web.Request) -> web.StreamResponse:
    """Answer with the models in the form of llama-server's router."""
    services = request.app[SERVICES]
    return json_response({"object": "list", "data": list_statuses(services.supervisor, services.started_at)})


def _forms(path: str, **more: Any) -> tuple[Route, Route]:
    """Return the route with and without `/v1`."""
    short = path.removeprefix("/v1")
    return (
        Route("POST", path, run_model, is_counted=True, **more),
        Route("POST", short, run_model, is_counted=True, is_shown=False, same_as=path, **more),
    )


def _native(path: str, *, same_as: str | None = None, **more: Any) -> Route:
    """Return a route of llama-server's own."""
    is_shown = same_as is None
    return Route(
        "POST", path, run_model, is_counted=True, is_shown=is_shown, same_as=same_as, dialect=Dialect.LLAMA, **more
    )


ROUTES = (
    Route("POST", "/v1/chat/completions", run_model, is_counted=True),
    Route("POST", "/v1/completions", run_model, is_counted=True),
    Route("POST", "/chat/completions", run_model, is_counted=True, is_shown=False, same_as="/v1/chat/completions"),
    Route("POST", "/v1/messages", run_model, is_counted=True, dialect=Dialect.ANTHROPIC),
    Route(
        "POST",
        "/v1/messages/count_tokens",
        run_model,
        is_counted=True,
        dialect=Dialect.ANTHROPIC,
        never_streams=True,
    ),
    *_forms("/v1/responses", dialect=Dialect.RESPONSES),
    *_forms("/v1/responses/input_tokens", dialect=Dialect.RESPONSES, never_streams=True),
    *_forms("/v1/chat/completions/input_tokens", never_streams=True),
    Route("POST", "/v1/embeddings", run_model, is_counted=True, makes_text=False),
    Route("POST", "/v1/rerank", run_model, is_counted=True, makes_text=False),
    Route("POST", "/rerank", run_model, is_counted=True, is_shown=False, same_as="/v1/rerank", makes_text=False),
    Route("POST", "/v1/reranking", run_model, is_counted=True, is_shown=False, same_as="/v1/rerank", makes_text=False),
    Route("POST", "/reranking", run_model, is_counted=True, is_shown=False, same_as="/v1/rerank", makes_text=False),
    _native("/completion", only_loaded="completion"),
    _native("/completions", same_as="/completion", only_loaded="completion"),
    _native("/infill", only_loaded="completion"),
    _native("/tokenize", only_loaded=ANY, never_streams=True, makes_text=False),
    _native("/detokenize", only_loaded=ANY, never_streams=True, makes_text=False),
    _native("/apply-template", only_loaded="chat", never_streams=True, makes_text=False),
    _native("/embedding", only_loaded="embedding", never_streams=True, makes_text=False),
    _native("/embeddings", same_as="/embedding", only_loaded="embedding", never_streams=True, makes_text=False),
    Route("GET", "/v1/models", get_models),
    Route("GET", "/v1/models/{id:.+}", get_model),
    Route("GET", "/models", get_model_statuses, dialect=Dialect.LLAMA),
)


async def _read_call(
    request: web.Request,
    services: Services,
    exchange: Exchange,
    share: BodyShare,
    shortcut: Shortcut | None = None,
) -> Call:
    account, route = exchange.account, exchange.route
    assert route is not None, "only routes that exist run models"
    catalog = services.supervisor.catalog
    raw = await read_body(request, catalog.limits.max_body_bytes, share)
    body = await parse_body(raw)
    keys = _owned_keys(body.fields, route)
    if keys.model is None:
        keys = replace(keys, model=request.query.get("model"))
    account.asked = keys.model
    if exchange.dialect is Dialect.OLLAMA:
        resolution = find_tagged(catalog, keys.model)
    else:
        resolution = find_candidate(services.supervisor, keys.model, route.only_loaded)
    spec = resolution.spec
    _check_passes(spec, account.route)
    account.model = spec.name
    account.alias = resolution.alias.name if resolution.alias is not None else None
    exchange.reply.headers |= _client_headers(resolution)
    fields = body.fields
    if not resolution.rules.is_empty:
        is_ollama = exchange.dialect is Dialect.OLLAMA
        fields = apply_rules(resolution.rules, fields) if is_ollama else resolution.rules.apply(fields)
    _check_priority(keys.priority, exchange.grant)
    keys = replace(keys, priority=keys.priority + exchange.grant.priority)
    account.is_stream = keys.stream
    lora = services.lora_scales.for_requests(resolution) if route.makes_text else resolution.lora
    if spec.remote is not None:
        fields = remote_fields(fields, spec.remote)
        headers = remote_headers(request.headers, account.request_id, is_stream=keys.stream)
    else:
        headers = _worker_headers(exchange, keys, lora)
    rewritten = raw if fields is body.fields else await dump_body(fields)
    history, previous = b"", None
    if keys.previous_response_id is not None and spec.remote is None:
        previous = find_previous(services, exchange, keys.previous_response_id)
        history = previous.items
        share.take(len(history))
        headers[Header.HISTORY_BYTES] = str(len(history))
    prefixes = await _prefixes(fields, len(raw), keys, lora, previous) if spec.replicas > 1 else ()
    may_keep = exchange.dialect is Dialect.RESPONSES
    return Call(
        path=account.route,
        body=history + rewritten,
        headers=headers,
        spec=spec,
        is_stream=keys.stream,
        priority=keys.priority,
        key_id=exchange.grant.key_id,
        prefixes=prefixes,
        keep_alive_s=_granted_keep_alive_s(keys.keep_alive_s, spec, exchange.grant),
        takes_shortcut=shortcut is not None and shortcut.is_due(fields),
        keep=functools.partial(keep_response, services, exchange.grant.owner, prefixes) if may_keep else None,
    )


def _owned_keys(fields: Mapping[str, Any], route: Route) -> OwnedKeys:
    may_go_on = route.dialect is Dialect.RESPONSES
    keys = owned_keys(fields, streams_by_default=route.streams_by_default, may_go_on=may_go_on)
    return replace(keys, stream=False) if route.never_streams else keys


async def _prefixes(
    fields: Mapping[str, Any], num_bytes: int, keys: OwnedKeys, lora: Mapping[str, float], previous: Kept | None
) -> tuple[int, ...]:
    """Return what tells which worker knows the conversation already."""
    salt = json.dumps([keys.cache_salt, dict(lora)], sort_keys=True)
    if previous is not None:
        return continued(previous.prefixes, previous.id, fields, salt)
    if num_bytes > SCAN_INLINE_BYTES:
        return await asyncio.to_thread(prefix_hashes, fields, salt)
    return prefix_hashes(fields, salt)


def _check_passes(spec: ModelSpec, path: str) -> None:
    """Return if the model can be asked this way: other servers are by the routes under /v1. Raises: BadRequest."""
    if spec.remote is not None and not path.startswith("/v1/"):
        raise BadRequest(
            f"`{spec.name}` is answered by another server (`url`), which is asked by the routes under /v1 alone: "
            f"{path} needs a model that runs here; use POST /v1/chat/completions, or name another model",
            code="unsupported_by_model",
            param="model",
        )


def _check_priority(priority: int, grant: Grant) -> None:
    """Return if the sender may go before others. Raises: Forbidden."""
    if priority > 0 and Scope.ADMIN not in grant.scopes:
        raise Forbidden(
            f"`priority` {priority} needs an API key of scope `admin`: other keys may lower the priority of their "
            f"requests, not raise it above 0",
            param="priority",
        )


def _granted_keep_alive_s(wanted_s: float | None, spec: ModelSpec, grant: Grant) -> float | None:
    """Return how long the model stays when it is idle: not beyond what is configured, for those who do not run it.

    Raises: Forbidden when they want it to stay for good.
    """
    stays_anyway = spec.pin or spec.home or spec.idle_unload_s <= 0
    if wanted_s is None or stays_anyway or spec.remote is not None or Scope.ADMIN in grant.scopes:
        return wanted_s
    if wanted_s < 0:
        raise Forbidden(
            f"a negative `keep_alive`, which keeps `{spec.name}` loaded for good, needs an API key of scope `admin`",
            param="keep_alive",
        )
    return min(wanted_s, spec.idle_unload_s)


def _client_headers(resolution: Resolution) -> dict[str, str]:
    headers = {"X-Corral-Model": _header_value(resolution.spec.name)}
    if resolution.alias is not None:
        headers["X-Corral-Alias"] = _header_value(resolution.alias.name)
    return headers


def _worker_headers(exchange: Exchange, keys: OwnedKeys, lora: Mapping[str, float]) -> dict[str, str]:
    """Return all headers that the worker gets: nothing of the client's passes."""
    headers = {
        "Content-Type": "application/json",
        Header.REQUEST_ID: exchange.account.request_id,
        Header.PRIORITY: str(keys.priority),
        Header.CREATED: str(int(time.time())),
        Header.SEED: str(secrets.randbits(53)),  # replies tell it, and JavaScript has no longer integers
        Header.DIALECT: exchange.dialect.value,
    }
    if exchange.grant.key_id is not None:
        headers[Header.KEY_ID] = _header_value(exchange.grant.key_id)
    if keys.cache_salt is not None:
        headers[Header.CACHE_SALT] = keys.cache_salt
    if lora:
        asked = [{"name": name, "scale": scale} for name, scale in lora.items()]
        headers[Header.LORA] = urllib.parse.quote(json.dumps(asked, ensure_ascii=False), safe="")
    return headers


def _header_value(text: str) -> str:
    """Return `text` with everything percent-encoded that a header cannot carry."""
    return urllib.parse.quote(text, safe=" !#$&'()*+,/:;=?@[]^_`{|}~")
