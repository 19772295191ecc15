"""Apertus: lists of calls with names as keys, and thoughts that end in a call."""

from __future__ import annotations

import pytest

from tests.support.answer_vectors import Vector, check_vector
from tests.support.byte_tokenizer import Grammar, markers_of
from tests.support.grammar_checks import ONE, check_accepted, check_refused, check_walks
from worker.chat.tool_calls.apertus import Apertus
from worker.chat.tool_calls.grammar import GrammarWriter

WEATHER = '{"get_weather": {"city": "Paris", "days": 2}}'
CALL = f"«<|tools_prefix|>»[{WEATHER}]«<|tools_suffix|>»"
TWO = f'«<|tools_prefix|>»[{WEATHER}, {{"now": {{}}}}]«<|tools_suffix|>»'
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
MEANS_NOW = ("call", "now", "{}")

VECTORS = (
    Vector("text alone", 'A list: [{"now": {}}]', [("text", 'A list: [{"now": {}}]')]),
    Vector("one call", CALL, [MEANS]),
    Vector("two calls", TWO, [MEANS, MEANS_NOW]),
    Vector("text around", f"I look it up. {CALL}\nDone.", [("text", "I look it up."), MEANS, ("text", "Done.")]),
    Vector(
        "thoughts in front of an answer",
        "«<|inner_prefix|>»They greet.«<|inner_suffix|>»Hello.",
        [("reasoning", "They greet."), ("text", "Hello.")],
    ),
    Vector(
        "thoughts in front of a call",
        f"«<|inner_prefix|>»They want a call.{CALL}",
        [("reasoning", "They want a call."), MEANS],
    ),
    Vector(
        "thoughts and words in front of a call",
        f"«<|inner_prefix|>»They want a call.«<|inner_suffix|>»Sure. {CALL}",
        [("reasoning", "They want a call."), ("text", "Sure."), MEANS],
    ),
    Vector(
        "an unknown tool",
        '«<|tools_prefix|>»[{"rm": {}}]«<|tools_suffix|>»',
        [("text", '<|tools_prefix|>[{"rm": {}}]<|tools_suffix|>')],
    ),
    Vector(
        "an unknown tool behind a known one",
        '«<|tools_prefix|>»[{"now": {}}, {"rm": {}}]',
        [MEANS_NOW, ("text", ', {"rm": {}}]')],
    ),
    Vector("no list", "«<|tools_prefix|>» none", [("text", "<|tools_prefix|> none")]),
    Vector(
        "broken arguments are closed",
        '«<|tools_prefix|>»[{"now": {"a": [1, x]}}]«<|tools_suffix|>»',
        [("call", "now", '{"a": [1, null]}'), ("text", "x]}}]<|tools_suffix|>")],
    ),
    Vector("a cut call stays cut", '«<|tools_prefix|>»[{"now": {"a": "b', [("call", "now", '{"a": "b')], is_cut=True),
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_outputs_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(Apertus(), vector)


def test_grammar_takes_what_the_model_writes_and_no_other_calls() -> None:
    check_accepted(Apertus(), [CALL, TWO, f"«<|inner_prefix|>»They want a call.{CALL}"])
    check_refused(Apertus(), [CALL.replace("get_weather", "rm"), CALL.replace("2", '"two"'), "Hello"])
    check_refused(Apertus(), [TWO], tools=ONE)


def test_what_the_grammar_allows_is_read_as_calls(num_walks: int) -> None:
    check_walks(Apertus(), phrases=[CALL], has_thoughts=True, num_walks=num_walks)


def test_structured_output_may_have_thoughts_in_front() -> None:
    write = GrammarWriter(markers_of(Apertus.markers))
    grammar = Grammar(write.grammar(Apertus().answer(write, write.schema({"type": "integer"}))), write.markers)
    assert grammar.accepts("7")
    assert grammar.accepts("«<|inner_prefix|>»Seven.«<|inner_suffix|>»7")
    assert not grammar.accepts("seven")
