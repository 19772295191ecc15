"""Tiny random-weight encoders (BERT family) as GGUF files, and the same computation in plain NumPy.

Owns their vocabulary, shapes and weights. Must not load them: the tests that use a file do. Every ASCII text can be
tokenised, the vector of a text depends on the order of its tokens, and the same arguments give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf.constants import PoolingType, TokenType

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL = (PAD, UNK, CLS, SEP, MASK)
WORDS = ("the", "hello", "world", "tell", "story", "red", "marker", "sea", "ship", "winter")
NORM_EPSILON = 1e-12

Weights = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class TinyBert:
    """What a written file holds."""

    path: Path
    num_vocab: int
    embedding: int
    heads: int
    num_layers: int
    trained_context: int
    cls: int
    sep: int
    weights: Weights
    """By the names in the file."""


def write_tiny_bert(
    path: Path | str,
    *,
    pooling: PoolingType | None = PoolingType.MEAN,
    num_layers: int = 2,
    embedding: int = 32,
    heads: int = 4,
    trained_context: int = 64,
    num_scores: int = 1,
    seed: int = 0,
) -> TinyBert:
    """Write a model of the `bert` architecture to `path`.

    With `PoolingType.RANK` it has a head of `num_scores` outputs, which makes it a reranker; None leaves the key out.
    """
    tokens = _vocabulary()
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("tiny bert")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(trained_context)
    writer.add_embedding_length(embedding)
    writer.add_block_count(num_layers)
    writer.add_feed_forward_length(2 * embedding)
    writer.add_head_count(heads)
    writer.add_layer_norm_eps(NORM_EPSILON)
    writer.add_causal_attention(False)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    if pooling == PoolingType.RANK:
        writer.add_classifier_output_labels([f"label {index}" for index in range(num_scores)])
    add_wordpiece_vocabulary(writer, tokens)
    weights = _weights(len(tokens), embedding, num_layers, trained_context, seed)
    if pooling == PoolingType.RANK:
        random = np.random.RandomState(seed + 1)
        weights["cls.weight"] = _spread(random, embedding, embedding)
        weights["cls.bias"] = random.standard_normal(embedding).astype(np.float32)
        weights["cls.output.weight"] = _spread(random, num_scores, embedding)
        weights["cls.output.bias"] = random.standard_normal(num_scores).astype(np.float32)
    for name, tensor in weights.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return TinyBert(
        path=Path(path),
        num_vocab=len(tokens),
        embedding=embedding,
        heads=heads,
        num_layers=num_layers,
        trained_context=trained_context,
        cls=tokens.index(CLS),
        sep=tokens.index(SEP),
        weights=weights,
    )


def add_wordpiece_vocabulary(writer: gguf.GGUFWriter, tokens: Sequence[str]) -> None:
    """Add a WordPiece vocabulary as its own files spell it: continuations begin with `##`.

    In GGUF beginnings of words have a mark instead, and continuations have none.
    """
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([_spelled(token) for token in tokens])
    writer.add_token_types([TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in tokens])
    writer.add_token_type_count(2)
    writer.add_unk_token_id(tokens.index(UNK))
    writer.add_pad_token_id(tokens.index(PAD))
    writer.add_mask_token_id(tokens.index(MASK))
    writer.add_bos_token_id(tokens.index(CLS))
    writer.add_eos_token_id(tokens.index(SEP))
    writer.add_sep_token_id(tokens.index(SEP))


def _spelled(token: str) -> str:
    if token in SPECIAL:
        return token
    return token.removeprefix("##") if token.startswith("##") else f"▁{token}"


def _vocabulary() -> list[str]:
    letters = [chr(code) for code in range(0x21, 0x7F) if not chr(code).isupper()]
    return [*SPECIAL, *WORDS, *letters, *(f"##{letter}" for letter in letters)]


def _weights(
    num_vocab: int, embedding: int, num_layers: int, positions: int, seed: int
) -> dict[str, npt.NDArray[np.float32]]:
    random = np.random.RandomState(seed)  # the legacy generator: its stream is frozen over all NumPy releases

    def norm(name: str) -> dict[str, npt.NDArray[np.float32]]:
        weight = 1.0 + 0.1 * random.standard_normal(embedding)
        return {f"{name}.weight": weight.astype(np.float32), f"{name}.bias": vector(embedding)}

    def vector(size: int) -> npt.NDArray[np.float32]:
        return (0.1 * random.standard_normal(size)).astype(np.float32)

    def linear(name: str, rows: int, columns: int) -> dict[str, npt.NDArray[np.float32]]:
        return {f"{name}.weight": 2.0 * _spread(random, rows, columns), f"{name}.bias": vector(rows)}

    weights = {
        "token_embd.weight": random.standard_normal((num_vocab, embedding)).astype(np.float32),
        "token_types.weight": 0.1 * random.standard_normal((2, embedding)).astype(np.float32),
        "position_embd.weight": random.standard_normal((positions, embedding)).astype(np.float32),
        **norm("token_embd_norm"),
    }
    for layer in range(num_layers):
        block = f"blk.{layer}"
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights |= linear(f"{block}.{part}", embedding, embedding)
        weights |= linear(f"{block}.ffn_up", 2 * embedding, embedding)
        weights |= linear(f"{block}.ffn_down", embedding, 2 * embedding)
        weights |= norm(f"{block}.attn_output_norm") | norm(f"{block}.layer_output_norm")
    return weights


def _spread(random: np.random.RandomState, rows: int, columns: int) -> npt.NDArray[np.float32]:
    return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)


# --- the same in NumPy ------------------------------------------------------------------------------------


def bert_rows(weights: Weights, tokens: Sequence[int], *, heads: int) -> npt.NDArray[np.float32]:
    """Return the last hidden state of every token, shape (num_tokens, embedding).

    Source: Devlin et al., "BERT", 2018, with the tanh form of GELU as in llama.cpp.
    """
    count = len(tokens)
    x = weights["token_embd.weight"][list(tokens)] + weights["token_types.weight"][0]
    x = _norm(weights, "token_embd_norm", x + weights["position_embd.weight"][:count])
    layer = 0
    while f"blk.{layer}.attn_q.weight" in weights:
        block = f"blk.{layer}"
        q, k, v = (
            _linear(weights, f"{block}.attn_{part}", x).reshape(count, heads, -1).transpose(1, 0, 2) for part in "qkv"
        )
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (scores / scores.sum(axis=-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(count, -1)
        x = _norm(weights, f"{block}.attn_output_norm", x + _linear(weights, f"{block}.attn_output", mixed))
        inner = _linear(weights, f"{block}.ffn_up", x)
        inner = 0.5 * inner * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
        x = _norm(weights, f"{block}.layer_output_norm", x + _linear(weights, f"{block}.ffn_down", inner))
        layer += 1
    return x


def bert_score(weights: Weights, tokens: Sequence[int], *, heads: int) -> float:
    """Return what a reranker's head makes of the first token."""
    first = bert_rows(weights, tokens, heads=heads)[0]
    return float(_linear(weights, "cls.output", np.tanh(_linear(weights, "cls", first)))[0])


def normalised(vector: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return `vector` at length 1."""
    return vector / np.linalg.norm(vector)


def _linear(weights: Weights, name: str, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _norm(weights: Weights, name: str, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + NORM_EPSILON)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]
