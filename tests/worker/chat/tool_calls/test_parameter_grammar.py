"""Grammars of parameters follow the schemas of their tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.byte_tokenizer import Grammar
from worker.chat.marks import Markers
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.parameter_grammar import ParameterGrammar


def grammar_of(schema: Mapping[str, Any] | bool, *, in_python: bool = False) -> Grammar:
    """Return the grammar of parameters that are written `<name>value</>`, strings `<name*>value</>`."""
    write = GrammarWriter(Markers())

    def tag(name: str, is_string: bool) -> str:
        return f"{write.literal('<')} {name} {write.literal('*>' if is_string else '>')}"

    parameters = ParameterGrammar(write, tag, "</>", in_python=in_python).parameters(schema)
    return Grammar(write.grammar(" ".join([write.literal("("), *parameters, write.literal(")")])))


def test_required_parameters_must_be_there_and_all_stand_in_the_order_of_the_schema() -> None:
    properties = {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "null"}}
    grammar = grammar_of({"properties": properties, "required": ["b", "d"]})
    assert grammar.accepts("(<a>1</><b*>x</><c>null</><d*>y</>)")
    assert grammar.accepts("(<b*></><d*></>)")
    assert not grammar.accepts("(<a>1</>)")
    assert not grammar.accepts("(<b*>x</><a>1</><d*></>)")
    assert not grammar.accepts("(<a>x</><b*>x</><d*></>)")
    assert not grammar.accepts("(<a>1</><a>1</><b*>x</><d*></>)")


def test_references_lead_to_the_definitions_of_the_whole_schema() -> None:
    at = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
    grammar = grammar_of(
        {"$defs": {"at": at}, "properties": {"at": {"$ref": "#/$defs/at"}, "all": {"items": {"$ref": "#/$defs/at"}}}}
    )
    assert grammar.accepts('(<at>{"x": 1}</>)')
    assert not grammar.accepts('(<at>{"x": "1"}</>)')
    whole = grammar_of({"$ref": "#/$defs/all", "$defs": {"all": {"properties": {"at": at}, "required": ["at"]}}})
    assert whole.accepts('(<at>{"x": 1}</>)')
    assert not whole.accepts("()")


def test_choices_of_strings_are_held_to_and_those_of_other_values_too() -> None:
    grammar = grammar_of(
        {"properties": {"a": {"enum": ["x", "y z", ""]}, "b": {"enum": [1, None]}, "c": {"const": "k"}}}
    )
    assert grammar.accepts("(<a*>y z</><b>null</><c*>k</>)")
    assert grammar.accepts("(<a*></><b>1</>)")
    assert not grammar.accepts("(<a*>y</>)")
    assert not grammar.accepts("(<b>2</>)")
    assert not grammar.accepts("(<c*>l</>)")


def test_choices_are_held_to_behind_references_and_beside_null() -> None:
    color = {"enum": ["red", "blue"]}
    properties = {
        "a": {"$ref": "#/$defs/color"},
        "b": {"anyOf": [{"$ref": "#/$defs/color"}, {"type": "null"}]},
        "c": {"enum": ["x", 2, None]},
        "d": {"anyOf": [{"$ref": "#/$defs/color"}, {"type": "string"}]},
    }
    grammar = grammar_of({"$defs": {"color": color}, "properties": properties})
    assert grammar.accepts("(<a*>blue</><b*>null</><c*>2</><d*>green</>)")
    assert grammar.accepts("(<b*>red</><c*>null</>)")
    for refused in ("(<a*>green</>)", "(<a*>null</>)", "(<b*>green</>)", "(<c*>y</>)"):
        assert not grammar.accepts(refused)


def test_what_may_be_a_string_is_any_text() -> None:
    grammar = grammar_of(
        {
            "properties": {
                "a": {"type": ["string", "null"]},
                "b": {},
                "c": {"anyOf": [{"enum": ["x"]}, {"type": "string"}]},
            }
        }
    )
    assert grammar.accepts("(<a*>\nnull < </ </><b*>[1</><c*>y</>)")


def test_tools_without_properties_take_any_parameters_unless_there_are_none() -> None:
    for schema in ({}, {"type": "object"}, True):
        assert grammar_of(schema).accepts("()")
        assert grammar_of(schema).accepts("(<a_1*>x</><b-2.c*></>)")
        assert not grammar_of(schema).accepts("(<a b*>x</>)")
    numbers = grammar_of({"additionalProperties": {"type": "integer"}})
    assert numbers.accepts("(<a>1</><b>2</>)")
    assert not numbers.accepts("(<a>x</>)")
    assert not grammar_of({"additionalProperties": False}).accepts("(<a*>x</>)")
    assert grammar_of({"properties": {"a": False}, "additionalProperties": False}).accepts("()")


def test_truth_may_be_written_as_in_python_where_templates_do() -> None:
    schema = {"properties": {"a": {"type": "boolean"}, "b": {"type": ["boolean", "null"]}, "c": {"const": True}}}
    for output in ("(<a>true</>)", "(<b>null</>)", "(<c>true</>)"):
        assert grammar_of(schema).accepts(output)
        assert grammar_of(schema, in_python=True).accepts(output)
    for output in ("(<a>True</>)", "(<b>None</>)"):
        assert not grammar_of(schema).accepts(output)
        assert grammar_of(schema, in_python=True).accepts(output)
