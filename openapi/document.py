"""Puts the document together: one operation for each route of the router, in the order of its tables.

Owns the frame. What bodies are is said by `bodies.py`, what comes back by `replies.py`, what a route is for by
docs/routes.md.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openapi.bodies import fields_of, full_path, public_schemas, request_body
from openapi.meanings import Meanings, read_meanings, without_links
from openapi.parameters import parameters
from openapi.refused import AS_ON, refusals
from openapi.replies import HEADERS, error_responses, error_schemas, reply_schemas, responses
from router.app import all_routes
from router.dialects import Dialect
from router.later import ROUTES as LATER
from router.routes import Route

ROOT = Path(__file__).resolve().parents[1]

_INTRODUCTION = """\
Several GGUF models behind one URL. Requests choose a model by the field `model`; it is loaded when the first one asks.

Fields are honoured or refused: one that Corral knows from other servers and cannot do is answered with 400, which names
it, and only fields that nobody knows are passed over; each route lists what it refuses. `null` means "not said".

Not in this release: images, audio and files.

The routes of each API family answer errors in that family's own form. `X-Request-Id` in a reply is what the server's
log calls the request.

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
    summaries = read_summaries((ROOT / "docs/routes.md").read_text(encoding="utf-8"))
    meanings = read_meanings(ROOT / "docs")
    paths: dict[str, dict[str, Any]] = {}
    for route in all_routes():
        path = shown_path(route)
        if route in LATER:
            paths.setdefault(path, {})["post"] = _operation(route, path, "Not available in this release.", meanings)
            continue
        try:
            summary = summaries[route.method, path]
        except KeyError:
            raise LookupError(f"docs/routes.md has no row for {route.method} {path}") from None
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path, summary, meanings)
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
            "schemas": public_schemas(meanings) | reply_schemas() | error_schemas(),
            "responses": _used(error_responses(), paths),
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


def read_summaries(page: str) -> dict[tuple[str, str], str]:
    """Return what each route is for, by method and path, from the tables of `docs/routes.md`."""
    rows = re.findall(r"^\| `(\S+) (\S+)` \|([^|]*)\|[^|]*\| (.*) \|$", page, re.MULTILINE)
    return {
        (method, one): without_links(summary)
        for method, path, also, summary in rows
        for one in (path, *re.findall(r"`([^`]+)`", also))
    }


def _operation(route: Route, path: str, summary: str, meanings: Meanings) -> dict[str, Any]:
    method = "post" if route in LATER else route.method.lower()
    operation: dict[str, Any] = {
        "operationId": "_".join([method, *re.findall(r"\w+", path), *(["page"] if path[1:].endswith("/") else [])]),
        "tags": [_tag(route)],
        "summary": summary,
    }
    if told := _description(route):
        operation["description"] = "\n\n".join(told)
    if route.same_as:
        operation["x-form-of"] = _main_form(route)
    if not route.scopes:
        operation["security"] = _security(is_needed=False)
    if found := parameters(route):
        operation["parameters"] = found
    if (body := request_body(route)) is not None:
        operation["requestBody"] = body
    operation["responses"] = responses(route, meanings)
    return operation


def _description(route: Route) -> list[str]:
    told = [f"Key scope: {' or '.join(route.scopes)}."] if route.scopes else []
    if route.same_as:
        return [*told, f"Another form of `{_main_form(route)}`, which tells more."]
    if fields_of(route) is None:
        return told
    if route.label in AS_ON:
        return [*told, f"Refuses the fields that `{AS_ON[route.label]}` refuses."]
    return [*told, *refusals(route.label)]


def _main_form(route: Route) -> str:
    return full_path(route) if "{" in route.path else route.same_as or ""


def _used(found: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[str, Any]:
    """Return those that some operation refers to."""
    named = set(re.findall(r'"#/components/responses/(\w+)"', json.dumps(paths)))
    return {name: one for name, one in found.items() if name in named}


def _tag(route: Route) -> str:
    is_counted = route.is_counted and not route.path.startswith("/admin/")
    is_openai = route.dialect is Dialect.OPENAI and (is_counted or route.path.startswith("/v1/"))
    return _TAGS[route.dialect] if is_openai or route.dialect is not Dialect.OPENAI else _OWN


def _security(*, is_needed: bool) -> Sequence[Mapping[str, Any]]:
    """Return the alternatives; the empty one is a server without keys."""
    return [{"bearer": []}, {"x-api-key": []}, {}] if is_needed else [{}]
