"""Which definitions of a rewritten schema no finite value can fit: they are false, or demand themselves without end.

The library refuses a schema whole that refers to one of these, even where there are alternatives, or lets an answer
begin that can never end. Owns finding and removing such references. What is empty for other reasons it may not see.
"""

from __future__ import annotations

from typing import Any, Final

from worker.schemas.expansion import Schema, definition

_MAX_ROUNDS: Final = 50


def empty_references(root: dict[str, Any]) -> set[str]:
    """Return the references that no finite value can fit; `#` is one of them where that is so of the whole."""
    names = [f"#/$defs/{name}" for name in root.get("$defs", {})]
    fits: set[str] = set()
    # What is referred to comes after what refers to it, so the way back needs few rounds.
    for _ in range(_MAX_ROUNDS):
        before = len(fits)
        fits.update(name for name in reversed(names) if name not in fits and _fits(definition(root, name), fits))
        if len(fits) == before:
            return (set(names) - fits) | (set() if _fits(root, fits) else {"#"})
    return set()


def _fits(schema: Schema, fits: set[str]) -> bool:
    """Return whether a value can fit, if one can fit each of the references in `fits`."""
    if isinstance(schema, bool):
        return schema
    return (
        ("$ref" not in schema or schema["$ref"] in fits)
        and all(_fits(part, fits) for part in schema.get("allOf", ()))
        and ("anyOf" not in schema or any(_fits(part, fits) for part in schema["anyOf"]))
        and all(_fits(part, fits) for part in _demanded(schema))
    )


def _demanded(schema: dict[str, Any]) -> list[Schema]:
    """Return the schemas of what an object or list must have inside."""
    if schema.get("type") in ("object", ["object"]):
        properties = schema.get("properties", {})
        return [properties.get(name, True) for name in schema.get("required", ())]
    if schema.get("type") in ("array", ["array"]):
        num = schema.get("minItems", 0)
        first: list[Schema] = schema.get("prefixItems", [])
        return [*first[:num], *([schema.get("items", True)] if num > len(first) else [])]
    return []


def without_references(schema: Schema, dead: set[str]) -> Schema:
    """Return `schema` with false in place of every schema that refers to one of `dead`."""
    if isinstance(schema, bool) or not dead:
        return schema
    if schema.get("$ref") in dead:
        return False
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "patternProperties", "$defs"):
            kept[key] = {name: without_references(inner, dead) for name, inner in value.items()}
        elif key in ("allOf", "anyOf", "prefixItems"):
            kept[key] = [without_references(inner, dead) for inner in value]
        elif key in ("items", "additionalProperties"):
            kept[key] = without_references(value, dead)
        else:
            kept[key] = value
    return kept
