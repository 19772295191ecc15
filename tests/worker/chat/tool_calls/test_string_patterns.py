"""Demands on strings become patterns, and grammars that hold texts to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.byte_tokenizer import Grammar, markers_of
from worker.chat.marks import Markers
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.spelling import written_text
from worker.chat.tool_calls.string_patterns import string_patterns

ENDS = ("</x>", "<x>")


def grammars_of(schema: Mapping[str, Any], end: str) -> list[Grammar]:
    """Return the grammars of texts with this schema and `end` behind a line break, as plain text and with tokens."""
    made = []
    for markers in (Markers(), markers_of(["x>", "<x>"])):
        write = GrammarWriter(markers)
        source = write.grammar(written_text(write, string_patterns(schema), "\n", end))
        made.append(Grammar(source, markers))
    return made


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("schema", "takes", "refuses"),
    [
        ({"pattern": "^[a-z]+-[0-9]{2}$"}, ["ab-12"], ["ab-123", "-12", "ab-12\n", ""]),
        ({"pattern": "b+"}, ["abba", "b", "\nb\n"], ["", "aca"]),
        ({"pattern": "^a|b"}, None, None),
        ({"pattern": "^(a|b)"}, ["ac", "b"], ["ca", ""]),
        ({"pattern": "a(^b|c)$"}, None, None),
        ({"pattern": r"^\^[$^]\$$"}, ["^$$", "^^$"], ["$$", "^a$"]),
        ({"pattern": r"^a\/b/c$"}, ["a/b/c"], ["a/b"]),
        ({"minLength": 2, "maxLength": 3}, ["ab", "äöü", "a\nb"], ["a", "abcd"]),
        ({"minLength": 2}, ["ab", "abcdefgh"], ["a"]),
        ({"format": "date"}, ["2024-02-29"], ["2024-2-29", "today", "2024-13-01"]),
        ({"format": "time"}, ["23:59:00Z", "01:02:03.5+02:00"], ["24:00:00Z", "01:02:03"]),
        ({"format": "date-time"}, ["2024-02-29T23:59:00Z"], ["2024-02-29 23:59:00Z"]),
        ({"format": "uuid"}, ["01234567-89ab-cdef-0123-456789ABCDEF"], ["01234567"]),
        ({"format": "color"}, None, None),
        ({"maxLength": 1_000_000}, None, None),
    ],
)
def test_texts_are_held_to_what_can_be_told_as_a_pattern(
    schema: Mapping[str, Any], takes: list[str] | None, refuses: list[str] | None, end: str
) -> None:
    schema = {"type": "string", **schema}
    if takes is None or refuses is None:
        assert not string_patterns(schema)
        return
    for grammar in grammars_of(schema, end):
        marked_end = "\n" + end.replace("x>", "«x>»") if end == "</x>" else f"\n«{end}»"
        assert [text for text in takes if not grammar.accepts(text + marked_end)] == []
        assert [text for text in refuses if grammar.accepts(text + marked_end)] == []


def test_a_text_does_not_hold_its_end() -> None:
    plain, _ = grammars_of({"type": "string", "minLength": 5}, "</x>")
    assert plain.accepts("a </ b\n</x>")
    assert not plain.accepts("a</x>b\n</x>")


def test_of_a_length_and_a_pattern_both_count_in_plain_text() -> None:
    schema = {"type": "string", "pattern": "^a", "maxLength": 2}
    plain, tokens = grammars_of(schema, "</x>")
    assert plain.accepts("ab\n</x>")
    assert not plain.accepts("abc\n</x>")
    assert not plain.accepts("b\n</x>")
    assert tokens.accepts("abc\n</«x>»")
    assert not tokens.accepts("b\n</«x>»")


def test_what_is_not_only_a_string_has_no_pattern() -> None:
    assert string_patterns({"type": ["string", "null"], "minLength": 1}) == []
    assert string_patterns({"pattern": "^a"}) == []
