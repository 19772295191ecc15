"""Plain texts become JSON of the types that a schema names."""

from __future__ import annotations

import json

import pytest

from worker.chat.tool_calls.json_values import followed, inner_names, json_of, kinds_of, schema_of

ROOT = {
    "$defs": {"unit": {"enum": ["C", 1]}, "loop": {"$ref": "#/$defs/loop"}, "a/b": {"type": "array"}},
    "properties": {"city": {"type": "string"}},
    "additionalProperties": {"type": "integer"},
}


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"const": True}, {"boolean"}),
        ({"$ref": "#/$defs/unit"}, {"string", "integer"}),
        ({"$ref": "#/$defs/a~1b"}, {"array"}),
        ({"$ref": "#/$defs/loop"}, set()),
        ({"$ref": "https://example.org/x"}, set()),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"oneOf": [{"type": "string"}, {}]}, set()),
        ({"allOf": [{"type": ["string", "null"]}, {"type": "string"}, {"minLength": 1}]}, {"string"}),
        ({"enum": [1.5, None, {}, []]}, {"number", "null", "object", "array"}),
        ({}, set()),
        (True, set()),
    ],
)
def test_types_are_what_the_schema_names(schema: object, kinds: set[str]) -> None:
    assert kinds_of(schema, ROOT) == kinds


def test_properties_without_a_schema_have_that_of_all_others() -> None:
    assert schema_of("city", ROOT) == {"type": "string"}
    assert schema_of("days", ROOT) == {"type": "integer"}
    assert schema_of("days", {}) is None


def test_references_are_followed_to_a_schema_and_not_for_ever() -> None:
    assert followed({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/unit"}]}, ROOT) == {"enum": ["C", 1]}
    assert followed({"$ref": "#/$defs/loop"}, ROOT) == {}
    assert followed({"$ref": "#/$defs/none"}, ROOT) == {}


def test_the_parts_of_a_schema_are_one() -> None:
    root = {
        "$defs": {"again": {"allOf": [{"$ref": "#/$defs/again"}, {"$ref": "#/$defs/again"}, {"required": ["c"]}]}},
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "allOf": [
            {"properties": {"b": {"type": "integer"}, "a": {"minLength": 1}}, "required": ["b"]},
            {"$ref": "#/$defs/again"},
            {"additionalProperties": False, "required": ["b", "a"]},
            True,
        ],
    }
    found = followed(root, root)
    assert found["properties"] == {"a": {"allOf": [{"type": "string"}, {"minLength": 1}]}, "b": {"type": "integer"}}
    assert (found["required"], found["additionalProperties"]) == (["b", "c", "a"], False)


def test_properties_count_more_than_choices_between_demands_beside_them() -> None:
    schema = {"properties": {"a": {"type": "string"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert followed(schema, schema) == schema


def test_properties_of_choices_beside_others_have_a_place_and_are_not_demanded() -> None:
    choices = [
        {"properties": {"kind": {"const": "x"}, "b": {}}, "required": ["kind", "b"]},
        {"properties": {"kind": {"const": "y"}}, "required": ["kind"]},
    ]
    base = {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    for schema in ({**base, "anyOf": choices}, {"allOf": [base, {"oneOf": choices}]}):
        found = followed(schema, schema)
        kind = {"anyOf": [{"const": "x"}, {"const": "y"}]}
        assert found["properties"] == {"a": {"type": "string"}, "kind": kind, "b": {}}
        assert found["required"] == ["a"]
    assert followed({"oneOf": choices}, {}) == choices[0]


def test_names_are_found_at_every_depth_and_in_no_values() -> None:
    schema = {
        "$defs": {"d": {"required": ["in d"]}},
        "properties": {"properties": {"items": [{"properties": {"deep": {"const": {"properties": {"no": 1}}}}}]}},
        "default": {"properties": {"no": 1}},
    }
    assert set(inner_names(schema)) == {"in d", "properties", "deep"}


@pytest.mark.parametrize(
    ("text", "kinds", "value"),
    [
        ("5", "integer", 5),
        ("5.0", "integer", 5.0),
        ("5", "number", 5),
        ("5.5", "integer", "5.5"),
        ("5", "string", "5"),
        ("5", "string integer", 5),
        ("5", "", 5),
        ("true", "boolean", True),
        ("True", "boolean", True),
        ("True", "", "True"),
        ("NONE", "integer null", None),
        ("null", "", None),
        (" [1, 2] ", "array", [1, 2]),
        ("['a', None]", "array", ["a", None]),
        ("(1, 2)", "array", [1, 2]),
        ("['a\\d']", "array", "['a\\d']"),
        ("{1, 2}", "array object", "{1, 2}"),
        ("{'a': b'c'}", "object", "{'a': b'c'}"),
        ("['a']", "", "['a']"),
        ("NaN", "number", "NaN"),
        ("[" * 5000, "array", "[" * 5000),
        ("9" * 5000, "integer", "9" * 5000),
        (" a b ", "", " a b "),
        (" a b ", "integer", "a b"),
    ],
)
def test_texts_are_values_of_the_types_if_they_can_be_and_strings_otherwise(
    text: str, kinds: str, value: object
) -> None:
    assert json.loads(json_of(text, frozenset(kinds.split()))) == value
