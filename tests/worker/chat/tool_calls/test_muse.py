"""Muse Glimmer: messages to the model itself, to tools and to the user."""

from __future__ import annotations

import pytest

from tests.support.answer_vectors import Vector, check_vector
from tests.support.byte_tokenizer import Grammar, markers_of
from tests.support.grammar_checks import ONE, check_accepted, check_refused, check_walks
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.muse import Muse

NEXT = "«<|eom|>»«<|start|>»assistant"
THOUGHT = f" to=self«<|message|>»They want the weather.{NEXT}"
THINKS = ("reasoning", "They want the weather.")
WEATHER = (
    ' to=get_weather«<|message|>»<atem:function_calls>\n<atem:invoke name="get_weather">\n'
    '<atem:parameter name="city">Paris</atem:parameter>\n<atem:parameter name="days">2</atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls>"
)
NOW = ' to=now«<|message|>»<atem:function_calls>\n<atem:invoke name="now">\n</atem:invoke>\n</atem:function_calls>'
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
MEANS_NOW = ("call", "now", "{}")

VECTORS = (
    Vector("an answer", " to=user«<|message|>»It is sunny.«<|eot|>»", [("text", "It is sunny.")]),
    Vector("thoughts and an answer", f"{THOUGHT} to=user«<|message|>»It is.", [THINKS, ("text", "It is.")]),
    Vector("one call", WEATHER, [MEANS]),
    Vector("thoughts and two calls", THOUGHT + WEATHER + NEXT + NOW, [THINKS, MEANS, MEANS_NOW]),
    Vector(
        "text before a call",
        f" to=user«<|message|>»I look it up.{NEXT}{WEATHER}«<|eot|>»",
        [("text", "I look it up."), MEANS],
    ),
    Vector(
        "two calls in one block",
        WEATHER.removesuffix("</atem:function_calls>") + NOW.partition("<atem:function_calls>\n")[2],
        [MEANS, MEANS_NOW],
    ),
    Vector("no messages at all", "It is <b>sunny</b>.", [("text", "It is <b>sunny</b>.")]),
    Vector(
        "an unknown tool",
        ' to=rm«<|message|>»<atem:function_calls>\n<atem:invoke name="rm">\n</atem:invoke>',
        [("text", '<atem:function_calls>\n<atem:invoke name="rm">\n</atem:invoke>')],
    ),
    Vector("a cut header is no text", f"{THOUGHT} to=us", [THINKS], is_cut=True),
    Vector(
        "a cut call stays cut",
        WEATHER[: WEATHER.index("ris<")],
        [("call", "get_weather", '{"city": "Pa')],
        is_cut=True,
    ),
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_outputs_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(Muse(), vector)


def test_grammar_takes_what_the_model_writes_and_no_other_calls() -> None:
    two = THOUGHT + WEATHER + NEXT + NOW
    check_accepted(Muse(), [WEATHER, THOUGHT + WEATHER, two])
    refused = [WEATHER.replace("get_weather", "rm"), WEATHER.replace("2", "two"), " to=user«<|message|>»Hello"]
    check_refused(Muse(), [*refused, WEATHER.replace("to=get_weather", "to=now")])
    check_refused(Muse(), [two], tools=ONE)


def test_what_the_grammar_allows_is_read_as_calls(num_walks: int) -> None:
    check_walks(Muse(), phrases=["«<|eom|>»", "</atem:parameter>"], has_thoughts=True, num_walks=num_walks)


def test_structured_output_is_a_message_to_the_user_behind_thoughts() -> None:
    write = GrammarWriter(markers_of(Muse.markers))
    grammar = Grammar(write.grammar(Muse().answer(write, write.schema({"type": "integer"}))), write.markers)
    assert grammar.accepts(" to=user«<|message|>»7")
    assert grammar.accepts(f"{THOUGHT} to=user«<|message|>»7")
    assert not grammar.accepts("7")
