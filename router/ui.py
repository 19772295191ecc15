"""The dashboard's files: `GET /ui/` and what its page asks for.

Owns which files there are: those that were packaged when the server started, found by their whole names, so that no
address leads anywhere else. They hold no data and need no key; what they show they ask for like any other client.
"""

from __future__ import annotations

import hashlib
import importlib.resources
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Final

from aiohttp import hdrs, web

from router.errors import NotFound
from router.routes import Route

START: Final = "/ui/"
_INDEX: Final = "index.html"
_TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
"""Of texts; all of them are UTF-8."""
_BINARY_TYPES: Final[Mapping[str, str]] = {".png": "image/png", ".ico": "image/x-icon", ".woff2": "font/woff2"}
_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


BY_ACCEPT: Final[Mapping[str, str]] = {"Vary": "Accept", "Cache-Control": "no-cache"}
"""Of replies that are another one for browsers than for others."""


@dataclass(frozen=True, slots=True)
class WebFile:
    """One file as it is sent."""

    body: bytes
    content_type: str
    etag: str


def read_web_files(folder: Traversable | None = None) -> dict[str, WebFile]:
    """Return all files of the dashboard by their names in its folder, such as `views/overview.js`."""
    folder = importlib.resources.files("router") / "web" if folder is None else folder
    return dict(sorted(_files_in(folder, PurePosixPath()))) if folder.is_dir() else {}


def _files_in(folder: Traversable, below: PurePosixPath) -> Iterator[tuple[str, WebFile]]:
    for entry in folder.iterdir():
        name = below / entry.name
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_dir():
            yield from _files_in(entry, name)
        elif (content_type := _type_of(name.suffix)) is not None:
            body = entry.read_bytes()
            yield str(name), WebFile(body, content_type, hashlib.sha256(body).hexdigest()[:32])


def _type_of(suffix: str) -> str | None:
    """Return the type of a file; None = such files are not sent."""
    text = _TYPES.get(suffix)
    return f"{text}; charset=utf-8" if text is not None else _BINARY_TYPES.get(suffix)


WEB_FILES = web.AppKey("web_files", Mapping[str, WebFile])


async def get_ui(request: web.Request) -> web.StreamResponse:
    """Send the browser to the page itself, below which its files are."""
    return redirect_to_page()


async def get_file(request: web.Request) -> web.StreamResponse:
    """Answer with the page or one of its files."""
    name = request.match_info.get("file") or _INDEX
    file = request.app[WEB_FILES].get(name)
    if file is None:
        raise NotFound(f"the dashboard has no file `{name[:80]}`; {START} is its page")
    headers = dict(_HEADERS) | {hdrs.ETAG: f'"{file.etag}"'}
    known = request.if_none_match
    if known and any(one.value in (file.etag, "*") for one in known):
        return web.Response(status=304, headers=headers)
    return web.Response(body=file.body, headers=headers | {hdrs.CONTENT_TYPE: file.content_type})


def wants_page(request: web.Request) -> bool:
    """Return whether a browser asks, which is to get the dashboard and no text."""
    return "text/html" in request.headers.get(hdrs.ACCEPT, "").lower()


def redirect_to_page() -> web.Response:
    """Return the answer that leads a browser to the dashboard."""
    return web.Response(status=303, text=f"The dashboard is at {START}\n", headers={"Location": START, **BY_ACCEPT})


ROUTES = (
    Route("GET", "/ui", get_ui, scopes=(), same_as=START),
    Route("GET", "/ui/", get_file, scopes=()),
    Route("GET", "/ui/{file:.+}", get_file, scopes=()),
)
