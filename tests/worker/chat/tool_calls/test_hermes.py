"""Outputs of models that write JSON between `<tool_call>` and `</tool_call>`, and what they mean."""

from __future__ import annotations

import pytest

from tests.support.answer_vectors import Vector, check_vector
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.hermes import Hermes

THINK = Tags("<think>", "</think>")
CALL = '«<tool_call>»\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n«</tool_call>»'
SECOND = '«<tool_call>»\n{"name": "now", "arguments": {}}\n«</tool_call>»'
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')

VECTORS = (
    Vector("text alone", "Hello <b>you</b>, 1 < 2 <tool", [("text", "Hello <b>you</b>, 1 < 2 <tool")]),
    Vector("one call", CALL, [MEANS]),
    Vector("text before", f"I look it up.\n{CALL}", [("text", "I look it up."), MEANS]),
    Vector("two calls", f"{CALL}\n{SECOND}", [MEANS, ("call", "now", "{}")]),
    Vector(
        "text around all",
        f"First.\n{CALL}\nThen.\n{SECOND}\nDone.",
        [("text", "First."), MEANS, ("text", "Then."), ("call", "now", "{}"), ("text", "Done.")],
    ),
    Vector(
        "thoughts in front",
        f"«<think>»\nA <tool_call> is wanted.\n«</think>»\n\n{CALL}",
        [("reasoning", "A <tool_call> is wanted."), MEANS],
        tags=THINK,
    ),
    Vector(
        "arguments first",
        '«<tool_call>»{"arguments": {"city": "Paris", "days": 2}, "name": "get_weather"}«</tool_call>»',
        [MEANS],
    ),
    Vector(
        "arguments as a string",
        '«<tool_call>»{"name": "now", "arguments": "{\\"a\\": 1}"}«</tool_call>»',
        [("call", "now", '{"a": 1}')],
    ),
    Vector(
        "an unknown tool",
        '«<tool_call>»{"name": "rm"}«</tool_call>»',
        [("text", '<tool_call>{"name": "rm"}</tool_call>')],
    ),
    Vector("no JSON", "«<tool_call>»\nnow()\n«</tool_call>»", [("text", "<tool_call>\nnow()\n</tool_call>")]),
    Vector(
        "broken arguments are closed",
        '«<tool_call>»{"name": "now", "arguments": {"a": [1, x]}}«</tool_call>»',
        [("call", "now", '{"a": [1, null]}'), ("text", "x]}}</tool_call>")],
    ),
    Vector(
        "the words of a marker that is a token are text",
        'Write <tool_call>{"name": "now"}</tool_call> please. «<tool_call>»{"name": "now"}«</tool_call>»',
        [("text", 'Write <tool_call>{"name": "now"}</tool_call> please.'), ("call", "now", "{}")],
        only="tokens",
    ),
    Vector("a brace too many", CALL.replace("}}", "}}}"), [MEANS]),
    Vector("a brace too few", f"{CALL.replace('}}', '}')} Done.", [MEANS, ("text", "Done.")]),
    Vector(
        "cut in the tag behind a call", CALL.replace("«</tool_call>»", "</tool"), [MEANS], is_cut=True, only="plain"
    ),
    Vector(
        "a cut call stays cut",
        '«<tool_call>»{"name": "now", "arguments": {"a": "b',
        [("call", "now", '{"a": "b')],
        is_cut=True,
    ),
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_outputs_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(Hermes(), vector)
