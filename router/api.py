"""The routes that run models or list them, in OpenAI's dialect.

Owns reading a request far enough to hand it to `Relay`. Must not judge fields that belong to the worker.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aiohttp import web

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
from router.catalog import Resolution
from router.errors import Forbidden
from router.json_reply import json_response
from router.listing import find_model, list_models, list_statuses
from router.prefixes import prefix_hashes
from router.relay import Call, Relay
from router.remote import RemoteRelay
from router.remotes import remote_fields, remote_headers
from router.routes import Route
from router.services import SERVICES, Exchange, Services, current_exchange
from worker.contract import Header


async def run_model(request: web.Request) -> web.StreamResponse:
    """Answer with what a worker says to the request. Raises: RouterError, ClientGone."""
    services, exchange = request.app[SERVICES], current_exchange()
    check_media_type(request)
    with services.body_memory.share() as share:
        call = await _read_call(request, services, exchange, share)
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
    return json_response({"object": "list", "data": models})


async def get_model(request: web.Request) -> web.StreamResponse:
    """Answer with one model or alias, hidden ones included. Raises: ModelNotFound."""
    services = request.app[SERVICES]
    return json_response(find_model(services.supervisor, services.started_at, request.match_info["id"]))


async def get_model_statuses(request: web.Request) -> web.StreamResponse:
    """Answer with the models in the form of llama-server's router."""
    services = request.app[SERVICES]
    return json_response({"object": "list", "data": list_statuses(services.supervisor, services.started_at)})


ROUTES = (
    Route("POST", "/v1/chat/completions", run_model, is_counted=True),
    Route("POST", "/v1/completions", run_model, is_counted=True),
    Route("POST", "/chat/completions", run_model, is_counted=True, is_shown=False, same_as="/v1/chat/completions"),
    Route("POST", "/completions", run_model, is_counted=True, is_shown=False, same_as="/v1/completions"),
    Route("POST", "/v1/embeddings", run_model, is_counted=True),
    Route("POST", "/v1/rerank", run_model, is_counted=True),
    Route("POST", "/embeddings", run_model, is_counted=True, is_shown=False, same_as="/v1/embeddings"),
    Route("POST", "/rerank", run_model, is_counted=True, is_shown=False, same_as="/v1/rerank"),
    Route("POST", "/v1/reranking", run_model, is_counted=True, is_shown=False, same_as="/v1/rerank"),
    Route("POST", "/reranking", run_model, is_counted=True, is_shown=False, same_as="/v1/rerank"),
    Route("GET", "/v1/models", get_models),
    Route("GET", "/v1/models/{id:.+}", get_model),
    Route("GET", "/models", get_model_statuses),
)


async def _read_call(request: web.Request, services: Services, exchange: Exchange, share: BodyShare) -> Call:
    account = exchange.account
    catalog = services.supervisor.catalog
    raw = await read_body(request, catalog.limits.max_body_bytes, share)
    body = await parse_body(raw)
    streams = exchange.route is not None and exchange.route.streams_by_default
    keys = owned_keys(body.fields, streams_by_default=streams)
    if keys.model is None:
        keys = replace(keys, model=request.query.get("model"))
    account.asked = keys.model
    resolution = catalog.resolve(keys.model)
    spec = resolution.spec
    account.model = spec.name
    account.alias = resolution.alias.name if resolution.alias is not None else None
    exchange.reply.headers |= _client_headers(resolution)
    fields = body.fields
    if not resolution.rules.is_empty:
        fields = resolution.rules.apply(fields)
        keys = replace(owned_keys(fields, streams_by_default=streams), model=keys.model)
    _check_priority(keys.priority, exchange.grant)
    keys = replace(keys, priority=keys.priority + exchange.grant.priority)
    account.is_stream = keys.stream
    if spec.remote is not None:
        fields = remote_fields(fields, spec.remote)
        headers = remote_headers(request.headers, account.request_id, is_stream=keys.stream)
    else:
        headers = _worker_headers(exchange, keys, resolution)
    return Call(
        path=account.route,
        body=raw if fields is body.fields else await dump_body(fields),
        headers=headers,
        spec=spec,
        is_stream=keys.stream,
        priority=keys.priority,
        key_id=exchange.grant.key_id,
        prefixes=await _prefixes(fields, len(raw), keys, resolution) if spec.replicas > 1 else (),
    )


async def _prefixes(
    fields: Mapping[str, Any], num_bytes: int, keys: OwnedKeys, resolution: Resolution
) -> tuple[int, ...]:
    """Return what tells which worker knows the conversation already."""
    salt = json.dumps([keys.cache_salt, dict(resolution.lora)], sort_keys=True)
    if num_bytes > SCAN_INLINE_BYTES:
        return await asyncio.to_thread(prefix_hashes, fields, salt)
    return prefix_hashes(fields, salt)


def _check_priority(priority: int, grant: Grant) -> None:
    """Return if the sender may go before others. Raises: Forbidden."""
    if priority > 0 and Scope.ADMIN not in grant.scopes:
        raise Forbidden(
            f"`priority` {priority} needs an API key of scope `admin`: other keys may lower the priority of their "
            f"requests, not raise it above 0",
            param="priority",
        )


def _client_headers(resolution: Resolution) -> dict[str, str]:
    headers = {"X-Corral-Model": _header_value(resolution.spec.name)}
    if resolution.alias is not None:
        headers["X-Corral-Alias"] = _header_value(resolution.alias.name)
    return headers


def _worker_headers(exchange: Exchange, keys: OwnedKeys, resolution: Resolution) -> dict[str, str]:
    """Return all headers that the worker gets: nothing of the client's passes."""
    headers = {
        "Content-Type": "application/json",
        Header.REQUEST_ID: exchange.account.request_id,
        Header.PRIORITY: str(keys.priority),
        Header.CREATED: str(int(time.time())),
        Header.SEED: str(secrets.randbits(63)),
        Header.DIALECT: exchange.dialect.value,
    }
    if exchange.grant.key_id is not None:
        headers[Header.KEY_ID] = _header_value(exchange.grant.key_id)
    if keys.cache_salt is not None:
        headers[Header.CACHE_SALT] = keys.cache_salt
    if resolution.lora:
        asked = [{"name": name, "scale": scale} for name, scale in resolution.lora.items()]
        headers[Header.LORA] = urllib.parse.quote(json.dumps(asked, ensure_ascii=False), safe="")
    return headers


def _header_value(text: str) -> str:
    """Return `text` with everything percent-encoded that a header cannot carry."""
    return urllib.parse.quote(text, safe=" !#$&'()*+,/:;=?@[]^_`{|}~")
