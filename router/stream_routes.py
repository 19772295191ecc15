"""The routes about replies that are kept: reading one on from an offset, and stopping one.

Owns what a client may ask of them. Must not know how they are kept (`kept_streams.py`) or made (`kept_runs.py`).
"""

from __future__ import annotations

from aiohttp import web

from router.errors import BadRequest, NotFound
from router.kept_runs import KEPT_RUNS, OFFSET, Run
from router.routes import Route
from router.services import current_exchange

_MAX_DIGITS = 15


async def get_stream(request: web.Request) -> web.StreamResponse:
    """Answer with a reply from an offset on, to its end. Raises: NotFound, Gone, BadRequest, TooManyRequests."""
    run, offset = _find(request), _offset(request)
    if offset <= run.stream.end:  # beyond it there is nothing to go on with
        current_exchange().reply.headers[OFFSET] = str(max(offset, run.stream.start))  # where to go on, if this fails
    return await request.app[KEPT_RUNS].read(request, run, offset)


async def delete_stream(request: web.Request) -> web.StreamResponse:
    """Stop the generation and forget what it has said. Raises: NotFound."""
    await request.app[KEPT_RUNS].stop(_find(request))
    return web.Response(status=204)


ROUTES = (
    Route("GET", "/v1/streams/{id}", get_stream),
    Route("DELETE", "/v1/streams/{id}", delete_stream),
)


def _find(request: web.Request) -> Run:
    """Return the run of this key's conversation. Raises: NotFound, the same for a wrong id and for another key's."""
    run = request.app[KEPT_RUNS].find(current_exchange().grant, request.match_info["id"])
    if run is None:
        raise NotFound("there is no reply of this id: it was never kept, is not kept any more, or was stopped")
    return run


def _offset(request: web.Request) -> int:
    text = request.query.get("from", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise BadRequest("'from' must be a whole number of bytes, 0 or more", param="from")
    return int(text)
