"""The routes about responses that are kept, and how requests go on from them.

Owns what a client is told of a kept response. Must not parse conversations on the event loop, nor know how long they
are kept (`conversations.py` does).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import orjson
from aiohttp import web

from router.conversations import Kept, read_kept
from router.dialects import Dialect
from router.errors import BadRequest, NotFound
from router.json_reply import json_response
from router.routes import Route
from router.services import SERVICES, Exchange, Services, current_exchange

_MAX_PAGE = 100
_PAGE = 20


def find_previous(services: Services, exchange: Exchange, response_id: str) -> Kept:
    """Return the response that a request goes on from. Raises: BadRequest."""
    kept = services.conversations.find(exchange.grant.owner, response_id, _now_s())
    if kept is None:
        raise BadRequest(
            f"Previous response with id '{response_id[:100]}' not found. It was made with 'store' false or another API "
            f"key, was deleted, or is not kept any more; send the conversation so far in 'input'",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    return kept


def keep_response(services: Services, owner: str | None, prefixes: tuple[int, ...], lines: bytes) -> None:
    """Keep what a worker gave of a response. Raises: ValueError when it cannot be read."""
    services.conversations.keep(owner, read_kept(lines, prefixes), _now_s())


async def get_response(request: web.Request) -> web.StreamResponse:
    """Answer with the response as it was. Raises: NotFound, BadRequest."""
    kept = _find(request)
    if request.query.get("stream", "false").lower() not in ("false", "0", ""):
        raise BadRequest("a response is kept whole and cannot be streamed again; leave out 'stream'", param="stream")
    _refuse_include(request.query)
    return _json(kept.response)


async def delete_response(request: web.Request) -> web.StreamResponse:
    """Forget the response. Raises: NotFound."""
    kept = _find(request)
    request.app[SERVICES].conversations.forget(current_exchange().grant.owner, kept.id)
    return json_response({"id": kept.id, "object": "response", "deleted": True})


async def get_input_items(request: web.Request) -> web.StreamResponse:
    """Answer with a page of the items that the response was made from. Raises: NotFound, BadRequest."""
    kept, query = _find(request), request.query
    _refuse_include(query)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest(f"'order' must be asc or desc, not {order[:40]!r}", param="order")
    limit = query.get("limit", str(_PAGE))
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 1 <= int(limit) <= _MAX_PAGE):
        raise BadRequest(f"'limit' must be a whole number from 1 to {_MAX_PAGE}", param="limit")
    page = await asyncio.to_thread(_page, kept, order == "asc", int(limit), query.get("after"))
    return _json(page)


async def cancel_response(request: web.Request) -> web.StreamResponse:
    """Refuse: what is kept is over. Raises: NotFound, BadRequest."""
    kept = _find(request)
    raise BadRequest(
        f"the response `{kept.id}` cannot be cancelled: only those that are made in the background can be; close the "
        f"connection to end one that is being made"
    )


ROUTES = tuple(
    Route(
        method,
        f"{prefix}/responses/{{id}}{rest}",
        handler,
        dialect=Dialect.RESPONSES,
        is_shown=bool(prefix),
        same_as=None if prefix else "/v1/responses",
    )
    for prefix in ("/v1", "")
    for method, rest, handler in (
        ("GET", "", get_response),
        ("DELETE", "", delete_response),
        ("GET", "/input_items", get_input_items),
        ("POST", "/cancel", cancel_response),
    )
)


def _find(request: web.Request) -> Kept:
    response_id = request.match_info["id"]
    conversations = request.app[SERVICES].conversations
    kept = conversations.find(current_exchange().grant.owner, response_id, _now_s())
    if kept is None:
        raise NotFound(f"Response with id '{response_id[:100]}' not found")
    return kept


def _refuse_include(query: Mapping[str, str]) -> None:
    """Return when nothing shall be added to what is kept. Raises: BadRequest."""
    if any(name in query for name in ("include", "include[]")):
        raise BadRequest(
            "'include' must be in the request that makes the response: nothing can be added to it later",
            param="include",
        )


def _page(kept: Kept, is_ascending: bool, limit: int, after: str | None) -> bytes:
    """Return the JSON of a page. Raises: BadRequest when no item is called `after`."""
    lines = kept.input_items if is_ascending else kept.input_items[::-1]
    start = 0
    if after is not None:
        found = (place for place, line in enumerate(lines) if _id(line) == after)
        start = next(found, -1) + 1
        if not start:
            raise BadRequest(f"'after' names no item of this response: '{after[:100]}'", param="after")
    shown = lines[start : start + limit]
    rest = {
        "first_id": _id(shown[0]) if shown else "",
        "last_id": _id(shown[-1]) if shown else "",
        "has_more": start + limit < len(lines),
    }
    return b'{"object":"list","data":[' + b",".join(shown) + b"]," + orjson.dumps(rest)[1:]


def _id(line: bytes) -> str:
    return str(orjson.loads(line)["id"])


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})


def _now_s() -> float:
    return asyncio.get_running_loop().time()
