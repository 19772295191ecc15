"""DeepSeek R1's and V3.1's calls: both forms are read by both."""

from __future__ import annotations

import json

import pytest

from tests.support.answer_vectors import TOOLS, Vector, check_vector
from tests.support.grammar_checks import ONE, REQUIRED, check_accepted, check_refused, check_walks
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.deepseek import DeepSeekR1, DeepSeekV31

OPEN, CLOSE = "«<｜tool▁calls▁begin｜>»", "«<｜tool▁calls▁end｜>»"
BEGIN, SEPARATOR, END = "«<｜tool▁call▁begin｜>»", "«<｜tool▁sep｜>»", "«<｜tool▁call▁end｜>»"
ARGUMENTS = '{"city": "Paris", "days": 2}'
OLD = f"{BEGIN}function{SEPARATOR}get_weather\n```json\n{ARGUMENTS}\n```{END}"
OLD_NOW = f"{BEGIN}function{SEPARATOR}now\n```json\n{{}}\n```{END}"
NEW = f"{BEGIN}get_weather{SEPARATOR}{ARGUMENTS}{END}"
NEW_NOW = f"{BEGIN}now{SEPARATOR}{{}}{END}"
MEANS = ("call", "get_weather", ARGUMENTS)
MEANS_NOW = ("call", "now", "{}")
THINK = Tags("<think>", "</think>")

VECTORS = (
    Vector("text alone", "Use ```json\n{}\n``` here.", [("text", "Use ```json\n{}\n``` here.")]),
    Vector("one call of R1", f"{OPEN}{OLD}{CLOSE}", [MEANS]),
    Vector("one call of V3.1", f"{OPEN}{NEW}{CLOSE}", [MEANS]),
    Vector("two calls of R1", f"{OPEN}{OLD}\n{OLD_NOW}{CLOSE}", [MEANS, MEANS_NOW]),
    Vector("two calls of V3.1", f"{OPEN}{NEW}{NEW_NOW}{CLOSE}", [MEANS, MEANS_NOW]),
    Vector(
        "text around blocks",
        f"First.\n{OPEN}{NEW}{CLOSE}Then.{OPEN}{OLD_NOW}{CLOSE}\nDone.",
        [("text", "First."), MEANS, ("text", "Then."), MEANS_NOW, ("text", "Done.")],
    ),
    Vector(
        "thoughts that the prompt has opened",
        f"They want it.\n«</think>»\n\n{OPEN}{OLD}{CLOSE}",
        [("reasoning", "They want it."), MEANS],
        tags=THINK,
        starts_inside=True,
    ),
    Vector(
        "thoughts that the model opens again",
        f"«<think>»\nThey want it.\n«</think>»\nHello.{OPEN}{NEW}{CLOSE}",
        [("reasoning", "They want it."), ("text", "Hello."), MEANS],
        tags=THINK,
        starts_inside=True,
    ),
    Vector("no fence", f"{OPEN}{BEGIN}function{SEPARATOR}now\n{{}}{END}{CLOSE}", [MEANS_NOW]),
    Vector("no block", f"{NEW_NOW}", [MEANS_NOW]),
    Vector("no beginning of the call", f"{OPEN}function{SEPARATOR}now\n```json\n{{}}\n```{END}{CLOSE}", [MEANS_NOW]),
    Vector(
        "an unknown tool",
        f"{OPEN}{BEGIN}rm{SEPARATOR}{{}}{END}{CLOSE}",
        [
            (
                "text",
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>rm<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            )
        ],
    ),
    Vector(
        "broken arguments are closed",
        f"{OPEN}{BEGIN}now{SEPARATOR}{{\"a\": [1, x]}}{END}",
        [("call", "now", '{"a": [1, null]}'), ("text", "x]}<｜tool▁call▁end｜>")],
    ),
    Vector(
        "a cut call stays cut",
        f"{OPEN}{BEGIN}function{SEPARATOR}get_weather\n```json\n{{\"city\": \"Pa",
        [("call", "get_weather", '{"city": "Pa')],
        is_cut=True,
    ),
)  # fmt: skip


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
@pytest.mark.parametrize("family", [DeepSeekR1(), DeepSeekV31()], ids=lambda family: family.name)
def test_outputs_mean_the_same_however_they_are_cut(family: DeepSeekR1, vector: Vector) -> None:
    check_vector(family, vector)


def test_grammar_takes_what_the_models_write_and_no_other_calls() -> None:
    check_accepted(DeepSeekR1(), [f"{OPEN}{OLD}{CLOSE}", f"{OPEN}{OLD}\n{OLD_NOW}{CLOSE}"])
    check_accepted(DeepSeekV31(), [f"{OPEN}{NEW}{CLOSE}", f"{OPEN}{NEW}{NEW_NOW}{CLOSE}"])
    check_refused(DeepSeekR1(), [f"{OPEN}{NEW}{CLOSE}", f"{OPEN}{OLD_NOW.replace('now', 'rm')}{CLOSE}", "Hello"])
    check_refused(DeepSeekV31(), [f"{OPEN}{OLD}{CLOSE}", f"{OPEN}{NEW.replace('2', 'true')}{CLOSE}", f"{OPEN}{CLOSE}"])
    check_refused(DeepSeekR1(), [f"{OPEN}{OLD}\n{OLD_NOW}{CLOSE}"], tools=ONE)
    check_refused(DeepSeekV31(), [f"{OPEN}{NEW}{NEW_NOW}{CLOSE}"], tools=ONE)


@pytest.mark.parametrize("family", [DeepSeekR1(), DeepSeekV31()], ids=lambda family: family.name)
def test_what_the_grammar_allows_is_read_as_calls(family: DeepSeekR1, num_walks: int) -> None:
    check_walks(family, phrases=[OPEN, CLOSE, OLD_NOW, NEW_NOW], num_walks=num_walks)


def test_instructions_tell_each_tool_and_the_form_of_the_model() -> None:
    for family, filled in ((DeepSeekR1(), OLD), (DeepSeekV31(), NEW)):
        told = family.instructions(REQUIRED)
        for tool in REQUIRED.offered:
            assert f"### {tool.name}\n{tool.description}\n" in told
            assert json.dumps(dict(tool.parameters)) in told
        form = filled.replace("get_weather", "NAME").replace(ARGUMENTS, "ARGUMENTS")
        assert f"{OPEN}{form}{CLOSE}".replace("«", "").replace("»", "") in told
        assert "You must call one or more of them" in told
        assert "You must call one of them" in family.instructions(ONE)
        assert "Where it helps" in family.instructions(TOOLS)
