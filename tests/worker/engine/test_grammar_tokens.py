"""The usual tokens of a text on real vocabularies: of that alone, whatever a tokenizer puts in front of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from llguidance import LLMatcher

from tests.support.vocabularies import vocabulary_of
from worker.engine.grammar import Grammars, _Tokens
from worker.engine.llama_vocabulary import LlamaVocabulary

TEXTS = ["{", '{"a": ', " x", "  two", "é€", '"', "\n\n", "Hello world", "a\x02b"]


@pytest.mark.parametrize("kind", ["spm", "bpe"])
def test_tokens_of_a_text_are_its_bytes_and_no_more(kind: str, tmp_path: Path) -> None:
    with vocabulary_of(kind, tmp_path) as model:
        vocabulary = LlamaVocabulary(model)
        tokens = _Tokens(vocabulary, vocabulary.control_tokens)
        for text in TEXTS:
            for given in (text, text.encode()):
                written = b"".join(vocabulary.piece(token, special=True) for token in tokens(given))
                assert text.encode().startswith(written)
                assert written == text.encode() or not all(bytes([byte]) in tokens._by_piece for byte in text.encode())


@pytest.mark.parametrize("kind", ["spm", "bpe"])
def test_an_answer_of_certain_texts_is_followed_to_its_end(kind: str, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    with vocabulary_of(kind, tmp_path) as model:
        vocabulary = LlamaVocabulary(model)
        grammars = Grammars(vocabulary, vocabulary.control_tokens)
        text = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})
        matcher = grammars.compile(text).start()
        answer = b""
        while not matcher.is_over:
            forced = matcher.forced(8)
            allowed = matcher.allowed(())[0]
            assert not isinstance(allowed, int)
            assert allowed is not None
            token = forced[0] if forced else int(allowed.nonzero()[0][0])
            assert allowed[token], "what is forced may come"
            matcher.accept(token)
            answer += vocabulary.piece(token, special=True)
        assert json.loads(answer) == {"a": 1}
