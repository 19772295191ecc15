"""Routes that other servers have and this release does not: 501, and what to use meanwhile.

Owns the list. A route leaves it when its room is built.
"""

from __future__ import annotations

from aiohttp import web

from router.dialects import guess_dialect
from router.errors import NotAvailableYet
from router.routes import Handler, Route

_MISSING = (
    ("/v1/messages/batches{rest:.*}", "Anthropic's batches", "use POST /v1/messages, as often as needed"),
    ("/api/create", "making models", "write the model into models.yaml: edits are picked up"),
    ("/api/copy", "copying models", "give the model a name under `aliases` in models.yaml"),
    ("/api/push", "uploading models", None),
    ("/api/delete", "deleting models", "take the model out of models.yaml, and its file from the disk"),
    ("/api/blobs/{digest:.*}", "uploading files", "put the file on the server and name its path in models.yaml"),
)


def _refusal(what: str, instead: str | None) -> Handler:
    async def refuse(request: web.Request) -> web.StreamResponse:
        advice = f"; {instead}" if instead else ""
        raise NotAvailableYet(f"{request.path} is not available in this release ({what}){advice}")

    return refuse


ROUTES = (
    *(
        Route(
            "*",
            path,
            _refusal(what, instead),
            is_counted=True,
            is_shown=False,
            dialect=guess_dialect(path, {}),
        )
        for path, what, instead in _MISSING
    ),
)
