"""The tiny models behave in the real llama.cpp as real models do."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import pytest

from tests.support.tiny_gguf import (
    IM_END,
    IM_START,
    MULTI_BYTE_PIECES,
    THINK,
    WORDS,
    TinyModel,
    write_not_gguf,
    write_tiny_gemma,
    write_tiny_llama,
    write_truncated,
)

WRITERS: dict[str, Callable[[Path], TinyModel]] = {
    "spm": lambda path: write_tiny_llama(path, vocab="spm"),
    "bpe": lambda path: write_tiny_llama(path, vocab="bpe"),
    "gemma": write_tiny_gemma,
}
NASTY = "".join(map(chr, range(128))) + " über 日本 🙂 🦙 <|im_start|>"

_SILENT = lib.llama_log_callback(lambda *_: None)


@pytest.fixture(autouse=True, scope="module")
def _quiet_library() -> None:
    lib.llama_backend_init()
    lib.llama_log_set(_SILENT, None)


@contextmanager
def loaded(path: Path) -> Iterator[Any]:
    model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    assert model, f"llama.cpp did not load {path}"
    try:
        yield model
    finally:
        lib.llama_model_free(model)


@pytest.fixture(params=sorted(WRITERS))
def facts(request: pytest.FixtureRequest, tmp_path: Path) -> TinyModel:
    return WRITERS[request.param](tmp_path / "tiny.gguf")


def tokenize(model: Any, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
    raw = text.encode()
    buffer = (lib.llama_token * (len(raw) + 8))()
    vocab = lib.llama_model_get_vocab(model)
    count = lib.llama_tokenize(vocab, raw, len(raw), buffer, len(buffer), add_bos, special)
    assert count >= 0
    return list(buffer[:count])


def piece(model: Any, token: int) -> bytes:
    buffer = ctypes.create_string_buffer(64)
    length = lib.llama_token_to_piece(lib.llama_model_get_vocab(model), token, buffer, len(buffer), 0, True)
    return buffer.raw[:length]


def last_logits(model: Any, tokens: Sequence[int]) -> np.ndarray:
    """Return the logits after `tokens`, fed one forward pass each."""
    params = lib.llama_context_default_params()
    params.n_ctx = 128
    params.n_threads = params.n_threads_batch = 1
    context = lib.llama_init_from_model(model, params)
    batch = lib.llama_batch_init(1, 0, 1)
    num_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    try:
        for position, token in enumerate(tokens):
            batch.n_tokens = 1
            batch.token[0], batch.pos[0], batch.logits[0] = token, position, 1
            batch.n_seq_id[0], batch.seq_id[0][0] = 1, 0
            assert lib.llama_decode(context, batch) == 0
        return np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (num_vocab,)).copy()
    finally:
        lib.llama_batch_free(batch)
        lib.llama_free(context)


def test_facts_are_what_llama_cpp_reads(facts: TinyModel) -> None:
    with loaded(facts.path) as model:
        vocab = lib.llama_model_get_vocab(model)
        ids = range(lib.llama_vocab_n_tokens(vocab))
        assert len(ids) == facts.num_vocab
        assert lib.llama_model_n_layer(model) == facts.num_layers
        assert lib.llama_model_n_ctx_train(model) == facts.trained_context
        assert lib.llama_model_n_swa(model) == facts.sliding_window
        assert (lib.llama_vocab_bos(vocab), lib.llama_vocab_eos(vocab)) == (facts.bos, facts.eos)
        assert {i for i in ids if lib.llama_vocab_is_control(vocab, i)} == set(facts.control.values())
        assert {i for i in ids if lib.llama_vocab_is_eog(vocab, i)} == facts.end_tokens


def test_every_byte_survives_tokenising(facts: TinyModel) -> None:
    with loaded(facts.path) as model:
        assert b"".join(piece(model, token) for token in tokenize(model, NASTY)).lstrip(b" ") == NASTY.encode()


def test_control_texts_become_tokens_only_when_asked(facts: TinyModel) -> None:
    text = f"{IM_START}x{IM_END}"
    with loaded(facts.path) as model:
        wanted = {facts.control[IM_START], facts.control[IM_END]}
        assert wanted < set(tokenize(model, text, special=True))
        assert not wanted & set(tokenize(model, text))
        assert facts.user_defined[THINK] in tokenize(model, THINK)


def test_words_and_some_characters_are_single_tokens(facts: TinyModel) -> None:
    with loaded(facts.path) as model:
        for text in (*(f" {word}" for word in WORDS), *MULTI_BYTE_PIECES):
            pieces = [piece(model, token) for token in tokenize(model, f"!{text}")]
            assert pieces[-1] == text.encode(), pieces


@pytest.mark.parametrize("add_bos", [True, False])
def test_bos_is_added_as_the_file_says(tmp_path: Path, add_bos: bool) -> None:
    facts = write_tiny_llama(tmp_path / "tiny.gguf", add_bos=add_bos)
    with loaded(facts.path) as model:
        assert (tokenize(model, "hello", add_bos=True)[0] == facts.bos) is add_bos


def test_logits_are_finite_and_depend_on_the_whole_history(facts: TinyModel) -> None:
    with loaded(facts.path) as model:
        tokens = tokenize(model, "hello world tell the story", add_bos=True)
        logits = last_logits(model, tokens)
        other = last_logits(model, [tokens[0], tokens[1] + 1, *tokens[2:]])
    assert np.isfinite(logits).all()
    assert logits.std() > 1
    assert np.abs(logits - other).max() > 0.01


def test_greedy_answer_never_is_an_end_token(facts: TinyModel) -> None:
    with loaded(facts.path) as model:
        tokens = tokenize(model, "tell", add_bos=True)
        for _ in range(20):
            tokens.append(int(last_logits(model, tokens).argmax()))
    assert not set(tokens[1:]) & set(facts.control.values())


def test_same_arguments_give_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    paths = [tmp_path / f"{index}.gguf" for index in range(3)]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        write_tiny_llama(path, seed=seed)
    first, same, other = (path.read_bytes() for path in paths)
    assert first == same
    assert first != other


def test_template_and_sampling_defaults_are_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_llama(path, chat_template="{{ messages }}", sampling={"temp": 0.5, "top_k": 7})
    buffer = ctypes.create_string_buffer(64)
    with loaded(path) as model:
        assert lib.llama_model_chat_template(model, None) == b"{{ messages }}"
        assert lib.llama_model_meta_val_str(model, b"general.sampling.top_k", buffer, 64) > 0
        assert buffer.value == b"7"
        assert lib.llama_model_meta_val_str(model, b"general.sampling.temp", buffer, 64) > 0
        assert float(buffer.value) == 0.5


@pytest.mark.parametrize("keep", [0.01, 0.6, 0.99])
def test_truncated_file_is_refused(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "cut.gguf"
    write_truncated(path, keep=keep)
    assert not lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())


def test_other_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    write_not_gguf(path)
    assert not lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
