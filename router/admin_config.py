"""`/admin/config`: the text of the configuration that is served, a check of another one, and its replacement.

Owns these routes' bodies and replies. Must not touch the file: `config_editor.py` does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from aiohttp import web

from router.admin import broken_catalog, read_fields
from router.auth import Scope
from router.catalog_files import MAX_CATALOG_BYTES
from router.catalog_problems import CatalogError, first_problems
from router.config_editor import ConfigEditor
from router.errors import BadRequest, BodyTooLarge
from router.json_reply import json_response
from router.routes import Route
from router.services import SERVICES, Services
from router.status_views import view_configuration

_MAX_BODY_BYTES = 2 * MAX_CATALOG_BYTES
"""JSON writes some letters with two."""

CONFIG_EDITOR = web.AppKey("config_editor", ConfigEditor)


async def open_editor(app: web.Application) -> None:
    """The application has an editor. For its start."""
    services = app[SERVICES]
    app[CONFIG_EDITOR] = ConfigEditor(
        services.reloader, keys=services.keys, may_edit=services.settings.allow_config_edits
    )


async def get_config(request: web.Request) -> web.StreamResponse:
    """Answer with the text of the file, and whether it may be written and is in force."""
    services = request.app[SERVICES]
    found = await request.app[CONFIG_EDITOR].read()
    verdict = view_configuration(services.reloader, in_full=True)
    return json_response(
        {
            "path": str(services.reloader.path.absolute()),
            "text": found.text,
            "sha256": found.sha256,
            "is_editable": found.why_not is None,
            "why_not": found.why_not,
        }
        | {name: verdict[name] for name in ("status", "problems", "since", "loaded_at")}
    )


async def post_check(request: web.Request) -> web.StreamResponse:
    """Answer with what is wrong with a text, and what it would change; nothing changes."""
    services = request.app[SERVICES]
    text = _text(await _fields(request, services, {"text"}))
    checked = await services.reloader.check(text)
    return json_response(
        {
            "ok": not checked.problems,
            "problems": [problem.to_json() for problem in first_problems(checked.problems)],
            "warnings": [problem.to_json() for problem in first_problems(checked.warnings)],
            "changes": None if checked.diff is None else checked.diff.to_json(),
        }
    )


async def put_config(request: web.Request) -> web.StreamResponse:
    """Write the text into the file and bring it into force; 422 with all that is wrong if nothing has changed."""
    services = request.app[SERVICES]
    fields = await _fields(request, services, {"text", "sha256"})
    text, sha256 = _text(fields), fields.get("sha256")
    if not isinstance(sha256, str):
        raise BadRequest("`sha256` must be what GET /admin/config told of the text that was edited", param="sha256")
    try:
        diff, digest = await request.app[CONFIG_EDITOR].save(text, sha256)
    except CatalogError as error:
        return broken_catalog(error)
    told = {"success": True, "models": len(services.supervisor.catalog.models), "sha256": digest}
    return json_response(told | diff.to_json())


ROUTES = (
    Route("GET", "/admin/config", get_config, scopes=(Scope.ADMIN,)),
    Route("PUT", "/admin/config", put_config, scopes=(Scope.ADMIN,)),
    Route("POST", "/admin/config/check", post_check, scopes=(Scope.ADMIN,)),
)


async def _fields(request: web.Request, services: Services, known: Collection[str]) -> Mapping[str, Any]:
    fields = await read_fields(request, services, max_bytes=_MAX_BODY_BYTES)
    if unknown := sorted(fields.keys() - known):
        raise BadRequest(f"`{unknown[0][:80]}` is not an option here", param=unknown[0][:80])
    return fields


def _text(fields: Mapping[str, Any]) -> str:
    text = fields.get("text")
    if not isinstance(text, str):
        raise BadRequest("`text` must be the whole text of the configuration", param="text")
    if len(text.encode("utf-8")) > MAX_CATALOG_BYTES:  # half a surrogate pair is no JSON, and was refused before
        raise BodyTooLarge(f"a configuration may have {MAX_CATALOG_BYTES // 2**20} MiB at most")
    return text
