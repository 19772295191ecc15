"""Plain texts become JSON of the types that a schema names."""

from __future__ import annotations

import json

import pytest

from worker.chat.tool_calls.json_values import followed, json_of, kinds_of, schema_of

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
