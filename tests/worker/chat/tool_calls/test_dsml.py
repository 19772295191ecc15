"""DeepSeek V3.2's and V4's calls, whose tags hold a token."""

from __future__ import annotations

import pytest

from tests.support.answer_vectors import Vector, check_vector
from tests.support.grammar_checks import ONE, check_accepted, check_refused, check_walks
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.dsml import DeepSeekV4, DeepSeekV32

D = "«｜DSML｜»"
WEATHER = (
    f'<{D}invoke name="get_weather">\n<{D}parameter name="city" string="true">Paris</{D}parameter>\n'
    f'<{D}parameter name="days" string="false">2</{D}parameter>\n</{D}invoke>\n'
)
NOW = f'<{D}invoke name="now">\n</{D}invoke>\n'
CALL = f"<{D}function_calls>\n{WEATHER}</{D}function_calls>"
TWO = f"<{D}function_calls>\n{WEATHER}{NOW}</{D}function_calls>"
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
MEANS_NOW = ("call", "now", "{}")
THINK = Tags("<think>", "</think>")

VECTORS = (
    Vector("text alone", "Hello, a < b </ c", [("text", "Hello, a < b </ c")]),
    Vector("one call", f"\n\n{CALL}", [MEANS]),
    Vector("two calls", f"I look it up.\n\n{TWO}", [("text", "I look it up."), MEANS, MEANS_NOW]),
    Vector(
        "text around blocks",
        f"First.\n\n{CALL}\nThen.{TWO}Done.",
        [("text", "First."), MEANS, ("text", "Then."), MEANS, MEANS_NOW, ("text", "Done.")],
    ),
    Vector(
        "thoughts in front",
        f"They want it.«</think>»\n\n{CALL}",
        [("reasoning", "They want it."), MEANS],
        tags=THINK,
        starts_inside=True,
    ),
    Vector(
        "the schema counts for more than the tag",
        f'<{D}function_calls><{D}invoke name="get_weather"><{D}parameter name="city" string="false">5</{D}parameter>'
        f'<{D}parameter name="days" string="true">2</{D}parameter><{D}parameter name="a" string="true">1</{D}parameter>'
        f'<{D}parameter name="b" string="false">[1]</{D}parameter><{D}parameter name="c">1</{D}parameter></{D}invoke>',
        [("call", "get_weather", '{"city": "5", "days": 2, "a": "1", "b": [1], "c": 1}')],
    ),
    Vector(
        "an unknown tool",
        f'<{D}function_calls>\n<{D}invoke name="rm">\n</{D}invoke>',
        [("text", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="rm">\n</｜DSML｜invoke>')],
    ),
    Vector(
        "an empty block",
        f"<{D}function_calls>\n</{D}function_calls>",
        [("text", "<｜DSML｜function_calls>\n</｜DSML｜function_calls>")],
    ),
    Vector("the beginning of the block was forgotten", NOW, [MEANS_NOW]),
    Vector(
        "the end of a value was forgotten",
        f'<{D}function_calls>\n<{D}invoke name="search">\n<{D}parameter name="query" string="true">a</{D}invoke>',
        [("call", "search", '{"query": "a"}')],
        only="tokens",
    ),
    Vector(
        "a cut call stays cut",
        f'<{D}function_calls>\n<{D}invoke name="search">\n<{D}parameter name="query" string="true">a</{D}para',
        [("call", "search", '{"query": "a')],
        is_cut=True,
    ),
)  # fmt: skip


def of_v4(output: str) -> str:
    """Return an output of V3.2 as V4 writes it."""
    return output.replace("function_calls>", "tool_calls>")


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_outputs_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(DeepSeekV32(), vector)


def test_v4_calls_the_block_by_another_name() -> None:
    check_vector(DeepSeekV4(), Vector("two calls", of_v4(f"A.\n\n{TWO}"), [("text", "A."), MEANS, MEANS_NOW]))


def test_grammar_takes_what_the_models_write_and_no_other_calls() -> None:
    check_accepted(DeepSeekV32(), [CALL, TWO])
    check_accepted(DeepSeekV4(), [of_v4(CALL), of_v4(TWO), of_v4(TWO).replace(f"</{D}inv", f"\n</{D}inv")])
    check_refused(DeepSeekV4(), [CALL])
    check_refused(
        DeepSeekV32(),
        [
            "Hello",
            of_v4(CALL),
            CALL.replace("get_weather", "rm"),
            CALL.replace(">2<", ">two<"),
            CALL.replace('city" string="true"', 'city" string="false"'),
        ],
    )
    check_refused(DeepSeekV32(), [TWO], tools=ONE)


@pytest.mark.parametrize("family", [DeepSeekV32(), DeepSeekV4()], ids=lambda family: family.name)
def test_what_the_grammar_allows_is_read_as_calls(family: DeepSeekV32, num_walks: int) -> None:
    end = f"</{D}parameter>"
    check_walks(
        family,
        phrases=[end, end, f"a{end}", CALL, f"<{D}function_calls>", f"<{D}tool_calls>", "a", "1"],
        num_walks=num_walks,
    )
