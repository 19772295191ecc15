"""The check of an answer under the client's own schema: what it finds, what it leaves, and that it ends."""

from __future__ import annotations

import json
from time import process_time
from typing import Any

import pytest

from worker.schemas.check import problem_of

FITS: list[tuple[Any, str]] = [
    (True, "1"),
    ({}, '{"a": [1]}'),
    ({"type": "object", "required": ["a"]}, '{"a": 1}'),
    ({"type": "array", "uniqueItems": True}, "[1, 2, true, [1], [true]]"),
    ({"type": "number", "multipleOf": 0.01}, "0.07"),
    ({"not": {"required": ["a"]}}, '{"b": 1}'),
    ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, '{"c": 1}'),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}, "1"),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True}, "2"),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}]}, '[1, "a"]'),
    ({"patternProperties": {"^a": {"type": "null"}}, "additionalProperties": False}, '{"ab": null}'),
]

DOES_NOT_FIT: list[tuple[Any, str, str]] = [
    (False, "1", "$"),
    ({"type": "object", "properties": {"a": {"items": {"type": "integer"}}}}, '{"a": [1, "x"]}', "$.a[1]"),
    ({"properties": {"a": {"uniqueItems": True}}}, '{"a": [1, 1.0]}', "$.a"),
    ({"items": {"multipleOf": 0.01}}, "[0.071]", "$[0]"),
    ({"multipleOf": 2}, "1e999", "$"),
    ({"not": {"required": ["a"]}}, '{"a": 1}', "$"),
    ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, '{"a": 1}', "$"),
    ({"dependentRequired": {"a": ["b"]}}, '{"a": 1}', "$"),
    ({"contains": {"const": 1}}, "[2]", "$"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "1", "$"),
    ({"maxItems": 2}, "[1, 2, 3]", "$"),
    ({"pattern": "^a"}, '"b"', "$"),
    ({"patternProperties": {"^a": {"type": "null"}}}, '{"ab": 1}', "$.ab"),
    ({"patternProperties": {"^a": True}, "additionalProperties": False}, '{"b": 1}', "$"),
    ({"additionalProperties": {"type": "integer"}}, '{"b": "x"}', "$.b"),
    ({"pattern": "^(?=.*[0-9]).{3,}$"}, '"abc"', "$"),
]


@pytest.mark.parametrize(("schema", "text"), FITS)
def test_an_answer_that_fits_has_no_problem(schema: Any, text: str) -> None:
    assert problem_of(schema, text) is None


@pytest.mark.parametrize(("schema", "text", "path"), DOES_NOT_FIT)
def test_an_answer_that_does_not_fit_has_a_problem_with_its_place(schema: Any, text: str, path: str) -> None:
    problem = problem_of(schema, text)
    assert problem is not None
    assert problem.startswith(f"The answer does not fit the schema at {path}: ")
    assert len(problem) < 300


@pytest.mark.parametrize("text", ["", "{", "NaN", "[1,]", "{} {}", "9" * 5000, "Infinity"])
def test_what_is_not_json_is_told(text: str) -> None:
    problem = problem_of({}, text)
    assert problem is not None
    assert "not JSON" in problem


def test_lists_without_end_are_a_problem_and_no_fault() -> None:
    assert problem_of({}, "[" * 100_000) is not None


def test_nothing_is_fetched_and_what_is_elsewhere_is_not_checked() -> None:
    schema = {"items": {"$ref": "http://127.0.0.1:9/a.json"}, "maxItems": 1}
    assert problem_of(schema, "[1]") is None
    assert problem_of(schema, "[1, 2]") is not None


def test_a_metaschema_is_known_without_being_fetched() -> None:
    schema = {"$ref": "https://json-schema.org/draft/2020-12/schema"}
    assert problem_of(schema, '{"type": "string"}') is None
    assert problem_of(schema, '{"type": "strng"}') is not None


@pytest.mark.parametrize(
    "pattern", ["^(a+)+$", "^(?=a)(a+)+$", "^(a|a|b)*(?!c)$", "(?=a)" + "a?" * 40 + "a" * 40 + "$"]
)
def test_no_pattern_takes_longer_than_a_moment(pattern: str) -> None:
    started = process_time()
    problem_of({"pattern": pattern}, f'"{"a" * 39}b"')
    problem_of({"patternProperties": {pattern: False}}, f'{{"{"a" * 39}b": 1}}')
    problem_of({"pattern": pattern}, f'"{"a" * 20_000}b"')
    assert process_time() - started < 2.0


@pytest.mark.parametrize("pattern", [r"(a*)(a*)\1\2c", r"(?=a)\w*\w*\W"])
def test_thousands_of_slow_patterns_take_no_longer_than_one(pattern: str) -> None:
    schema = {"allOf": [{"not": {"pattern": pattern}}] * 2000}
    started = process_time()
    problem_of(schema, json.dumps("a" * 213))
    assert process_time() - started < 2.0


def test_a_pattern_that_cannot_be_run_in_time_is_not_checked() -> None:
    assert problem_of({"pattern": "^(?=b)(a+)+$"}, '"a"') is None


def test_definitions_that_double_are_not_followed_to_the_end() -> None:
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**definitions, "d40": {}}}
    started = process_time()
    assert problem_of(schema, "1") is None
    assert process_time() - started < 3.0


def test_a_list_of_many_objects_is_compared_in_no_time() -> None:
    text = "[" + ", ".join(f'{{"a": {number}}}' for number in range(20_000)) + "]"
    started = process_time()
    assert problem_of({"uniqueItems": True}, text) is None
    assert process_time() - started < 3.0


@pytest.mark.parametrize("schema", [{"required": True}, {"$ref": "#"}, {"pattern": 5}, {"$ref": "#/nowhere"}])
def test_a_schema_that_is_a_mistake_blames_no_answer(schema: Any) -> None:
    assert problem_of(schema, '{"a": "b"}') is None
    assert problem_of(schema, '"b"') is None


def test_many_patterns_for_the_names_of_many_properties_are_not_tried_to_the_end() -> None:
    patterns = {f"^x{number}y$": True for number in range(600)}
    schema = {"type": "object", "patternProperties": patterns, "additionalProperties": {"type": "integer"}}
    started = process_time()
    assert problem_of(schema, json.dumps({f"k{number}": 1 for number in range(2000)})) is None
    assert process_time() - started < 3.0
    few = {"patternProperties": {"^x": True}, "additionalProperties": {"type": "integer"}}
    assert problem_of(few, json.dumps({f"k{number}": 1 for number in range(2000)} | {"x": "a"})) is None
    assert "$.k7" in (problem_of(few, json.dumps({"k6": 1, "k7": "a", "x": "a"})) or "")


def test_a_schema_that_refers_to_its_own_opposite_is_given_up() -> None:
    schema = {"$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}
    assert problem_of(schema, '{"x": 1}') is None


def test_values_are_checked_as_deep_as_models_write_them() -> None:
    schema = {"$defs": {"a": {"type": ["array", "integer"], "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}
    wrong = problem_of(schema, "[" * 40 + '"text"' + "]" * 40)
    assert wrong is not None
    assert "is not of type" in wrong
