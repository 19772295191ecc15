"""Solar Open: messages of thoughts, text and calls."""

from __future__ import annotations

import pytest

from tests.support.answer_vectors import Vector, check_vector
from tests.support.byte_tokenizer import Grammar, markers_of
from tests.support.grammar_checks import ONE, check_accepted, check_refused, check_walks
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.solar import Solar

NEXT = "«<|end|>»«<|begin|>»assistant"
THOUGHT = f"«<|think|>»They want the weather.{NEXT}"
THINKS = ("reasoning", "They want the weather.")
WEATHER = (
    "«<|tool_call:begin|>»a1b2c3d4e5«<|tool_call:name|>»get_weather«<|tool_call:args|>»"
    '{"city": "Paris", "days": 2}«<|tool_call:end|>»'
)
NOW = "«<|tool_call:begin|>»f6g7h8i9j0«<|tool_call:name|>»now«<|tool_call:args|>»{}«<|tool_call:end|>»"
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
MEANS_NOW = ("call", "now", "{}")

VECTORS = (
    Vector("an answer", "«<|content|>»It is sunny.«<|end|>»", [("text", "It is sunny.")]),
    Vector("thoughts and an answer", f"{THOUGHT}«<|content|>»It is sunny.", [THINKS, ("text", "It is sunny.")]),
    Vector("one call", f"«<|tool_calls|>»{WEATHER}«<|calls|>»", [MEANS], ids=["a1b2c3d4e5"]),
    Vector(
        "thoughts and two calls",
        f"{THOUGHT}«<|tool_calls|>»{WEATHER}{NOW}",
        [THINKS, MEANS, MEANS_NOW],
        ids=["a1b2c3d4e5", "f6g7h8i9j0"],
    ),
    Vector(
        "text before a call",
        f"«<|content|>»I look it up.{NEXT}«<|tool_calls|>»{NOW}«<|calls|>»",
        [("text", "I look it up."), MEANS_NOW],
    ),
    Vector("no messages at all", "It is <b>sunny</b>.", [("text", "It is <b>sunny</b>.")]),
    Vector(
        "an unknown tool",
        "«<|tool_calls|>»«<|tool_call:begin|>»a«<|tool_call:name|>»rm«<|tool_call:args|>»{}",
        [("text", "<|tool_call:begin|>a<|tool_call:name|>rm<|tool_call:args|>{}")],
    ),
    Vector(
        "no JSON",
        "«<|tool_call:begin|>»a«<|tool_call:name|>»now«<|tool_call:args|>»soon",
        [("text", "<|tool_call:begin|>a<|tool_call:name|>now<|tool_call:args|>soon")],
    ),
    Vector(
        "a cut call stays cut",
        '«<|tool_calls|>»«<|tool_call:begin|>»a«<|tool_call:name|>»now«<|tool_call:args|>»{"a": "b',
        [("call", "now", '{"a": "b')],
        is_cut=True,
    ),
    Vector("a cut header is no text", f"{THOUGHT[:-4]}", [THINKS], is_cut=True),
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_outputs_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(Solar(), vector)


def test_grammar_takes_what_the_model_writes_and_no_other_calls() -> None:
    call, two = f"«<|tool_calls|>»{WEATHER}", f"{THOUGHT}«<|tool_calls|>»{WEATHER}{NOW}"
    check_accepted(Solar(), [call, THOUGHT + call, two])
    check_refused(Solar(), [call.replace("get_weather", "rm"), call.replace("2}", '"two"}'), "«<|content|>»Hello"])
    check_refused(Solar(), [two], tools=ONE)


def test_what_the_grammar_allows_is_read_as_calls(num_walks: int) -> None:
    check_walks(Solar(), phrases=["«<|end|>»"], has_thoughts=True, num_walks=num_walks)


def test_structured_output_is_a_message_behind_thoughts() -> None:
    write = GrammarWriter(markers_of(Solar.markers))
    grammar = Grammar(write.grammar(Solar().answer(write, write.schema({"type": "integer"}))), write.markers)
    assert grammar.accepts("«<|content|>»7")
    assert grammar.accepts(f"{THOUGHT}«<|content|>»7")
    assert not grammar.accepts("7")


def test_ids_have_ten_characters() -> None:
    ids = [Solar().call_id("0123456789abcdef" * 2, index, "now") for index in range(3)]
    assert ids == ["0123456700", "0123456701", "0123456702"]
