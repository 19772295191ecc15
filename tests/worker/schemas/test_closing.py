"""Which objects are closed, and that nothing becomes impossible by it."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest

from worker.schemas.closing import close_objects

A: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
B: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    return schema | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (A, closed(A)),
        ({"items": A}, {"items": closed(A)}),
        ({"prefixItems": [A, B]}, {"prefixItems": [closed(A), closed(B)]}),
        ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [closed(A), {"type": "null"}]}),
        ({"$ref": "#/$defs/A", "$defs": {"A": A}}, {"$ref": "#/$defs/A", "$defs": {"A": closed(A)}}),
        (
            {"type": "object", "properties": {"x": A}, "additionalProperties": {"type": "string"}},
            {"type": "object", "properties": {"x": closed(A)}, "additionalProperties": {"type": "string"}},
        ),
    ],
)
def test_objects_that_say_nothing_of_other_properties_are_closed(schema: Any, expected: Any) -> None:
    before = copy.deepcopy(schema)
    assert close_objects(schema) == expected
    assert schema == before


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}},
        A | {"additionalProperties": True},
        A | {"patternProperties": {"^x": {}}},
        A | {"minProperties": 3},
        A | {"required": ["a", "other"]},
        {"allOf": [A, B]},
        {"allOf": [{"$ref": "#/$defs/A"}, B], "$defs": {"A": A}},
        {"properties": {"c": {}}, "anyOf": [A, B]},
        {"properties": {"c": {}}, "$ref": "#/$defs/A", "$defs": {"A": A}},
        {"allOf": [{"$ref": "#/properties/x"}, B], "properties": {"x": A}},
        {"enum": [{"properties": {"a": 1}}]},
        {"default": A, "examples": [A]},
        True,
        ["no schema"],
    ],
)
def test_what_may_need_other_properties_stays_open(schema: Any) -> None:
    assert close_objects(schema) == schema


def test_parts_of_parts_that_are_put_together_stay_open() -> None:
    schema = {
        "allOf": [{"$ref": "#/$defs/X"}, {"properties": {"list": {"items": B}}}],
        "$defs": {"X": {"properties": {"list": {"items": A}}}},
    }
    value = {"list": [{"a": 1, "b": 2}]}
    jsonschema.validate(value, schema)
    jsonschema.validate(value, close_objects(schema))


def test_a_deep_schema_is_no_trouble() -> None:
    schema: dict[str, Any] = A
    for _ in range(400):
        schema = {"type": "object", "properties": {"x": schema}}
    assert close_objects(schema)["additionalProperties"] is False
