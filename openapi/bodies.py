"""What the bodies of requests are: the worker's models of fields, with the keys that the router reads besides.

Owns no field's type or range: those are the models'. What the router's own routes take is told here, as they read it
by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.json_schema import models_json_schema

from openapi.examples import EXAMPLES
from openapi.meanings import PLACES, Meanings, meaning_of
from router.later import ROUTES as LATER
from router.routes import Route
from worker.api.fields import Fields
from worker.api.json_schemas import NULL, TEXT, Schema, any_of, list_of, object_of
from worker.app import ROUTES as WORKER_ROUTES

_DURATION = r"^[+-]?([0-9]+(\.[0-9]*)?|([0-9]+(\.[0-9]*)?(ns|us|ms|s|m|h))+)$"

ROUTER_KEYS: Mapping[str, Schema] = {
    "model": any_of(TEXT, NULL)
    | {"description": "A model or an alias. Without it: the server's `default_model`, or its only model."},
    "priority": any_of({"type": "integer", "minimum": -100, "maximum": 100}, NULL)
    | {"description": "Higher goes first where requests wait. More than 0 needs a key of scope `admin`."},
    "cache_salt": any_of(TEXT, NULL) | {"description": "Only requests of the same salt share computed prompts."},
    "keep_alive": any_of({"type": "number"}, {"type": "string", "pattern": _DURATION}, NULL)
    | {
        "description": 'Seconds, or a duration such as "5m" or "1h30m", that the worker stays loaded when '
        "nobody uses it. 0: it goes at once. Negative: idleness does not unload it."
    },
}
"""What the router reads of every body that goes to a model, where the dialect's own fields do not tell it."""

_NAMED_MODEL = object_of(("model",), model=TEXT | {"description": "A model or an alias."}) | {
    "additionalProperties": False
}
_SCALES = list_of(
    object_of(
        ("id", "scale"),
        id={"type": "integer", "minimum": 0},
        scale={"type": "number", "minimum": -100, "maximum": 100},
    )
)
_TAGGED = {"model": TEXT | {"description": "A model or an alias, with or without `:latest`."}}
OWN_BODIES: Mapping[str, Schema | None] = {
    "/models/load": _NAMED_MODEL,
    "/models/unload": _NAMED_MODEL,
    "/admin/reload": None,
    "/admin/pin": object_of(
        ("model", "pin"),
        model=TEXT | {"description": "A model or an alias."},
        pin=any_of({"type": "boolean"}, NULL) | {"description": "Null: as the configuration says."},
    )
    | {"additionalProperties": False},
    "/admin/config": object_of(
        ("text", "sha256"),
        text=TEXT | {"description": "The whole text of `models.yaml`."},
        sha256=TEXT | {"description": "Of the text that was edited, as GET told it."},
    )
    | {"additionalProperties": False},
    "/admin/config/check": object_of(("text",), text=TEXT | {"description": "The whole text of a `models.yaml`."})
    | {"additionalProperties": False},
    "/props": None,
    "/lora-adapters": _SCALES,
    "/slots/{id}": object_of(
        (),
        model=ROUTER_KEYS["model"],
        cache_salt=ROUTER_KEYS["cache_salt"],
        filename=any_of(TEXT | {"minLength": 1, "maxLength": 255}, NULL)
        | {"description": "What it is saved as; needed by `save` and `restore`."},
    ),
    "/v1/responses/{id}/cancel": None,
    "/api/show": object_of(("model",), **_TAGGED),
    "/api/pull": object_of(
        ("model",),
        model=TEXT | {"description": "A model of `models.yaml`, or a reference such as `hf:OWNER/REPO:Q4_K_M`."},
        stream=any_of({"type": "boolean"}, NULL)
        | {"description": "False: one reply when all is here, no lines before."},
    ),
}
"""What is posted or put to the router's own routes; None = they want no body."""


WITH_BODIES = ("POST", "PUT")
"""Methods whose requests may have one."""

MAY_BE_LEFT_OUT: Mapping[str, tuple[str, ...]] = {
    "OllamaChatFields": ("messages",),
    "OllamaGenerateFields": ("prompt",),
}
"""Fields that workers need, by body: the router itself answers requests without them, which load the model."""


def full_path(route: Route) -> str:
    """Return the path as OpenAPI writes it, without patterns; of a route that is another form, the first one's."""
    path = re.sub(r":[^}]*\}", "}", route.path)
    return f"/v1{path}" if (route.same_as or "").startswith("/v1/") and "{" in path else path


def fields_of(route: Route) -> type[Fields] | None:
    """Return the model of the bodies that a worker gets from `route`; None if none gets any."""
    return _worker_fields().get(route.label) if route.method == "POST" and "{" not in route.path else None


def request_body(route: Route) -> dict[str, Any] | None:
    """Return the description of the route's body; None if it has none. Raises: LookupError that says what lacks."""
    if route.method not in WITH_BODIES or route in LATER:
        return None
    if (fields := fields_of(route)) is not None:
        return _json_body({"$ref": f"#/components/schemas/{fields.__name__}"}, EXAMPLES.get(route.label))
    try:
        schema = OWN_BODIES[full_path(route)]
    except KeyError:
        raise LookupError(
            f"nothing tells what the body of {route.method} {route.path} is: give the worker a route for it, or put "
            "it into OWN_BODIES in openapi/bodies.py"
        ) from None
    return None if schema is None else _json_body(schema)


def body_schemas(meanings: Meanings) -> dict[str, Schema]:
    """Return the schemas of all bodies that workers get, and of their parts, by name."""
    models = sorted(set(_worker_fields().values()), key=lambda model: model.__name__)
    names = [model.__name__ for model in models]
    assert len(set(names)) == len(names), f"two bodies have the same name: {names}"
    found = models_json_schema([(model, "validation") for model in models], ref_template="#/components/schemas/{model}")
    # Parts of bodies that have one name in several dialects are told apart by their module.
    schemas: dict[str, Schema] = json.loads(json.dumps(found[1]["$defs"]).replace("worker__api__", ""))
    for name in sorted(schemas.keys() & PLACES.keys()):
        _tell_meanings(name, "", schemas[name], schemas, meanings)
    for schema in schemas.values():
        _make_readable(schema)
    for name in names:
        schemas[name]["properties"] = dict(ROUTER_KEYS) | schemas[name].get("properties", {})
    return dict(sorted(schemas.items()))


def public_schemas(meanings: Meanings) -> dict[str, Schema]:
    """Return the schemas of all bodies as clients may send them."""
    schemas = body_schemas(meanings)
    for body, optional in MAY_BE_LEFT_OUT.items():
        needed = [name for name in schemas[body].pop("required", ()) if name not in optional]
        schemas[body] |= {"required": needed} if needed else {}
        for name in optional:
            field = schemas[body]["properties"][name]
            field.pop("minItems", None)
            field["description"] += " Without it nothing is generated: the model is loaded."
    return schemas


def sentence(words: str) -> str:
    """Return what completes "it must be ..." as a sentence of its own."""
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")


def _worker_fields() -> dict[str, type[Fields]]:
    return {route.path: route.fields for route in WORKER_ROUTES}


def _json_body(schema: Schema, example: Mapping[str, Any] | None = None) -> dict[str, Any]:
    media: dict[str, Any] = {"schema": schema}
    return {
        "required": True,
        "content": {"application/json": media if example is None else media | {"example": example}},
    }


_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""pydantic's own words, which it leaves in the schema of a number that is read by a validator in front."""


def _parts(schema: Schema) -> Iterator[Schema]:
    """Return `schema` and every schema inside it."""
    yield schema
    inside = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        inside += schema.get(key, ())
    inside += [schema[key] for key in ("items", "additionalProperties", "propertyNames") if key in schema]
    for one in inside:
        if isinstance(one, dict):
            yield from _parts(one)


def _tell_meanings(body: str, outer: str, schema: Schema, schemas: Mapping[str, Schema], meanings: Meanings) -> None:
    """Mutates: `schema` and the parts it refers to: what their fields mean is added to what they must be."""
    for name, field in schema.get("properties", {}).items():
        told = meaning_of(body, outer + name, meanings)
        if told and told not in field.get("description", ""):
            field["description"] = f"{sentence(field.get('description', ''))} {told}".strip()
        for part in _parts(field):
            inner = part.get("$ref", "").rpartition("/")[2]
            if inner and inner not in PLACES:
                _tell_meanings(body, f"{outer}{name}.", schemas[inner], schemas, meanings)


def _make_readable(schema: Schema) -> None:
    """Mutates: `schema`: sentences for descriptions; no titles, nor defaults that only stand for "not said"."""
    for part in _parts(schema):
        part.pop("title", None)
        if part.get("default", 0) in (None, []):
            del part["default"]
        if "description" in part:
            part["description"] = sentence(part["description"])
        for ours, theirs in _LIMITS.items():
            if ours in part:
                part[theirs] = part.pop(ours)
