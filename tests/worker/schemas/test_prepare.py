"""Whole schemas on their way to the grammar library: what stays as it was, and what becomes of answers."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field

from bench.grammar_driver import matcher_of, random_answer, takes
from bench.schema_corpora import count_corpus
from bench.tool_schemas import PROMISES, STRICT, TOOLS, long_tool_list
from worker.schemas.check import problem_of
from worker.schemas.keywords import KEYWORDS, Treatment
from worker.schemas.prepare import JSON_OPTIONS, prepare_schema


def without_annotations(schema: Any) -> Any:
    """Return `schema` without the keywords that demand nothing."""
    if isinstance(schema, list):
        return [without_annotations(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "patternProperties"):
            kept[key] = {name: without_annotations(inner) for name, inner in value.items()}
        elif key in KEYWORDS and KEYWORDS[key].treatment is not Treatment.ANNOTATION:
            kept[key] = without_annotations(value)
    return kept


class Level(StrEnum):
    LOW = "low"
    HIGH = "high"


class Leaf(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["leaf"]
    level: Level = Level.LOW
    size: Annotated[int, Field(ge=0, lt=100)] | None = None


class Branch(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["branch"]
    name: Annotated[str, Field(pattern=r"^[a-z]+$", max_length=20)]
    parts: list[Leaf | Branch]
    notes: dict[str, float] = {}


@pytest.mark.parametrize("schema", [STRICT, PROMISES["strict and recursive"], Branch.model_json_schema()])
def test_schemas_of_common_libraries_keep_every_demand_as_it_was_written(schema: Any) -> None:
    prepared = prepare_schema(schema, param="x")
    assert prepared.relaxed == ()
    assert prepared.schema == without_annotations(schema)
    assert list(prepared.schema.get("properties", {})) == list(schema.get("properties", {}))


@pytest.mark.parametrize("name", PROMISES)
def test_promises_are_kept_by_every_answer(name: str) -> None:
    prepared = prepare_schema(PROMISES[name], param="x")
    assert prepared.relaxed == ()
    answers = [random_answer(prepared.to_grammar(), seed, 300) for seed in range(12)]
    whole = [answer for answer in answers if answer is not None]
    assert whole
    assert [(answer, problem) for answer in whole if (problem := problem_of(PROMISES[name], answer))] == []


@pytest.mark.parametrize("name", TOOLS)
def test_tools_with_demands_that_nobody_can_enforce_work_and_tell_what_was_let_go(name: str) -> None:
    prepared = prepare_schema(TOOLS[name], param="x", relaxes=True)
    assert prepared.relaxed
    validator = Draft202012Validator(prepared.schema)
    answers = [random_answer(prepared.to_grammar(), seed, 300) for seed in range(12)]
    whole = [answer for answer in answers if answer is not None]
    assert whole
    assert all(validator.is_valid(json.loads(answer)) for answer in whole)


def test_a_property_that_must_not_be_there_never_is() -> None:
    prepared = prepare_schema(TOOLS["pages"], param="x", relaxes=True)
    assert "$.properties.archived.not" not in [relaxed.path for relaxed in prepared.relaxed]
    assert takes(prepared.to_grammar(), '{"parent": {"page_id": "1"}}')
    assert not takes(prepared.to_grammar(), '{"parent": {"page_id": "1"}, "archived": true}')


def test_two_hundred_tools_of_a_hundred_kilobytes_are_all_prepared() -> None:
    tools = long_tool_list()
    assert len(json.dumps(tools)) > 100_000
    for schema in tools:
        prepared = prepare_schema(schema, param="tools", relaxes=True)
        assert [relaxed.path for relaxed in prepared.relaxed] == ["$.properties.fields.uniqueItems"]


def test_the_corpora_are_counted_by_what_became_of_their_schemas() -> None:
    counts = count_corpus()
    assert counts["structured output"] == {"enforced": len(PROMISES)}
    assert counts["tools"] == {"relaxed": len(TOOLS) + 200}
    assert counts["tools, strict"]["CannotEnforce"] > 200


def test_a_reference_into_a_list_or_to_an_anchor_leads_where_it_says() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "prefixItems": [{"type": "integer"}, {"$anchor": "flag", "type": "boolean"}]},
            "b": {"$ref": "#/properties/a/prefixItems/0"},
            "c": {"$ref": "#flag"},
            "d": {"$ref": "#/x-own/with~1slash"},
        },
        "x-own": {"with/slash": {"type": "null"}},
        "required": ["b", "c", "d"],
    }
    grammar = prepare_schema(schema, param="x").to_grammar()
    assert takes(grammar, '{"b": 1, "c": true, "d": null}')
    assert not takes(grammar, '{"b": true, "c": true, "d": null}')
    assert not takes(grammar, '{"b": 1, "c": 1, "d": null}')
    assert not takes(grammar, '{"b": 1, "c": true, "d": 1}')


def test_addresses_inside_a_schema_are_read_against_the_nearest_id() -> None:
    schema = {
        "$id": "https://example.com/root.json",
        "type": "object",
        "properties": {
            "a": {"$ref": "inner.json"},
            "b": {"$ref": "https://example.com/inner.json#/$defs/deep"},
            "c": {"$ref": "#/$defs/deep"},
        },
        "required": ["a", "b", "c"],
        "$defs": {
            "inner": {
                "$id": "inner.json",
                "type": "array",
                "items": {"$ref": "#/$defs/deep"},
                "$defs": {"deep": {"type": "integer"}},
            },
            "deep": {"type": "null"},
        },
    }
    grammar = prepare_schema(schema, param="x").to_grammar()
    assert takes(grammar, '{"a": [1], "b": 2, "c": null}')
    assert not takes(grammar, '{"a": [null], "b": 2, "c": null}')
    assert not takes(grammar, '{"a": [1], "b": null, "c": null}')


def test_a_name_that_is_no_keyword_in_this_draft_changes_no_address() -> None:
    definitions = {"a": {"id": "a", "items": {"$ref": "#/$defs/b"}}, "b": {"type": "null"}}
    schema = {"id": "tool", "$ref": "#/$defs/a", "$defs": definitions}
    assert takes(prepare_schema(schema, param="x").to_grammar(), "[null]")


def test_a_definition_that_nothing_refers_to_is_not_looked_at() -> None:
    prepared = prepare_schema({"type": "null", "$defs": {"a": {"uniqueItems": True}}}, param="x")
    assert prepared.schema == {"type": "null"}


def test_an_alternative_that_nothing_can_fit_leaves_the_others() -> None:
    schema = {
        "anyOf": [{"$ref": "#/$defs/never"}, {"$ref": "#/$defs/endless"}, {"type": "null"}],
        "$defs": {
            "never": False,
            "endless": {"type": "object", "properties": {"a": {"$ref": "#/$defs/endless"}}, "required": ["a"]},
        },
    }
    grammar = prepare_schema(schema, param="x").to_grammar()
    assert takes(grammar, "null")
    assert {random_answer(grammar, seed) for seed in range(10)} == {"null"}


def test_every_part_of_a_prepared_schema_stands_for_itself_with_the_definitions_beside_it() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "next": {"$ref": "#"}}, "required": ["n"]}
    prepared = prepare_schema(schema, param="x").schema
    part = {**prepared["properties"]["next"], "$defs": prepared["$defs"]}
    assert takes(prepare_schema(part, param="x").to_grammar(), '{"n": 1, "next": {"n": 2}}')
    assert not takes(prepare_schema(part, param="x").to_grammar(), '{"n": 1, "next": {}}')


def test_true_is_a_schema_that_everything_fits() -> None:
    grammar = prepare_schema(True, param="x").to_grammar()
    assert all(takes(grammar, text) for text in ("1", '"a"', "null", '{"a": [1, {}]}'))


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ('{"a": 1, "b": [1, 2]}', True),
        ('{"a":1,"b":[1,2]}', True),
        ('{\n  "a": 1,\n  "b": [\n    1,\n    2\n  ]\n}', True),
        ('{"a":  1, "b": []}', False),
        ('{\n\n"a": 1, "b": []}', False),
        ('{"a":\t1, "b": []}', False),
        (' {"a": 1, "b": []}', False),
        ('{"a": 1, "b": []}\n', False),
        ("{\n" + " " * 17 + '"a": 1, "b": []}', False),
    ],
)
def test_whitespace_is_what_models_write_and_never_without_end(text: str, is_taken: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "integer"}}},
        "required": ["a", "b"],
    }
    assert takes(prepare_schema(schema, param="x").to_grammar(), text) is is_taken


def test_a_name_in_other_letters_is_not_taken_for_another_property() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}
    assert not takes(prepare_schema(schema, param="x").to_grammar(), '{"\\u0061": "x"}')


def test_the_options_travel_inside_a_schema_of_a_larger_grammar() -> None:
    prepared = prepare_schema(STRICT | {"x-guidance": {"lenient": True}}, param="x")
    assert json.loads(prepared.for_lark())["x-guidance"] == JSON_OPTIONS
    matcher = matcher_of(f'start: "<" %json {prepared.for_lark()} ">"')
    text = '<{"name": "n", "date": null, "participants": [], "kind": "party", "place": null}>'
    assert matcher.try_consume_tokens(list(text.encode())) == len(text)
    assert matcher.is_accepting()


def test_properties_are_written_in_the_order_of_the_schema_that_names_them() -> None:
    schema = {"required": ["z"], "allOf": [{"properties": {"y": {"const": 1}}}], "properties": {"z": {"const": 2}}}
    grammar = prepare_schema({"type": "object"} | schema, param="x").to_grammar()
    assert takes(grammar, '{"y": 1, "z": 2}')
    assert not takes(grammar, '{"z": 2, "y": 1}')
