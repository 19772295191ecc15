"""JSON schemas of values that validators of our own read, and pydantic can therefore not describe by itself.

Owns descriptions for openapi.json alone: validators decide what is accepted. Must not know the fields of a dialect.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def any_of(*schemas: Schema) -> Schema:
    """Return the schema of a value that fits one of `schemas`."""
    return {"anyOf": list(schemas)}


def list_of(items: Schema, **limits: int) -> Schema:
    """Return the schema of a list; `limits` are minItems and maxItems."""
    return {"type": "array", "items": items, **limits}


def object_of(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """Return the schema of an object that may have other keys too."""
    schema: Schema = {"type": "object", "properties": properties}
    return schema | {"required": list(required)} if required else schema


NULL: Schema = {"type": "null"}
TEXT: Schema = {"type": "string"}
ANY_OBJECT: Schema = {"type": "object"}
