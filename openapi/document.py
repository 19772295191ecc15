"""Puts the document together: one operation for each route of the router, in the order of its tables.

Owns the frame. What bodies are is said by `bodies.py`, what comes back by `replies.py`, what a route is for by the
README.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openapi.bodies import body_schemas, request_body
from openapi.meanings import read_meanings, without_links
from openapi.parameters import parameters
from openapi.replies import HEADERS, error_schemas, responses
from router.app import all_routes
from router.dialects import Dialect
from router.later import ROUTES as LATER
from router.routes import Route

ROOT = Path(__file__).resolve().parents[1]

_INTRODUCTION = """\
Several GGUF models behind one URL. Requests choose a model by the field `model`; it is loaded when the first one asks.

Fields are honoured or refused: one that Corral knows from other servers and cannot do is answered with 400, which names
it, and only fields that nobody knows are passed over. `null` means "not said". The routes of each API family answer
errors in that family's own form. `X-Request-Id` in a reply is what the server's log calls the request.

Where the server has API keys, each request needs one: `Authorization: Bearer KEY` or `x-api-key: KEY`."""

_TAGS = {
    Dialect.OPENAI: "OpenAI",
    Dialect.RESPONSES: "OpenAI's Responses API",
    Dialect.ANTHROPIC: "Anthropic",
    Dialect.OLLAMA: "Ollama",
    Dialect.LLAMA: "llama-server",
}
_OWN = "Corral"


def document() -> dict[str, Any]:
    """Return the description of all routes. Raises: LookupError that says what is missing of a route, and where."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    summaries = read_summaries((ROOT / "README.md").read_text(encoding="utf-8"))
    paths: dict[str, dict[str, Any]] = {}
    for route in all_routes():
        path = shown_path(route)
        if route in LATER:
            paths.setdefault(path, {})["post"] = _operation(route, path, "Not available in this release.")
            continue
        try:
            summary = summaries[route.method, path]
        except KeyError:
            raise LookupError(f"README.md has no row for {route.method} {path} in its table of routes") from None
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path, summary)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Corral",
            "version": project["version"],
            "summary": project["description"],
            "description": _INTRODUCTION,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "security": _security(is_needed=True),
        "paths": paths,
        "components": {
            "schemas": body_schemas(read_meanings(ROOT / "docs")) | error_schemas(),
            "headers": HEADERS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def to_text(described: Mapping[str, Any]) -> str:
    """Return the document as the file has it."""
    return json.dumps(described, indent=1, ensure_ascii=False) + "\n"


def shown_path(route: Route) -> str:
    """Return the path as OpenAPI writes it: parameters without their patterns."""
    return re.sub(r":[^}]*\}", "}", route.path)


def read_summaries(readme: str) -> dict[tuple[str, str], str]:
    """Return what each route is for, by method and path, from the table of routes in the README."""
    section = readme.partition("\n## Routes\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\S+) (\S+)` \|[^|]*\| (.*) \|$", section, re.MULTILINE)
    return {(method, path): without_links(summary) for method, path, summary in rows}


def _operation(route: Route, path: str, summary: str) -> dict[str, Any]:
    method = "post" if route in LATER else route.method.lower()
    operation: dict[str, Any] = {
        "operationId": "_".join([method, *re.findall(r"\w+", path)]),
        "tags": [_tag(route)],
        "summary": summary,
    }
    if route.scopes:
        operation["description"] = f"Key scope: {' or '.join(route.scopes)}."
    else:
        operation["security"] = _security(is_needed=False)
    if found := parameters(route):
        operation["parameters"] = found
    if (body := request_body(route)) is not None:
        operation["requestBody"] = body
    operation["responses"] = responses(route)
    return operation


def _tag(route: Route) -> str:
    is_openai = route.dialect is Dialect.OPENAI and (route.is_counted or route.path.startswith("/v1/"))
    return _TAGS[route.dialect] if is_openai or route.dialect is not Dialect.OPENAI else _OWN


def _security(*, is_needed: bool) -> Sequence[Mapping[str, Any]]:
    """Return the alternatives; the empty one is a server without keys."""
    return [{"bearer": []}, {"x-api-key": []}, {}] if is_needed else [{}]
