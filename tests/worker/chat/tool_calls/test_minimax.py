"""MiniMax M2's calls in tags, M1's in lines of JSON."""

from __future__ import annotations

import pytest

from tests.support.answer_vectors import Vector, check_vector
from tests.support.grammar_checks import ONE, check_accepted, check_refused, check_walks
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.minimax import MiniMaxM1, MiniMaxM2

WEATHER = (
    '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n<parameter name="days">2</parameter>\n'
    "</invoke>\n"
)
NOW = '<invoke name="now">\n</invoke>\n'
CALL = f"«<minimax:tool_call>»\n{WEATHER}«</minimax:tool_call>»"
TWO = f"«<minimax:tool_call>»\n{WEATHER}{NOW}«</minimax:tool_call>»"
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
MEANS_NOW = ("call", "now", "{}")
THINK = Tags("<think>", "</think>")

VECTORS = (
    Vector("text alone", 'Write <invoke name="now">.', [("text", 'Write <invoke name="now">.')]),
    Vector("one call", CALL, [MEANS]),
    Vector("two calls", TWO, [MEANS, MEANS_NOW]),
    Vector(
        "text around blocks",
        f"First.\n{CALL}\nThen.\n{TWO}\nDone.",
        [("text", "First."), MEANS, ("text", "Then."), MEANS, MEANS_NOW, ("text", "Done.")],
    ),
    Vector(
        "thoughts in front",
        f"They want\nthe weather.\n«</think>»\n\n\n{CALL}",
        [("reasoning", "They want\nthe weather."), MEANS],
        tags=THINK,
        starts_inside=True,
    ),
    Vector(
        "values that are no strings",
        '«<minimax:tool_call>»\n<invoke name="search">\n<parameter name="query">\n"a"\n</parameter>\n'
        '<parameter name="tags">["b"]</parameter>\n</invoke>\n«</minimax:tool_call>»',
        [("call", "search", '{"query": "\\n\\"a\\"\\n", "tags": ["b"]}')],
    ),
    Vector(
        "an unknown tool behind a known one",
        f'«<minimax:tool_call>»\n{NOW}<invoke name="rm">\n</invoke>\n«</minimax:tool_call>»',
        [MEANS_NOW, ("text", '<invoke name="rm">\n</invoke>\n</minimax:tool_call>')],
    ),
    Vector(
        "an unknown tool alone",
        '«<minimax:tool_call>»\n<invoke name="rm">\n</invoke>\n«</minimax:tool_call>»',
        [("text", '<minimax:tool_call>\n<invoke name="rm">\n</invoke>\n</minimax:tool_call>')],
    ),
    Vector(
        "no name",
        "«<minimax:tool_call>»\n<invoke>now</invoke>",
        [("text", "<minimax:tool_call>\n<invoke>now</invoke>")],
    ),
    Vector(
        "a cut call stays cut",
        '«<minimax:tool_call>»\n<invoke name="search">\n<parameter name="query">a b',
        [("call", "search", '{"query": "a b')],
        is_cut=True,
    ),
)

LINES = '«<tool_calls>»\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n«</tool_calls>»'
TWO_LINES = LINES.replace("\n«</", '\n{"name": "now", "arguments": {}}\n«</')
M1_VECTORS = (
    Vector("text alone", "a <tool_call> b", [("text", "a <tool_call> b")]),
    Vector("one call", f"I look.\n{LINES}", [("text", "I look."), MEANS]),
    Vector("two calls", f"{TWO_LINES}\nDone.", [MEANS, MEANS_NOW, ("text", "Done.")]),
    Vector(
        "an unknown tool behind a known one",
        LINES.replace("\n«</", '\n{"name": "rm", "arguments": {}}\n«</'),
        [MEANS, ("text", '{"name": "rm", "arguments": {}}\n</tool_calls>')],
    ),
    Vector("an empty block", "«<tool_calls>»\n«</tool_calls>»", [("text", "<tool_calls>\n</tool_calls>")]),
    Vector(
        "a cut call stays cut",
        '«<tool_calls>»\n{"name": "now", "arguments": {"a": "b',
        [("call", "now", '{"a": "b')],
        is_cut=True,
    ),
)


@pytest.mark.parametrize("vector", M1_VECTORS, ids=lambda vector: vector.name)
def test_outputs_of_m1_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(MiniMaxM1(), vector)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_outputs_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(MiniMaxM2(), vector)


def test_grammar_takes_what_the_model_writes_and_no_other_calls() -> None:
    check_accepted(MiniMaxM2(), [CALL, TWO])
    check_refused(MiniMaxM2(), [CALL.replace("get_weather", "rm"), CALL.replace(">2<", ">two<"), "Hello", WEATHER])
    check_refused(MiniMaxM2(), [TWO], tools=ONE)
    check_accepted(MiniMaxM1(), [LINES, TWO_LINES])
    check_refused(MiniMaxM1(), [LINES.replace("get_weather", "rm"), LINES.replace("2", "true"), "Hello"])
    check_refused(MiniMaxM1(), [TWO_LINES], tools=ONE)


def test_what_the_grammar_allows_is_read_as_calls(num_walks: int) -> None:
    check_walks(MiniMaxM1(), phrases=[LINES, "\n«</tool_calls>»"], num_walks=num_walks)
    check_walks(MiniMaxM2(), phrases=["</parameter>", "</invoke>", CALL, '"</parameter>"'], num_walks=num_walks)
