"""The limits of API keys on the way of a request: refuses what is too much, counts what is used, and tells both.

Owns the refusal's words, and `GET /admin/keys`. Must not decide whether a limit is reached (`key_usage.py` does), nor
which limits a key has (`auth.py` does).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from router.auth import Grant, Scope
from router.errors import RateLimited
from router.json_reply import json_response
from router.key_usage import Level, Limit, OverLimit, UsageView
from router.rate_headers import rate_headers
from router.routes import Handler, Route
from router.services import SERVICES, Exchange, Services, current_exchange


@web.middleware
async def limit_keys(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let a request to a model through if its key may send one now; it counts until its account is closed.

    Raises: RateLimited.
    """
    exchange, services = current_exchange(), request.app[SERVICES]
    if exchange.grant.key_id is not None and exchange.route is not None and exchange.route.runs is not None:
        _admit(exchange, services, exchange.grant.key_id)
    return await handler(request)


def _admit(exchange: Exchange, services: Services, key_id: str) -> None:
    usage, limits = services.key_usage, exchange.grant.limits
    clock = asyncio.get_running_loop().time
    if key_id not in usage:  # so that keys which are no longer configured are not kept for ever
        usage.keep_only({key_id, *(grant.key_id for grant in services.keys.grants if grant.key_id is not None)})
    over = usage.begin(key_id, limits, clock())
    exchange.reply.headers |= rate_headers(exchange.dialect, usage.view(key_id, limits, clock()), time.time())
    if over is not None:
        services.metrics.key_refused(key_id, over.limit)
        raise _refusal(key_id, over)
    account, close = exchange.account, exchange.close

    def end() -> None:
        now = next((grant.limits for grant in services.keys.grants if grant.key_id == key_id), limits)
        usage.end(key_id, now, account.num_tokens or 0, clock())
        if close is not None:
            close()

    exchange.close = end  # whoever goes on with the request, also without its client, ends it once


def _refusal(key_id: str, over: OverLimit) -> RateLimited:
    when = f"in {math.ceil(over.retry_after_s)} s"
    if over.limit is Limit.CONCURRENT:
        when = "when one of them has ended"
    return RateLimited(
        f"the API key '{key_id}' has reached its `{over.limit.value}`: {over.words}; try again {when}",
        retry_after_s=over.retry_after_s,
    )


async def get_keys(request: web.Request) -> web.StreamResponse:
    """Answer with every key, its limits and what it has used; never with a key itself."""
    services, now_s = request.app[SERVICES], asyncio.get_running_loop().time()
    found = {grant.key_id: grant for grant in services.keys.grants if grant.key_id is not None}
    return json_response(
        [entry_of(grant, services.key_usage.view(key_id, grant.limits, now_s)) for key_id, grant in found.items()]
    )


ROUTES = (Route("GET", "/admin/keys", get_keys, scopes=(Scope.ADMIN,)),)


def entry_of(grant: Grant, view: UsageView) -> dict[str, Any]:
    """Return how one key is shown."""
    limits = grant.limits
    return {
        "id": grant.key_id,
        "scopes": sorted(grant.scopes),
        "models": list(limits.models),
        "priority": grant.priority,
        "max_priority": limits.max_priority,
        "weight": limits.weight,
        "max_concurrent": limits.max_concurrent,
        "running": view.num_running,
        "requests_per_min": _level(view.requests),
        "tokens_per_min": _level(view.tokens),
        "requests": view.num_requests,
        "refused": view.num_refused,
        "tokens": view.num_tokens,
    }


def _level(level: Level | None) -> Mapping[str, Any] | None:
    if level is None:
        return None
    return {"limit": level.limit, "remaining": level.remaining, "full_in_s": round(level.full_in_s, 3)}
