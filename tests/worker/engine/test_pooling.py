"""What is pooled and how much fits a pass, from what a file says."""

from __future__ import annotations

from typing import Any

import pytest

from worker.engine.pooling import CPU_ROWS, GPU_ROWS, MAX_UNDECLARED_TOKENS, Pooling, PoolingShape, pooling_shape


def shape(declared: str | None = None, **changed: Any) -> PoolingShape:
    facts: dict[str, Any] = {
        "size": 384,
        "num_scores": 1,
        "trained_context": 512,
        "context": 8192,
        "is_encoder": False,
        "is_recurrent": False,
        "uses_gpu": False,
    }
    return pooling_shape(declared, **(facts | changed))


@pytest.mark.parametrize(("declared", "pooling"), [("1", "mean"), ("2", "cls"), ("3", "last"), ("4", "rank")])
@pytest.mark.parametrize("is_encoder", [True, False])
def test_declared_pooling_is_obeyed(declared: str, pooling: str, is_encoder: bool) -> None:
    assert shape(declared, is_encoder=is_encoder).pooling == pooling


@pytest.mark.parametrize("declared", [None, "1", "4"])
def test_configured_pooling_wins_and_makes_a_model_one_for_embeddings(declared: str | None) -> None:
    found = shape(declared, configured="last", trained_context=4096)
    assert (found.pooling, found.max_document) == (Pooling.LAST, 4096)


@pytest.mark.parametrize("declared", [None, "0", "77"])
def test_undeclared_pooling_is_the_mean_of_encoders_and_the_last_row_of_others(declared: str | None) -> None:
    assert shape(declared, is_encoder=True).pooling is Pooling.MEAN
    assert shape(declared).pooling is Pooling.LAST


def test_text_is_no_longer_than_the_context_and_what_the_model_has_learnt() -> None:
    assert shape("1", context=100).max_document == 100
    assert shape("1", trained_context=300).max_document == 300
    assert shape("1", trained_context=0, context=64).max_document == 64, "a file that does not say"


def test_second_context_of_a_model_not_made_for_embeddings_is_small() -> None:
    chat, made_for_it = shape(None, trained_context=32768), shape("3", trained_context=32768)
    assert (chat.max_document, chat.num_cells) == (MAX_UNDECLARED_TOKENS, MAX_UNDECLARED_TOKENS)
    assert made_for_it.max_document == 8192


@pytest.mark.parametrize(
    ("declared", "is_encoder"), [("1", False), ("2", False), ("1", True), ("3", True), ("4", True)]
)
def test_text_that_cannot_be_divided_fits_one_pass(declared: str, is_encoder: bool) -> None:
    found = shape(declared, is_encoder=is_encoder, trained_context=4096)
    assert not found.is_divisible
    assert found.max_rows == found.max_document == found.num_cells == 4096


@pytest.mark.parametrize("declared", ["3", "4"])
def test_text_whose_last_row_counts_may_come_in_pieces(declared: str) -> None:
    found = shape(declared, trained_context=4096)
    assert found.is_divisible
    assert (found.max_rows, found.num_cells) == (CPU_ROWS, 4096)


def test_gpu_gets_larger_passes_and_a_recurrent_model_fewer_texts() -> None:
    assert shape("3", uses_gpu=True).max_rows == GPU_ROWS
    assert shape("3", is_recurrent=True).max_documents < shape("3").max_documents


def test_size_of_a_reranker_is_its_number_of_scores() -> None:
    assert shape("4", num_scores=2).size == 2
    assert shape("4", num_scores=0).size == 1
    assert shape("1", num_scores=2).size == 384


def test_every_pass_has_room_for_as_many_texts_as_there_are_sequences() -> None:
    # llama.cpp ends the process for a context with more sequences than outputs, or with rows that do not divide evenly.
    for declared in (None, "1", "3", "4"):
        for is_encoder in (True, False):
            for context in (8, 300, 511):
                found = shape(declared, is_encoder=is_encoder, context=context)
                assert found.max_documents <= found.max_rows <= found.num_cells
                assert found.max_rows % found.max_documents == 0
