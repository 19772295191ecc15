"""What comes back: the statuses of each route, the form of its errors in its dialect, the types of its replies.

Owns which statuses a kind of route can answer with. The forms of errors are `router/dialects.py`'s; the tests compare.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from openapi.bodies import OWN_BODIES, WITH_BODIES, fields_of, full_path
from openapi.meanings import Meanings
from openapi.shapes import PARTS, REPLIES, own_replies
from router.dialects import EVENT_STREAM, NDJSON, Dialect, stream_type
from router.later import ROUTES as LATER
from router.routes import Route, Streaming
from worker.api.json_schemas import ANY_OBJECT, NULL, TEXT, Schema, any_of, object_of

_JSON = "application/json"
_PLAIN = "text/plain"

HEADERS: Mapping[str, Any] = {
    "X-Request-Id": {"description": "What the server's log calls this request.", "schema": TEXT},
}

_MEANINGS: Mapping[int, str] = {
    400: "The request is wrong: the message names the field and says what it must be.",
    401: "The server wants an API key, and this is none of its own.",
    403: "The API key may not do this, or the request came by a foreign name or from a foreign page.",
    404: "There is no such model, whose nearest names the message lists; or no such response or file.",
    408: "The body did not come in time.",
    409: "The file has been changed since the editing began, or the slot is busy; nothing has changed.",
    410: "The answer was stopped, or what is asked for of it is no longer kept.",
    413: "The body is longer than the server's `limits.max_body_bytes`.",
    415: "The body is not declared as JSON.",
    422: "The configuration has mistakes, which are listed; nothing has changed.",
    429: "Too many requests wait already, or the API key has reached a limit. `Retry-After` says when to come again.",
    500: "The model or the server failed on this request.",
    501: "This release cannot do that; the message says what to use instead.",
    502: "The other server that this model is on gave no proper answer.",
    503: "The model cannot be used now; the message says why, `Retry-After` when to come again.",
    507: "No device of this machine can hold the model, or the disk has no room for the file; the message says more.",
}
_OF_MODELS = (400, 404, 408, 410, 413, 415, 429, 500, 502, 503, 507)
"""What a request to a model may be answered with, beside what it asks for."""

_STATUSES: Mapping[tuple[str, str], tuple[int, ...]] = {
    ("POST", "/models/load"): (404, 503, 507),
    ("POST", "/models/unload"): (404,),
    ("POST", "/admin/reload"): (400, 422, 503),
    ("GET", "/v1/models/{id}"): (404,),
    ("GET", "/health"): (404, 503),
    ("GET", "/slots"): (404,),
    ("GET", "/events"): (400, 429),
    ("GET", "/requests"): (400, 404),
    ("POST", "/admin/pin"): (404, 503),
    ("POST", "/admin/config/check"): (429,),
    ("PUT", "/admin/config"): (409, 422, 429, 500, 503, 507),
    ("GET", "/ui/{file}"): (404,),
    ("GET", "/models/sse"): (429,),
    ("GET", "/admin/logs"): (400, 404, 429),
    ("GET", "/props"): (400, 404),
    ("POST", "/props"): (501,),
    ("GET", "/lora-adapters"): (400, 404),
    ("POST", "/lora-adapters"): (404,),
    ("POST", "/slots/{id}"): (400, 404, 409, 500, 501, 503, 507),
    ("GET", "/v1/responses/{id}"): (400, 404),
    ("DELETE", "/v1/responses/{id}"): (404,),
    ("GET", "/v1/responses/{id}/input_items"): (400, 404),
    ("POST", "/v1/responses/{id}/cancel"): (400, 404),
    ("GET", "/v1/streams/{id}"): (400, 404, 410, 429),
    ("DELETE", "/v1/streams/{id}"): (404,),
    ("POST", "/api/show"): (404,),
    ("POST", "/api/pull"): (404, 503),
}
"""Of the router's own routes, beside those that follow from keys and bodies."""

_CONTENT: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("GET", "/"): {_PLAIN: {"schema": TEXT}},
    ("GET", "/ui/"): {"text/html": {"schema": TEXT}},
    ("GET", "/ui"): {"text/html": {"schema": TEXT}},
    ("GET", "/ui/{file}"): {"*/*": {"schema": TEXT}},
    ("GET", "/docs"): {"text/html": {"schema": TEXT}},
    ("GET", "/metrics"): {_PLAIN: {"schema": TEXT}, "application/openmetrics-text": {"schema": TEXT}},
    ("GET", "/admin/logs"): {_PLAIN: {"schema": TEXT}},
    ("GET", "/events"): {EVENT_STREAM: {"schema": TEXT}},
    ("GET", "/models/sse"): {EVENT_STREAM: {"schema": TEXT}},
    ("POST", "/api/pull"): {_JSON: {"schema": ANY_OBJECT}, NDJSON: {"schema": TEXT}},
    ("GET", "/v1/streams/{id}"): {
        EVENT_STREAM: {"schema": TEXT},
        NDJSON: {"schema": TEXT},
        _JSON: {"schema": ANY_OBJECT},
    },
}
"""Successful replies that are not JSON alone."""
_OK: Mapping[tuple[str, str], str] = {
    ("GET", "/v1/models"): "Every model and every alias that is not hidden, with its state.",
    ("GET", "/v1/models/{id}"): "The model, with its state.",
    ("GET", "/models"): "Every model, with its state in llama-server's words.",
    ("GET", "/slots"): "Every slot, with the request that it serves.",
    ("POST", "/slots/{id}"): "What was saved, restored or erased.",
    ("GET", "/lora-adapters"): "The model's adapters.",
    ("GET", "/v1/responses/{id}"): "The response, as it was answered.",
    ("GET", "/v1/responses/{id}/input_items"): "The items, page by page.",
    ("GET", "/v1/streams/{id}"): "The rest of the reply, in its own form. One that failed has its own status.",
    ("DELETE", "/v1/streams/{id}"): "It is stopped and forgotten.",
    ("GET", "/api/tags"): "The models.",
    ("GET", "/api/ps"): "The loaded models.",
    ("GET", "/api/version"): "The releases.",
    ("POST", "/api/show"): "What is known of the model.",
    ("GET", "/"): "What this server is, and all of its routes.",
    ("GET", "/docs"): "This page.",
    ("GET", "/openapi.json"): "This document.",
    ("GET", "/metrics"): "The metrics, in the form that Prometheus asks for.",
    ("GET", "/metrics.json"): "A list of families, each with `name`, `type`, `help` and its `samples`.",
    ("GET", "/events"): "Events without end: what is, and then whatever changes.",
    ("GET", "/models/sse"): "Events without end: a model's state whenever it changes.",
    ("GET", "/admin/logs"): "Lines of the log.",
    ("GET", "/status"): "Everything at once.",
    ("GET", "/requests"): "The requests, the newest first.",
    ("GET", "/ui/"): "The page.",
    ("GET", "/ui"): "The page.",
    ("GET", "/ui/{file}"): "The file.",
    ("GET", "/admin/config"): "The text and its verdict.",
    ("POST", "/admin/config/check"): "What is wrong with the text, and what it would change.",
    ("PUT", "/admin/config"): "What has changed.",
    ("GET", "/admin/keys"): "Every key, its limits and what it has used.",
    ("POST", "/admin/pin"): "Whether the model is pinned now.",
    ("GET", "/health"): "The server takes requests, or the model can be asked.",
    (
        "GET",
        "/props",
    ): "With `model`: that model's. Without it: those of the only model, or of the only one that is loaded. "
    'Else the router\'s own, whose `role` is `"router"`. A name that no model has is answered with 404, a model of '
    "another server with 400.",
    ("POST", "/lora-adapters"): "The scales hold from now on.",
    ("POST", "/models/load"): "The load has begun, or the model is loaded.",
    ("POST", "/models/unload"): "The model is on its way out.",
    ("POST", "/admin/reload"): "What has changed.",
    ("POST", "/api/pull"): "How far it is, line by line; with `stream` false one object when all is here.",
    ("DELETE", "/v1/responses/{id}"): "It is forgotten.",
}
"""What successful replies of the router's own routes tell."""
_REDIRECTS: Mapping[tuple[str, str], str] = {
    ("GET", "/"): "To the dashboard, for clients that accept `text/html`.",
    ("GET", "/ui"): "To the page, `/ui/`.",
}
_NEVER_OK = frozenset({("POST", "/props"), ("POST", "/v1/responses/{id}/cancel")})
"""Routes of other servers that are there to tell why they do nothing."""

_EMPTY = frozenset({("DELETE", "/v1/streams/{id}")})
"""Routes whose success has no body."""

_NAMES = {
    Dialect.OPENAI: "OpenAIError",
    Dialect.RESPONSES: "OpenAIError",
    Dialect.ANTHROPIC: "AnthropicError",
    Dialect.OLLAMA: "OllamaError",
    Dialect.LLAMA: "LlamaServerError",
}


def error_schemas() -> dict[str, Schema]:
    """Return how errors look in each dialect, by name."""
    openai = object_of(
        ("message", "type", "param", "code"), message=TEXT, type=TEXT, param=any_of(TEXT, NULL), code=TEXT
    )
    llama = object_of(("code", "message", "type"), code={"type": "integer"}, message=TEXT, type=TEXT, param=TEXT)
    anthropic = object_of(("type", "message"), type=TEXT, message=TEXT)
    return {
        "OpenAIError": object_of(("error",), error=openai),
        "LlamaServerError": object_of(("error",), error=llama),
        "AnthropicError": object_of(
            ("type", "error"), type={"const": "error"}, error=anthropic, request_id=any_of(TEXT, NULL)
        ),
        "OllamaError": object_of(("error",), error=TEXT),
    }


def reply_schemas() -> dict[str, Schema]:
    """Return the schemas of successful replies, and of their parts, by name."""
    return {name_of_reply(path): schema for path, schema in REPLIES.items()} | dict(PARTS)


def name_of_reply(path: str) -> str:
    """Return the name of the schema of what a route to models answers with."""
    return "".join(word.capitalize() for word in re.findall(r"[a-z0-9]+", path)) + "Reply"


def error_responses() -> dict[str, Any]:
    """Return every failure in the form of every dialect, by name."""
    return {
        f"{name}{status}": _response(meaning, {_JSON: {"schema": {"$ref": f"#/components/schemas/{name}"}}})
        for name in dict.fromkeys(_NAMES.values())
        for status, meaning in _MEANINGS.items()
    }


def responses(route: Route, meanings: Meanings) -> dict[str, Any]:
    """Return everything that `route` may answer."""
    found: dict[str, Any] = {}
    key = route.method, full_path(route)
    if route not in LATER and key not in _NEVER_OK:
        content = {} if key in _EMPTY else _content(route, own_replies(meanings))
        found["204" if key in _EMPTY else "200"] = _response(_told(route), content)
    if key in _REDIRECTS:
        found["303"] = _response(_REDIRECTS[key], {_PLAIN: {"schema": TEXT}})
    for status in sorted(_failures(route)):
        if key == ("GET", "/health") and status == 503:
            found["503"] = _response(
                "The server stops, or the model cannot be used: the body has the reason.", _health()
            )
        else:
            found[str(status)] = {"$ref": f"#/components/responses/{_NAMES[route.dialect]}{status}"}
    return found


def _told(route: Route) -> str:
    if (fields := fields_of(route)) is None:
        try:
            return _OK[route.method, full_path(route)]
        except KeyError:
            raise LookupError(f"_OK in openapi/replies.py lacks {route.method} {route.path}") from None
    if "stream" not in fields.model_fields or route.running.streaming is Streaming.NEVER:
        return "The whole answer."
    stream = stream_type(route.dialect)
    unsaid = " or not said" if route.running.streaming is Streaming.BY_DEFAULT else ""
    return f"The whole answer, or its pieces as `{stream}` where `stream` is true{unsaid}."


def _failures(route: Route) -> set[int]:
    statuses = {403}  # the name in `Host` and the page in `Origin` are checked on every route
    if route.scopes:
        statuses.add(401)
    if route in LATER:
        return statuses | {501}
    if fields_of(route) is not None:
        return statuses | set(_OF_MODELS)
    path = full_path(route)
    if route.method in WITH_BODIES and OWN_BODIES.get(path) is not None:
        statuses |= {400, 408, 413, 415, 429}
    return statuses | set(_STATUSES.get((route.method, path), ()))


def _content(route: Route, own: Mapping[str, Schema]) -> Mapping[str, Any]:
    if (fields := fields_of(route)) is None:
        schema = own.get(full_path(route), ANY_OBJECT) if route.method == "GET" else ANY_OBJECT
        return _CONTENT.get((route.method, full_path(route)), {_JSON: {"schema": schema}})
    content: dict[str, Any] = {_JSON: {"schema": {"$ref": f"#/components/schemas/{name_of_reply(route.label)}"}}}
    if "stream" in fields.model_fields and route.running.streaming is not Streaming.NEVER:
        content[stream_type(route.dialect)] = {"schema": TEXT}
    return content


def _health() -> Mapping[str, Any]:
    return {_JSON: {"schema": object_of(("status",), status=TEXT, reason=TEXT)}}


def _response(description: str, content: Mapping[str, Any]) -> dict[str, Any]:
    header = {"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}}
    return {"description": description, "headers": header, "content": content}
