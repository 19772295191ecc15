"""Calls of FunctionGemma and Gemma 4, and values in their notation."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tests.support.answer_vectors import Vector, check_vector, parts_of, read
from tests.support.byte_tokenizer import Grammar, markers_of
from tests.support.grammar_checks import (
    ONE,
    check_accepted,
    check_refused,
    check_walks,
    free_grammars,
    required_grammars,
)
from worker.chat.answer_reader import AnswerForm
from worker.chat.tool_calls.gemma import FunctionGemma, Gemma4
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.tools import Demand, Tool, Tools

CALL = "«<start_function_call>»call:get_weather{city:«<escape>»Paris«<escape>»,days:2}«<end_function_call>»"
SECOND = "«<start_function_call>»call:now{}«<end_function_call>»"
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
MEANS_NOW = ("call", "now", "{}")
ORDER = Tool(
    "order",
    None,
    {
        "type": "object",
        "properties": {
            "what": {"type": "string", "enum": ["tea", "green tea"]},
            "count": {"type": "integer", "minimum": 1, "maximum": 9},
            "to": {"$ref": "#/$defs/place"},
            "extras": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2},
            "gift": {"type": ["boolean", "null"]},
            "note": {},
        },
        "required": ["what", "to"],
        "$defs": {
            "place": {
                "type": "object",
                "properties": {
                    "street": {"type": "string"},
                    "floor": {"anyOf": [{"type": "integer"}, {"const": "top"}]},
                },
                "required": ["street"],
                "additionalProperties": False,
            }
        },
    },
)
WITH_ORDER = Tools((ORDER,), Demand.REQUIRED)

VECTORS = (
    Vector("text alone", "Use {a:1} or <start_of.", [("text", "Use {a:1} or <start_of.")]),
    Vector("one call", CALL, [MEANS]),
    Vector("two calls", f"{CALL}{SECOND}", [MEANS, MEANS_NOW]),
    Vector("text in front", f"I look it up.\n{CALL}", [("text", "I look it up."), MEANS]),
    Vector(
        "text around all",
        f"First. {CALL}\nThen. {SECOND} Done.",
        [("text", "First."), MEANS, ("text", "Then."), MEANS_NOW, ("text", "Done.")],
    ),
    Vector(
        "all kinds of values",
        "«<start_function_call>»call:search{filter:{deep:{list:[1,-2.5e3,true,false,null]},year:2020},"
        'query:«<escape>»Say "a\\n{b}",\nthen «<escape>»,tags:[«<escape>»x«<escape>»,«<escape>»«<escape>»]}'
        "«<end_function_call>»",
        [
            (
                "call",
                "search",
                '{"filter": {"deep": {"list": [1, -2500.0, true, false, null]}, "year": 2020},'
                ' "query": "Say \\"a\\\\n{b}\\",\\nthen ", "tags": ["x", ""]}',
            )
        ],
    ),
    Vector(
        "texts without marks",
        "«<start_function_call>»call:get_weather{city: New York , days: 2, exact: true}«<end_function_call>»",
        [("call", "get_weather", '{"city": "New York", "days": 2, "exact": true}')],
    ),
    Vector(
        "keys between marks",
        "«<start_function_call>»call:get_weather{«<escape>»city«<escape>»:«<escape>»Paris«<escape>»}",
        [("call", "get_weather", '{"city": "Paris"}')],
    ),
    Vector(
        "an unknown tool",
        "«<start_function_call>»call:rm{}«<end_function_call>»",
        [("text", "<start_function_call>call:rm{}<end_function_call>")],
    ),
    Vector("no call", "«<start_function_call>»now", [("text", "<start_function_call>now")]),
    Vector(
        "broken arguments are closed",
        "«<start_function_call>»call:search{tags:[1 2],query:3}",
        [("call", "search", '{"tags": ["1 2"], "query": 3}')],
    ),
    Vector(
        "arguments that go on wrongly are closed",
        "«<start_function_call>»call:search{query:«<escape>»a«<escape>» b}",
        [("call", "search", '{"query": "a"}'), ("text", "b}")],
    ),
    Vector(
        "a value that is missing",
        "«<start_function_call>»call:search{filter:{year:}}«<end_function_call>»",
        [("call", "search", '{"filter": {"year": null}}'), ("text", "}}<end_function_call>")],
    ),
    Vector(
        "a cut text stays cut",
        "«<start_function_call>»call:get_weather{city:«<escape>»Par",
        [("call", "get_weather", '{"city":"Par')],
        is_cut=True,
    ),
    Vector(
        "a cut number is not told",
        "«<start_function_call>»call:get_weather{days:1",
        [("call", "get_weather", '{"days":')],
        is_cut=True,
    ),
    Vector(
        "a call that ends too soon is closed",
        "«<start_function_call>»call:search{filter:{year:2020",
        [("call", "search", '{"filter": {"year": 2020}}')],
    ),
)
THOUGHTS = (
    Vector(
        "thoughts in front",
        "«<|channel>»thought\nThey greet.\n«<channel|>»Hello.",
        [("reasoning", "They greet."), ("text", "Hello.")],
    ),
    Vector(
        "thoughts between calls",
        "«<|channel>»thought\nFirst this.«<channel|>»«<|tool_call>»call:now{}«<tool_call|>»"
        "«<|channel>»thought\nThen that.«<channel|>»«<|tool_call>»call:now{}«<tool_call|>»",
        [("reasoning", "First this."), MEANS_NOW, ("reasoning", "Then that."), MEANS_NOW],
    ),
    Vector("no thoughts", "«<|channel>»thought\n«<channel|>»Hello.", [("text", "Hello.")]),
    Vector("a cut thought", "«<|channel>»thought\nThey gr", [("reasoning", "They gr")], is_cut=True),
)


def _as_gemma_4(output: str) -> str:
    for old, new in zip(FunctionGemma.markers, Gemma4.markers, strict=False):
        output = output.replace(old, new)
    return output


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_outputs_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(FunctionGemma(), vector)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_outputs_of_gemma_4_differ_by_their_markers(vector: Vector) -> None:
    parts = [(part[0], _as_gemma_4(part[1]), *part[2:]) for part in vector.parts]
    check_vector(Gemma4(), replace(vector, output=_as_gemma_4(vector.output), parts=parts))


@pytest.mark.parametrize("vector", THOUGHTS, ids=lambda vector: vector.name)
def test_gemma_4_thinks_in_a_channel(vector: Vector) -> None:
    check_vector(Gemma4(), vector)


def test_a_call_is_written_between_the_markers() -> None:
    check_accepted(FunctionGemma(), [CALL, f"{CALL}{SECOND}"])
    check_accepted(Gemma4(), [_as_gemma_4(CALL)])
    check_refused(
        FunctionGemma(),
        [
            "",
            "Hello",
            f"Hello {CALL}",
            "«<start_function_call>»call:rm{}«<end_function_call>»",
            "«<start_function_call>»call:get_weather{days:2}«<end_function_call>»",
            "«<start_function_call>»call:get_weather{city:Paris}«<end_function_call>»",
            "«<start_function_call>»call:get_weather{days:2,city:«<escape>»Paris«<escape>»}«<end_function_call>»",
        ],
    )
    check_refused(FunctionGemma(), [f"{CALL}{SECOND}"], tools=ONE)
    for grammar in free_grammars(FunctionGemma()):
        assert grammar.accepts("Hello")
        assert grammar.accepts(f"Hello {CALL} and {SECOND}.")


def test_gemma_4_may_think_in_front_of_text_and_calls() -> None:
    thought, call = "«<|channel>»thought\nHm.\n«<channel|>»", _as_gemma_4(CALL)
    check_accepted(Gemma4(), [f"{thought}{call}", f"{thought}{call}{thought}{call}"])
    check_refused(Gemma4(), [f"{call}{call}"], tools=ONE)
    for grammar in free_grammars(Gemma4()):
        for output in (f"{thought}Hello", f"{thought}Hello {call}", f"{call}{thought}Hello"):
            assert grammar.accepts(output), grammar.refused_at(output)
    write = GrammarWriter(markers := markers_of(Gemma4.markers))
    plain = Grammar(write.grammar(Gemma4().answer(write, '"{}"')), markers)
    assert plain.accepts(f"{thought}{{}}")
    assert plain.accepts("{}")
    assert not plain.accepts("Hello")


def test_arguments_are_held_to_their_schema() -> None:
    good = (
        "{to:{floor:3,street:«<escape>»x«<escape>»},what:«<escape>»tea«<escape>»}",
        "{count:9,extras:[],gift:null,note:{a:[1,«<escape>»b«<escape>»]},to:{street:«<escape>»«<escape>»},"
        "what:«<escape>»green tea«<escape>»}",
        "{extras:[«<escape>»milk«<escape>»,«<escape>»«<escape>»],to:{floor:«<escape>»top«<escape>»,"
        "street:«<escape>»x«<escape>»},what:«<escape>»tea«<escape>»}",
    )
    bad = (
        "{to:{street:«<escape>»x«<escape>»}}",
        "{to:{floor:3},what:«<escape>»tea«<escape>»}",
        "{to:{street:«<escape>»x«<escape>»},what:«<escape>»coffee«<escape>»}",
        "{count:10,to:{street:«<escape>»x«<escape>»},what:«<escape>»tea«<escape>»}",
        "{extras:[«<escape>»cinnamon«<escape>»],to:{street:«<escape>»x«<escape>»},what:«<escape>»tea«<escape>»}",
        "{gift:1,to:{street:«<escape>»x«<escape>»},what:«<escape>»tea«<escape>»}",
    )
    for grammar in required_grammars(FunctionGemma(), WITH_ORDER):
        for arguments in good:
            output = f"«<start_function_call>»call:order{arguments}«<end_function_call>»"
            assert not grammar.refused_at(output), grammar.refused_at(output)
        for arguments in bad:
            assert grammar.refused_at(f"«<start_function_call>»call:order{arguments}«<end_function_call>»"), arguments


@pytest.mark.parametrize("family", [FunctionGemma(), Gemma4()], ids=lambda family: family.name)
def test_what_the_grammar_allows_is_read_as_calls(family: FunctionGemma, num_walks: int) -> None:
    phrases = [f"«{family.notation.quotes[0]}»", f"«{family.markers[-1]}»"]
    check_walks(family, phrases=phrases, has_thoughts=isinstance(family, Gemma4), num_walks=num_walks)


@pytest.mark.parametrize("family", [FunctionGemma(), Gemma4()], ids=lambda family: family.name)
def test_arguments_that_the_grammar_allows_fit_their_schema(family: FunctionGemma) -> None:
    for grammar in required_grammars(family, WITH_ORDER):
        for seed in range(20):
            output = grammar.walk(seed, phrases=[f"«{family.notation.quotes[0]}»", f"«{family.markers[-1]}»"])
            parts = parts_of(read(AnswerForm(grammar.markers, family=family, tools=WITH_ORDER), [output]))
            calls = [part for part in parts if part[0] == "call"]
            assert calls
            for _, _, arguments in calls:
                Draft202012Validator(dict(ORDER.parameters)).validate(json.loads(arguments))
