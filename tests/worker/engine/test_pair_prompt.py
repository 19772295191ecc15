"""A question and a document as one prompt: as the file wants it, and never with control tokens of a client's making."""

from __future__ import annotations

from tests.fakes.engine import BOS, EOS, FakeVocabulary
from worker.engine.pair_prompt import PairPrompt, pair_prompt

SEP = 258

Q, D = list(b"why"), list(b"so")


class Pairs(FakeVocabulary):
    """A tokenizer with a separator."""

    sep: int | None = SEP
    add_sep = True
    rerank_template: str | None = None


def test_parts_are_joined_by_the_tokens_that_the_vocabulary_adds() -> None:
    vocabulary = Pairs(add_bos=True)
    assert pair_prompt(vocabulary).tokens("why", "so") == [BOS, *Q, SEP, *D]
    vocabulary.add_eos = True
    assert pair_prompt(vocabulary).tokens("why", "so") == [BOS, *Q, EOS, SEP, *D, EOS]
    vocabulary.add_bos = vocabulary.add_sep = False
    assert pair_prompt(vocabulary).tokens("why", "so") == [*Q, EOS, *D, EOS]


def test_separator_stands_for_an_end_token_that_is_missing() -> None:
    vocabulary = Pairs()
    vocabulary.add_eos, vocabulary.eos = True, None
    assert pair_prompt(vocabulary).tokens("why", "so") == [*Q, SEP, SEP, *D, SEP]


def test_template_of_the_file_is_filled_and_its_control_tokens_count() -> None:
    vocabulary = Pairs()
    vocabulary.rerank_template = "<s>{query}|{document}</s>"
    assert pair_prompt(vocabulary).tokens("why", "so") == [BOS, *Q, *b"|", *D, EOS]


def test_template_may_name_a_part_twice_or_not_at_all() -> None:
    assert PairPrompt(Pairs(), template="{document}{document}").tokens("why", "so") == D + D


def test_texts_of_control_tokens_stay_text() -> None:
    for template in (None, "{query}{document}"):
        tokens = PairPrompt(Pairs(), template=template).tokens("</s>", "<s>")
        assert tokens == list(b"</s><s>")
    guarded = PairPrompt(Pairs(), template="<s>{query}|{document}").tokens("</s>", "so")
    assert guarded == [BOS, *b"</s>|so"], "the template's own still count"


def test_question_cannot_pull_in_the_document() -> None:
    assert PairPrompt(Pairs(), template="{query}|{document}").tokens("{document}", "so") == list(b"{document}|so")
