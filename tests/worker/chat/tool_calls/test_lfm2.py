"""LFM 2: lists of calls in Python's notation."""

from __future__ import annotations

import pytest

from tests.support.answer_vectors import Vector, check_vector
from tests.support.grammar_checks import ONE, check_accepted, check_refused, check_walks
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.lfm2 import Lfm2

WEATHER = 'get_weather(city="Paris", days=2)'
CALL = f"«<|tool_call_start|>»[{WEATHER}]«<|tool_call_end|>»"
TWO = f"«<|tool_call_start|>»[{WEATHER}, now()]«<|tool_call_end|>»"
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
MEANS_NOW = ("call", "now", "{}")

VECTORS = (
    Vector("text alone", "Call [now()].", [("text", "Call [now()].")]),
    Vector("one call", CALL, [MEANS]),
    Vector("two calls", TWO, [MEANS, MEANS_NOW]),
    Vector("text behind", f"{CALL}Checking the weather.", [MEANS, ("text", "Checking the weather.")]),
    Vector("text around", f"I look it up. {CALL}\nDone.", [("text", "I look it up."), MEANS, ("text", "Done.")]),
    Vector(
        "single quotes, words and a list",
        "«<|tool_call_start|>»[search(query='a \"b\"', tags=['x', None, True])]«<|tool_call_end|>»",
        [("call", "search", '{"query": "a \\"b\\"", "tags": ["x", null, true]}')],
    ),
    Vector(
        "as JSON",
        '«<|tool_call_start|>»[{"name": "now", "arguments": {}}]«<|tool_call_end|>»',
        [MEANS_NOW],
    ),
    Vector(
        "thoughts in front",
        f"«<think>»They want a call.«</think>»{CALL}",
        [("reasoning", "They want a call."), MEANS],
        tags=Tags("<think>", "</think>"),
    ),
    Vector(
        "an unknown tool",
        "«<|tool_call_start|>»[rm()]«<|tool_call_end|>»",
        [("text", "<|tool_call_start|>[rm()]<|tool_call_end|>")],
    ),
    Vector(
        "an unknown tool behind a known one",
        "«<|tool_call_start|>»[now(), rm()]",
        [MEANS_NOW, ("text", ", rm()]")],
    ),
    Vector("no list", "«<|tool_call_start|>» now", [("text", "<|tool_call_start|> now")]),
    Vector("a cut call stays cut", '«<|tool_call_start|>»[now(a="b', [("call", "now", '{"a":"b')], is_cut=True),
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_outputs_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(Lfm2(), vector)


def test_grammar_takes_what_the_models_write_and_no_other_calls() -> None:
    check_accepted(Lfm2(), [CALL, TWO, CALL.replace('"Paris"', "'Paris'")])
    check_refused(Lfm2(), [CALL.replace("get_weather", "rm"), CALL.replace("2", '"two"'), "Hello"])
    check_refused(Lfm2(), [TWO], tools=ONE)


def test_what_the_grammar_allows_is_read_as_calls(num_walks: int) -> None:
    check_walks(Lfm2(), phrases=[CALL], num_walks=num_walks)
