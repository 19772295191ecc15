"""Patterns in the dialect of schemas: what becomes of them, and that matching them takes no time."""

from __future__ import annotations

from time import process_time
from typing import Any

import pytest

from bench.grammar_driver import takes
from worker.schemas.patterns import matches, quoted_names, translate
from worker.schemas.prepare import prepare_schema
from worker.schemas.problems import CannotEnforce
from worker.schemas.repetitions import MAX_REPEATS

TAKEN = [
    (r"^\d+$", '"12"', '"١"'),
    (r"^\w+$", '"a_1"', '"é"'),
    (r"^[^\W_]+$", '"ab"', '"a_"'),
    (r"^\s$", '" "', '"a"'),
    (r"^a\/b$", '"a/b"', '"ab"'),
    (r"^\u0041\x42$", '"AB"', '"ab"'),
    ("^\\u{1F600}$", '"\U0001f600"', '"a"'),
    ("^\\ud83d\\ude00$", '"\U0001f600"', '"a"'),
    ("^[\\ud83d\\ude00-\\ud83d\\ude05]$", '"\U0001f603"', '"\U0001f606"'),
    ("^[[]$", '"["', '"a"'),
    ("^[a&&b]$", '"&"', '"c"'),
    ("^[~~]$", '"~"', '"a"'),
    ("^[^]$", '"x"', '"xy"'),
    (r"^[\]]$", '"]"', '"a"'),
    ("^a{x}$", '"a{x}"', '"a"'),
    ("^{}$", '"{}"', '""'),
    (r"^\p{Lu}$", '"É"', '"é"'),
    (r"^[\d.]+$", '"1.2"', '"1,2"'),
    ("(^a|b)c", '"ac"', '"xac"'),
    ("^a$|^b$", '"b"', '"ab"'),
    ("^(?<year>[0-9]{4})$", '"2020"', '"20"'),
    (r"^\_\@\#$", '"_@#"', '"_"'),
    (r"^\cJ$", '"\\n"', '"J"'),
    ("^(?:[a-z]{2,3}-){2,4}$", '"ab-abc-"', '"ab-"'),
    ("", '""', "1"),
]


@pytest.mark.parametrize(("pattern", "right", "wrong"), TAKEN)
def test_a_pattern_means_in_the_library_what_it_means_in_a_schema(pattern: str, right: str, wrong: str) -> None:
    grammar = prepare_schema({"type": "string", "pattern": pattern}, param="x").to_grammar()
    assert takes(grammar, right)
    assert not takes(grammar, wrong)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("^(?=a)", "ahead or behind"),
        ("^(?!a)", "ahead or behind"),
        ("(?<=a)b", "ahead or behind"),
        (r"(a)\1", "refers back"),
        (r"\bfoo\b", "word boundary"),
        ("a$b", "anchor"),
        ("[]a]", "different dialects"),
        ("a{,3}", "different dialects"),
        ("[a--z]", "different dialects"),
        ("a++", "possessive"),
        ("a" * 8193, "longer than"),
        (f"^(a{{0,{MAX_REPEATS}}}){{2}}$", "repetitions inside repetitions"),
        ("(((a{0,10}){0,10}){0,10}){0,10}", "repetitions inside repetitions"),
    ],
)
def test_a_pattern_that_the_library_does_not_know_is_told_apart_from_a_mistake(pattern: str, why: str) -> None:
    found = translate(pattern)
    assert found.problem is not None
    assert why in found.problem
    assert not found.is_mistake


@pytest.mark.parametrize("pattern", ["[", "(", "a)", "*a", "[z-a]", "a{2,1}"])
def test_what_is_no_pattern_at_all_is_a_mistake(pattern: str) -> None:
    assert translate(pattern).is_mistake


def test_counted_repetitions_side_by_side_do_not_multiply() -> None:
    assert translate("^[a-z]{1,900}-[a-z]{1,900}$").problem is None


def test_names_become_a_pattern_of_exactly_these() -> None:
    names = ["a.b", "c-d", "é", "x y", '"q"', "(z)", "a\\b", "^", "#"]
    pattern = quoted_names(names)
    assert all(matches(pattern, name) for name in names)
    assert not any(matches(pattern, name) for name in ["axb", "a.b ", "", "q", "z", "ab"])


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(.*a){20}$", "(x+x+)+y"])
def test_patterns_that_are_deadly_elsewhere_are_matched_in_no_time(pattern: str) -> None:
    started = process_time()
    assert matches(pattern, "a" * 20_000 + "b") is False
    assert process_time() - started < 2.0


@pytest.mark.parametrize("text", ["\x00", "\x7f", "\n", '"', "\\", "\u2028", "\U0001f600", ""])
def test_any_character_can_stand_in_a_text_that_is_matched(text: str) -> None:
    assert matches("^x", f"x{text}") is True
    assert matches("^x", f"y{text}") is False


def test_a_text_with_half_a_character_cannot_be_matched() -> None:
    assert matches("a", "a\ud800") is None


UNWRITABLE = [
    *(
        f"^a{char}b$"
        for char in ("\x00", "\x01", "\x1b", "\x7f", r"\x01", r"\x7f", r"\0", r"\cA", r"\v", r"\u{1}", r"\u0001")
    ),
    r"^a[\x01]b$",
    "^[\x7f]$",
    r"^[\x01-\x03\x0e]*$",
    "^(b|a\x01)$",
]


@pytest.mark.parametrize("pattern", UNWRITABLE)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda pattern: {"type": "string", "pattern": pattern},
        lambda pattern: {"type": "object", "propertyNames": {"pattern": pattern}},
        lambda pattern: {"type": "object", "patternProperties": {pattern: {}}, "additionalProperties": False},
    ],
    ids=["pattern", "propertyNames", "patternProperties"],
)
def test_control_characters_that_cannot_be_written_are_refused_or_let_go(pattern: str, wrap: Any) -> None:
    schema = wrap(pattern)
    with pytest.raises(CannotEnforce):
        prepare_schema(schema, param="x")
    relaxed = prepare_schema(schema, param="x", relaxes=True)
    assert len(relaxed.relaxed) == 1
    assert pattern not in relaxed.to_grammar()


@pytest.mark.parametrize("names", [{"enum": ["c", "a\x01b"]}, {"const": "a\x7fb"}])
def test_names_with_such_characters_are_refused_or_let_go(names: Any) -> None:
    schema = {"type": "object", "propertyNames": names}
    with pytest.raises(CannotEnforce):
        prepare_schema(schema, param="x")
    assert prepare_schema(schema, param="x", relaxes=True).relaxed


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"^a[^\x00-\x1f]b$", '"acb"', '"ab"'),
        (r"^a[\x01c]b$", '"acb"', '"ab"'),
        (r"^a[\x00-\x1f]b$", '"a\\nb"', '"ab"'),
        (r"^a[^\x00\x02-\u{10ffff}]?b$", '"ab"', '"acb"'),
        (r"^a\tb$", '"a\\tb"', '"ab"'),
        ("^a\nb$", '"a\\nb"', '"ab"'),
    ],
)
def test_classes_with_such_characters_have_the_others(pattern: str, right: str, wrong: str) -> None:
    grammar = prepare_schema({"type": "string", "pattern": pattern}, param="x").to_grammar()
    assert takes(grammar, right)
    assert not takes(grammar, wrong)


def test_the_library_s_own_keyword_does_not_reach_it() -> None:
    schema = {
        "x-guidance": {"lenient": True, "whitespace_pattern": "x"},
        "type": "object",
        "properties": {"a": {"x-guidance": {"lenient": True}, "type": "integer"}, "x-guidance": {"const": 1}},
    }
    prepared = prepare_schema(schema, param="x")
    assert "x-guidance" not in prepared.schema
    assert "x-guidance" not in prepared.schema["properties"]["a"]
    assert takes(prepared.to_grammar(), '{"a": 1, "x-guidance": 1}')
    assert not takes(prepared.to_grammar(), '{"a": 1, "x-guidance": 2}')
