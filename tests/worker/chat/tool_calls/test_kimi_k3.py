"""Kimi K3's sections: thoughts, response and calls, however the prompt began."""

from __future__ import annotations

import pytest

from tests.support.answer_vectors import Vector, check_vector
from tests.support.byte_tokenizer import Grammar, markers_of
from tests.support.grammar_checks import ONE, REQUIRED, check_accepted, check_refused, check_walks
from worker.chat.marks import Markers
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.kimi_k3 import KimiK3

B, C, S = "«<|open|>»", "«<|close|>»", "«<|sep|>»"
THINK, THINK_END = f"{B}think{S}", f"{C}think{S}"
RESPONSE, RESPONSE_END = f"{B}response{S}", f"{C}response{S}"
END = f"{C}message{S}"
MARKERS = markers_of(KimiK3.markers)


def argument(name: str, type_: str, value: str) -> str:
    """Return an argument as the template writes it."""
    return f'{B}argument key="{name}" type="{type_}"{S}{value}{C}argument{S}'


def written(tool: str, *arguments: str, index: int = 1) -> str:
    """Return a call as the template writes it."""
    return f'{B}call tool="{tool}" index="{index}"{S}{"".join(arguments)}{C}call{S}'


WEATHER = written("get_weather", argument("city", "string", "Paris"), argument("days", "number", "2"))
NOW = written("now", index=2)
CALLS = f"{B}tools{S}{WEATHER}{C}tools{S}"
TWO = f"{B}tools{S}{WEATHER}{NOW}{C}tools{S}"
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
MEANS_NOW = ("call", "now", "{}")

VECTORS = (
    Vector("a response alone", f"Hello.{RESPONSE_END}{END}", [("text", "Hello.")]),
    Vector(
        "thoughts and a response",
        f"Hm.{THINK_END}{RESPONSE}Hello <b>.{RESPONSE_END}{END}",
        [("reasoning", "Hm."), ("text", "Hello <b>.")],
    ),
    Vector(
        "thoughts, a response and two calls",
        f"Hm.{THINK_END}{RESPONSE}I look.{RESPONSE_END}{TWO}{END}",
        [("reasoning", "Hm."), ("text", "I look."), MEANS, MEANS_NOW],
    ),
    Vector("a call without a response", f"{RESPONSE_END}{CALLS}{END}", [MEANS]),
    Vector("sections that the model opens itself", f"{THINK}Hm.{THINK_END}{CALLS}", [("reasoning", "Hm."), MEANS]),
    Vector("calls at once", CALLS, [MEANS]),
    Vector(
        "values that are no strings, and those without a type",
        f"{RESPONSE_END}{B}tools{S}"
        + written("search", argument("query", "string", "5"), argument("tags", "array", '["a"]'))
        + f'{B}call tool="search"{S}{B}argument key="a&quot;&amp;" type="string"{S}1{C}argument{S}'
        + f'{B}argument key="b"{S}1{C}argument{S}{C}call{S}',
        [("call", "search", '{"query": "5", "tags": ["a"]}'), ("call", "search", '{"a\\"&": "1", "b": 1}')],
    ),
    Vector(
        "all arguments as JSON",
        f'{RESPONSE_END}{B}tools{S}{B}call tool="now" index="1"{S}{B}json type="object"{S}{{"a": 1}}{C}json{S}'
        f"{C}call{S}{WEATHER}{C}tools{S}",
        [("call", "now", '{"a": 1}'), MEANS],
    ),
    Vector(
        "an unknown tool",
        f"Hello.{RESPONSE_END}{B}tools{S}{written('rm')}{C}tools{S}{END}",
        [("text", 'Hello.<|open|>call tool="rm" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>')],
    ),
    Vector("cut in thoughts", "Hm, one", [("reasoning", "Hm, one")], is_cut=True),
    Vector(
        "a cut call stays cut",
        f'{RESPONSE_END}{B}tools{S}{B}call tool="search" index="1"{S}{B}argument key="query" type="string"{S}a b{C}arg',
        [("call", "search", '{"query": "a b')],
        is_cut=True,
    ),
)  # fmt: skip


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_outputs_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(KimiK3(), vector)


def test_grammar_takes_what_the_model_writes_and_no_other_calls() -> None:
    empty = f"{RESPONSE}{RESPONSE_END}"
    check_accepted(KimiK3(), [f"Hm.{THINK_END}{empty}{CALLS}{END}", f"{THINK_END}{empty}{TWO}"])
    check_refused(
        KimiK3(),
        [
            f"Hm.{THINK_END}{RESPONSE}Hello.{RESPONSE_END}{END}",
            f"{THINK_END}{empty}{CALLS.replace('get_weather', 'rm')}{END}",
            f"{THINK_END}{empty}{CALLS.replace('»2«', '»two«')}{END}",
        ],
    )
    check_refused(KimiK3(), [f"{THINK_END}{empty}{TWO}"], tools=ONE)


def test_grammar_of_an_answer_holds_the_response_alone() -> None:
    for markers in (Markers(), MARKERS):
        write = GrammarWriter(markers)
        grammar = Grammar(write.grammar(KimiK3().answer(write, '"yes"')), markers)
        assert grammar.accepts(f"no no{THINK_END}{RESPONSE}yes{RESPONSE_END}{END}")
        assert not grammar.accepts(f"yes{THINK_END}{RESPONSE}no{RESPONSE_END}{END}")


def test_grammars_take_answers_without_thoughts_where_tags_hold_tokens() -> None:
    write = GrammarWriter(MARKERS)
    answer = Grammar(write.grammar(KimiK3().answer(write, '"yes"')), MARKERS)
    assert answer.accepts(f"yes{RESPONSE_END}{END}")
    assert not answer.accepts(f"no{RESPONSE_END}{END}")
    write = GrammarWriter(MARKERS)
    required = Grammar(write.grammar(KimiK3().required_calls(write, REQUIRED)), MARKERS)
    assert required.accepts(f"{RESPONSE_END}{TWO}{END}")
    assert not required.accepts(f"Hello.{RESPONSE_END}{TWO}{END}")


def test_what_the_grammar_allows_is_read_as_calls(num_walks: int) -> None:
    whole = f"{THINK_END}{RESPONSE}{RESPONSE_END}{END}"
    check_walks(KimiK3(), phrases=[whole, THINK_END, f"{C}argument{S}", "1"], has_thoughts=True, num_walks=num_walks)
