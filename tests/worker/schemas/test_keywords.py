"""Every keyword of the table: enforced ones by what the grammar lets through, others by refusals and lists."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from bench.grammar_driver import random_answer, takes
from worker.schemas.keywords import FORMATS, KEYWORDS, LARGEST_COUNT, TABLE, Treatment, keyword_table
from worker.schemas.prepare import PreparedSchema, prepare_schema
from worker.schemas.problems import CannotEnforce, WrongSchema

NAME = {"type": "string", "maxLength": 5}
SHORT_LIST = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}}

ENFORCED: dict[str, list[tuple[Any, list[str], list[str]]]] = {
    "type": [
        ({"type": "integer"}, ["1", "-20"], ["1.5", '"a"']),
        ({"type": ["string", "null"]}, ['"a"', "null"], ["1", "true"]),
    ],
    "enum": [({"enum": ["a", 1, None, [1, {"b": 2}]]}, ['"a"', "1", "null", '[1, {"b": 2}]'], ['"b"', "2", "[]"])],
    "const": [({"const": {"a": [1], "b": {}}}, ['{"a": [1], "b": {}}'], ["{}", '{"a": [2], "b": {}}'])],
    "properties": [({"type": "object", "properties": {"a": NAME}}, ['{"a": "x"}', "{}", '{"b": 1}'], ['{"a": 1}'])],
    "required": [({"type": "object", "properties": {"a": NAME}, "required": ["a"]}, ['{"a": ""}'], ["{}"])],
    "additionalProperties": [
        ({"type": "object", "additionalProperties": False}, ["{}"], ['{"a": 1}']),
        ({"type": "object", "additionalProperties": NAME}, ['{"a": "b"}'], ['{"a": 1}']),
    ],
    "patternProperties": [
        ({"type": "object", "patternProperties": {"^x": NAME}}, ['{"xa": "b"}', '{"a": 1}'], ['{"xa": 1}']),
    ],
    "propertyNames": [
        ({"type": "object", "propertyNames": {"enum": ["a", "b.c"]}}, ['{"a": 1}', '{"b.c": 1}'], ['{"bxc": 1}']),
        (
            {"type": "object", "propertyNames": {"pattern": "^a"}, "additionalProperties": NAME},
            ['{"ab": ""}'],
            ['{"b": ""}', '{"ab": 1}'],
        ),
        ({"type": "object", "propertyNames": {"minLength": 2}}, ['{"ab": 1}'], ['{"a": 1}']),
        ({"type": "object", "propertyNames": {"type": "string"}}, ['{"a": 1}'], []),
        ({"type": "object", "propertyNames": False}, ["{}"], ['{"a": 1}']),
    ],
    "minProperties": [
        ({"type": "object", "properties": {"a": NAME, "b": NAME}, "additionalProperties": False, "minProperties": 1},
         ['{"b": ""}'], ["{}"]),
    ],
    "maxProperties": [({"type": "object", "maxProperties": 1}, ["{}", '{"a": 1}'], ['{"a": 1, "b": 2}'])],
    "items": [(SHORT_LIST, ["[]", "[1, 2]"], ['["a"]', "[10]"])],
    "prefixItems": [({"type": "array", "prefixItems": [NAME], "items": False}, ["[]", '["a"]'], ["[1]", '["a", 1]'])],
    "additionalItems": [({"type": "array", "items": [NAME], "additionalItems": False}, ['["a"]'], ['["a", 1]', "[1]"])],
    "minItems": [(SHORT_LIST | {"minItems": 2}, ["[1, 2]"], ["[]", "[1]"])],
    "maxItems": [(SHORT_LIST | {"maxItems": 2}, ["[1, 2]"], ["[1, 2, 3]"])],
    "minLength": [({"type": "string", "minLength": 2}, ['"ab"', '"\\n\\n"'], ['"a"'])],
    "maxLength": [({"type": "string", "maxLength": 2}, ['"ab"', '"äö"'], ['"abc"'])],
    "pattern": [
        ({"type": "string", "pattern": r"^\d{2}$"}, ['"12"'], ['"1"', '"123"', '"ab"', '"١٢"']),
        ({"type": "string", "pattern": "b"}, ['"abc"'], ['"ac"']),
    ],
    "format": [
        ({"type": "string", "format": "date"}, ['"2020-02-29"'], ['"2020-02-30"', '"yesterday"']),
        ({"type": "string", "format": "uuid"}, ['"123e4567-e89b-12d3-a456-426614174000"'], ['"123"']),
        ({"type": "string", "format": "binary"}, ['"anything"'], []),
        ({"type": "integer", "format": "int32"}, ["1"], []),
    ],
    "minimum": [({"type": "number", "minimum": 0.5}, ["0.5", "7"], ["0.4", "-1"])],
    "maximum": [({"type": "integer", "maximum": 9007199254740991}, ["9007199254740991"], ["9007199254740992"])],
    "exclusiveMinimum": [
        ({"type": "integer", "exclusiveMinimum": 3}, ["4"], ["3"]),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, ["4"], ["3"]),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": False}, ["3"], ["2"]),
    ],
    "exclusiveMaximum": [({"type": "number", "exclusiveMaximum": 3, "minimum": 0}, ["2.9"], ["3", "3.0"])],
    "multipleOf": [
        ({"type": "integer", "multipleOf": 7}, ["14"], ["15"]),
        ({"type": "number", "multipleOf": 0.01}, ["0.07"], ["0.071"]),
    ],
    "allOf": [({"allOf": [{"type": "integer"}, {"minimum": 3}]}, ["3"], ["2", '"a"'])],
    "anyOf": [({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ["3", "null"], ['"a"'])],
    "oneOf": [
        ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, ["3", "null"], ['"a"']),
        ({"oneOf": [{"const": 1}, {"const": 2}]}, ["1", "2"], ["3"]),
        (
            {
                "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
                "$defs": {
                    "cat": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]},
                    "dog": {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]},
                },
            },
            ['{"kind": "dog"}'],
            ['{"kind": "cow"}', "{}"],
        ),
    ],
    "$ref": [
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, ["null"], ["1"]),
        (
            {
                "type": "object",
                "properties": {"next": {"$ref": "#"}, "n": {"type": "integer"}},
                "required": ["n"],
                "additionalProperties": False,
            },
            ['{"next": {"n": 1}, "n": 2}'],
            ['{"next": {}, "n": 2}'],
        ),
    ],
    "not": [
        ({"type": "object", "properties": {"a": {"not": {}}}}, ["{}", '{"b": 1}'], ['{"a": 1}']),
        ({"not": {"type": ["object", "array", "null"]}}, ["1", '"a"', "true"], ["null", "{}", "[]"]),
        ({"type": "null", "not": False}, ["null"], ["1"]),
    ],
    "unevaluatedProperties": [
        ({"type": "object", "properties": {"a": True}, "unevaluatedProperties": False}, ['{"a": 1}'], ['{"b": 1}']),
    ],
    "unevaluatedItems": [
        ({"type": "array", "prefixItems": [True], "unevaluatedItems": False}, ["[1]"], ["[1, 2]"]),
    ],
    "uniqueItems": [
        (SHORT_LIST | {"uniqueItems": False}, ["[1, 1]"], []),
        (SHORT_LIST | {"uniqueItems": True, "maxItems": 1}, ["[1]"], ["[1, 1]"]),
    ],
}  # fmt: skip

GIVEN_UP: dict[str, list[tuple[Any, str]]] = {
    "patternProperties": [
        ({"patternProperties": {"a": True, "b": True}}, "$.patternProperties"),
        ({"patternProperties": {"(?!a)": True}}, "$.patternProperties"),
        ({"patternProperties": {f"^{number}_": True for number in range(65)}}, "$.patternProperties"),
    ],
    "propertyNames": [
        ({"propertyNames": {"not": {"const": "a"}}}, "$.propertyNames"),
        ({"propertyNames": {"pattern": "a", "minLength": 2}}, "$.propertyNames"),
    ],
    "minProperties": [
        ({"type": "object", "properties": {"a": True, "b": True}, "minProperties": 1}, "$.minProperties")
    ],
    "maxProperties": [
        ({"type": "object", "properties": {"a": True, "b": True}, "maxProperties": 1}, "$.maxProperties")
    ],
    "pattern": [
        ({"type": "string", "pattern": "(?=a)"}, "$.pattern"),
        ({"type": "string", "pattern": r"(a)\1"}, "$.pattern"),
        ({"type": "string", "pattern": r"\ba"}, "$.pattern"),
        ({"type": "string", "pattern": "^(.{0,100}){100}$"}, "$.pattern"),
    ],
    "oneOf": [({"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}, "$.properties.a.oneOf")],
    "$ref": [
        ({"items": {"$ref": "https://example.com/a.json"}}, "$.items.$ref"),
        ({"items": {"$ref": "other.json#/a"}}, "$.items.$ref"),
    ],
    "not": [({"items": {"not": {"required": ["a"]}}}, "$.items.not")],
    "unevaluatedProperties": [
        ({"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False}, "$.unevaluatedProperties"),
    ],
    "unevaluatedItems": [({"contains": True, "minContains": 0, "unevaluatedItems": False}, "$.unevaluatedItems")],
    "uniqueItems": [({"type": "array", "uniqueItems": True}, "$.uniqueItems")],
    "contains": [({"contains": {"const": 1}}, "$.contains")],
    "minContains": [({"contains": {"const": 1}, "minContains": 2}, "$.contains")],
    "maxContains": [({"contains": {"const": 1}, "minContains": 0, "maxContains": 1}, "$.contains")],
    "dependentRequired": [({"dependentRequired": {"a": ["b"]}}, "$.dependentRequired")],
    "dependentSchemas": [({"dependentSchemas": {"a": {"required": ["b"]}}}, "$.dependentSchemas")],
    "dependencies": [({"dependencies": {"a": ["b"]}}, "$.dependencies")],
    "if": [({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, "$.if")],
    "then": [({"if": True, "then": {"type": "null"}}, "$.if")],
    "else": [({"if": {"type": "null"}, "else": {"type": "string"}}, "$.if")],
    "$dynamicRef": [({"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a"}}}, "$.$dynamicRef")],
    "$recursiveRef": [({"$recursiveRef": "#"}, "$.$recursiveRef")],
    "enum": [({"enum": ["a\x00b"]}, "$.enum"), ({"enum": [2**60 + 1]}, "$.enum")],
    "const": [({"const": "\x7f"}, "$.const")],
}

LOOSENED = [
    ({"type": "array", "maxItems": LARGEST_COUNT + 1}, "$.maxItems"),
    ({"type": "string", "minLength": 10**12}, "$.minLength"),
    ({"type": "integer", "maximum": 18446744073709551615}, "$.maximum"),
    ({"type": "number", "minimum": 1e-30}, "$.minimum"),
    ({"type": "integer", "multipleOf": 999983}, "$.multipleOf"),
    ({"type": "integer", "multipleOf": 10**9}, "$.multipleOf"),
    ({"type": "object", "additionalProperties": True, "minProperties": 2}, "$.minProperties"),
]

WITHOUT_EFFECT = [
    {"if": {"type": "null"}},
    {"then": False},
    {"else": False},
    {"minContains": 1},
    {"contains": True, "minContains": 0},
    {"dependentRequired": {}},
    {"dependentSchemas": {"a": True}},
    {"unevaluatedProperties": True},
    {"uniqueItems": False},
    {"minProperties": 0},
    {"propertyNames": {"description": "a name"}},
    {"type": "string", "contains": False},
    {"nullable": True, "x-order": 1, "discriminator": {"propertyName": "kind"}},
    {"title": "t", "description": 1, "default": None, "examples": [], "deprecated": True, "$comment": "c"},
]


def path_in(message: str) -> str:
    found = re.search(r" at (\$.*?): ", message)
    assert found is not None, message
    return found[1]


def prepared(schema: Any, *, relaxes: bool = False) -> PreparedSchema:
    return prepare_schema(schema, param="response_format", relaxes=relaxes)


def test_the_tables_of_this_module_have_every_keyword_of_the_table() -> None:
    for row in TABLE:
        for name in row.names:
            is_enforced, is_given_up = name in ENFORCED, name in GIVEN_UP
            match row.treatment:
                case Treatment.ENFORCED:
                    assert (is_enforced, is_given_up) == (True, False), name
                case Treatment.PARTLY:
                    assert (is_enforced, is_given_up) == (True, True), name
                case Treatment.NOT:
                    assert (is_enforced, is_given_up) == (False, True), name
                case Treatment.ANNOTATION:
                    assert (is_enforced, is_given_up) == (False, False), name


@pytest.mark.parametrize("keyword", ENFORCED)
def test_an_enforced_keyword_lets_right_answers_through_and_no_wrong_ones(keyword: str) -> None:
    for schema, right, wrong in ENFORCED[keyword]:
        done = prepared(schema)
        assert done.relaxed == ()
        grammar = done.to_grammar()
        assert [text for text in right if not takes(grammar, text)] == []
        assert [text for text in wrong if takes(grammar, text)] == []


@pytest.mark.parametrize("keyword", ENFORCED)
def test_whatever_the_grammar_of_an_enforced_keyword_lets_through_is_valid(keyword: str) -> None:
    for schema, _, _ in ENFORCED[keyword]:
        modern = {key: value for key, value in schema.items() if not isinstance(value, bool) or key[:9] != "exclusive"}
        if "additionalItems" in schema:
            modern = {"type": "array", "prefixItems": schema["items"], "items": False}
        validator = Draft202012Validator(modern)
        grammar = prepared(schema).to_grammar()
        answers = {random_answer(grammar, seed, 60) for seed in range(20)} - {None}
        assert answers
        for answer in answers:
            problems = [error.message for error in validator.iter_errors(json.loads(answer or ""))]
            assert [text for text in problems if "multiple of" not in text] == [], answer


@pytest.mark.parametrize("keyword", GIVEN_UP)
def test_what_cannot_be_enforced_is_refused_with_its_place(keyword: str) -> None:
    for schema, path in GIVEN_UP[keyword]:
        with pytest.raises(CannotEnforce) as refused:
            prepared(schema)
        assert refused.value.status == 400
        assert refused.value.param == "response_format"
        assert path_in(refused.value.message) == path


@pytest.mark.parametrize("keyword", GIVEN_UP)
def test_what_cannot_be_enforced_is_listed_where_schemas_are_no_promises(keyword: str) -> None:
    for schema, path in GIVEN_UP[keyword]:
        assert path in [relaxed.path for relaxed in prepared(schema, relaxes=True).relaxed]


@pytest.mark.parametrize(("schema", "path"), LOOSENED)
def test_a_bound_that_is_too_large_to_count_is_let_go_even_of_promises(schema: Any, path: str) -> None:
    assert [relaxed.path for relaxed in prepared(schema).relaxed] == [path]


@pytest.mark.parametrize("schema", WITHOUT_EFFECT)
def test_what_demands_nothing_is_dropped_without_a_word(schema: Any) -> None:
    done = prepared(schema)
    assert done.relaxed == ()
    assert done.schema.keys() <= {"type"}


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_the_form_of_every_format_in_the_table_is_enforced(name: str) -> None:
    assert not takes(prepared({"type": "string", "format": name}).to_grammar(), '"@"')


WRONG: list[tuple[Any, str]] = [
    ([], "$"),
    ("string", "$"),
    ({"type": "strng"}, "$.type"),
    ({"type": []}, "$.type"),
    ({"type": None}, "$.type"),
    ({"properties": []}, "$.properties"),
    ({"properties": {"a": "string"}}, "$.properties.a"),
    ({"properties": {"a b": {"items": 3}}}, "$.properties['a b'].items"),
    ({"required": "a"}, "$.required"),
    ({"required": [1]}, "$.required"),
    ({"minItems": "a"}, "$.minItems"),
    ({"minItems": -1}, "$.minItems"),
    ({"minItems": True}, "$.minItems"),
    ({"maxLength": 1.5}, "$.maxLength"),
    ({"minimum": "1"}, "$.minimum"),
    ({"multipleOf": 0}, "$.multipleOf"),
    ({"enum": []}, "$.enum"),
    ({"enum": "a"}, "$.enum"),
    ({"pattern": "["}, "$.pattern"),
    ({"pattern": "a)("}, "$.pattern"),
    ({"pattern": 1}, "$.pattern"),
    ({"patternProperties": {"(": True}}, "$.patternProperties['(']"),
    ({"anyOf": []}, "$.anyOf"),
    ({"allOf": {"type": "null"}}, "$.allOf"),
    ({"prefixItems": {"type": "null"}}, "$.prefixItems"),
    ({"not": []}, "$.not"),
    ({"$ref": "#/$defs/missing"}, "$.$ref"),
    ({"$ref": "#missing"}, "$.$ref"),
    ({"$ref": 5}, "$.$ref"),
    ({"items": {"$ref": "#/properties/a"}, "properties": {"b": True}}, "$.items.$ref"),
    ({"$ref": "#/title", "title": "t"}, "$.title"),
    ({"minimum": float("inf")}, "$"),
    ({"const": "\ud800"}, "$"),
    (False, "$"),
    ({"not": {}}, "$"),
    ({"type": "object", "required": ["a"], "properties": {"a": False}}, "$"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "$"),
]


@pytest.mark.parametrize(("schema", "path"), WRONG)
@pytest.mark.parametrize("relaxes", [False, True])
def test_a_mistake_is_refused_with_its_place_even_where_schemas_are_no_promises(
    schema: Any, path: str, relaxes: bool
) -> None:
    with pytest.raises(WrongSchema) as refused:
        prepared(schema, relaxes=relaxes)
    assert path_in(refused.value.message) == path


def test_required_in_the_form_of_draft_3_is_let_go_of_tools() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "required": True}}}
    assert [relaxed.path for relaxed in prepared(schema, relaxes=True).relaxed] == ["$.properties.a.required"]
    with pytest.raises(CannotEnforce):
        prepared(schema)


def test_each_keyword_has_one_row() -> None:
    assert sum(len(row.names) for row in TABLE) == len(KEYWORDS)
    assert all(f"`{name}`" in keyword_table() for name in KEYWORDS)
