"""Schemas that would take the library minutes or gigabytes, or end the process, are refused at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from time import process_time
from typing import Any

import pytest

from bench.grammar_driver import matcher_of
from worker.errors import RequestError
from worker.schemas.check import problem_of
from worker.schemas.expansion import MAX_DEPTH
from worker.schemas.prepare import MAX_BYTES, MAX_NESTING, prepare_schema
from worker.schemas.problems import SchemaTooLarge, WrongSchema

ENOUGH_S = 3.0
"""Of processor time: many times what any of these takes, a small part of what the library alone would."""


def doubling(num: int, level: Callable[[dict[str, str]], Any]) -> Any:
    definitions = {f"d{index}": level({"$ref": f"#/$defs/d{index + 1}"}) for index in range(num)}
    last = {"type": "object", "properties": {"a": {"type": "string"}}}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{num}": last}}


def inlined_twice(inner: dict[str, str]) -> Any:
    return {"type": "object", "properties": {"l": {"type": "object", **inner}, "r": {"type": "object", **inner}}}


def nested(num: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(num):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def choices(num: int, of: int) -> Any:
    return {
        "allOf": [
            {"anyOf": [{"type": "object", "properties": {f"p{a}": {"const": b}}} for b in range(of)]}
            for a in range(num)
        ]
    }


def optional(num: int) -> Any:
    return {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(num)}}


TOO_LARGE: dict[str, Any] = {
    "definitions that double when they are merged": doubling(20, inlined_twice),
    "alternatives that multiply": choices(18, 2),
    "many alternatives that multiply": choices(2, 100),
    "alternatives inside of merged properties": {
        "allOf": [{"type": "object", "properties": {"p": {"anyOf": [{"const": 1}, {"const": 2}]}}}] * 40
    },
    "other properties merged with each of many": {
        "allOf": [optional(400), {"type": "object", "additionalProperties": optional(100)}]
    },
    "a long chain of definitions": doubling(3000, lambda inner: inner),
    "a long chain of definitions in allOf": doubling(1500, lambda inner: {"allOf": [inner]}),
    "a long chain of properties": doubling(1500, lambda inner: {"type": "object", "properties": {"a": inner}}),
    "recursion where others hold with it": {
        "type": "object",
        "properties": {"a": {"$ref": "#", "required": ["a"]}},
    },
    "two trees that hold together": {
        "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        "$defs": {name: {"type": "object", "properties": {"next": {"$ref": f"#/$defs/{name}"}}} for name in ("a", "b")},
    },
    "too many optional properties in a row": optional(500),
    "too many alternatives that begin alike": {"anyOf": [optional(20) for _ in range(40)]},
    "multiples of several large numbers": {"allOf": [{"type": "integer", "multipleOf": m} for m in (97, 89, 83, 79)]},
    "too many subschemas": {"type": "object", "properties": {f"p{index}": True for index in range(15_000)}},
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_schema_that_explodes_is_refused_at_once(name: str) -> None:
    started = process_time()
    with pytest.raises(SchemaTooLarge) as refused:
        prepare_schema(TOO_LARGE[name], param="x")
    assert process_time() - started < ENOUGH_S
    assert refused.value.status == 400


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_tool_whose_schema_explodes_is_let_go_whole(name: str) -> None:
    prepared = prepare_schema(TOO_LARGE[name], param="x", relaxes=True)
    assert prepared.relaxed
    assert prepared.schema.keys() <= {"type"}


LARGE_BUT_FINE: dict[str, Any] = {
    "a thousand numbers": {"type": "array", "items": {"type": "number"}, "minItems": 10, "maxItems": 1000},
    "thirty optional properties": optional(30),
    "hundreds of optional properties": optional(400),
    "thirty levels of optional properties": nested(30),
    "a long text": {"type": "string", "minLength": 1000, "maxLength": 100_000},
    "a long text with a form": {"type": "string", "pattern": "^[a-z ]+$", "maxLength": 10_000},
    "ten thousand constants": {"enum": [f"value {index}" for index in range(10_000)]},
    "a union of five thousand constants": {"oneOf": [{"const": f"value {index}"} for index in range(5000)]},
    "a union of a thousand tagged objects": {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": f"k{index}"}}, "required": ["kind"]}
            for index in range(1000)
        ]
    },
    "definitions that double without being merged": doubling(
        30, lambda inner: {"type": "object", "properties": {"l": inner, "r": inner}}
    ),
    "the same definition twice in allOf": doubling(30, lambda inner: {"allOf": [inner, inner]}),
    "a quarter of a megabyte": {
        "type": "object",
        "properties": {f"property_{index}": {"type": "string", "description": "d" * 40} for index in range(2900)},
        "required": [f"property_{index}" for index in range(2900)],
    },
}


@pytest.mark.parametrize("name", LARGE_BUT_FINE)
def test_a_schema_that_is_only_large_passes_and_the_library_takes_it(name: str) -> None:
    started = process_time()
    prepared = prepare_schema(LARGE_BUT_FINE[name], param="x")
    matcher = matcher_of(prepared.to_grammar())
    matcher.compute_bitmask()
    assert not matcher.is_error()
    assert process_time() - started < ENOUGH_S
    assert prepared.relaxed == ()


def test_the_quarter_megabyte_is_one() -> None:
    assert len(json.dumps(LARGE_BUT_FINE["a quarter of a megabyte"])) > 256 * 1024


def test_size_and_nesting_have_limits_of_their_own() -> None:
    with pytest.raises(SchemaTooLarge, match="bytes, the limit is"):
        prepare_schema({"description": "d" * MAX_BYTES}, param="x")
    with pytest.raises(SchemaTooLarge, match="inside one another"):
        prepare_schema(nested(MAX_NESTING), param="x", relaxes=True)
    deep: list[Any] = []
    for _ in range(50_000):
        deep = [deep]
    with pytest.raises(SchemaTooLarge, match="inside one another"):
        prepare_schema({"const": deep}, param="x")


@pytest.mark.parametrize(
    "inner",
    [
        lambda index: {"type": "string", "pattern": f"^{index}"},
        lambda index: {"patternProperties": {f"^{index}_{number}": True for number in range(60)}},
        lambda index: {"type": "object", "maxProperties": index % 1000 + 1},
        lambda index: {"propertyNames": {"pattern": f"^{index}"}},
    ],
)
def test_patterns_and_counts_are_not_tried_out_without_end(inner: Callable[[int], Any]) -> None:
    schema: Any = {"type": "object", "properties": {f"p{index}": inner(index) for index in range(12_000)}}
    while len(json.dumps(schema)) > MAX_BYTES:
        schema["properties"] = dict(list(schema["properties"].items())[::2])
    started = process_time()
    with pytest.raises(SchemaTooLarge, match="tried out"):
        prepare_schema(schema, param="x", relaxes=True)
    assert process_time() - started < ENOUGH_S


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    ],
)
def test_a_schema_that_demands_itself_without_end_is_a_mistake(schema: Any) -> None:
    with pytest.raises(WrongSchema, match="no value can fit it"):
        prepare_schema(schema, param="x")


def test_the_deepest_schema_that_passes_needs_a_small_part_of_a_thread_s_stack() -> None:
    """In a process of its own: a stack that is too small ends it."""
    code = f"""
import threading
from worker.schemas.prepare import prepare_schema
definitions = {{f"d{{i}}": {{"type": "object", "properties": {{"a": {{"$ref": f"#/$defs/d{{i + 1}}"}}}}}}
               for i in range({MAX_DEPTH // 2 - 2})}}
schema = {{"$ref": "#/$defs/d0", "$defs": {{**definitions, "d{MAX_DEPTH // 2 - 2}": {{"type": "null"}}}}}}
threading.stack_size(2 * 1024 * 1024)
thread = threading.Thread(target=lambda: print(prepare_schema(schema, param="x").relaxed))
thread.start()
thread.join()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "()"), done.stderr


@pytest.mark.parametrize("name", [*TOO_LARGE, *LARGE_BUT_FINE])
def test_the_check_of_an_answer_ends_whatever_the_schema(name: str) -> None:
    schema = (TOO_LARGE | LARGE_BUT_FINE)[name]
    started = process_time()
    problem_of(schema, json.dumps({"a": {"a": {}}, "l": {"l": {"r": {}}}, "p0": "x", "next": {"next": {}}}))
    assert process_time() - started < ENOUGH_S


def test_a_mistake_and_a_limit_are_both_answered_with_400() -> None:
    for schema in ({"type": "x"}, TOO_LARGE["alternatives that multiply"], {"uniqueItems": True}):
        with pytest.raises(RequestError) as refused:
            prepare_schema(schema, param="tools[3].function.parameters")
        assert refused.value.status == 400
        assert refused.value.param == "tools[3].function.parameters"
        assert "'tools[3].function.parameters'" in refused.value.message
