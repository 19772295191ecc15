"""Functionary's calls: in tags that hold the name, and in messages to recipients."""

from __future__ import annotations

import pytest

from tests.support.answer_vectors import NOW, WEATHER, Vector, check_vector
from tests.support.grammar_checks import ONE, check_accepted, check_refused, check_walks, free_grammars
from worker.chat.marks import Markers
from worker.chat.tool_calls.functionary import Functionary31, Functionary32
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.tools import Demand, Tool, Tools

CODE = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
WITH_PYTHON = Tools((WEATHER, NOW, Tool("python", None, CODE)), Demand.AUTO)
ARGUMENTS = '{"city": "Paris", "days": 2}'
MEANS = ("call", "get_weather", ARGUMENTS)
MEANS_NOW = ("call", "now", "{}")
CALL = f"«<function=»get_weather>{ARGUMENTS}«</function>»"
SECOND = "«<function=»now>{}«</function>»"

IN_TAGS = (
    Vector("text alone", "Use <function> or <func", [("text", "Use <function> or <func")]),
    Vector("one call", CALL, [MEANS]),
    Vector("two calls", f"{CALL}{SECOND}", [MEANS, MEANS_NOW]),
    Vector("text in front", f"I look it up. {CALL}", [("text", "I look it up."), MEANS]),
    Vector(
        "text around all",
        f"First.\n{CALL}\nThen.\n{SECOND}\nDone.",
        [("text", "First."), MEANS, ("text", "Then."), MEANS_NOW, ("text", "Done.")],
    ),
    Vector("on lines of their own", "«<function=»now>\n{}\n«</function>»", [MEANS_NOW]),
    Vector("an unknown tool", "«<function=»rm>{}«</function>»", [("text", "<function=rm>{}</function>")]),
    Vector("no JSON", "«<function=»now>now()«</function>»", [("text", "<function=now>now()</function>")]),
    Vector(
        "broken arguments are closed",
        '«<function=»now>{"a": {"b": }}«</function>»',
        [("call", "now", '{"a": {"b": null}}'), ("text", "}}</function>")],
    ),
    Vector("a cut call stays cut", '«<function=»now>{"a": "b', [("call", "now", '{"a": "b')], is_cut=True),
    Vector(
        "code",
        '«<|python_tag|>»print("1")',
        [("call", "python", '{"code": "print(\\"1\\")"}')],
        tools=WITH_PYTHON,
    ),
    Vector("code without the tool for it", "«<|python_tag|>»print(1)", [("text", "<|python_tag|>print(1)")]),
)
TO_RECIPIENTS = (
    Vector("text alone", "all\nHello, >> and >>> are signs.", [("text", "Hello, >> and >>> are signs.")]),
    Vector("no text", "all\n", []),
    Vector("one call", f"get_weather\n{ARGUMENTS}", [MEANS]),
    Vector("two calls", f"get_weather\n{ARGUMENTS}>>>now\n{{}}", [MEANS, MEANS_NOW]),
    Vector("lines between", f"get_weather\n{ARGUMENTS}\n>>>now\n{{}}\n", [MEANS, MEANS_NOW]),
    Vector("text in front", f"all\nI look it up.>>>get_weather\n{ARGUMENTS}", [("text", "I look it up."), MEANS]),
    Vector(
        "text around all",
        "all\nFirst.>>>now\n{}>>>all\nThen.>>>now\n{}>>>all\nDone.",
        [("text", "First."), MEANS_NOW, ("text", "Then."), MEANS_NOW, ("text", "Done.")],
    ),
    Vector("what the prompt ends with, once more", f">>>get_weather\n{ARGUMENTS}", [MEANS]),
    Vector("no recipient", "Hello, all\nof you.", [("text", "Hello, all\nof you.")]),
    Vector("an unknown tool", 'rm\n{"a": 1}', [("text", 'rm\n{"a": 1}')]),
    Vector("an unknown tool behind text", "all\nSo.>>>rm\n{}", [("text", "So.>>>rm\n{}")]),
    Vector("no JSON", "now\nat once", [MEANS_NOW, ("text", "at once")]),
    Vector("a cut call stays cut", 'now\n{"a": "b', [("call", "now", '{"a": "b')], is_cut=True),
    Vector(
        "code",
        'python\nfor line in text:\n    print(">>> " + line)>>>now\n{}',
        [("call", "python", '{"code": "for line in text:\\n    print(\\">>> \\" + line)"}'), MEANS_NOW],
        tools=WITH_PYTHON,
    ),
    Vector("code at the end", "python\n1 + 1", [("call", "python", '{"code": "1 + 1"}')], tools=WITH_PYTHON),
    Vector("cut code", "python\n1 +", [("call", "python", '{"code":"1 +')], tools=WITH_PYTHON, is_cut=True),
    Vector("code in JSON", 'python\n{"code": "1"}', [("call", "python", '{"code": "1"}')], tools=WITH_PYTHON),
)


@pytest.mark.parametrize("vector", IN_TAGS, ids=lambda vector: vector.name)
def test_tags_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(Functionary31(), vector)


@pytest.mark.parametrize("vector", TO_RECIPIENTS, ids=lambda vector: vector.name)
def test_messages_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(Functionary32(), vector)


def test_a_call_is_written_in_a_tag() -> None:
    check_accepted(Functionary31(), [CALL, f"{CALL}{SECOND}"])
    check_refused(
        Functionary31(),
        ["", "Hello", f"Hello {CALL}", "«<function=»rm>{}«</function>»", "«<function=»get_weather>{}«</function>»"],
    )
    check_refused(Functionary31(), [f"{CALL}{SECOND}"], tools=ONE)


def test_a_call_is_written_behind_its_recipient() -> None:
    check_accepted(Functionary32(), [f"get_weather\n{ARGUMENTS}", f"get_weather\n{ARGUMENTS}>>>now\n{{}}"])
    check_refused(Functionary32(), ["", "all\nHello", "rm\n{}", "get_weather\n{}", ">>>now\n{}"])
    check_refused(Functionary32(), ["now\n{}>>>now\n{}"], tools=ONE)
    for grammar in free_grammars(Functionary32()):
        assert grammar.accepts("all\nHello")
        assert grammar.accepts("all\nHello>>>now\n{}")
        assert not grammar.accepts("Hello")
        assert grammar.accepts("all\nHello>>>now\n{}>>>now\n{}")
        assert grammar.accepts("all\nThe sign >>> is Python's, >>>rm\nis nothing")
        assert not grammar.accepts("all\nHello>>>now\nat once")


@pytest.mark.parametrize("family", [Functionary31(), Functionary32()], ids=lambda family: family.name)
def test_what_the_grammar_allows_is_read_as_calls(family: Functionary31 | Functionary32, num_walks: int) -> None:
    check_walks(family, num_walks=num_walks)


def test_a_plain_answer_is_a_message_to_all() -> None:
    assert Functionary32().answer(GrammarWriter(Markers()), "BODY") == '"all\\n" BODY'
