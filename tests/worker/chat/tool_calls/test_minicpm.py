"""MiniCPM 5: calls in tags, texts in CDATA."""

from __future__ import annotations

import pytest

from tests.support.answer_vectors import Vector, check_vector
from tests.support.grammar_checks import ONE, check_accepted, check_refused, check_walks
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.minicpm import MiniCpm5

CALL = (
    '«<function» name="get_weather">«<param» name="city">Paris«</param>»«<param» name="days">2«</param>»«</function>»'
)
NOW = '«<function» name="now">«</function>»'
RAW = (
    '«<function» name="search">«<param» name="query">«<![CDATA[»a < b\n</param> & c«]]>»«</param>»'
    '«<param» name="tags">["x"]«</param>»«</function>»'
)
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
MEANS_NOW = ("call", "now", "{}")
MEANS_RAW = ("call", "search", '{"query": "a < b\\n</param> & c", "tags": ["x"]}')

VECTORS = (
    Vector("text alone", "A <function> in a <param>.", [("text", "A <function> in a <param>.")]),
    Vector("one call", CALL, [MEANS]),
    Vector("two calls", f"{CALL}\n{NOW}", [MEANS, MEANS_NOW]),
    Vector("CDATA", RAW, [MEANS_RAW]),
    Vector("text around", f"I look it up.\n{CALL}\nDone.", [("text", "I look it up."), MEANS, ("text", "Done.")]),
    Vector(
        "thoughts in front",
        f"«<think>»\nThey want a call.\n«</think>»\n\n{CALL}",
        [("reasoning", "They want a call."), MEANS],
        tags=Tags("<think>", "</think>"),
    ),
    Vector(
        "an unknown tool",
        '«<function» name="rm">«</function>»',
        [("text", '<function name="rm"></function>')],
    ),
    Vector(
        "a cut call stays cut",
        '«<function» name="search">«<param» name="query">«<![CDATA[»a b',
        [("call", "search", '{"query": "a b')],
        is_cut=True,
    ),
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_outputs_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(MiniCpm5(), vector)


def test_grammar_takes_what_the_model_writes_and_no_other_calls() -> None:
    check_accepted(MiniCpm5(), [CALL, RAW, f"{CALL}\n{NOW}"])
    check_refused(MiniCpm5(), [CALL.replace("get_weather", "rm"), CALL.replace("2", "two"), "Hello"])
    check_refused(MiniCpm5(), [f"{CALL}\n{NOW}"], tools=ONE)


def test_what_the_grammar_allows_is_read_as_calls(num_walks: int) -> None:
    check_walks(MiniCpm5(), phrases=[CALL, "«]]>»", "«</param>»"], num_walks=num_walks)
