"""A question and a document as one prompt, as a reranker was trained to read them.

Must not know scores or requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from worker.engine.vocabulary import Vocabulary

_PLACES = re.compile(r"\{(query|document)\}")


@dataclass(frozen=True, slots=True)
class PairPrompt:
    """How prompts are built: by the file's own template, else `BOS question EOS SEP document EOS`.

    Without a template each of the special tokens is there only if the vocabulary adds it to texts.
    Source: the models' own tokenizers for pairs of texts, and llama-server, whose scores are the same.
    """

    vocabulary: Vocabulary
    template: str | None = None
    begin: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    end: tuple[int, ...] = ()

    def tokens(self, query: str, document: str) -> list[int]:
        """Return the prompt. Texts of control tokens in the question or the document stay plain text."""
        if self.template is None:
            return [*self.begin, *self._plain(query), *self.between, *self._plain(document), *self.end]
        texts = {"query": query, "document": document}
        if not any(control in text for control in self.vocabulary.control_texts for text in texts.values()):
            # In one piece, as the model was trained: words at the seams are cut otherwise.
            whole = _PLACES.sub(lambda found: texts[found[1]], self.template)
            return self.vocabulary.tokenize(whole, add_special=False, parse_special=True)
        tokens: list[int] = []
        for text, is_trusted in _parts(self.template, texts):
            tokens += self.vocabulary.tokenize(text, add_special=False, parse_special=is_trusted)
        return tokens

    def _plain(self, text: str) -> list[int]:
        return self.vocabulary.tokenize(text, add_special=False, parse_special=False)


def _parts(template: str, texts: dict[str, str]) -> Iterable[tuple[str, bool]]:
    """Yield the pieces of the filled template and whether they are the template's own."""
    found = list(_PLACES.finditer(template))
    edges = [0, *(edge for match in found for edge in match.span()), len(template)]
    for number, (start, end) in enumerate(pairwise(edges)):
        is_own = number % 2 == 0
        text = template[start:end] if is_own else texts[found[number // 2][1]]
        if text:
            yield text, is_own


class PairVocabulary(Vocabulary, Protocol):
    """A tokenizer that knows how texts are put together."""

    eos: int | None
    sep: int | None
    """The separator between two texts."""
    add_eos: bool
    add_sep: bool

    @property
    def rerank_template(self) -> str | None:
        """The file's prompt for a question and a document, with `{query}` and `{document}` in it."""
        ...


def pair_prompt(vocabulary: PairVocabulary) -> PairPrompt:
    """Return how this model reads a question and a document."""
    end = _if(vocabulary.add_eos, vocabulary.eos if vocabulary.eos is not None else vocabulary.sep)
    return PairPrompt(
        vocabulary,
        template=vocabulary.rerank_template,
        begin=_if(vocabulary.add_bos, vocabulary.bos),
        between=end + _if(vocabulary.add_sep, vocabulary.sep),
        end=end,
    )


def _if(is_added: bool, token: int | None) -> tuple[int, ...]:
    return (token,) if is_added and token is not None else ()
