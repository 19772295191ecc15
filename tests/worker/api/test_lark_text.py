"""Grammars in Lark's notation from clients: what of them reaches the grammar library, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes.engine import FakeVocabulary
from tests.support.held_answers import may_be
from worker.api.lark_text import MAX_RULES, MAX_SCHEMAS, safe_lark
from worker.api.output_format import lark_format, told_of
from worker.chat.marks import Markers
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.engine.grammar import GrammarRefused, Grammars
from worker.errors import RequestError


def takes(lark: str, text: str) -> bool:
    form = lark_format(lark, param="lark")
    write = GrammarWriter(Markers())
    whole = write.grammar(write.rule(form.write(write)))
    return may_be(Grammars(FakeVocabulary(), frozenset()).compile(whole).start, text)


def refusal(lark: str) -> str:
    with pytest.raises(RequestError) as caught:
        safe_lark(lark, param="lark")
    assert caught.value.param == "lark"
    return str(caught.value)


@pytest.mark.parametrize(
    ("lark", "right", "wrong"),
    [
        ('start: "< @ %json" /<@>/ // <[5]> @foo\n# %lark', "< @ %json<@>", "<"),
        ("%llguidance {\n}\n%import common.INT\nstart: INT", "12", "a"),
        ('%import common (INT, WS)\nstart: INT WS "."', "12 .", "12."),
        ('%ignore / +/\nstart: ["a"] "b"i', "a  B", "ba"),
        ('start: gen\ngen[stop="b", max_tokens=5]: /a+/', "aab", "aac"),
        ('start: %json {"type": "integer"} "!"', "12!", "a!"),
        (
            'start: %json {\n"properties": {"a": {"type": "null"}},\n"type": "object"}\n  | "no"',
            '{"a": null}',
            '{"a": 1}',
        ),
        ("start: %json true", "[1]", "[1"),
        ('start: %regex {"substring_words": "a b c"}', "b c", "c b"),
        ("start: A~2..3\nA: /a{10}/", "a" * 20, "a" * 10),
        ("start: " + "a " * 500 + '\na: | "b"', "bb", "c"),
    ],
    ids=lambda one: one[:30],
)
def test_grammars_within_the_bounds_mean_what_they_say(lark: str, right: str, wrong: str) -> None:
    assert takes(lark, right)
    assert not takes(lark, wrong)


@pytest.mark.parametrize(
    ("lark", "words"),
    [
        ('start: "a" <[5]>', "line 1 names a special token"),
        ('start: "a"\n  | <think>', "line 2 names a special token"),
        ("start: gen\ngen[stop=<[3]>]: /a*/", "line 2 names a special token"),
        ("start: @nested0", "another grammar"),
        ('%llguidance {"no_forcing": true}\nstart: "a"', "options of the grammar library"),
        ("%llguidance 5", "no JSON object"),
        ("%import other.INT\nstart: INT", "'common'"),
        ('start: %lark { start: "a" }', "'%lark'"),
        ("start: gen\ngen[capture]: /a/", "'capture'"),
        ("start: gen\ngen[lazy, temperature=0.5]: /a/", "'temperature'"),
        ('start: "a', "line 1 has"),
        ('start: %json {"a": }', "no JSON behind '%json'"),
        ("start: %json " + "[" * 100_000, "nested too deeply"),
        ('start: %json {"type": "string", "pattern": "^a\\\\x01$"}', r"\$\.pattern"),
        ('start: %json {"type": "string", "maxLength": 5000000}', r"\$\.maxLength"),
        ('start: %json {"type": "no"}', r"\$\.type"),
        ("start: %json 5", "a schema is an object"),
        ("start: " + "%json {} " * (MAX_SCHEMAS + 1), "one more '%json'"),
        ("start: /(a{1000}){1000}/", "repetitions inside repetitions"),
        ('start: (A{20} "b"){20}\nA: "a"', "repetitions inside repetitions"),
        ('start: (A~20)~20\nA: "a"', "repetitions inside repetitions"),
        (
            'start: "a"\n' + "\n".join(f'r{at}: "a"' for at in range(MAX_RULES)),
            f"line {MAX_RULES + 1} begins one rule more",
        ),
    ],
    ids=lambda one: one[:40],
)
def test_what_leaves_the_bounds_is_refused_with_its_line(lark: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        safe_lark(lark, param="lark")
    refusal(lark)


def test_options_in_a_schema_do_not_reach_the_library() -> None:
    schema = (
        '{"type": "object", "x-guidance": {"lenient": true, "whitespace_pattern": "x"}, "not": {"required": ["a"]}}'
    )
    assert "$.not" in refusal(f"start: %json {schema}")
    written = safe_lark('start: %json {"type": "integer", "x-guidance": {"whitespace_pattern": "zz"}}', param="lark")
    assert "zz" not in written
    assert "zz" not in GrammarWriter(Markers()).schema({"x-guidance": {"whitespace_pattern": "zz"}, "type": "integer"})


def test_lines_stay_the_client_s() -> None:
    lark = 'start: %json {\n"type":\n"integer"}\n | foo'
    assert safe_lark(lark, param="lark").count("\n") == lark.count("\n")
    form = lark_format('start: "a"\nr: "b"\nr: "c"', param="lark")
    write = GrammarWriter(Markers())
    with pytest.raises(GrammarRefused) as caught:
        Grammars(FakeVocabulary(), frozenset()).compile(write.grammar(write.rule(form.write(write))))
    assert told_of(form, str(caught.value)).startswith("line 3: duplicate rule")
    assert told_of(replace(form, keeps_lines=False), str(caught.value)).startswith("duplicate rule")
    assert told_of(None, "it is too complex") == "it is too complex"
