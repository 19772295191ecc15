"""Random schemas: whatever their grammars let through is valid, or it was said beforehand what might not be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from bench.grammar_driver import matcher_of, random_answer
from worker.errors import RequestError
from worker.schemas.check import problem_of
from worker.schemas.disjoint import Disjointness
from worker.schemas.prepare import prepare_schema

NAMES = ("a", "b", "xa", "c d", 'q"')
PATTERNS = ("^a", "b$", "^x[a-z]*$", "^[0-9]{1,3}$", "a.c", "^$", "^(?:ab|c)+$", "(?=a)b", r"^\w+$", r"^\d-\d$")
FORMATS = ("date", "time", "ipv4", "uuid", "hostname", "unheard-of")
KINDS = ("null", "boolean", "integer", "number", "string", "array", "object")

constants = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-20, 20)
    | st.sampled_from([0.5, -1.25, 1.0, 1e-7, 2.5e10])
    | st.sampled_from(["", "a", "ab", "xa", "ä\n", "1", "\U0001f600", "a\\b"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
    max_leaves=4,
)
small = st.integers(0, 4)
bounds = st.integers(-10, 10) | st.sampled_from([0.5, -0.25, 3.0, 1e-3])


def schemas() -> st.SearchStrategy[Any]:
    """Return schemas of all keywords, most of them sensible, some of them that nothing can fit."""
    leaves = st.one_of(
        st.booleans(),
        st.fixed_dictionaries({"const": constants}),
        st.fixed_dictionaries({"enum": st.lists(constants, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"$ref": st.sampled_from(["#/$defs/one", "#/$defs/two", "#"])}),
        st.fixed_dictionaries(
            {"type": st.sampled_from(KINDS) | st.lists(st.sampled_from(KINDS), min_size=1, max_size=2)}
        ),
        texts,
        numbers,
    )
    return st.recursive(leaves, _composed, max_leaves=8)


texts = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={
        "minLength": small,
        "maxLength": small.map(lambda number: number + 3),
        "pattern": st.sampled_from(PATTERNS),
        "format": st.sampled_from(FORMATS),
    },
)
numbers = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number", ["number", "null"]])},
    optional={
        "minimum": bounds,
        "maximum": bounds,
        "exclusiveMinimum": bounds,
        "exclusiveMaximum": bounds,
        "multipleOf": st.sampled_from([1, 2, 3, 7, 0.5, 10]),
    },
)


def _composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    objects = st.fixed_dictionaries(
        {},
        optional={
            "type": st.just("object"),
            "properties": named,
            "required": st.lists(st.sampled_from(NAMES), max_size=2),
            "additionalProperties": inner,
            "patternProperties": st.dictionaries(st.sampled_from(PATTERNS), inner, max_size=2),
            "propertyNames": st.sampled_from(
                [{"enum": ["a", "z"]}, {"pattern": "^a"}, {"maxLength": 2}, True, {"type": "string"}]
            ),
            "minProperties": small,
            "maxProperties": small,
            "unevaluatedProperties": inner,
            "dependentRequired": st.just({"a": ["b"]}),
        },
    )
    arrays = st.fixed_dictionaries(
        {},
        optional={
            "type": st.just("array"),
            "items": inner,
            "prefixItems": some,
            "minItems": small,
            "maxItems": small,
            "uniqueItems": st.booleans(),
            "contains": inner,
            "unevaluatedItems": inner,
        },
    )
    mixed = st.fixed_dictionaries(
        {},
        optional={
            "anyOf": some,
            "oneOf": some,
            "allOf": some,
            "not": inner,
            "if": inner,
            "then": inner,
            "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two"]),
            "properties": named,
            "additionalProperties": st.booleans(),
        },
    )  # fmt: skip
    return st.one_of(objects, arrays, mixed)


@st.composite
def documents(draw: st.DrawFn) -> Any:
    root = draw(schemas().filter(lambda schema: isinstance(schema, dict)))
    return {**root, "$defs": {"one": draw(schemas()), "two": draw(schemas())}}


def is_valid(schema: Any, answer: str) -> bool | None:
    try:
        return Draft202012Validator(schema).is_valid(json.loads(answer))
    except RecursionError:
        return None  # the validator follows `$ref` into itself


often = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@often
@given(document=documents(), seed=st.integers(0, 1000))
def test_every_answer_of_an_enforced_schema_is_valid(document: Any, seed: int) -> None:
    try:
        prepared = prepare_schema(document, param="x")
    except RequestError:
        return
    if prepared.relaxed:
        return
    for number in range(3):
        answer = random_answer(prepared.to_grammar(), seed + number, 120)
        if answer is not None:
            assert is_valid(document, answer) in (True, None), answer
            assert problem_of(document, answer) is None


@often
@given(document=documents(), seed=st.integers(0, 1000))
def test_every_answer_of_a_relaxed_schema_is_valid_under_what_was_kept(document: Any, seed: int) -> None:
    try:
        prepared = prepare_schema(document, param="x", relaxes=True)
    except RequestError:
        return
    answer = random_answer(prepared.to_grammar(), seed, 120)
    if answer is not None:
        kept = prepared.schema
        if not any(relaxed.path.endswith("minProperties") for relaxed in prepared.relaxed):
            assert is_valid(kept, answer) in (True, None), answer
        problem_of(document, answer)


@often
@given(options=st.lists(schemas(), min_size=2, max_size=3), value=constants)
def test_no_value_fits_two_schemas_that_were_proven_apart(options: list[Any], value: Any) -> None:
    try:
        root = prepare_schema({"anyOf": options, "$defs": {"one": True, "two": {"type": "null"}}}, param="x").schema
    except RequestError:
        return
    rewritten = root.get("anyOf", [])
    if Disjointness(root).holds(rewritten):
        text = json.dumps(value)
        document = {"$defs": root.get("$defs", {})}
        fitting = [option for option in rewritten if is_valid({**document, "allOf": [option]}, text)]
        assert len(fitting) <= 1


@often
@given(value=constants)
def test_a_constant_is_written_as_it_is_and_nothing_else(value: Any) -> None:
    prepared = prepare_schema({"const": value}, param="x")
    answer = random_answer(prepared.to_grammar(), 1)
    assert answer is not None
    assert json.loads(answer) == value


@pytest.mark.parametrize("relaxes", [False, True])
@given(
    schema=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["type", "properties", "items", "$ref", "anyOf", "enum", "not", "required", "pattern", "a"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
@settings(max_examples=50, deadline=None)
def test_whatever_is_sent_as_a_schema_ends_in_a_grammar_or_a_refusal(relaxes: bool, schema: Any) -> None:
    try:
        prepared = prepare_schema(schema, param="x", relaxes=relaxes)
    except RequestError:
        return
    assert not matcher_of(prepared.to_grammar()).is_error()
