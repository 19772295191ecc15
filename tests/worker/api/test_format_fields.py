"""Forms of an answer under all of their names: what each means, and what is no form."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from tests.fakes.engine import FakeVocabulary
from tests.support.held_answers import may_be
from worker.api.fields import read_fields
from worker.api.format_fields import FormatFields, read_response_format
from worker.api.output_format import MAX_CHOICES, MAX_PATTERN_CHARS, OutputFormat, regex_format
from worker.chat.marks import Markers
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.engine.grammar import Grammars
from worker.errors import RequestError, UnsupportedParameter

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
GBNF = 'root ::= "yes" | "no" [0-9]+'
LARK = 'start: "yes" | "no" /[0-9]+/'
UNENFORCED = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


def asked(**fields: Any) -> OutputFormat | None:
    return read_fields(FormatFields, fields).read_format()


def refusal(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        asked(**fields)
    return caught.value


def takes(form: OutputFormat | None, text: str) -> bool:
    assert form is not None
    write = GrammarWriter(Markers())
    grammar = write.grammar(write.rule(form.write(write)))
    return may_be(Grammars(FakeVocabulary(), frozenset()).compile(grammar).start, text)


@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "t", "schema": SCHEMA}}},
            '{"a": 1}',
            "{}",
        ),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, '{"a": 1}', "{}"),
        ({"response_format": {"type": "json_schema", "json_schema": SCHEMA}}, '{"a": 1}', "{}"),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, '{"a":1}', "{}"),
        ({"response_format": {"type": "json", "value": SCHEMA}}, '{"a":1}', "{}"),
        ({"response_format": {"type": "json_object"}}, '{"x": [null]}', "[]"),
        ({"response_format": {"type": "regex", "pattern": "[a-c]+"}}, "abc", "abd"),
        ({"response_format": {"type": "regex", "value": "[a-c]+"}}, "abc", "abd"),
        ({"response_format": {"type": "grammar", "grammar": GBNF}}, "no17", "no"),
        ({"response_format": {"type": "grammar", "grammar": LARK}}, "no17", "no"),
        ({"response_format": {"type": "choice", "choices": ["a", "b"]}}, "b", "ab"),
        ({"json_schema": SCHEMA}, '{"a": 1}', "{}"),
        ({"grammar": GBNF}, "no17", "maybe"),
        ({"ebnf": GBNF}, "no17", "maybe"),
        ({"lark": LARK}, "yes", "maybe"),
        ({"regex": "[0-9]{2}"}, "42", "421"),
        ({"choice": ["sunny", 'with "quotes"\n']}, 'with "quotes"\n', "sun"),
        ({"guided_json": SCHEMA}, '{"a": 1}', "{}"),
        ({"guided_json": json.dumps(SCHEMA)}, '{"a": 1}', "{}"),
        ({"guided_regex": "a|bc"}, "bc", "abc"),
        ({"guided_choice": ["a", "a", "b"]}, "a", "c"),
        ({"guided_grammar": GBNF}, "yes", "ye"),
        ({"guided_grammar": LARK}, "yes", "ye"),
        ({"structured_outputs": {"json": SCHEMA}}, '{"a": 1}', "{}"),
        ({"structured_outputs": {"json": json.dumps(SCHEMA), "disable_fallback": True}}, '{"a": 1}', "{}"),
        ({"structured_outputs": {"json_object": True, "regex": None}}, "{}", "1"),
        ({"structured_outputs": {"regex": "x+"}}, "xx", "y"),
        ({"structured_outputs": {"choice": ["a"]}}, "a", "b"),
        ({"choice": ["\x7f", "\x00\x1b", "é\u2028"]}, "\x00\x1b", "\x7f\x00"),
        ({"choice": ["\x7f"]}, "\x7f", "x"),
        ({"regex": "a\\\\"}, "a\\", "a"),
        ({"structured_outputs": {"grammar": GBNF}}, "yes", "b"),
    ],
    ids=lambda one: str(one)[:50],
)
def test_each_name_has_its_form(fields: dict[str, Any], right: str, wrong: str) -> None:
    form = asked(**fields)
    assert takes(form, right)
    assert not takes(form, wrong)
    assert form is not None
    assert form.param.startswith(next(iter(fields)))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None, "grammar": None, "choice": None},
        {"response_format": {"type": "text"}},
        {"grammar": "", "ebnf": "", "guided_grammar": "", "lark": ""},
        {"structured_outputs": {}},
        {"structured_outputs": {"json": None, "json_object": False, "disable_fallback": True}},
    ],
)
def test_what_asks_for_nothing_is_no_form(fields: dict[str, Any]) -> None:
    assert asked(**fields) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"regex": "a", "choice": ["a"]}, "choice"),
        ({"regex": ""}, "regex"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"regex": "(a{1000}){1000}"}, "regex"),
        ({"regex": "a\\"}, "regex"),
        ({"response_format": {"type": "json_object", "schema": False}}, "response_format.schema"),
        ({"structured_outputs": {"json_object": "x"}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"json_object": 0}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"response_format": {"type": "json_object"}, "grammar": GBNF}, "grammar"),
        ({"json_schema": SCHEMA, "guided_json": SCHEMA}, "guided_json"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "structural_tag"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "t"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": "yes"}}},
            "response_format.json_schema.strict",
        ),
        ({"response_format": {"type": "regex"}}, "response_format.pattern"),
        ({"response_format": {"type": "choice", "choice": [1]}}, "response_format"),
        ({"response_format": "text"}, "response_format"),
        ({"json_schema": {"type": "strnig"}}, "json_schema"),
        ({"json_schema": UNENFORCED}, "json_schema"),
        ({"json_schema": False}, "json_schema"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "5"}, "guided_json"),
        ({"grammar": "root := x"}, "grammar"),
        ({"grammar": "root ::= nobody"}, "grammar"),
        ({"grammar": "root ::= " + "(" * 5000}, "grammar"),
        ({"grammar": "x" * 300_000}, "grammar"),
        ({"regex": "[a-"}, "regex"),
        ({"regex": "(?=a)b"}, "regex"),
        ({"regex": r"(a)\1"}, "regex"),
        ({"regex": "a" * (MAX_PATTERN_CHARS + 1)}, "regex"),
        ({"choice": []}, "choice"),
        ({"choice": ["a", ""]}, "choice"),
        ({"choice": "a"}, "choice"),
        ({"choice": [str(number) for number in range(MAX_CHOICES + 1)]}, "choice"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"disable_any_whitespace": True}}, "structured_outputs.disable_any_whitespace"),
    ],
    ids=lambda one: str(one)[:50],
)
def test_what_is_no_form_or_more_than_one_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    error = refusal(**fields)
    assert (error.status, error.param) == (400, param)
    assert f"'{param}" in error.message
    assert len(error.message) < 700


def test_a_wrong_pattern_is_told_what_is_wrong_with_it() -> None:
    assert "unclosed character class" in refusal(regex="[a-").message
    assert "look-ahead" in refusal(regex="(?=a)b").message
    assert "backreferences" in refusal(regex=r"(a)\1").message


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"a\/b", "a/b"),
        ("a/b", "a/b"),
        (r"\\/", "\\/"),
        (r"\\\/", "\\/"),
        (r"[/\/]+", "//"),
        ("/*", "//"),
        ("a\nb", "a\nb"),
        (r"^\d+$", "12"),
        ("é{2}", "éé"),
        (r"\"x\"", '"x"'),
        ("(?i)ab", "AB"),
    ],
)
def test_patterns_are_read_as_in_other_languages(pattern: str, text: str) -> None:
    form = asked(regex=pattern)
    assert takes(form, text)
    assert not takes(form, text + "!")


def test_a_schema_that_is_not_strict_is_held_as_far_as_possible_and_the_rest_is_named() -> None:
    form = asked(response_format={"type": "json_schema", "json_schema": {"schema": UNENFORCED, "strict": False}})
    assert form is not None
    assert form.relaxed == ("$.properties.a.uniqueItems",)
    assert form.schema == UNENFORCED
    assert takes(form, '{"a": [1, 1]}')
    assert not takes(form, '{"a": 1}')
    for strict in (True, None):
        schema = {"schema": UNENFORCED, "strict": strict}
        error = refusal(response_format={"type": "json_schema", "json_schema": schema})
        assert isinstance(error, UnsupportedParameter)
        assert "$.properties.a.uniqueItems" in error.message


def test_the_same_object_is_read_wherever_a_dialect_has_it() -> None:
    form = read_response_format({"type": "json_schema", "name": "t", "schema": SCHEMA, "strict": True}, "text.format")
    assert form is not None
    assert form.param == "text.format.schema"
    with pytest.raises(RequestError) as caught:
        read_response_format({"type": "json_schema", "name": "t", "strict": 1, "schema": {}}, "text.format")
    assert caught.value.param == "text.format.strict"


@pytest.mark.parametrize(
    ("pattern", "held", "refused"),
    [
        (r"\d{2}", "12", "\u0661\u0662"),
        (r"[\d.]+", "1.5", "\u0661.\u0662"),
        (r"\w+", "a_1", "\u00e9"),
    ],
)
def test_digits_and_word_characters_of_patterns_are_those_of_ascii(pattern: str, held: str, refused: str) -> None:
    written = regex_format(pattern, param="regex").write(GrammarWriter(Markers()))
    rust = re.compile(written.strip("/"))
    assert rust.fullmatch(held)
    assert not rust.fullmatch(refused)


def test_a_long_list_of_wrong_entries_is_looked_at_up_to_the_first() -> None:
    started_s = time.process_time()
    with pytest.raises(RequestError, match=r"guided_choice\[0\]"):
        read_fields(FormatFields, {"guided_choice": [1] * 1_000_000})
    assert time.process_time() - started_s < 1.0
