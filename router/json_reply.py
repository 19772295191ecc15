"""JSON responses of the router's own routes. Must not be used for what a worker has written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web


def json_response(body: Mapping[str, Any] | list[Any], *, status: int = 200) -> web.Response:
    """Return `body` as a JSON response that no cache keeps."""
    return web.Response(
        status=status,
        body=orjson.dumps(body),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )
