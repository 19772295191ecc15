"""Cohere's actions and the markers around its texts."""

from __future__ import annotations

import pytest

from tests.support.answer_vectors import Vector, check_vector
from tests.support.byte_tokenizer import Grammar, markers_of
from tests.support.grammar_checks import ONE, check_accepted, check_refused, check_walks, free_grammars
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.command_r import Cohere2, CommandR, CommandRPlus
from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.grammar import TEXT, GrammarWriter

THINK = Tags("<|START_THINKING|>", "<|END_THINKING|>")
ITEM = '{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris", "days": 2}}'
SECOND = '{"tool_call_id": "1", "tool_name": "now", "parameters": {}}'
CALL = f"«<|START_ACTION|>»[\n    {ITEM}\n]«<|END_ACTION|>»"
BOTH = f"«<|START_ACTION|>»[\n    {ITEM},\n    {SECOND}\n]«<|END_ACTION|>»"
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
MEANS_NOW = ("call", "now", "{}")
OLD_CALL = """Action:
```json
[
    {
        "tool_name": "get_weather",
        "parameters": {
            "city": "Paris",
            "days": 2
        }
    }
]```"""
OLD_BOTH = 'Action: ```json\n[{"tool_name": "now", "parameters": {}}, {"tool_name": "now", "parameters": {}}]\n```'

SHARED = (
    Vector("text without markers", "Use [1] or <|START.", [("text", "Use [1] or <|START.")]),
    Vector("one call", CALL, [MEANS]),
    Vector("two calls", BOTH, [MEANS, MEANS_NOW]),
    Vector("on one line", f"«<|START_ACTION|>»[{ITEM}, {SECOND}]«<|END_ACTION|>»", [MEANS, MEANS_NOW]),
    Vector(
        "thoughts in front",
        f"«<|START_THINKING|>»I will use [get_weather].«<|END_THINKING|>»{CALL}",
        [("reasoning", "I will use [get_weather]."), MEANS],
        tags=THINK,
    ),
    Vector("the prompt began the thought", f"Hm.«<|END_THINKING|>»{CALL}", [("reasoning", "Hm."), MEANS], THINK, True),
    Vector(
        "text around",
        f"I look it up.\n{CALL}\nThen.\n{CALL}\nDone.",
        [("text", "I look it up."), MEANS, ("text", "Then."), MEANS, ("text", "Done.")],
    ),
    Vector(
        "an unknown tool",
        '«<|START_ACTION|>»[{"tool_name": "rm"}]«<|END_ACTION|>»',
        [("text", '<|START_ACTION|>[{"tool_name": "rm"}]')],
    ),
    Vector("no list", "«<|START_ACTION|>»none«<|END_ACTION|>»", [("text", "<|START_ACTION|>none")]),
    Vector(
        "broken arguments are closed",
        '«<|START_ACTION|>»[{"tool_name": "now", "parameters": {"a": 1 2}}]«<|END_ACTION|>»',
        [("call", "now", '{"a": 1}'), ("text", "2}}]")],
    ),
    Vector(
        "a cut call stays cut",
        '«<|START_ACTION|>»[\n    {"tool_call_id": "0", "tool_name": "now", "parameters": {"a": "b',
        [("call", "now", '{"a": "b')],
        is_cut=True,
    ),
)
RESPONSES = (
    Vector("a response", "«<|START_RESPONSE|>»Hello.«<|END_RESPONSE|>»", [("text", "Hello.")]),
    Vector(
        "thoughts and a response",
        "«<|START_THINKING|>»They say hello.«<|END_THINKING|>»«<|START_RESPONSE|>»Hello.«<|END_RESPONSE|>»",
        [("reasoning", "They say hello."), ("text", "Hello.")],
        tags=THINK,
    ),
    Vector("a cut response", "«<|START_RESPONSE|>»Hel", [("text", "Hel")], is_cut=True),
)
TEXTS = (
    Vector("a text", "«<|START_TEXT|>»Hello.«<|END_TEXT|>»", [("text", "Hello.")]),
    Vector(
        "thoughts and a text",
        "They say hello.«<|END_THINKING|>»«<|START_TEXT|>»Hello.«<|END_TEXT|>»",
        [("reasoning", "They say hello."), ("text", "Hello.")],
        THINK,
        True,
    ),
)
ACTIONS = (
    Vector("text alone", "Action: none, as ```json says", [("text", "Action: none, as ```json says")]),
    Vector("one call", OLD_CALL, [MEANS]),
    Vector("two calls", OLD_BOTH, [MEANS_NOW, MEANS_NOW]),
    Vector("text in front", f"I look it up.\n{OLD_CALL}\n", [("text", "I look it up."), MEANS]),
    Vector(
        "text around",
        f"First.\n{OLD_CALL}\nThen.\n{OLD_BOTH}\nDone.",
        [("text", "First."), MEANS, ("text", "Then."), MEANS_NOW, MEANS_NOW, ("text", "Done.")],
    ),
    Vector(
        "an unknown tool",
        'Action: ```json\n[{"tool_name": "rm"}]\n```',
        [("text", 'Action: ```json\n[{"tool_name": "rm"}]\n```')],
    ),
    Vector(
        "an unknown tool behind a known one",
        'Action: ```json\n[{"tool_name": "now"}, {"tool_name": "rm"}]\n```',
        [MEANS_NOW, ("text", '{"tool_name": "rm"}]\n```')],
    ),
    Vector(
        "a cut call stays cut",
        'Action: ```json\n[{"tool_name": "now", "parameters": {"a": "b',
        [("call", "now", '{"a": "b')],
        is_cut=True,
    ),
)
BETWEEN_MARKERS = [CommandR(), Cohere2()]


@pytest.mark.parametrize("vector", SHARED, ids=lambda vector: vector.name)
@pytest.mark.parametrize("family", BETWEEN_MARKERS, ids=lambda family: family.name)
def test_actions_mean_the_same_however_they_are_cut(family: CommandR, vector: Vector) -> None:
    check_vector(family, vector)


@pytest.mark.parametrize("vector", RESPONSES, ids=lambda vector: vector.name)
def test_the_markers_of_a_response_are_left_out(vector: Vector) -> None:
    check_vector(CommandR(), vector)


@pytest.mark.parametrize("vector", TEXTS, ids=lambda vector: vector.name)
def test_the_markers_of_a_text_are_left_out(vector: Vector) -> None:
    check_vector(Cohere2(), vector)


@pytest.mark.parametrize("vector", ACTIONS, ids=lambda vector: vector.name)
def test_blocks_of_code_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(CommandRPlus(), vector)


@pytest.mark.parametrize("family", BETWEEN_MARKERS, ids=lambda family: family.name)
def test_a_list_is_written_between_the_markers(family: CommandR) -> None:
    check_accepted(family, [CALL, BOTH, f"«<|START_ACTION|>»[{ITEM}]«<|END_ACTION|>»"])
    check_refused(
        family,
        [
            "",
            "Hello",
            "«<|START_ACTION|>»[]«<|END_ACTION|>»",
            '«<|START_ACTION|>»[{"tool_call_id": "0", "tool_name": "rm", "parameters": {}}]«<|END_ACTION|>»',
            '«<|START_ACTION|>»[{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {}}]«<|END_ACTION|>»',
        ],
    )
    check_refused(family, [BOTH], tools=ONE)


def test_a_block_of_code_is_written_in_the_old_form() -> None:
    check_accepted(CommandRPlus(), [OLD_CALL, OLD_BOTH])
    check_refused(CommandRPlus(), ["", "Hello", 'Action: ```json\n[{"tool_name": "rm", "parameters": {}}]```'])
    check_refused(CommandRPlus(), [OLD_BOTH], tools=ONE)


def test_text_stands_between_its_markers_or_without_them() -> None:
    for family, text in (
        (CommandR(), "«<|START_RESPONSE|>»Hello«<|END_RESPONSE|>»"),
        (Cohere2(), "«<|START_TEXT|>»Hello«<|END_TEXT|>»"),
    ):
        for grammar in free_grammars(family):
            assert grammar.accepts(text)
            assert grammar.accepts("Hello")
            assert not grammar.accepts("Hello«<|START_ACTION|>»none«<|END_ACTION|>»")
        write = GrammarWriter(markers := markers_of(family.markers))
        assert Grammar(write.grammar(family.answer(write, TEXT)), markers).accepts(text)


@pytest.mark.parametrize("family", [*BETWEEN_MARKERS, CommandRPlus()], ids=lambda family: family.name)
def test_what_the_grammar_allows_is_read_as_calls(family: Family, num_walks: int) -> None:
    check_walks(family, num_walks=num_walks)
