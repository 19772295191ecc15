"""Tiny random-weight GGUF files that the real llama.cpp loads in milliseconds.

Owns the vocabulary and the shapes of these models. Must not load them: the tests that use a file do.

The weights are random, so the text is nonsense, but everything else is as in a real file: every byte can be
tokenised, control tokens have the control type, the logits depend on the whole history, and the same arguments
give the same bytes. The output rows of control tokens are zero while all others spread widely: a greedy answer
never ends by itself, and a test that wants an end raises an end token with a logit bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gguf
import numpy as np
from gguf.constants import TokenType

Vocab = Literal["spm", "bpe"]

BOS, EOS, UNK = "<s>", "</s>", "<unk>"
IM_START, IM_END = "<|im_start|>", "<|im_end|>"
THINK, THINK_END = "<think>", "</think>"

CONTROL_TEXTS = (BOS, EOS, IM_START, IM_END)
"""Tokens of the control type: `parse_special` alone turns these texts into one token."""
FIM_TEXTS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
"""Tokens for filling in the middle, of the control type; llama.cpp knows them by these texts."""
USER_DEFINED_TEXTS = (THINK, THINK_END)
"""Tokens that llama.cpp always finds in a text, special parsing or not."""

WORDS = ("the", "hello", "world", "tell", "story", "red", "marker", "user", "assistant", "system", "über")
"""Each is one token with a space before it."""
MULTI_BYTE_PIECES = ("é", "ü", "日", "本", "🙂")
"""Characters of several bytes that are one token; all others fall apart into bytes."""


@dataclass(frozen=True, slots=True)
class TinyModel:
    """What a written file holds."""

    path: Path
    architecture: str
    num_vocab: int
    num_layers: int
    trained_context: int
    sliding_window: int
    """0 = full attention in every layer."""
    bos: int
    eos: int
    control: Mapping[str, int]
    """Text to id of every control token, `bos` and `eos` included."""
    user_defined: Mapping[str, int]
    end_tokens: frozenset[int]
    """Ids that end a generation."""


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]
    scores: tuple[float, ...]
    merges: tuple[str, ...]

    def ids(self, type_: TokenType) -> dict[str, int]:
        return {text: id_ for id_, (text, t) in enumerate(zip(self.tokens, self.types, strict=True)) if t == type_}


def write_tiny_llama(
    path: Path | str,
    *,
    vocab: Vocab = "spm",
    num_layers: int = 2,
    embedding: int = 32,
    heads: int = 4,
    kv_heads: int = 2,
    trained_context: int = 512,
    seed: int = 0,
    chat_template: str | None = None,
    sampling: Mapping[str, float | int] | None = None,
    add_bos: bool = True,
    name: str = "tiny llama",
    pooling: gguf.PoolingType | None = None,
    has_fim: bool = False,
) -> TinyModel:
    """Write a model of the `llama` architecture to `path`.

    `sampling` holds `general.sampling.*` keys without that prefix, such as `temp` or `top_k`. KV caches of type
    q8_0 need `embedding / heads` to be a multiple of 32.
    """
    pieces = _with_fim(_VOCABULARIES[vocab]()) if has_fim else _VOCABULARIES[vocab]()
    writer = _begin(
        path,
        "llama",
        name=name,
        num_layers=num_layers,
        embedding=embedding,
        heads=heads,
        kv_heads=kv_heads,
        trained_context=trained_context,
    )
    _add_vocabulary(writer, vocab, pieces, add_bos)
    _add_extras(writer, chat_template, sampling)
    head_size = embedding // heads
    writer.add_rope_dimension_count(head_size)
    if pooling is not None:
        writer.add_pooling_type(pooling)

    weights = _Weights(writer, seed)
    weights.add_vocab_rows("token_embd", len(pieces.tokens), embedding)
    weights.add_output("output", pieces, embedding)
    weights.add_norm("output_norm", embedding)
    for layer in range(num_layers):
        weights.add_norm(f"blk.{layer}.attn_norm", embedding)
        weights.add_norm(f"blk.{layer}.ffn_norm", embedding)
        weights.add_attention(layer, embedding, heads, kv_heads, head_size)
        weights.add_feed_forward(layer, embedding)
    _finish(writer)
    return _facts(path, "llama", pieces, num_layers=num_layers, trained_context=trained_context, sliding_window=0)


def write_tiny_gemma(
    path: Path | str,
    *,
    num_layers: int = 4,
    embedding: int = 32,
    heads: int = 4,
    kv_heads: int = 2,
    sliding_window: int = 16,
    trained_context: int = 512,
    seed: int = 0,
    chat_template: str | None = None,
    sampling: Mapping[str, float | int] | None = None,
    add_bos: bool = True,
    name: str = "tiny gemma",
) -> TinyModel:
    """Write a model of the `gemma3` architecture to `path`: every second layer sees `sliding_window` tokens."""
    pieces = _spm()
    writer = _begin(
        path,
        "gemma3",
        name=name,
        num_layers=num_layers,
        embedding=embedding,
        heads=heads,
        kv_heads=kv_heads,
        trained_context=trained_context,
    )
    _add_vocabulary(writer, "spm", pieces, add_bos)
    _add_extras(writer, chat_template, sampling)
    head_size = embedding // heads
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_sliding_window(sliding_window)
    writer.add_sliding_window_pattern(2)

    weights = _Weights(writer, seed)
    weights.add_vocab_rows("token_embd", len(pieces.tokens), embedding)
    weights.add_output("output", pieces, embedding)
    weights.add_norm("output_norm", embedding)
    for layer in range(num_layers):
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            weights.add_norm(f"blk.{layer}.{norm}", embedding)
        weights.add_norm(f"blk.{layer}.attn_q_norm", head_size)
        weights.add_norm(f"blk.{layer}.attn_k_norm", head_size)
        weights.add_attention(layer, embedding, heads, kv_heads, head_size)
        weights.add_feed_forward(layer, embedding)
    _finish(writer)
    return _facts(
        path,
        "gemma3",
        pieces,
        num_layers=num_layers,
        trained_context=trained_context,
        sliding_window=sliding_window,
    )


def write_truncated(path: Path | str, *, keep: float = 0.6) -> None:
    """Write the first `keep` of a good file: 0.6 cuts inside the weights, 0.01 inside the header."""
    path = Path(path)
    write_tiny_llama(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])


def write_not_gguf(path: Path | str) -> None:
    """Write what a failed download often leaves behind under a `.gguf` name: a web page."""
    Path(path).write_text("<!DOCTYPE html>\n<html><body>404: no such model</body></html>\n" * 20)


# --- vocabularies -----------------------------------------------------------------------------------------


def _spm() -> _Vocabulary:
    """Return a SentencePiece vocabulary with byte fallback."""
    special = [
        (UNK, TokenType.UNKNOWN),
        *((text, TokenType.CONTROL) for text in CONTROL_TEXTS),
        *((text, TokenType.USER_DEFINED) for text in USER_DEFINED_TEXTS),
        *((f"<0x{byte:02X}>", TokenType.BYTE) for byte in range(256)),
    ]
    # A word is reached by joining neighbours, so each of its beginnings is a piece as well.
    grown = [f"▁{word}"[:end] for word in WORDS for end in range(2, len(word) + 2)]
    letters = [chr(code) for code in range(0x21, 0x7F)]
    pieces = list(dict.fromkeys(["▁", *grown, *letters, *MULTI_BYTE_PIECES]))
    return _Vocabulary(
        tokens=(*(text for text, _ in special), *pieces),
        types=(*(type_ for _, type_ in special), *(TokenType.NORMAL for _ in pieces)),
        scores=(*(0.0 for _ in special), *(-float(rank) for rank, _ in enumerate(pieces))),
        merges=(),
    )


def _bpe() -> _Vocabulary:
    """Return a byte-level BPE vocabulary in GPT-2's alphabet."""
    alphabet = _byte_alphabet()
    merges: dict[str, str] = {}  # the joined piece -> how it is joined
    for text in (*(f" {word}" for word in WORDS), *MULTI_BYTE_PIECES):
        spelled = [alphabet[byte] for byte in text.encode()]
        for end in range(2, len(spelled) + 1):
            merges.setdefault("".join(spelled[:end]), f"{''.join(spelled[: end - 1])} {spelled[end - 1]}")
    special = [
        (UNK, TokenType.UNKNOWN),
        *((text, TokenType.CONTROL) for text in CONTROL_TEXTS),
        *((text, TokenType.USER_DEFINED) for text in USER_DEFINED_TEXTS),
    ]
    pieces = [*alphabet, *merges]
    return _Vocabulary(
        tokens=(*(text for text, _ in special), *pieces),
        types=(*(type_ for _, type_ in special), *(TokenType.NORMAL for _ in pieces)),
        scores=(),
        merges=tuple(merges.values()),
    )


def _with_fim(plain: _Vocabulary) -> _Vocabulary:
    num = len(FIM_TEXTS)
    return _Vocabulary(
        (*plain.tokens, *FIM_TEXTS),
        (*plain.types, *[TokenType.CONTROL] * num),
        (*plain.scores, *[0.0] * num) if plain.scores else (),
        plain.merges,
    )


def _byte_alphabet() -> list[str]:
    """Return the 256 characters that stand for the bytes in a byte-level vocabulary.

    Source: GPT-2's tokenizer, where printable bytes stand for themselves and the others follow from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


_VOCABULARIES = {"spm": _spm, "bpe": _bpe}


# --- the file ---------------------------------------------------------------------------------------------


def _begin(
    path: Path | str,
    architecture: str,
    *,
    name: str,
    num_layers: int,
    embedding: int,
    heads: int,
    kv_heads: int,
    trained_context: int,
) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(trained_context)
    writer.add_embedding_length(embedding)
    writer.add_block_count(num_layers)
    writer.add_feed_forward_length(2 * embedding)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    return writer


def _add_vocabulary(writer: gguf.GGUFWriter, vocab: Vocab, pieces: _Vocabulary, add_bos: bool) -> None:
    writer.add_tokenizer_model("llama" if vocab == "spm" else "gpt2")
    writer.add_token_list(pieces.tokens)
    writer.add_token_types(pieces.types)
    if vocab == "spm":
        writer.add_token_scores(pieces.scores)
    else:
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(pieces.merges)
    writer.add_bos_token_id(pieces.tokens.index(BOS))
    writer.add_eos_token_id(pieces.tokens.index(EOS))
    writer.add_unk_token_id(pieces.tokens.index(UNK))
    writer.add_add_bos_token(add_bos)
    writer.add_add_eos_token(False)


def _add_extras(writer: gguf.GGUFWriter, chat_template: str | None, sampling: Mapping[str, float | int] | None) -> None:
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    for key, value in (sampling or {}).items():
        if isinstance(value, int):
            writer.add_int32(f"general.sampling.{key}", value)
        else:
            writer.add_float32(f"general.sampling.{key}", value)


class _Weights:
    """Adds random tensors to a file, always in the same order and from one seed."""

    def __init__(self, writer: gguf.GGUFWriter, seed: int) -> None:
        self._writer = writer
        # The legacy generator: its stream is frozen over all NumPy releases.
        self._random = np.random.RandomState(seed)

    def add_norm(self, name: str, size: int) -> None:
        self._add(name, 1.0 + 0.1 * self._random.standard_normal(size))

    def add_vocab_rows(self, name: str, num_vocab: int, embedding: int) -> None:
        self._add(name, self._random.standard_normal((num_vocab, embedding)))

    def add_output(self, name: str, pieces: _Vocabulary, embedding: int) -> None:
        rows = self._random.standard_normal((len(pieces.tokens), embedding))
        is_spoken = [type_ not in (TokenType.CONTROL, TokenType.UNKNOWN) for type_ in pieces.types]
        self._add(name, rows * np.asarray(is_spoken)[:, None])

    def add_attention(self, layer: int, embedding: int, heads: int, kv_heads: int, head_size: int) -> None:
        self._add_matrix(f"blk.{layer}.attn_q", heads * head_size, embedding)
        self._add_matrix(f"blk.{layer}.attn_k", kv_heads * head_size, embedding)
        self._add_matrix(f"blk.{layer}.attn_v", kv_heads * head_size, embedding)
        self._add_matrix(f"blk.{layer}.attn_output", embedding, heads * head_size)

    def add_feed_forward(self, layer: int, embedding: int) -> None:
        self._add_matrix(f"blk.{layer}.ffn_gate", 2 * embedding, embedding)
        self._add_matrix(f"blk.{layer}.ffn_up", 2 * embedding, embedding)
        self._add_matrix(f"blk.{layer}.ffn_down", embedding, 2 * embedding)

    def _add_matrix(self, name: str, rows: int, columns: int) -> None:
        # Twice the neutral scale: attention then weighs as much as the current token.
        self._add(name, 2.0 * self._random.standard_normal((rows, columns)) / np.sqrt(columns))

    def _add(self, name: str, tensor: np.ndarray) -> None:
        self._writer.add_tensor(f"{name}.weight", np.ascontiguousarray(tensor, dtype=np.float32))


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _facts(
    path: Path | str,
    architecture: str,
    pieces: _Vocabulary,
    *,
    num_layers: int,
    trained_context: int,
    sliding_window: int,
) -> TinyModel:
    control = pieces.ids(TokenType.CONTROL)
    return TinyModel(
        path=Path(path),
        architecture=architecture,
        num_vocab=len(pieces.tokens),
        num_layers=num_layers,
        trained_context=trained_context,
        sliding_window=sliding_window,
        bos=control[BOS],
        eos=control[EOS],
        control=control,
        user_defined=pieces.ids(TokenType.USER_DEFINED),
        end_tokens=frozenset({control[EOS], control[IM_END]}),
    )
