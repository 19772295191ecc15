"""Objects that say which properties they have, and nothing of others, are closed: a model would invent others.

What is valid under the closed schema is valid under the one that the client sent. Only objects whose parts are not put
together from several schemas are closed. Pure; must not know what is enforced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_SAYS_MORE: Final = frozenset(
    {
        *("additionalProperties", "unevaluatedProperties", "patternProperties", "minProperties", "propertyNames"),
        *("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "$dynamicRef", "$recursiveRef"),
        *("dependentSchemas", "dependencies", "extends"),
    }
)
"""What may ask for other properties, or adds some."""
_ONE: Final = ("items", "additionalItems", "additionalProperties", "contains")
_LIST: Final = ("items", "prefixItems")
_NAMED: Final = ("properties", "patternProperties")
_WAYS: Final = ("anyOf", "oneOf")
_DEFINITIONS: Final = ("$defs", "definitions")
_DEFINITION: Final = re.compile(r"#/(\$defs|definitions)/[^/~%]+")
_MAX_DEPTH: Final = 200


def close_objects(schema: Any) -> Any:
    """Return the schema with its objects closed; what is no schema comes back as it is."""
    if not isinstance(schema, Mapping):
        return schema
    joined = frozenset(_joined_references(schema, 0, is_joined=False))
    if not all(_DEFINITION.fullmatch(one) for one in joined):
        return schema  # what they lead to may be any part of it
    return _closed(schema, joined, 0, is_joined=False)


def _closed(schema: Any, joined: frozenset[str], depth: int, *, is_joined: bool) -> Any:
    """Return the schema closed; one that `is_joined` with others says only a part of what its objects have."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return schema
    result = dict(schema)
    parts_are_joined = is_joined or _has_own(schema)
    for name in _ONE:
        if isinstance(schema.get(name), Mapping):
            result[name] = _closed(schema[name], joined, depth + 1, is_joined=is_joined)
    for name in _LIST:
        if isinstance(schema.get(name), list):
            result[name] = [_closed(one, joined, depth + 1, is_joined=is_joined) for one in schema[name]]
    for name in _NAMED:
        if isinstance(schema.get(name), Mapping):
            inner = schema[name].items()
            result[name] = {key: _closed(one, joined, depth + 1, is_joined=is_joined) for key, one in inner}
    for name in _WAYS:
        if isinstance(schema.get(name), list):
            result[name] = [_closed(one, joined, depth + 1, is_joined=parts_are_joined) for one in schema[name]]
    for name in _DEFINITIONS:
        if isinstance(schema.get(name), Mapping):
            result[name] = {
                key: _closed(one, joined, depth + 1, is_joined=f"#/{name}/{key}" in joined)
                for key, one in schema[name].items()
            }
    if not is_joined and _can_be_closed(schema):
        result["additionalProperties"] = False
    return result


def _can_be_closed(schema: Mapping[str, Any]) -> bool:
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, Mapping) or not properties or not _SAYS_MORE.isdisjoint(schema):
        return False
    return isinstance(required, list) and all(isinstance(name, str) and name in properties for name in required)


def _has_own(schema: Mapping[str, Any]) -> bool:
    """Whether a schema with several ways asks for something itself: then each way is only a part."""
    return bool({"properties", "allOf", "$ref", "required", "patternProperties"} & schema.keys()) or (
        sum(name in schema for name in _WAYS) > 1
    )


def _joined_references(schema: Any, depth: int, *, is_joined: bool) -> Iterator[str]:
    """Yield the references that stand where their schema is put together with others."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(schema, list):
        for one in schema:
            yield from _joined_references(one, depth + 1, is_joined=is_joined)
    elif isinstance(schema, Mapping):
        reference = schema.get("$ref")
        if isinstance(reference, str) and (
            is_joined or not {"properties", "required", *_WAYS, "allOf"}.isdisjoint(schema)
        ):
            yield reference
        for name, inner in schema.items():
            is_part = name in ("allOf", "not", "if", "then", "else", "dependentSchemas")
            is_part = is_part or (name in _WAYS and (is_joined or _has_own(schema)))
            yield from _joined_references(inner, depth + 1, is_joined=is_part)
