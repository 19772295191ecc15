"""Kimi K2's calls and their ids."""

from __future__ import annotations

from time import process_time

import pytest

from tests.support.answer_vectors import Vector, check_vector, parts_of, read
from tests.support.grammar_checks import ONE, check_accepted, check_refused, check_walks
from worker.chat.answer_reader import AnswerForm
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.kimi import KimiK2
from worker.chat.tool_calls.scanner import MAX_COLLECTED

OPEN, CLOSE = "«<|tool_calls_section_begin|>»", "«<|tool_calls_section_end|>»"
ARGUMENTS = '{"city": "Paris", "days": 2}'


def written(id_: str, arguments: str = "{}") -> str:
    """Return a call as the templates of Kimi K2 write it."""
    return f"«<|tool_call_begin|>»{id_}«<|tool_call_argument_begin|>»{arguments}«<|tool_call_end|>»"


CALL = f"{OPEN}{written('functions.get_weather:3', ARGUMENTS)}{CLOSE}"
TWO = f"{OPEN}{written('functions.get_weather:3', ARGUMENTS)}{written('functions.now:4')}{CLOSE}"
MEANS = ("call", "get_weather", ARGUMENTS)
MEANS_NOW = ("call", "now", "{}")

VECTORS = (
    Vector("text alone", "functions.now:0 is text", [("text", "functions.now:0 is text")]),
    Vector("one call", CALL, [MEANS], ids=["functions.get_weather:3"]),
    Vector("two calls", TWO, [MEANS, MEANS_NOW], ids=["functions.get_weather:3", "functions.now:4"]),
    Vector(
        "text around sections",
        f"First.\n{CALL}Then.{TWO}\nDone.",
        [("text", "First."), MEANS, ("text", "Then."), MEANS, MEANS_NOW, ("text", "Done.")],
    ),
    Vector(
        "thoughts in front",
        f"«<think>»They want it.«</think>»I look. {CALL}",
        [("reasoning", "They want it."), ("text", "I look."), MEANS],
        tags=Tags("<think>", "</think>"),
    ),
    Vector(
        "ids that come twice, and none",
        f"{OPEN}{written('functions.now:1')}{written('functions.now:1')}{written('now')}{written('now:0')}{CLOSE}",
        [MEANS_NOW] * 4,
        ids=["functions.now:1", "functions.now:2", "functions.now:3", "now:0"],
    ),
    Vector("no section", f"A. {written('functions.now:0')} B.", [("text", "A."), MEANS_NOW, ("text", "B.")]),
    Vector(
        "an unknown tool",
        f"{OPEN}{written('functions.rm:0')}{CLOSE}",
        [
            (
                "text",
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.rm:0<|tool_call_argument_begin|>{}"
                "<|tool_call_end|><|tool_calls_section_end|>",
            )
        ],
    ),
    Vector(
        "no arguments",
        f"{OPEN}«<|tool_call_begin|>»functions.now:0«<|tool_call_end|>»{CLOSE}",
        [
            (
                "text",
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_end|>"
                "<|tool_calls_section_end|>",
            )
        ],
    ),
    Vector(
        "a cut call stays cut",
        f"{OPEN}«<|tool_call_begin|>»functions.get_weather:0«<|tool_call_argument_begin|>»{{\"city\": \"Pa",
        [("call", "get_weather", '{"city": "Pa')],
        is_cut=True,
    ),
)  # fmt: skip


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_outputs_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(KimiK2(), vector)


def test_grammar_takes_what_the_model_writes_and_no_other_calls() -> None:
    check_accepted(KimiK2(), [CALL, TWO])
    check_refused(KimiK2(), [CALL.replace("get_weather", "rm"), CALL.replace("2", "true"), "Hello", f"{OPEN}{CLOSE}"])
    check_refused(KimiK2(), [TWO], tools=ONE)


def test_what_the_grammar_allows_is_read_as_calls(num_walks: int) -> None:
    check_walks(KimiK2(), phrases=[OPEN, CLOSE, "0", written("functions.now:0")], num_walks=num_walks)


def test_an_id_of_any_length_is_read_at_once() -> None:
    started = process_time()
    said = f"x{' ' * (MAX_COLLECTED - 10)}x"
    output = f"<|tool_calls_section_begin|><|tool_call_begin|>{said}<|tool_call_argument_begin|>"
    assert parts_of(read(AnswerForm(family=KimiK2(), tools=ONE), [output])) == [("text", output)]
    assert process_time() - started < 2.0


def test_ids_of_calls_have_the_form_that_the_model_knows() -> None:
    assert KimiK2().call_id("0123", 2, "now") == "functions.now:2"
