"""GigaChat: a call is a message, or stands behind a marker."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.answer_vectors import Vector, check_vector
from tests.support.grammar_checks import check_accepted, check_refused, check_walks
from worker.chat.tool_calls.gigachat import GigaChat, GigaChat3, GigaChat31

WEATHER = '{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}'
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
FORMS: Sequence[tuple[GigaChat, str]] = (
    (GigaChat3(), "«<|message_sep|>»\n\nfunction call«<|role_sep|>»\n"),
    (GigaChat31(), "«<|function_call|>»"),
)


def _vectors(begin: str) -> Sequence[Vector]:
    shown = begin.replace("«", "").replace("»", "").removeprefix("<|message_sep|>").lstrip()
    return (
        Vector("text alone", "A function call: now()", [("text", "A function call: now()")]),
        Vector("one call", f"{begin}{WEATHER}", [MEANS]),
        Vector("one call that is ended", f"{begin}{WEATHER}«<|message_sep|>»\n\n", [MEANS]),
        Vector("text in front", f"I look it up.{begin}{WEATHER}", [("text", "I look it up."), MEANS]),
        Vector("text and its end", "It is sunny.«<|message_sep|>»", [("text", "It is sunny.")]),
        Vector(
            "two calls",
            f'{begin}{WEATHER}{begin}{{"name": "now", "arguments": {{}}}}«<|message_sep|>»',
            [MEANS, ("call", "now", "{}")],
        ),
        Vector("an unknown tool", f'{begin}{{"name": "rm"}}', [("text", f'{shown}{{"name": "rm"}}')]),
        Vector("no JSON", f"{begin}now()", [("text", f"{shown}now()")]),
        Vector(
            "a cut call stays cut",
            f'{begin}{{"name": "now", "arguments": {{"a": "b',
            [("call", "now", '{"a": "b')],
            is_cut=True,
        ),
    )


VECTORS = [(family, vector) for family, begin in FORMS for vector in _vectors(begin)]


@pytest.mark.parametrize(
    ("family", "vector"),
    VECTORS,
    ids=lambda value: value.name,
)
def test_outputs_mean_the_same_however_they_are_cut(family: GigaChat, vector: Vector) -> None:
    check_vector(family, vector)


@pytest.mark.parametrize(("family", "begin"), FORMS)
def test_grammar_takes_what_the_models_write_and_no_other_calls(family: GigaChat, begin: str) -> None:
    call = begin + WEATHER
    check_accepted(family, [call])
    check_refused(family, [call.replace("get_weather", "rm"), call.replace("2", '"two"'), "Hello", call + call])


@pytest.mark.parametrize(("family", "begin"), FORMS)
def test_what_the_grammar_allows_is_read_as_calls(family: GigaChat, begin: str, num_walks: int) -> None:
    check_walks(family, phrases=[begin], num_walks=num_walks)
