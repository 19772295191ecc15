"""JSON lists of calls behind the markers of several families."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.answer_vectors import Vector, check_vector
from tests.support.byte_tokenizer import Grammar, markers_of
from tests.support.grammar_checks import ONE, check_accepted, check_refused, check_walks, free_grammars
from worker.chat.marks import Markers
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.families import choose_family
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.json_lists import (
    Functools,
    Granite3,
    HunyuanA13B,
    JsonList,
    Nemotron2,
    Phi4Mini,
    ToolCallsList,
)

WEATHER = '{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}'
NOW = '{"name": "now", "arguments": {}}'
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
MEANS_NOW = ("call", "now", "{}")
APRIEL = Tags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]")
FORMS: Sequence[tuple[JsonList, str, str]] = (
    (Granite3(), "«<|tool_call|>»", ""),
    (Granite3(), "«<tool_call>»", ""),
    (Phi4Mini(), "«<|tool_call|>»", "«<|/tool_call|>»"),
    (Phi4Mini(), "functools", ""),
    (Functools(), "functools", ""),
    (ToolCallsList(), "«<tool_calls>»", "«</tool_calls>»"),
    (Nemotron2(), "«<TOOLCALL>»", "«</TOOLCALL>»"),
)


def _vectors(begin: str, end: str) -> Sequence[Vector]:
    shown, ended = begin.strip("«»"), end.strip("«»")
    return (
        Vector("text alone", "Use [1, 2] <b>now</b>.", [("text", "Use [1, 2] <b>now</b>.")]),
        Vector("one call", f"{begin}[{WEATHER}]{end}", [MEANS]),
        Vector("two calls", f"{begin}[{WEATHER}, {NOW}]{end}", [MEANS, MEANS_NOW]),
        Vector("on lines of their own", f"{begin}\n[\n  {WEATHER},\n  {NOW}\n]\n{end}\n", [MEANS, MEANS_NOW]),
        Vector(
            "text around",
            f"I look it up.\n{begin}[{WEATHER}]{end}\nThen the time.\n{begin}[{NOW}]{end}",
            [("text", "I look it up."), MEANS, ("text", "Then the time."), MEANS_NOW],
        ),
        Vector(
            "thoughts in front",
            f"«<think>»They want a call.«</think>»\n\n{begin}[{NOW}]{end}",
            [("reasoning", "They want a call."), MEANS_NOW],
            tags=Tags("<think>", "</think>"),
        ),
        Vector(
            "parameters instead of arguments, and an id",
            f'{begin}[{{"id": "a1", "name": "now", "parameters": {{}}}}]{end}',
            [MEANS_NOW],
            ids=["a1"],
        ),
        Vector("an unknown tool", f'{begin}[{{"name": "rm"}}]{end}', [("text", f'{shown}[{{"name": "rm"}}]{ended}')]),
        Vector(
            "an unknown tool behind a known one",
            f'{begin}[{NOW}, {{"name": "rm"}}]',
            [MEANS_NOW, ("text", '{"name": "rm"}]')],
        ),
        Vector("no list", f"{begin}: none{end}", [("text", f"{shown}: none{ended}")]),
        Vector("no calls", f"{begin}[]{end}", [("text", f"{shown}[]{ended}")]),
        Vector(
            "a cut call stays cut",
            f'{begin}[{NOW}, {{"name": "now", "arguments": {{"a": "b',
            [MEANS_NOW, ("call", "now", '{"a": "b')],
            is_cut=True,
        ),
    )


VECTORS = [(family, vector) for family, begin, end in FORMS for vector in _vectors(begin, end)]


@pytest.mark.parametrize(
    ("family", "vector"),
    VECTORS,
    ids=lambda value: value.name,
)
def test_outputs_mean_the_same_however_they_are_cut(family: JsonList, vector: Vector) -> None:
    check_vector(family, vector)


def test_thoughts_that_the_prompt_has_begun_end_where_the_answer_does_begin() -> None:
    answer = f"Two of them.\n[BEGIN FINAL RESPONSE]\nHere:\n<tool_calls>[{WEATHER}]</tool_calls>"
    check_vector(
        ToolCallsList(),
        Vector(
            "Apriel", answer, [("reasoning", "Two of them."), ("text", "Here:"), MEANS], tags=APRIEL, starts_inside=True
        ),
    )


@pytest.mark.parametrize(("family", "begin", "end"), FORMS)
def test_grammar_takes_what_the_models_write_and_no_other_calls(family: JsonList, begin: str, end: str) -> None:
    check_accepted(family, [f"{begin}[{WEATHER}]{end}", f"{begin}[{WEATHER}, {NOW},\n{NOW}]{end}"])
    check_accepted(family, [f"{begin}[\n    {WEATHER},\n    {NOW}\n]{end}"])
    refused = [WEATHER.replace("get_weather", "rm"), WEATHER.replace("2", '"two"'), "", "Hello"]
    check_refused(family, [f"{begin}[{one}]{end}" for one in refused])
    check_refused(family, [f"{begin}[{NOW}, {NOW}]{end}"], tools=ONE)


@pytest.mark.parametrize("family", [Granite3(), Phi4Mini(), Functools(), ToolCallsList(), Nemotron2()])
def test_what_the_grammar_allows_is_read_as_calls(family: JsonList, num_walks: int) -> None:
    check_walks(
        family, phrases=[f"{trigger.removesuffix('[')}[{NOW}]" for trigger in family.triggers], num_walks=num_walks
    )


@pytest.mark.parametrize("family", [Phi4Mini(), Functools()])
def test_an_answer_may_speak_of_a_module_that_is_called_like_the_word_in_front_of_calls(family: JsonList) -> None:
    text = "import functools\n\n@functools.cache\ndef now(): ..."
    assert [grammar.refused_at(text) for grammar in free_grammars(family)] == ["", ""]
    check_vector(family, Vector("Python", text, [("text", text)]))


@pytest.mark.parametrize(
    ("output", "means"),
    [
        ("«<answer>»\nIt is 5.\n«</answer>»", [("text", "It is 5.")]),
        ("\n«<answer>»It is 5.«</answer>»\n", [("text", "It is 5.")]),
        ("It is 5.", [("text", "It is 5.")]),
        ("Write <answer> and </answer>.", [("text", "Write <answer> and </answer>.")]),
        (f"«<answer>»\nI look.\n«</answer>»\n«<tool_calls>»[{NOW}]«</tool_calls>»", [("text", "I look."), MEANS_NOW]),
        (f"«<answer>»I look.«<tool_calls>»[{NOW}]«</tool_calls>»«</answer>»", [("text", "I look."), MEANS_NOW]),
        (f"«<tool_calls>»[{NOW}]«</tool_calls>»", [MEANS_NOW]),
    ],
    ids=str,
)
def test_tags_around_what_hunyuan_says_are_left_out(output: str, means: list[tuple[str, ...]]) -> None:
    check_vector(HunyuanA13B(), Vector("tags", output, means))


def test_a_form_may_stand_in_the_tags_of_hunyuan() -> None:
    for markers in (markers_of(HunyuanA13B.markers), Markers()):
        write = GrammarWriter(markers)
        grammar = Grammar(write.grammar(HunyuanA13B().answer(write, write.literal("yes"))), markers)
        for output in ("yes", "«<answer>»\nyes\n«</answer>»"):
            assert grammar.accepts(output), output
        assert not grammar.accepts("«<answer>»\nno\n«</answer>»")


def test_templates_with_tags_around_answers_are_told_from_others() -> None:
    tags = "<tool_calls></tool_calls>"
    assert choose_family(f"{tags} <answer>").name == "hunyuan-a13b"
    assert choose_family(tags).name == "tool-calls-list"
