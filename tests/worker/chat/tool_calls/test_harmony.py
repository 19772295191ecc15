"""gpt-oss: messages in channels are thoughts, text and calls."""

from __future__ import annotations

import pytest

from tests.support.answer_vectors import TOOLS, Vector, check_vector
from tests.support.byte_tokenizer import Grammar, markers_of
from tests.support.grammar_checks import check_accepted, check_refused, check_walks
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.harmony import Harmony

THOUGHT = "«<|channel|>»analysis«<|message|>»They want the weather.«<|end|>»«<|start|>»assistant"
THINKS = ("reasoning", "They want the weather.")
CALL = '«<|channel|>»commentary to=functions.get_weather «<|constrain|>»json«<|message|>»{"city": "Paris", "days": 2}'
ROLE_FIRST = ' to=functions.get_weather«<|channel|>»commentary json«<|message|>»{"city": "Paris", "days": 2}'
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
PREAMBLE = "«<|channel|>»commentary«<|message|>»I look it up.«<|end|>»«<|start|>»assistant"
FINAL = "«<|channel|>»final«<|message|>»It is sunny."

VECTORS = (
    Vector("an answer", FINAL, [("text", "It is sunny.")]),
    Vector("thoughts and an answer", THOUGHT + FINAL, [THINKS, ("text", "It is sunny.")]),
    Vector("thoughts and a call", THOUGHT + CALL, [THINKS, MEANS]),
    Vector("a call that is ended in the text", f"{CALL}«<|call|>»", [MEANS]),
    Vector("the recipient behind the role", ROLE_FIRST, [MEANS]),
    Vector("the recipient behind the role, after thoughts", THOUGHT + ROLE_FIRST, [THINKS, MEANS]),
    Vector("words before a call", THOUGHT + PREAMBLE + CALL, [THINKS, ("text", "I look it up."), MEANS]),
    Vector("words before an answer", PREAMBLE + FINAL, [("text", "I look it up.\n\nIt is sunny.")]),
    Vector(
        "thoughts in two messages",
        THOUGHT + "«<|channel|>»analysis«<|message|>»It is easy.«<|end|>»«<|start|>»assistant" + FINAL,
        [("reasoning", "They want the weather.\n\nIt is easy."), ("text", "It is sunny.")],
    ),
    Vector(
        "two calls, as some finetunes write them",
        f"{CALL}«<|call|>»«<|start|>»assistant«<|channel|>»commentary to=functions.now json«<|message|>»{{}}",
        [MEANS, ("call", "now", "{}")],
    ),
    Vector(
        "a call in the channel of thoughts",
        "«<|channel|>»analysis to=functions.now code«<|message|>»{}",
        [("call", "now", "{}")],
    ),
    Vector(
        "structured output",
        f'{THOUGHT}«<|channel|>»final «<|constrain|>»json«<|message|>»{{"a": 1}}',
        [THINKS, ("text", '{"a": 1}')],
    ),
    Vector("no channels at all", "It is <b>sunny</b>.", [("text", "It is <b>sunny</b>.")]),
    Vector("an answer that goes on", " upon a time«<|return|>»", [("text", " upon a time")]),
    Vector(
        "an unknown tool",
        "«<|channel|>»commentary to=functions.rm «<|constrain|>»json«<|message|>»{}«<|call|>»",
        [("text", "<|channel|>commentary to=functions.rm <|constrain|>json<|message|>{}")],
    ),
    Vector(
        "no JSON",
        f"{THOUGHT}«<|channel|>»commentary to=functions.now«<|message|>»soon",
        [THINKS, ("text", "<|start|>assistant<|channel|>commentary to=functions.now<|message|>soon")],
    ),
    Vector(
        "broken arguments are closed",
        '«<|channel|>»commentary to=functions.now json«<|message|>»{"a": [1, x]}«<|call|>»',
        [("call", "now", '{"a": [1, null]}'), ("text", "x]}")],
    ),
    Vector("a cut header is no text", f"{THOUGHT}«<|channel|>»comm", [THINKS], is_cut=True),
    Vector(
        "a cut call stays cut",
        '«<|channel|>»commentary to=functions.now json«<|message|>»{"a": "b',
        [("call", "now", '{"a": "b')],
        is_cut=True,
    ),
    Vector("cut thoughts", "«<|channel|>»analysis«<|message|>»They want", [("reasoning", "They want")], is_cut=True),
    Vector(
        "the words of a marker that is a token are text",
        f"{THOUGHT}«<|channel|>»final«<|message|>»Write <|end|> and <|channel|>final.«<|return|>»",
        [THINKS, ("text", "Write <|end|> and <|channel|>final.")],
        only="tokens",
    ),
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_outputs_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(Harmony(), vector)


def test_grammar_takes_what_the_models_write() -> None:
    check_accepted(Harmony(), [CALL, THOUGHT + CALL, ROLE_FIRST, THOUGHT + ROLE_FIRST])


def test_grammar_refuses_other_tools_and_arguments() -> None:
    check_refused(Harmony(), [CALL.replace("get_weather", "rm"), CALL.replace("2", '"two"'), FINAL, PREAMBLE + CALL])


def test_what_the_grammar_allows_is_read_as_calls(num_walks: int) -> None:
    check_walks(Harmony(), phrases=["«<|end|>»"], has_thoughts=True, num_walks=num_walks)


@pytest.mark.parametrize("output", [FINAL, THOUGHT + FINAL, THOUGHT + PREAMBLE + CALL])
def test_free_answers_are_taken_too(output: str) -> None:
    for markers in (markers_of(Harmony.markers), None):
        write = GrammarWriter(markers or markers_of(()))
        grammar = Grammar(write.grammar(Harmony().free_calls(write, TOOLS)), markers)
        assert not grammar.refused_at(output)


def test_structured_output_stands_in_the_channel_for_answers_behind_thoughts() -> None:
    write = GrammarWriter(markers_of(Harmony.markers))
    grammar = Grammar(write.grammar(Harmony().answer(write, write.schema({"type": "integer"}))), write.markers)
    assert grammar.accepts("«<|channel|>»final«<|message|>»7")
    assert grammar.accepts(f"{THOUGHT}«<|channel|>»final «<|constrain|>»json«<|message|>»7")
    assert not grammar.accepts("7")
    assert not grammar.accepts("«<|channel|>»final«<|message|>»seven")
