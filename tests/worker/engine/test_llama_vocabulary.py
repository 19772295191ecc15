"""Text to tokens and back on the real library, and what the file says of its special tokens, chat and sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_gguf import CONTROL_TEXTS, FIM_TEXTS, IM_END, IM_START, THINK, UNK, write_tiny_llama
from worker.contract import EngineOptions
from worker.engine.llama import LlamaBackend
from worker.engine.llama_vocabulary import LlamaVocabulary
from worker.engine.vocabulary import FimTokens

TEXTS = ["hello world", "tell the story", "über 日本 🙂 🦙", "a\nb\tc", "x" * 300, "<|im_start|>", "é" * 20]


def words_of(path: Path) -> LlamaVocabulary:
    """Return the tokenizer of a model that stays loaded until the end of the tests."""
    return LlamaBackend.load(str(path), EngineOptions(context=32, slots=1)).vocabulary


@pytest.mark.parametrize("vocab", ["spm", "bpe"])
@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back_from_its_tokens(tmp_path: Path, vocab: Any, text: str) -> None:
    words = words_of(write_tiny_llama(tmp_path / "tiny.gguf", vocab=vocab).path)
    tokens = words.tokenize(text, add_special=False, parse_special=False)
    raw = b"".join(words.piece(token) for token in tokens)
    assert raw.decode().removeprefix(" ") == text  # SentencePiece begins every text with a space
    assert not set(tokens) & words.eog


@pytest.mark.parametrize("vocab", ["spm", "bpe"])
def test_control_tokens_are_read_only_where_they_are_asked_for(tmp_path: Path, vocab: Any) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", vocab=vocab)
    words = words_of(model.path)
    start, end = model.control[IM_START], model.control[IM_END]
    tokens = words.tokenize(f"{IM_START}{IM_END}", add_special=False, parse_special=True)
    assert [token for token in tokens if token in (start, end)] == [start, end]
    plain = words.tokenize(f"{IM_START}{IM_END}", add_special=False, parse_special=False)
    assert not {start, end} & set(plain)
    assert (words.piece(end), words.piece(end, special=True)) == (b"", IM_END.encode())


def test_vocabulary_tells_its_special_tokens(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf")
    words = words_of(model.path)
    assert set(words.control_texts) == {*CONTROL_TEXTS, UNK}, "llama.cpp reads the unknown token like a control token"
    lengths = [len(text) for text in words.control_texts]
    assert lengths == sorted(lengths, reverse=True)
    assert THINK not in words.control_texts
    assert words.eog == model.end_tokens
    assert (words.bos, words.eos, words.bos_text, words.eos_text) == (model.bos, model.eos, "<s>", "</s>")
    assert (words.add_bos, words.num_vocab) == (True, model.num_vocab)
    assert words.tokenize("hello", add_special=True, parse_special=False)[0] == model.bos


@pytest.mark.parametrize("vocab", ["spm", "bpe"])
def test_tokens_for_filling_in_the_middle_are_found_by_their_usual_texts(tmp_path: Path, vocab: Any) -> None:
    plain = words_of(write_tiny_llama(tmp_path / "plain.gguf", vocab=vocab).path)
    assert plain.fim == FimTokens()
    words = words_of(write_tiny_llama(tmp_path / "tiny.gguf", vocab=vocab, has_fim=True).path)
    found = (words.fim.prefix, words.fim.suffix, words.fim.middle, words.fim.repository, words.fim.file)
    assert [words.piece(token, special=True).decode() for token in found if token is not None] == list(FIM_TEXTS)
    assert not set(found) & set(words.tokenize("".join(FIM_TEXTS), add_special=False, parse_special=False))


def test_template_and_sampling_of_the_file_are_told(tmp_path: Path) -> None:
    sampling = {"temp": 0.25, "top_k": 7, "top_p": 0.5, "min_p": 0.125, "penalty_repeat": 1.5, "penalty_last_n": 9}
    sampling |= {"xtc_probability": 0.5, "xtc_threshold": 0.25, "mirostat": 2}
    sampling |= {"mirostat_tau": 4.0, "mirostat_eta": 0.5}
    path = write_tiny_llama(tmp_path / "t.gguf", chat_template="{{ x }}é", sampling=sampling).path
    words = words_of(path)
    assert words.chat_template == "{{ x }}é"
    assert words.sampling_defaults == {
        "temperature": 0.25,
        "top_k": 7,
        "top_p": 0.5,
        "min_p": 0.125,
        "repeat_penalty": 1.5,
        "repeat_last_n": 9,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.25,
        "mirostat": 2,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.5,
    }
    plain = words_of(write_tiny_llama(tmp_path / "plain.gguf", add_bos=False).path)
    assert (plain.chat_template, plain.sampling_defaults, plain.add_bos) == (None, {}, False)
