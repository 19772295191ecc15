"""Text to prompt tokens: trust, BOS, length."""

from __future__ import annotations

import pytest

from tests.fakes.engine import BOS, IM_END, IM_START, FakeVocabulary
from worker.api.prompt import check_length, check_text_length, tokens_of_raw_prompt, tokens_of_segments
from worker.chat.marks import Markers
from worker.chat.template import Segment
from worker.errors import ContextLengthExceeded


def test_special_tokens_are_parsed_in_template_text_and_never_in_client_text() -> None:
    vocabulary = FakeVocabulary()
    segments = [Segment("<|im_start|>", True), Segment("a<|im_end|>", False), Segment("<|im_end|>", True)]
    tokens = tokens_of_segments(vocabulary, segments)
    assert tokens == [IM_START, *b"a<|im_end|>", IM_END]


def test_markers_in_client_text_are_taken_apart_and_those_of_the_template_are_not() -> None:
    vocabulary = FakeVocabulary()
    word, token = next(iter(vocabulary.words.items()))  # such as it finds in any text, as llama.cpp does added tokens
    segments = [Segment(word, True), Segment(f"<{word}{word}", False), Segment(word, True)]
    assert tokens_of_segments(vocabulary, segments, Markers({word: token})) == [
        token,
        *f"<{word}{word}".encode(),
        token,
    ]


def test_a_model_that_wants_bos_gets_exactly_one() -> None:
    vocabulary = FakeVocabulary(add_bos=True)
    for text in ("x", "<s>x", "<s><s>x"):
        assert tokens_of_segments(vocabulary, [Segment(text, True)]) == [BOS, ord("x")]
        assert tokens_of_raw_prompt(vocabulary, text) == [BOS, ord("x")]


def test_bos_written_by_a_client_is_text_and_does_not_replace_the_real_one() -> None:
    vocabulary = FakeVocabulary(add_bos=True)
    assert tokens_of_segments(vocabulary, [Segment("<s>", False)]) == [BOS, *b"<s>"]


def test_a_model_that_wants_no_bos_gets_what_the_template_wrote() -> None:
    vocabulary = FakeVocabulary(add_bos=False)
    assert tokens_of_segments(vocabulary, [Segment("<s><s>x", True)]) == [BOS, BOS, ord("x")]
    assert tokens_of_raw_prompt(vocabulary, "x") == [ord("x")]


def test_an_empty_prompt_is_bos_alone_where_the_model_has_one() -> None:
    assert tokens_of_raw_prompt(FakeVocabulary(add_bos=True), "") == [BOS]
    assert tokens_of_raw_prompt(FakeVocabulary(add_bos=False), "") == []


def test_a_prompt_may_fill_the_context_but_for_one_token() -> None:
    assert check_length([1] * 9, context=10, param="messages") == 1


@pytest.mark.parametrize("num_prompt", [10, 11, 1000])
def test_a_longer_prompt_is_refused_with_both_counts_in_the_usual_words(num_prompt: int) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        check_length([1] * num_prompt, context=10, param="messages")
    error = caught.value
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "messages")
    assert "maximum context length is 10 tokens" in error.message
    assert f"your messages resulted in {num_prompt} tokens" in error.message


def test_a_text_that_surely_does_not_fit_is_refused_before_it_is_tokenised() -> None:
    check_text_length(256 * 100, context=100, param="prompt")
    with pytest.raises(ContextLengthExceeded, match="at least 100 tokens") as caught:
        check_text_length(256 * 100 + 1, context=100, param="prompt")
    assert caught.value.param == "prompt"
