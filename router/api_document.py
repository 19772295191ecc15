"""`GET /openapi.json` and `GET /docs`: what this server can be asked, for programs and for people.

Owns the two routes. The document lies beside this module, made from the models that check requests by

    python -m openapi > router/openapi.json
"""

from __future__ import annotations

import asyncio
import functools
import importlib.resources
import json

from aiohttp import web

from router.api_page import render_page
from router.routes import Route

_FILE = "openapi.json"
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page needs its own style and nothing else: no script, no other address."""


async def get_openapi(request: web.Request) -> web.StreamResponse:
    """Answer with the OpenAPI document."""
    return web.Response(body=await asyncio.to_thread(_document), content_type="application/json")


async def get_docs(request: web.Request) -> web.StreamResponse:
    """Answer with the same document as a page."""
    return web.Response(
        body=await asyncio.to_thread(_page),
        content_type="text/html",
        charset="utf-8",
        headers={"Content-Security-Policy": _PAGE_POLICY, "X-Content-Type-Options": "nosniff"},
    )


ROUTES = (
    Route("GET", "/openapi.json", get_openapi, scopes=()),
    Route("GET", "/docs", get_docs, scopes=()),
)


@functools.cache
def _document() -> bytes:
    return importlib.resources.files("router").joinpath(_FILE).read_bytes()


@functools.cache
def _page() -> bytes:
    return render_page(json.loads(_document())).encode()
