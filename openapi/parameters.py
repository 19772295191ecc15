"""The parameters in addresses: parts of paths and queries. Owns their description alone; the handlers read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from openapi.bodies import full_path
from router.kept_streams import CONVERSATION, NEW
from router.later import ROUTES as LATER
from router.routes import Route
from worker.api.json_schemas import TEXT, Schema

_FLAG: Schema = {"type": "string", "enum": ["true", "1", "yes", "false", "0", "no", ""]}


def _query(name: str, description: str, schema: Schema = TEXT) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_PAGE = [
    _query("order", "Which items come first.", {"type": "string", "enum": ["asc", "desc"]}),
    _query("limit", "How many at most.", {"type": "integer", "minimum": 1, "maximum": 100}),
    _query("after", "The id of the item before the first one."),
]
_OF_MODEL = [_query("model", "The model. Without it: the only one, or the only one that is loaded.")]

QUERIES: Mapping[tuple[str, str], list[dict[str, Any]]] = {
    ("GET", "/health"): [_query("model", "Tell of this model or alias instead of the server.")],
    ("GET", "/events"): [
        _query(
            "topics", "What to follow: `changes`, `server`, `devices`, `models`, `slots`, `queue`, `requests`, `all`."
        )
    ],
    ("GET", "/requests"): [
        _query("limit", "How many at most.", {"type": "integer", "minimum": 1, "maximum": 1000}),
        _query("model", "Only requests to this model or alias."),
        _query(
            "outcome",
            "Only requests that ended so.",
            {"type": "string", "enum": ["ok", "client_gone", "timeout", "rejected", "worker_died", "error"]},
        ),
    ],
    ("GET", "/slots"): [_query("model", "Only slots of this model or alias.")],
    ("GET", "/props"): _OF_MODEL,
    ("GET", "/lora-adapters"): _OF_MODEL,
    ("POST", "/lora-adapters"): _OF_MODEL,
    ("POST", "/slots/{id}"): [
        _query("action", "What to do with its prompt.", {"type": "string", "enum": ["save", "restore", "erase"]}),
        *_OF_MODEL,
    ],
    ("GET", "/v1/responses/{id}/input_items"): _PAGE,
    ("GET", "/v1/streams/{id}"): [
        _query("from", "How many bytes of the reply the client has already.", {"type": "integer", "minimum": 0})
    ],
    ("GET", "/admin/logs"): [
        _query("model", "The log of this model's worker instead of the server's own."),
        _query("lines", "How many lines at most.", {"type": "integer", "minimum": 1, "maximum": 10000}),
        _query("follow", "Go on with new lines until the client leaves.", _FLAG),
    ],
}
PATH_PARTS: Mapping[str, Schema] = {
    "/v1/models/{id}": TEXT | {"description": "A model or an alias; it may contain `/` and `:`.", "minLength": 1},
    "/v1/responses/{id}": TEXT | {"description": "The id of a response that is kept.", "minLength": 1},
    "/v1/streams/{id}": TEXT | {"description": "The id that the request had in `X-Corral-Conversation`."},
    "/ui/{file}": TEXT | {"description": "A file of the dashboard; it may contain `/`.", "minLength": 1},
    "/slots/{id}": {"type": "integer", "minimum": 0, "description": "The number of a slot."},
}
"""By the path up to the part and with it."""
_CONVERSATION = {
    "name": CONVERSATION,
    "in": "header",
    "description": "The answer goes on without its connection and is read at /v1/streams/{id}: an id that nobody can "
    f"guess, or `{NEW}`.",
    "schema": {"type": "string", "pattern": f"^({NEW}|[A-Za-z0-9._~-]{{16,128}})$"},
}
_REST = TEXT | {"description": "The rest of the address."}


def parameters(route: Route) -> list[dict[str, Any]]:
    """Return all parameters of a route. Raises: LookupError when a part of its path is not described."""
    found, path = [], full_path(route)
    for part in re.finditer(r"\{(\w+)\}", path):
        schema = _REST if route in LATER else PATH_PARTS.get(path[: part.end()])
        if schema is None:
            raise LookupError(f"PATH_PARTS in openapi/parameters.py does not tell what {path[: part.end()]} ends with")
        schema = dict(schema)
        description = schema.pop("description")
        found.append({"name": part[1], "in": "path", "required": True, "description": description, "schema": schema})
    if route.runs is not None:
        found.append(_CONVERSATION)
    return [*found, *QUERIES.get((route.method, path), ())]
