"""Routes that other servers have and this release does not: 501, and what to use meanwhile.

Owns the list. A route leaves it when its room is built.
"""

from __future__ import annotations

from aiohttp import web

from router.auth import Scope
from router.errors import NotAvailableYet
from router.routes import Handler, Route

_CHAT = "use POST /v1/chat/completions"
_MISSING = (
    ("/v1/responses", "OpenAI's Responses API", _CHAT),
    ("/v1/messages", "Anthropic's Messages API", _CHAT),
    ("/v1/messages/count_tokens", "counting tokens", "read `usage` in a reply"),
    ("/tokenize", "turning text into tokens", "read `usage` in a reply"),
    ("/detokenize", "turning tokens into text", None),
    ("/completion", "llama-server's own completion API", "use POST /v1/completions"),
    ("/infill", "filling in the middle", "use POST /v1/completions"),
    ("/props", "llama-server's properties", "use GET /v1/models and GET /slots"),
    ("/api/{rest:.*}", "Ollama's API", _CHAT),
)
_MISSING_FOR_ADMINS = (
    ("/admin/pin", "pinning a model while it is served", "set `pin` in models.yaml: edits are picked up"),
    ("/admin/config", "the configuration in force", "use GET /v1/models and `corral check`"),
)


def _refusal(what: str, instead: str | None) -> Handler:
    async def refuse(request: web.Request) -> web.StreamResponse:
        advice = f"; {instead}" if instead else ""
        raise NotAvailableYet(f"{request.path} is not available in this release ({what}){advice}")

    return refuse


ROUTES = (
    *(Route("*", path, _refusal(what, instead), is_counted=True, is_shown=False) for path, what, instead in _MISSING),
    *(
        Route("*", path, _refusal(what, instead), scopes=(Scope.ADMIN,), is_counted=True, is_shown=False)
        for path, what, instead in _MISSING_FOR_ADMINS
    ),
)
