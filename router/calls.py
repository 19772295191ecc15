"""A request to a `Call`: body, model, rules, rights, adapters, what it goes on from, and what tells who knows it.

Owns what is special to each dialect in this, and every header that a worker gets. Must not judge fields that belong to
the worker, nor ask one.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import secrets
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aiohttp import web

from router.auth import Grant, Scope
from router.body import SCAN_INLINE_BYTES, BodyShare, OwnedKeys, dump_body, owned_keys, parse_body, read_body
from router.candidates import find_candidate
from router.catalog import ModelSpec, Resolution
from router.catalog_view import CatalogView
from router.conversations import Kept
from router.dialects import Dialect
from router.errors import BadRequest, Forbidden
from router.ollama_names import find_tagged
from router.prefixes import continued, prefix_hashes
from router.relay import Call
from router.remotes import remote_fields, remote_headers
from router.request_rules import apply_rules
from router.responses import find_previous, keep_response
from router.routes import Running, Streaming
from router.services import Exchange, Services
from worker.contract import Header

if TYPE_CHECKING:
    from router.supervisor import Supervisor

KEEP_ALIVE = "X-Corral-Keep-Alive"
"""Tells how long the model stays where the request wanted longer than its key may have."""


@dataclass(frozen=True, slots=True)
class _Manners:
    """What is special to a dialect while its requests are read; its rules are those of `request_rules.py`."""

    find: Callable[[Supervisor, CatalogView, str | None, str | None], Resolution] = find_candidate
    """What a model's name stands for, of those that may be used."""
    keeps_replies: bool = False
    """Its replies may be kept, and requests may go on from them."""
    tells_load_time: bool = False
    """Its replies tell how long the model has loaded."""


def _find_tagged(_: Supervisor, usable: CatalogView, name: str | None, __: str | None) -> Resolution:
    return find_tagged(usable, name)


_MANNERS: Mapping[Dialect, _Manners] = {
    Dialect.OPENAI: _Manners(),
    Dialect.RESPONSES: _Manners(keeps_replies=True),
    Dialect.ANTHROPIC: _Manners(),
    Dialect.OLLAMA: _Manners(find=_find_tagged, tells_load_time=True),
    Dialect.LLAMA: _Manners(),
}


async def read_call(
    request: web.Request,
    services: Services,
    exchange: Exchange,
    share: BodyShare,
    needs_no_worker: Callable[[Mapping[str, Any]], bool] = lambda _: False,
) -> tuple[Call, bool]:
    """Return what to ask, and whether `needs_no_worker` said so of the body. Raises: RouterError.

    Mutates: the exchange's account and the headers of its reply, as soon as more is known.
    """
    assert exchange.route is not None, "only routes that exist run models"
    runs, account, manners = exchange.route.running, exchange.account, _MANNERS[exchange.dialect]
    raw = await read_body(request, services.supervisor.catalog.limits.max_body_bytes, share)
    if runs.may_be_empty and not raw.strip():
        raw = b"{}"
    body = await parse_body(raw)
    keys = _read_keys(body.fields, request, runs, manners)
    account.asked = keys.model
    usable = CatalogView(services.supervisor.catalog, exchange.grant.usable)
    resolution = manners.find(services.supervisor, usable, keys.model, runs.capability)
    spec = resolution.spec
    _check_passes(spec, account.route)
    account.model = spec.name
    account.alias = resolution.alias.name if resolution.alias is not None else None
    exchange.reply.headers |= _client_headers(resolution)
    fields = body.fields
    if not resolution.rules.is_empty:  # the keys stay: rules cannot touch them
        fields = apply_rules(resolution.rules, fields, exchange.dialect)
    if keys.keep_alive_s == 0:
        _check_may_go(services.supervisor, spec)
    keys = _granted(keys, spec, exchange, services.supervisor)
    account.is_stream = keys.stream
    lora = services.lora_scales.for_requests(resolution) if runs.takes_loras else resolution.lora
    previous = None
    if spec.remote is not None:
        fields = remote_fields(fields, spec.remote)
        headers = remote_headers(request.headers, account.request_id, is_stream=keys.stream)
        if exchange.trace is not None:
            headers |= exchange.trace.headers()
    else:
        headers = _worker_headers(exchange, keys, lora)
        if keys.previous_response_id is not None:
            previous = find_previous(services, exchange, keys.previous_response_id)
            share.take(len(previous.items))
            headers[Header.HISTORY_BYTES] = str(len(previous.items))
    rewritten = raw if fields is body.fields else await dump_body(fields)
    prefixes = await _prefixes(fields, len(raw), keys, lora, spec, previous) if spec.replicas > 1 else ()
    keep = functools.partial(keep_response, services, exchange.grant.owner, prefixes)
    call = Call(
        path=account.route,
        body=rewritten if previous is None else previous.items + rewritten,
        headers=headers,
        spec=spec,
        is_stream=keys.stream,
        priority=keys.priority,
        key_id=exchange.grant.key_id,
        weight=exchange.grant.limits.weight,
        prefixes=prefixes,
        keep_alive_s=keys.keep_alive_s,
        tells_load_time=manners.tells_load_time,
        keep=keep if manners.keeps_replies else None,
    )
    return call, needs_no_worker(fields)


def _read_keys(fields: Mapping[str, Any], request: web.Request, runs: Running, manners: _Manners) -> OwnedKeys:
    keys = owned_keys(
        fields, streams_by_default=runs.streaming is Streaming.BY_DEFAULT, may_go_on=manners.keeps_replies
    )
    if keys.model is None:
        keys = replace(keys, model=request.query.get("model"))
    return replace(keys, stream=False) if runs.streaming is Streaming.NEVER else keys


async def _prefixes(
    fields: Mapping[str, Any],
    num_bytes: int,
    keys: OwnedKeys,
    lora: Mapping[str, float],
    spec: ModelSpec,
    previous: Kept | None,
) -> tuple[int, ...]:
    """Return what tells which worker knows the conversation already."""
    salt = json.dumps([keys.cache_salt, dict(lora)], sort_keys=True)
    if previous is not None:
        return continued(previous.prefixes, previous.id, fields, salt)
    hashes = functools.partial(prefix_hashes, fields, salt, drops_billing_header=spec.drop_billing_header)
    return await asyncio.to_thread(hashes) if num_bytes > SCAN_INLINE_BYTES else hashes()


def _check_passes(spec: ModelSpec, path: str) -> None:
    """Return if the model can be asked this way: other servers are by the routes under /v1. Raises: BadRequest."""
    if spec.remote is not None and not path.startswith("/v1/"):
        raise BadRequest(
            f"`{spec.name}` is answered by another server (`url`), which is asked by the routes under /v1 alone: "
            f"{path} needs a model that runs here; use POST /v1/chat/completions, or name another model",
            code="unsupported_by_model",
            param="model",
        )


# --- what a key may have ---


def _granted(keys: OwnedKeys, spec: ModelSpec, exchange: Exchange, supervisor: Supervisor) -> OwnedKeys:
    """Return the keys as far as the sender may have what they want. Raises: Forbidden, BadRequest."""
    grant = exchange.grant
    _check_priority(keys.priority, grant)
    keep_alive_s = _granted_keep_alive_s(keys.keep_alive_s, spec, grant)
    if keep_alive_s is not None and keep_alive_s != keys.keep_alive_s and not _stays(supervisor, spec):
        exchange.reply.headers[KEEP_ALIVE] = f"{keep_alive_s:.15g}"
    return replace(keys, priority=keys.priority + grant.priority, keep_alive_s=keep_alive_s)


def _check_priority(priority: int, grant: Grant) -> None:
    """Return if the sender may go before others. Raises: Forbidden."""
    ceiling = grant.limits.max_priority
    if ceiling is not None and priority > ceiling:
        raise Forbidden(
            f"'priority' {priority} is more than this API key may ask for: {ceiling} (`max_priority`)", param="priority"
        )
    if ceiling is None and priority > 0 and Scope.ADMIN not in grant.scopes:
        raise Forbidden(
            f"'priority' {priority} needs an API key of scope `admin`, or one with `max_priority`: other keys may "
            f"lower the priority of their requests, not raise it above 0",
            param="priority",
        )


def _check_may_go(supervisor: Supervisor, spec: ModelSpec) -> None:
    """Return if the model may be unloaded as soon as it is idle. Raises: BadRequest when it stays in any case."""
    if not _stays(supervisor, spec):
        return
    why = f"`{'pin' if supervisor.is_pinned(spec.name) else 'home'}` in models.yaml says that it stays"
    if supervisor.is_pinned(spec.name) and not spec.pin:
        why = "it is pinned (POST /admin/pin)"
    raise BadRequest(f"'keep_alive' 0 cannot unload `{spec.name}`: {why}; leave 'keep_alive' out", param="keep_alive")


def _stays(supervisor: Supervisor, spec: ModelSpec) -> bool:
    """Return whether the model stays however long it is idle, so that `keep_alive` changes nothing now."""
    return supervisor.is_pinned(spec.name) or spec.home


def _granted_keep_alive_s(wanted_s: float | None, spec: ModelSpec, grant: Grant) -> float | None:
    """Return how long the model stays when it is idle: not beyond what is configured, for those who do not run it.

    Of a model that stays in any case too: the time begins to count when somebody unpins it.
    """
    if wanted_s is None or spec.remote is not None:
        return wanted_s
    if spec.idle_unload_s <= 0 or Scope.ADMIN in grant.scopes:
        return wanted_s
    return spec.idle_unload_s if wanted_s < 0 else min(wanted_s, spec.idle_unload_s)


# --- headers ---


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
    }
    if exchange.grant.key_id is not None:
        headers[Header.KEY_ID] = _header_value(exchange.grant.key_id)
    if exchange.grant.owner is not None:
        headers[Header.OWNER] = hashlib.sha256(f"owner {exchange.grant.owner}".encode()).hexdigest()[:32]
    if keys.cache_salt is not None:
        headers[Header.CACHE_SALT] = keys.cache_salt
    if lora:
        asked = [{"name": name, "scale": scale} for name, scale in lora.items()]
        headers[Header.LORA] = urllib.parse.quote(json.dumps(asked, ensure_ascii=False), safe="")
    return headers


def _header_value(text: str) -> str:
    """Return `text` with everything percent-encoded that a header cannot carry."""
    return urllib.parse.quote(text, safe=" !#$&'()*+,/:;=?@[]^_`{|}~")
