"""Hypothesis strategies for JSON that a schema describes, and for the same with wrong values mixed in.

Knows as much of JSON Schema as openapi.json uses. Must not know a route.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

Schema = Mapping[str, Any]
Values = st.SearchStrategy[Any]

EDGES = (
    -(2**63),
    -(2**31),
    -2,
    -1,
    0,
    1,
    2,
    3,
    100,
    2**16,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
_NUMBERS = st.one_of(
    st.sampled_from(EDGES), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from((5.0, 2.5))
)
_TEXTS = st.one_of(
    st.sampled_from(
        ("", "a", "user", "text", "\x00", "<|im_end|>", "</s>", "\ufffd", "日本 🙂", "a" * 600, "1e999", "-1")
    ),
    st.text(max_size=12),
)
_SCALARS = st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS)
ANYTHING = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_TEXTS, inner, max_size=4)),
    max_leaves=6,
)
"""Any JSON value that is not long."""


def fitting(schema: Schema, schemas: Mapping[str, Schema]) -> Values:
    """Return values that `schema` allows; `schemas` are those that it may refer to."""
    return _values(schema, schemas, lambda values: values)


def nearly(schema: Schema, schemas: Mapping[str, Schema]) -> Values:
    """Return values that mostly look like what `schema` allows, with anything in places where it does not belong."""
    return _values(schema, schemas, lambda values: st.integers(0, 11).flatmap(lambda at: values if at else ANYTHING))


def bodies(schema: Schema, schemas: Mapping[str, Schema], others: tuple[str, ...] = ()) -> Values:
    """Return bodies of a request: what is required, nearly right, and a few of all other fields.

    `others` are names of fields that the schema does not have.
    """
    right = {name: fitting(one, schemas) for name, one in schema["properties"].items()}
    values = {name: nearly(one, schemas) for name, one in schema["properties"].items()}
    required = [name for name in schema.get("required", ()) if name in values]
    own = st.sampled_from(sorted(values))
    names = (*sorted(values.keys() - set(required)), *others)
    some: Values = st.lists(st.sampled_from(names), max_size=4, unique=True) if names else st.just([])

    @st.composite
    def build(draw: st.DrawFn) -> dict[str, Any]:
        if draw(st.booleans()):
            return {name: draw(right[name]) for name in (*required, *draw(st.lists(own, max_size=2, unique=True)))}
        body = {name: draw(values[name]) for name in required if draw(st.integers(0, 19))}
        for name in draw(some):
            body[name] = draw(values.get(name, ANYTHING))
        return body

    return build()


def example(schema: Schema, schemas: Mapping[str, Schema]) -> Any:  # noqa: PLR0911 - one kind of schema a line
    """Return one small value that `schema` allows."""
    if "$ref" in schema:
        return example(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "const" in schema or "enum" in schema:
        return schema.get("enum", [schema.get("const")])[0]
    if alternatives := schema.get("anyOf", schema.get("oneOf")):
        return example(alternatives[0], schemas)
    match schema.get("type"):
        case "array":
            return [example(schema.get("items", {}), schemas)] * max(1, schema.get("minItems", 0))
        case "object":
            return {name: example(schema["properties"][name], schemas) for name in schema.get("required", ())}
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return True
        case "null":
            return None
        case [kind, *_]:
            return example({**schema, "type": kind}, schemas)
        case _:
            return "a" * max(1, schema.get("minLength", 1))


def _values(schema: Schema, schemas: Mapping[str, Schema], wrap: Callable[[Values], Values]) -> Values:
    return wrap(_plain(schema, schemas, wrap))


def _plain(  # noqa: PLR0911 - one kind of schema a line
    schema: Schema, schemas: Mapping[str, Schema], wrap: Callable[[Values], Values]
) -> Values:
    if "$ref" in schema:
        return _plain(schemas[schema["$ref"].rpartition("/")[2]], schemas, wrap)
    if "const" in schema or "enum" in schema:
        return st.sampled_from(list(schema.get("enum", [schema.get("const")])))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return st.one_of(*(_plain(one, schemas, wrap) for one in schema[key]))
    match schema.get("type"):
        case "array":
            if "prefixItems" in schema:
                return st.tuples(*(_values(one, schemas, wrap) for one in schema["prefixItems"])).map(list)
            items = _values(schema.get("items", {}), schemas, wrap)
            least, most = schema.get("minItems", 0), schema.get("maxItems", 3)
            return st.lists(items, min_size=least, max_size=max(least, min(3, most)))
        case "object":
            return _objects(schema, schemas, wrap)
        case "string":
            return _strings(schema)
        case "integer":
            return st.integers(*_range(schema))
        case "number":
            return _floats(schema)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case [*kinds]:
            return st.one_of(*(_plain({**schema, "type": kind}, schemas, wrap) for kind in kinds))
        case _:
            return ANYTHING


def _objects(schema: Schema, schemas: Mapping[str, Schema], wrap: Callable[[Values], Values]) -> Values:
    properties, required = schema.get("properties", {}), schema.get("required", ())
    if not properties and (extra := schema.get("additionalProperties")):
        keys = _strings(schema.get("propertyNames", {}))
        return st.dictionaries(
            keys, _values(extra, schemas, wrap) if isinstance(extra, Mapping) else ANYTHING, max_size=3
        )
    if not properties:
        return st.dictionaries(_TEXTS, ANYTHING, max_size=3)
    values = {name: _values(one, schemas, wrap) for name, one in properties.items()}
    return st.fixed_dictionaries(
        {name: values[name] for name in required},
        optional={name: one for name, one in values.items() if name not in required},
    )


def _strings(schema: Schema) -> Values:
    if "pattern" in schema:
        most = schema.get("maxLength")
        return st.from_regex(schema["pattern"], fullmatch=True).filter(lambda text: most is None or len(text) <= most)
    least, most = schema.get("minLength", 0), schema.get("maxLength", 12)
    return st.one_of(st.just("a" * max(1, least)), st.text(min_size=least, max_size=max(least, min(12, most))))


def _range(schema: Schema) -> tuple[int | None, int | None]:
    """Return the smallest and the largest integer, none beyond what a JSON parser takes."""
    least, most = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
    if "exclusiveMinimum" in schema:
        least = schema["exclusiveMinimum"] + 1
    return int(least), int(most)


def _floats(schema: Schema) -> Values:
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    return st.floats(
        min_value=least,
        max_value=most,
        exclude_min="exclusiveMinimum" in schema,
        exclude_max="exclusiveMaximum" in schema,
        allow_nan=False,
        allow_infinity=False,
    )
