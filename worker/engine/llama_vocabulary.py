"""Text to tokens and back, and what the file says about chat and sampling. Thread-safe, as the C calls are.

One of the `llama*` modules that may import llama_cpp. Must not touch a context.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from llama_cpp import llama_cpp as lib

from worker.engine.vocabulary import FimTokens

_SAMPLING_KEYS: Mapping[str, tuple[str, type]] = {
    "general.sampling.temp": ("temperature", float),
    "general.sampling.top_k": ("top_k", int),
    "general.sampling.top_p": ("top_p", float),
    "general.sampling.min_p": ("min_p", float),
    "general.sampling.penalty_last_n": ("repeat_last_n", int),
    "general.sampling.penalty_repeat": ("repeat_penalty", float),
    "general.sampling.xtc_probability": ("xtc_probability", float),
    "general.sampling.xtc_threshold": ("xtc_threshold", float),
    "general.sampling.mirostat": ("mirostat", int),
    "general.sampling.mirostat_tau": ("mirostat_tau", float),
    "general.sampling.mirostat_eta": ("mirostat_eta", float),
}

_NAMED_ENDS = (
    lib.llama_vocab_eos,
    lib.llama_vocab_eot,
    lib.llama_vocab_fim_pad,
    lib.llama_vocab_fim_rep,
    lib.llama_vocab_fim_sep,
)
"""Source: llama-vocab.cpp, special_eog_ids."""


MAX_TEXT_BYTES = 2**30
"""Lengths are 32-bit numbers, and some tokenizers make more tokens than there are bytes."""


class LlamaVocabulary:
    """The tokenizer of a loaded model. The model must outlive it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._vocab = lib.llama_model_get_vocab(model)
        self.num_vocab: int = lib.llama_vocab_n_tokens(self._vocab)
        self.add_bos: bool = lib.llama_vocab_get_add_bos(self._vocab)
        self.add_eos: bool = lib.llama_vocab_get_add_eos(self._vocab)
        self.bos: int | None = _token(lib.llama_vocab_bos(self._vocab))
        self.eos: int | None = _token(lib.llama_vocab_eos(self._vocab))
        self.sep: int | None = _token(lib.llama_vocab_sep(self._vocab))
        self.add_sep: bool = lib.llama_vocab_get_add_sep(self._vocab)
        self._pieces: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})

    @property
    def native(self) -> Any:
        """llama.cpp's own vocabulary."""
        return self._vocab

    @property
    def bos_text(self) -> str:
        """What the file calls its begin token; empty if it has none."""
        return self._text(self.bos)

    @property
    def eos_text(self) -> str:
        """What the file calls its end token; empty if it has none."""
        return self._text(self.eos)

    @cached_property
    def fim(self) -> FimTokens:
        """The file's tokens for filling in the middle; llama.cpp also finds those that go by a usual name."""
        vocab = self._vocab
        return FimTokens(
            prefix=_token(lib.llama_vocab_fim_pre(vocab)),
            suffix=_token(lib.llama_vocab_fim_suf(vocab)),
            middle=_token(lib.llama_vocab_fim_mid(vocab)),
            repository=_token(lib.llama_vocab_fim_rep(vocab)),
            file=_token(lib.llama_vocab_fim_sep(vocab)),
        )

    @cached_property
    def eog(self) -> frozenset[int]:
        """Tokens that end an answer. Takes up to 0.1 s once: not for the event loop."""
        vocab = self._vocab
        # llama.cpp gives all of them the attribute of control tokens, but for those that the file names by a key.
        named = [_token(name(vocab)) for name in _NAMED_ENDS] + [self._token_of("tokenizer.ggml.eom_token_id")]
        candidates = {*self._control, *(token for token in named if token is not None)}
        return frozenset(token for token in candidates if lib.llama_vocab_is_eog(vocab, token))

    @cached_property
    def control_texts(self) -> tuple[str, ...]:
        """Texts of all control and unknown tokens, longest first. Takes up to 0.1 s once: not for the event loop."""
        texts = {text for token in self._control if (text := self._text(token))}
        return tuple(sorted(texts, key=lambda text: (-len(text), text)))

    @cached_property
    def control_tokens(self) -> frozenset[int]:
        """All control and unknown tokens. Takes up to 0.1 s once: not for the event loop."""
        return frozenset(self._control)

    def marker(self, text: str) -> int | None:
        """Return the special token that `text` is the text of; None if there is none."""
        tokens = self.tokenize(text, add_special=False, parse_special=True)
        if len(tokens) != 1 or self.piece(tokens[0], special=True) != text.encode():
            return None
        special = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_USER_DEFINED
        return tokens[0] if lib.llama_vocab_get_attr(self._vocab, tokens[0]) & special else None

    @property
    def _control(self) -> list[int]:
        """Control and unknown tokens: llama.cpp matches the texts of both alike."""
        return self._kinds[0]

    @property
    def lacks_bytes(self) -> bool:
        """Whether some text would end the process: a SentencePiece vocabulary must have a token for every byte.

        Takes up to 0.1 s once: not for the event loop. Source: llama-vocab.cpp, byte_to_token.
        """
        if lib.llama_vocab_type(self._vocab) != lib.LLAMA_VOCAB_TYPE_SPM:
            return False
        wanted = {f"<0x{byte:02X}>".encode(): bytes([byte]) for byte in range(256)}
        if wanted.keys() <= {lib.llama_vocab_get_text(self._vocab, token) for token in self._kinds[1]}:
            return False
        texts = {lib.llama_vocab_get_text(self._vocab, token) for token in range(self.num_vocab)}
        return not all(spelled in texts or alone in texts for spelled, alone in wanted.items())

    @cached_property
    def _kinds(self) -> tuple[list[int], list[int]]:
        """Control and unknown tokens, and those of single bytes."""
        # One look at each token of the vocabulary. Through a handle that keeps the interpreter's lock: giving it away
        # and fetching it again 262,144 times, beside a thread that imports modules, would take seconds.
        attributes_of = ctypes.PyDLL(lib._lib._name)["llama_vocab_get_attr"]
        vocab = ctypes.c_void_p(self._vocab)
        control, single = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN, lib.LLAMA_TOKEN_ATTR_BYTE
        found: tuple[list[int], list[int]] = [], []
        for token in range(self.num_vocab):
            if (attributes := attributes_of(vocab, token)) & (control | single):
                found[not attributes & control].append(token)
        return found

    @cached_property
    def chat_template(self) -> str | None:
        """Source of the file's chat template."""
        source = lib.llama_model_chat_template(self._model, None)
        return source.decode("utf-8", "replace") if source else None

    @cached_property
    def rerank_template(self) -> str | None:
        """The file's prompt for a question and a document, with `{query}` and `{document}` in it."""
        source = lib.llama_model_chat_template(self._model, b"rerank")
        return source.decode("utf-8", "replace") if source else None

    @cached_property
    def sampling_defaults(self) -> dict[str, float | int]:
        """Sampling parameters that the file recommends, by field name of SamplingParams; odd values are left out."""
        defaults: dict[str, float | int] = {}
        for key, (field, kind) in _SAMPLING_KEYS.items():
            value = self._metadata(key)
            if value is not None:
                try:
                    defaults[field] = kind(float(value))
                except (ValueError, OverflowError):
                    continue
        return defaults

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return token ids. With `parse_special` the texts of control tokens become those tokens.

        Raises: ValueError for a text whose length llama.cpp could not take.
        """
        raw = text.encode("utf-8", "replace")
        if len(raw) > MAX_TEXT_BYTES:
            raise ValueError(f"a text of {len(raw)} bytes, at most {MAX_TEXT_BYTES} can be read")
        capacity = len(raw) + 8
        buffer = (lib.llama_token * capacity)()
        count = lib.llama_tokenize(self._vocab, raw, len(raw), buffer, capacity, add_special, parse_special)
        if count < 0:  # some tokenizers make more tokens than bytes; they say how many
            buffer = (lib.llama_token * -count)()
            count = lib.llama_tokenize(self._vocab, raw, len(raw), buffer, -count, add_special, parse_special)
        return list(buffer[: max(count, 0)])

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of the token; none for a control token unless `special`.

        Raises: ValueError for an id that would end the process. Source: llama-vocab.cpp, token_get_attr.
        """
        pieces = self._pieces[special]
        piece = pieces.get(token)
        if piece is None:
            piece = pieces[token] = self._read_piece(token, special)
        return piece

    def pieces(self) -> list[bytes]:
        """Return the bytes of all tokens, those of control tokens included. Nothing of it is kept."""
        read = ctypes.PyDLL(lib._lib._name)["llama_token_to_piece"]  # as for `_control`
        vocab, buffer = ctypes.c_void_p(self._vocab), ctypes.create_string_buffer(1024)
        pieces = []
        for token in range(self.num_vocab):
            length = read(vocab, token, buffer, len(buffer), 0, ctypes.c_bool(True))
            pieces.append(ctypes.string_at(buffer, length) if length >= 0 else self._read_piece(token, True))
        return pieces

    def _read_piece(self, token: int, special: bool) -> bytes:
        if not 0 <= token < self.num_vocab:
            raise ValueError(f"token id {token} is outside 0..{self.num_vocab - 1}")
        buffer = ctypes.create_string_buffer(64)
        length = lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        if length < 0:
            buffer = ctypes.create_string_buffer(-length)
            length = lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        return buffer.raw[: max(length, 0)]

    def _text(self, token: int | None) -> str:
        if token is None:
            return ""
        text = lib.llama_vocab_get_text(self._vocab, token)
        return text.decode("utf-8", "replace") if text else ""

    def _token_of(self, key: str) -> int | None:
        """Return the token that a key of the file names."""
        value = self._metadata(key)
        return int(value) if value is not None and value.isdecimal() and int(value) < self.num_vocab else None

    def _metadata(self, key: str) -> str | None:
        buffer = ctypes.create_string_buffer(256)
        length = lib.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if length >= 0 else None


def _token(token: int) -> int | None:
    """Return None for llama.cpp's "no such token". Source: llama.h, LLAMA_TOKEN_NULL."""
    return token if token >= 0 else None
