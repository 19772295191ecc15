"""Markers inside longer texts, marked for readers and written into grammars."""

from __future__ import annotations

from tests.support.byte_tokenizer import Grammar, markers_of
from worker.chat.marks import Markers, marked
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.spelling import spelled, written, written_up_to

D = "｜D｜"
TOKENS = markers_of([D, "<a>", "<a>b"])


def test_tokens_in_a_text_are_marked_and_the_longest_counts() -> None:
    assert spelled(TOKENS, f"<{D}call>") == f"<{marked(D)}call>"
    assert spelled(TOKENS, "x<a>b<a>") == f"x{marked('<a>b')}{marked('<a>')}"
    assert spelled(Markers(), f"<{D}call>") == f"<{D}call>"
    assert spelled(TOKENS, spelled(TOKENS, "no token")) == "no token"
    assert spelled(TOKENS, "") == ""


def grammar_of(markers: Markers, text: str, *, is_end: bool) -> Grammar:
    """Return the grammar of a text, or of any text up to it."""
    write = GrammarWriter(markers)
    return Grammar(write.grammar(written_up_to(write, text) if is_end else written(write, text)), markers)


def test_grammar_of_a_text_takes_its_tokens_and_not_their_words() -> None:
    grammar = grammar_of(TOKENS, f"<{D}call>", is_end=False)
    assert grammar.accepts(f"<«{D}»call>")
    assert not grammar.accepts(f"<{D}call>")
    assert grammar_of(Markers(), f"<{D}call>", is_end=False).accepts(f"<{D}call>")


def test_grammar_of_any_text_ends_where_the_end_is() -> None:
    for grammar in (grammar_of(TOKENS, f"</{D}x>", is_end=True), grammar_of(Markers(), f"</{D}x>", is_end=True)):
        assert grammar.accepts(f"</«{D}»x>")
        assert grammar.accepts(f"a </ b\n</</«{D}»x>")
        assert not grammar.accepts(f"a </«{D}»x>b")
        assert not grammar.accepts("a </")
    assert grammar_of(TOKENS, "<a>", is_end=True).accepts("one\n<a> two«<a>»")
