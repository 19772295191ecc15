"""Special tokens in what a reader of answers gets: marked, and never mistaken for their words."""

from __future__ import annotations

from tests.fakes.engine import IM_START, FakeVocabulary
from worker.api.marked_pieces import MarkedPieces
from worker.chat.marks import Markers, marked, unmarked
from worker.engine.detokenizer import TextStream


def test_a_marker_is_shown_and_other_control_tokens_are_not() -> None:
    vocabulary = FakeVocabulary()
    stream = TextStream(MarkedPieces(vocabulary, {"<|im_start|>": IM_START}))
    tokens = vocabulary.tokenize("a<|im_start|>b</s>c", add_special=False, parse_special=True)
    assert stream.push(tokens) == f"a{marked('<|im_start|>')}bc"


def test_its_words_in_plain_text_are_not_marked() -> None:
    vocabulary = FakeVocabulary()
    stream = TextStream(MarkedPieces(vocabulary, {"<|im_start|>": IM_START}))
    tokens = vocabulary.tokenize("a<|im_start|>b", add_special=False, parse_special=False)
    assert stream.push(tokens) == "a<|im_start|>b"


def test_marks_go_from_what_people_read() -> None:
    assert unmarked(f"a{marked('<think>')}b") == "a<think>b"


def test_a_marker_that_is_no_token_is_looked_for_in_plain_text() -> None:
    markers = Markers({"<think>": 7})
    assert markers.form("<think>") == marked("<think>")
    assert markers.form("</think>") == "</think>"
    assert (markers.is_token("<think>"), markers.is_token("</think>")) == (True, False)
