"""The form for models that know none: what is read, what may be written, what the prompt tells."""

from __future__ import annotations

import json

import pytest

from tests.support.answer_vectors import NOW, SEARCH, TOOLS, WEATHER, Vector, check_vector
from tests.support.grammar_checks import ONE, REQUIRED, check_accepted, check_refused, check_walks
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.generic import Generic, instructions
from worker.chat.tool_calls.tools import Tools

WEATHER_CALL = '{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}'
NOW_CALL = '{"name": "now", "arguments": {}}'
CALL = f'{{"tool_calls": [{WEATHER_CALL}]}}'
TWO = f'{{"tool_calls": [{WEATHER_CALL}, {NOW_CALL}]}}'
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
MEANS_NOW = ("call", "now", "{}")

VECTORS = (
    Vector(
        "text alone",
        'In C: { int x[2] = {1, 2}; } and {"a": {}}.',
        [("text", 'In C: { int x[2] = {1, 2}; } and {"a": {}}.')],
    ),
    Vector("one call", CALL, [MEANS]),
    Vector("two calls", TWO, [MEANS, MEANS_NOW]),
    Vector("over many lines", f'{{\n  "tool_calls" : [\n    {WEATHER_CALL}\n  ]\n}}\n', [MEANS]),
    Vector("in a block of code", f"```json\n{CALL}\n```", [MEANS]),
    Vector("text around", f"I look it up.\n{CALL}\nDone.", [("text", "I look it up."), MEANS, ("text", "Done.")]),
    Vector(
        "thoughts in front",
        f'«<think>»Is {{"tool_calls": []}} right?«</think>»{TWO}',
        [("reasoning", 'Is {"tool_calls": []} right?'), MEANS, MEANS_NOW],
        tags=Tags("<think>", "</think>"),
    ),
    Vector("a call without the list", f"\n{WEATHER_CALL}\n", [MEANS]),
    Vector(
        "a call without the list inside of text",
        f"Such as {WEATHER_CALL}.",
        [("text", f"Such as {WEATHER_CALL}.")],
    ),
    Vector(
        "ids are those of the history",
        '{"tool_calls": [{"id": "call00001", "name": "now", "arguments": {}}]}',
        [MEANS_NOW],
        ids=["call_0123456789abcdef01234500"],
    ),
    Vector("an unknown tool", '{"tool_calls": [{"name": "rm"}]}', [("text", '{"tool_calls": [{"name": "rm"}]}')]),
    Vector("other JSON", '{"tool": "now"}', [("text", '{"tool": "now"}')]),
    Vector("JSON that is none", '{"tool_calls": now}', [("text", '{"tool_calls": now}')]),
    Vector(
        "a cut call stays cut",
        '{"tool_calls": [{"name": "now", "arguments": {"a": "b',
        [("call", "now", '{"a": "b')],
        is_cut=True,
    ),
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_outputs_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(Generic(), vector)


def test_grammar_takes_what_the_prompt_asks_for_and_no_other_calls() -> None:
    check_accepted(Generic(), [CALL, TWO])
    check_refused(
        Generic(), [CALL.replace("get_weather", "rm"), CALL.replace("2", '"two"'), "Hello", '{"tool_calls": []}']
    )
    check_refused(Generic(), [TWO], tools=ONE)


def test_what_the_grammar_allows_is_read_as_calls(num_walks: int) -> None:
    check_walks(Generic(), phrases=[CALL, '{"tool_calls": ['], num_walks=num_walks)


def test_instructions_tell_each_tool_with_its_parameters_and_the_form() -> None:
    told = instructions(TOOLS)
    for tool in (WEATHER, SEARCH, NOW):
        assert f'{{"name": "{tool.name}", "description": "{tool.description}", "parameters": ' in told
        assert json.dumps(tool.parameters) in told
    assert '{"tool_calls": [{"name": ' in told


def test_instructions_say_how_many_calls_may_or_must_come() -> None:
    assert "Where it helps you to answer, call one or more of them." in instructions(TOOLS)
    assert "You must call one or more of them." in instructions(REQUIRED)
    assert "You must call one of them." in instructions(ONE)
    assert "description" not in instructions(Tools((type(NOW)("now"),)))
