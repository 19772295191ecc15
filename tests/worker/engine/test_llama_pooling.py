"""Pooled passes on tiny models in the real library: right vectors whatever else is in the pass, and no aborts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import PoolingType

from tests.support.tiny_bert import TinyBert, bert_rows, bert_score, normalised, write_tiny_bert
from tests.support.tiny_gguf import write_tiny_gemma, write_tiny_llama
from worker.contract import EngineOptions
from worker.engine.batch import Chunk, Clear
from worker.engine.errors import BadModel, InvalidBatch
from worker.engine.llama import EncoderBackend, LlamaBackend, load_backend
from worker.engine.llama_pooling import PooledContext
from worker.engine.pooling import CPU_ROWS, Piece, Pooling
from worker.engine.request import RequestId

CONTEXT = 256
CLOSE = 0.999

Open = Callable[..., LlamaBackend | EncoderBackend]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Load a backend that is closed after the test."""
    backends: list[LlamaBackend | EncoderBackend] = []

    def load(path: Path, **options: Any) -> LlamaBackend | EncoderBackend:
        given = {"context": CONTEXT, "slots": 2, "device": "cpu"} | options
        backends.append(load_backend(str(path), EngineOptions(**given)))
        return backends[-1]

    yield load
    for backend in backends:
        backend.close()


def texts(count: int, longest: int, *, low: int = 5, high: int = 80) -> list[Piece]:
    """Return `count` texts of 1 to `longest` random tokens."""
    random = np.random.default_rng(count)
    return [
        Piece(random.integers(low, high, size=1 + index * longest // count, dtype=np.int32)) for index in range(count)
    ]


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(normalised(one) @ normalised(other))


def pooled_by_numpy(model: TinyBert, piece: Piece, pooling: PoolingType | None) -> np.ndarray:
    rows = bert_rows(model.weights, piece.tokens.tolist(), heads=model.heads)
    match pooling:
        case PoolingType.CLS:
            return rows[0]
        case PoolingType.LAST:
            return rows[-1]
        case _:
            return rows.mean(axis=0)


# --- encoders ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", [PoolingType.MEAN, PoolingType.CLS, PoolingType.LAST, PoolingType.NONE, None])
def test_vectors_of_an_encoder_are_those_of_plain_numpy(
    pooling: PoolingType | None, opened: Open, tmp_path: Path
) -> None:
    model = write_tiny_bert(tmp_path / "bert.gguf", pooling=pooling)
    passes = opened(model.path).pooled
    pieces = [piece for piece in texts(12, 20) if len(piece.tokens) > 1]
    vectors = passes.forward(pieces)
    assert vectors.shape == (len(pieces), model.embedding)
    for vector, piece in zip(vectors, pieces, strict=True):
        assert cosine(vector, pooled_by_numpy(model, piece, pooling)) > 0.9999


def test_vectors_differ_where_the_order_of_tokens_does(opened: Open, tmp_path: Path) -> None:
    passes = opened(write_tiny_bert(tmp_path / "bert.gguf").path).pooled
    one, other = passes.forward(
        [Piece(np.array([2, 5, 6, 7, 3], np.int32)), Piece(np.array([2, 7, 6, 5, 3], np.int32))]
    )
    assert cosine(one, other) < 0.99


def test_configured_pooling_wins_over_the_one_of_the_file(opened: Open, tmp_path: Path) -> None:
    model = write_tiny_bert(tmp_path / "bert.gguf", pooling=PoolingType.MEAN)
    backend = opened(model.path, pooling="cls")
    piece = Piece(np.array([2, 5, 6, 7, 3], np.int32))
    (vector,) = backend.pooled.forward([piece])
    assert backend.facts.pooling == "cls"
    assert cosine(vector, pooled_by_numpy(model, piece, PoolingType.CLS)) > 0.9999
    assert cosine(vector, pooled_by_numpy(model, piece, PoolingType.MEAN)) < 0.99


def test_scores_of_a_reranker_are_those_of_plain_numpy(opened: Open, tmp_path: Path) -> None:
    model = write_tiny_bert(tmp_path / "rank.gguf", pooling=PoolingType.RANK)
    passes = opened(model.path).pooled
    pieces = texts(6, 30)
    scores = passes.forward(pieces)
    assert scores.shape == (6, 1)
    expected = [bert_score(model.weights, piece.tokens.tolist(), heads=model.heads) for piece in pieces]
    assert scores[:, 0] == pytest.approx(expected, abs=0.01)
    assert np.ptp(expected) > 0.1, "scores that are all alike would prove nothing"


def test_reranker_with_several_outputs_returns_all_of_them(opened: Open, tmp_path: Path) -> None:
    model = write_tiny_bert(tmp_path / "rank.gguf", pooling=PoolingType.RANK, num_scores=3)
    assert opened(model.path).pooled.forward(texts(2, 10)).shape == (2, 3)


def test_facts_of_an_encoder_say_what_it_can(opened: Open, tmp_path: Path) -> None:
    model = write_tiny_bert(tmp_path / "bert.gguf", trained_context=48)
    backend = opened(model.path)
    facts = backend.facts
    assert isinstance(backend, EncoderBackend)
    assert (facts.can_generate, facts.pooling, facts.embedding_size) == (False, "mean", model.embedding)
    assert (facts.context, facts.embedding_context, facts.kv_cells) == (48, 48, 0)
    with pytest.raises(InvalidBatch):
        backend.forward([Chunk(0, RequestId(1), np.array([5], np.int32), 0, num_outputs=1)])


def test_encoder_is_no_backend_that_generates(tmp_path: Path) -> None:
    model = write_tiny_bert(tmp_path / "bert.gguf")
    with pytest.raises(BadModel, match="cannot generate text"):
        LlamaBackend.load(str(model.path), EngineOptions(context=64))


@pytest.mark.parametrize("flash_attn", ["auto", "off"])
@pytest.mark.slow
def test_text_as_long_as_a_long_context_is_read(opened: Open, tmp_path: Path, flash_attn: str) -> None:
    model = write_tiny_bert(tmp_path / "long.gguf", trained_context=3000, num_layers=1)
    passes = opened(model.path, context=8192, flash_attn=flash_attn).pooled
    assert passes.shape.max_document == 3000
    piece = Piece(np.arange(3000, dtype=np.int32) % 70 + 5)
    (vector,) = passes.forward([piece])
    assert cosine(vector, pooled_by_numpy(model, piece, PoolingType.MEAN)) > CLOSE


# --- models that generate ---------------------------------------------------------------------------------


@pytest.fixture(params=["llama", "gemma"])
def generator(request: pytest.FixtureRequest, opened: Open, tmp_path: Path) -> LlamaBackend:
    """A full-attention model, and one with a sliding window."""
    write = write_tiny_llama if request.param == "llama" else write_tiny_gemma
    backend = opened(write(tmp_path / "tiny.gguf").path)
    assert isinstance(backend, LlamaBackend)
    return backend


def test_facts_of_a_model_that_generates_say_that_it_embeds_by_the_last_token(generator: LlamaBackend) -> None:
    facts = generator.facts
    assert (facts.can_generate, facts.pooling, facts.embedding_context) == (True, "last", CONTEXT)
    assert facts.embedding_size == 32


def test_vector_in_several_passes_is_the_one_in_a_single_pass(generator: LlamaBackend) -> None:
    passes, (piece,) = generator.pooled, texts(1, 1)
    tokens = np.random.default_rng(0).integers(300, 400, size=100, dtype=np.int32)
    (whole,) = passes.forward([Piece(tokens)])
    passes.forward([piece])  # whatever was there before does not matter
    passes.forward([Piece(tokens[:37])], is_last=False)
    passes.forward([Piece(tokens[37:90], 37)], is_last=False)
    (parts,) = passes.forward([Piece(tokens[90:], 90)])
    assert cosine(whole, parts) > CLOSE


def test_embeddings_leave_running_answers_alone(generator: LlamaBackend) -> None:
    prompt = np.arange(300, 324, dtype=np.int32)

    def answer_after(start: int, tokens: np.ndarray) -> np.ndarray:
        return generator.forward([Chunk(0, RequestId(1), tokens, start, num_outputs=1)])[0].copy()

    undisturbed = answer_after(0, prompt[:20]), answer_after(20, prompt[20:])
    assert generator.apply(Clear(0))
    first = answer_after(0, prompt[:20])
    generator.pooled.forward(texts(8, 12, low=300, high=400))
    assert generator.num_cached(0) == 20, "embeddings have cells of their own"
    np.testing.assert_allclose(first, undisturbed[0], atol=1e-4)
    np.testing.assert_allclose(answer_after(20, prompt[20:]), undisturbed[1], atol=1e-4)


def test_declared_pooling_of_a_model_that_generates_is_obeyed(opened: Open, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "mean.gguf", pooling=PoolingType.MEAN).path
    passes = opened(path).pooled
    assert (passes.shape.pooling, passes.shape.is_divisible) == (Pooling.MEAN, False)
    pieces = texts(4, 20, low=300, high=400)
    (alone,) = passes.forward(pieces[-1:])
    assert cosine(passes.forward(pieces)[-1], alone) > CLOSE


# --- both -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["bert", "rank", "llama", "gemma"])
def passes(request: pytest.FixtureRequest, opened: Open, tmp_path: Path) -> PooledContext:
    path = tmp_path / "tiny.gguf"
    match request.param:
        case "bert":
            write_tiny_bert(path)
        case "rank":
            write_tiny_bert(path, pooling=PoolingType.RANK, num_scores=4)
        case "llama":
            write_tiny_llama(path)
        case "gemma":
            write_tiny_gemma(path)
    return opened(path).pooled


def test_vector_is_the_same_whatever_else_is_in_the_pass(passes: PooledContext) -> None:
    pieces = texts(30, 8)
    alone = [passes.forward([piece])[0] for piece in pieces]
    order = np.random.default_rng(1).permutation(len(pieces))
    for size in (2, 7, 24):
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            for index, vector in zip(chosen, passes.forward([pieces[index] for index in chosen]), strict=True):
                assert cosine(vector, alone[index]) > CLOSE


def test_pass_may_be_as_full_as_its_shape_says(passes: PooledContext) -> None:
    shape = passes.shape
    full = [Piece(np.full(shape.max_rows // shape.max_documents, 6, np.int32))] * shape.max_documents
    assert len(passes.forward(full)) == shape.max_documents
    longest = min(shape.max_rows, shape.max_document)
    assert len(passes.forward([Piece(np.full(longest, 6, np.int32))])) == 1


def test_what_would_end_the_process_is_refused_before(passes: PooledContext) -> None:
    shape = passes.shape
    one = Piece(np.array([6], np.int32))
    wrong = {
        "too many rows": [Piece(np.full(shape.max_rows + 1, 6, np.int32))],
        "too many rows together": [Piece(np.full(40, 6, np.int32))] * 7,
        "too many texts": [one] * (shape.max_documents + 1),
        "a text beyond the context": [Piece(np.full(2, 6, np.int32), shape.max_document - 1)],
        "nothing": [],
        "a text without tokens": [one, Piece(np.array([], np.int32))],
        "a negative id": [Piece(np.array([-1], np.int32))],
        "an id that is too high": [Piece(np.array([100_000], np.int32))],
        "a continued text beside another": [Piece(np.array([6], np.int32), 1), one],
    }
    for pieces in wrong.values():
        with pytest.raises(InvalidBatch):
            passes.forward(pieces)
    assert len(passes.forward([one])) == 1, "and all is well afterwards"


def test_long_text_of_a_divisible_model_is_cut_to_passes_of_the_cpu(generator: LlamaBackend) -> None:
    assert generator.pooled.shape.max_rows == CPU_ROWS < CONTEXT


def test_context_is_made_when_it_is_first_needed(generator: LlamaBackend) -> None:
    passes = generator.pooled
    passes.set_threads(2)
    passes.close()
    passes.close()
    assert len(passes.forward(texts(1, 4))) == 1
    passes.set_threads(1)
    assert len(passes.forward(texts(1, 4))) == 1
