"""Calls as a list in Python, and the JSON that Python's values become."""

from __future__ import annotations

import json

import pytest

from tests.support.answer_vectors import TOOLS, Vector, check_vector, parts_of, read
from tests.support.grammar_checks import (
    ONE,
    check_accepted,
    check_refused,
    check_walks,
    free_grammars,
    required_grammars,
)
from worker.chat.answer_reader import AnswerForm
from worker.chat.tool_calls.pythonic import Pythonic
from worker.chat.tool_calls.tools import Demand, Tool, Tools

CALL = 'get_weather(city="Paris", days=2)'
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
MEANS_NOW = ("call", "now", "{}")

VECTORS = (
    Vector("text alone", "Use now() or [now].", [("text", "Use now() or [now].")]),
    Vector("one call", f"[{CALL}]", [MEANS]),
    Vector("two calls", f"[{CALL}, now()]", [MEANS, MEANS_NOW]),
    Vector("on lines of their own", f" [\n  {CALL},\n  now( ),\n]\n", [MEANS, MEANS_NOW]),
    Vector("single quotes", "[get_weather(city = 'Paris', days = 2)]", [MEANS]),
    Vector("in a block of code", f"```tool_code\n[{CALL}]\n```", [MEANS]),
    Vector("text behind", f"[{CALL}]\nThat is it.", [MEANS, ("text", "That is it.")]),
    Vector("a block of other code", "```python\nprint(1)\n```", [("text", "```python\nprint(1)\n```")]),
    Vector("a list of something else", "[1, 2]", [("text", "[1, 2]")]),
    Vector("an unknown tool", "[rm(a=1)]", [("text", "[rm(a=1)]")]),
    Vector("an unknown tool behind a known one", "[now(), rm(a=1)]", [MEANS_NOW, ("text", ", rm(a=1)]")]),
    Vector("no list", "now()", [("text", "now()")]),
    Vector(
        "arguments without names",
        "[get_weather('Paris', 2, exact=True)]",
        [
            ("call", "get_weather", '{"city": "Paris", "days": 2, "exact": true}'),
        ],
    ),
    Vector("too many arguments", "[now(1)]", [MEANS_NOW, ("text", "1)]")]),
    Vector(
        "arguments that are code are closed",
        "[get_weather(city=home(1), days=2)]",
        [("call", "get_weather", '{"city": "home(1"}'), ("text", ", days=2)]")],
    ),
    Vector("a cut call stays cut", "[get_weather(city='Par", [("call", "get_weather", '{"city":"Par')], is_cut=True),
    Vector(
        "a call that ends too soon is closed", "[search(tags=['a', 'b", [("call", "search", '{"tags": ["a", "b"]}')]
    ),
)
VALUES: tuple[tuple[str, object], ...] = (
    ("'It\\'s \"so\"'", 'It\'s "so"'),
    ('"a\\n\\t\\\\\\x41\\u00e9\\U0001F600\\q"', "a\n\t\\A\u00e9\U0001f600\\q"),
    ('"""He said "no",\nthen left."""', 'He said "no",\nthen left.'),
    ("''", ""),
    ("True", True),
    ("false", False),
    ("None", None),
    ("-1.5e-3", -1.5e-3),
    ("1_000", 1000),
    ("0x10", 16),
    (".5", 0.5),
    ("12345678901234567890", 12345678901234567890),
    ("[]", []),
    ("(1, 'a')", [1, "a"]),
    ("[1, [True, {'a': None}], ]", [1, [True, {"a": None}]]),
    ("{}", {}),
    ("{'a': {'b': 1}, \"c\": [2]}", {"a": {"b": 1}, "c": [2]}),
    ("Paris", "Paris"),
    ("nan", "nan"),
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_outputs_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(Pythonic(), vector)


@pytest.mark.parametrize(("written", "value"), VALUES, ids=[written for written, _ in VALUES])
def test_values_of_python_become_json(written: str, value: object) -> None:
    arguments = json.dumps({"filter": value})
    check_vector(Pythonic(), Vector(written, f"[search(filter={written})]", [("call", "search", arguments)]))


@pytest.mark.parametrize("written", ["[" * 500, "{'a':" * 500, '"\\ud800"', "{1: 2", "'\\x4'", "\\", "*", "1" * 5000])
def test_what_is_no_value_still_makes_json(written: str) -> None:
    (call, *_) = parts_of(read(AnswerForm(family=Pythonic(), tools=TOOLS), [f"[search(filter={written})]"]))
    assert call[:2] == ("call", "search")
    assert isinstance(json.loads(call[2]), dict)


def test_calls_are_written_as_a_list() -> None:
    check_accepted(
        Pythonic(),
        [
            f"[{CALL}]",
            f"[{CALL}, now()]",
            "[get_weather(city='Paris', exact=True)]",
            '[search(query="x", tags=["a", "b"], filter={"year": 2020})]',
        ],
    )
    check_refused(
        Pythonic(),
        [
            "",
            "Hello",
            "[]",
            "now()",
            "[rm()]",
            "[get_weather()]",
            "[get_weather(days=2)]",
            "[get_weather(city=Paris)]",
            '[get_weather(city="Paris", exact=true)]',
        ],
    )
    check_refused(Pythonic(), ["[now(), now()]"], tools=ONE)


def test_an_answer_that_begins_like_a_call_is_one_and_others_are_free() -> None:
    for grammar in free_grammars(Pythonic()):
        for text in ("", "Hello", "[1]", "[now", "[nowhere()]", "now()"):
            assert grammar.accepts(text), text
        assert not grammar.accepts("[now(1)]")


def test_literals_of_a_schema_are_written_as_python() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [None, True, "x", [1, {"b": False}]]}, "b": {"const": 1.5}},
        "required": ["a", "b"],
    }
    for grammar in required_grammars(Pythonic(), Tools((Tool("f", None, schema),), Demand.REQUIRED)):
        for value in ("None", "True", '"x"', '[1, {"b": False}]'):
            assert grammar.accepts(f"[f(a={value}, b=1.5)]"), value
        assert not grammar.accepts("[f(a=False, b=1.5)]")


def test_what_the_grammar_allows_is_read_as_calls(num_walks: int) -> None:
    check_walks(Pythonic(), num_walks=num_walks)
