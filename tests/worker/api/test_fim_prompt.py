"""Prompts for filling in the middle: the order of their parts, and what is left out when there is no room."""

from __future__ import annotations

import pytest

from tests.fakes.engine import FakeEngine, FakeVocabulary, make_facts
from worker.api.fim_prompt import ExtraFile, Gap, fim_prompt
from worker.api.served import ServedModel
from worker.engine.vocabulary import FimTokens
from worker.errors import ContextLengthExceeded, NotForThisModel


def model_with(vocabulary: FakeVocabulary, *, context: int = 256) -> ServedModel:
    engine = FakeEngine(vocabulary, make_facts(context=context))
    return ServedModel("tiny", engine, vocabulary)


def text_for(gap: Gap, *, context: int = 256, num_answer: int = 1, vocabulary: FakeVocabulary | None = None) -> str:
    vocabulary = vocabulary or FakeVocabulary(has_fim=True)
    return vocabulary.text(fim_prompt(model_with(vocabulary, context=context), gap, num_answer=num_answer).tokens)


def test_parts_stand_between_the_models_own_tokens() -> None:
    assert text_for(Gap("ab", "yz")) == "<fim_pre>ab<fim_suf>yz<fim_mid>"
    assert text_for(Gap("ab", "yz", start="c")) == "<fim_pre>ab<fim_suf>yz<fim_mid>c"


def test_begin_token_stands_in_front_once() -> None:
    vocabulary = FakeVocabulary(add_bos=True, has_fim=True)
    assert text_for(Gap("ab", ""), vocabulary=vocabulary) == "<s><fim_pre>ab<fim_suf><fim_mid>"


def test_control_tokens_in_client_text_stay_text() -> None:
    vocabulary = FakeVocabulary(has_fim=True)
    gap = Gap("</s>", "</s>", [ExtraFile("</s>", "</s>")])
    tokens = fim_prompt(model_with(vocabulary), gap).tokens
    assert vocabulary.eos not in tokens
    assert vocabulary.text(tokens).count("</s>") == 4


def test_extra_files_come_first_with_their_names() -> None:
    gap = Gap("ab", "yz", [ExtraFile("a.py", "x = 1\n"), ExtraFile("b.py", "y = 2")])
    assert text_for(gap) == (
        "<fim_rep>project\n<fim_sep>a.py\nx = 1\n<fim_sep>b.py\ny = 2\n<fim_sep>current\n"
        "<fim_pre>ab<fim_suf>yz<fim_mid>"
    )


def test_extra_files_are_snippets_for_a_model_without_files() -> None:
    vocabulary = FakeVocabulary(has_fim=True)
    vocabulary.fim = FimTokens(vocabulary.fim.prefix, vocabulary.fim.suffix, vocabulary.fim.middle)
    text = text_for(Gap("ab", "yz", [ExtraFile("a.py", "x = 1")]), vocabulary=vocabulary)
    assert text == "\n\n--- snippet ---\n\nx = 1<fim_pre>ab<fim_suf>yz<fim_mid>"


@pytest.mark.parametrize(("num_answer", "num_left_out"), [(1, 0), (10, 0), (11, 1), (30, 2)])
def test_first_extra_files_are_left_out_where_they_leave_no_room_for_the_answer(
    num_answer: int, num_left_out: int
) -> None:
    vocabulary = FakeVocabulary(has_fim=True)
    gap = Gap("ab", "yz", [ExtraFile("a", "1" * 10), ExtraFile("b", "2" * 10)])
    # Both files: 1 + 8, 2 x (1 + 13), 1 + 8; the rest has 7.
    found = fim_prompt(model_with(vocabulary, context=9 + 28 + 9 + 7 + 10), gap, num_answer=num_answer)
    assert found.num_left_out == num_left_out
    text = vocabulary.text(found.tokens)
    assert ("1" * 10 in text, "2" * 10 in text) == (num_left_out == 0, num_left_out < 2)
    assert text.endswith("<fim_pre>ab<fim_suf>yz<fim_mid>")


def test_huge_extra_file_is_left_out_without_being_tokenised() -> None:
    vocabulary = FakeVocabulary(has_fim=True)
    gap = Gap("ab", "yz", [ExtraFile("a", "1" * 10_000_000)])
    assert fim_prompt(model_with(vocabulary), gap).num_left_out == 1


@pytest.mark.parametrize(("prefix", "suffix", "param"), [("x" * 70_000, "", "prompt"), ("", "x" * 70_000, "suffix")])
def test_text_that_cannot_fit_is_refused_under_its_own_name(prefix: str, suffix: str, param: str) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        text_for(Gap(prefix, suffix))
    assert caught.value.param == param


def test_model_without_fim_tokens_says_so() -> None:
    with pytest.raises(NotForThisModel, match="'tiny' does not support filling in the middle"):
        text_for(Gap("ab", "yz"), vocabulary=FakeVocabulary())
