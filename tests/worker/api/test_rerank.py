"""Reranking: what is read, in which order results come, and what is refused with its place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from tests.fakes.embedder import FakeEmbedder, embedding_engine
from tests.support.worker_client import WorkerClient, serve
from worker.engine.pair_prompt import PairPrompt

PATH = "/v1/rerank"
BODY = {"query": "why", "documents": ["red", {"text": "sea"}, "ship"]}


def scores(*values: float) -> list[np.ndarray]:
    return [np.array([value, 99.0], dtype=np.float32) for value in values]


@pytest.fixture
def embedder() -> FakeEmbedder:
    return FakeEmbedder(rows=scores(-2.5, 4.0, 0.5))


@pytest.fixture
async def client(embedder: FakeEmbedder) -> AsyncIterator[WorkerClient]:
    engine = embedding_engine(pooling="rank")
    prompt = PairPrompt(engine.vocabulary, between=(0,))
    async with serve(engine, embedder=embedder, pair_prompt=prompt) as worker:
        yield worker


async def test_results_come_by_score_and_name_their_document(client: WorkerClient, embedder: FakeEmbedder) -> None:
    reply = await client.post(PATH, BODY)
    assert embedder.asked == [[(*b"why", 0, *b"red"), (*b"why", 0, *b"sea"), (*b"why", 0, *b"ship")]]
    assert reply.json == {
        "object": "list",
        "model": "tiny",
        "results": [
            {"index": 1, "relevance_score": 4.0},
            {"index": 2, "relevance_score": 0.5},
            {"index": 0, "relevance_score": -2.5},
        ],
        "usage": {"prompt_tokens": 22, "total_tokens": 22},
    }
    assert reply.end["usage"]["prompt_tokens"] == 22


async def test_equal_scores_keep_the_order_of_the_documents(client: WorkerClient, embedder: FakeEmbedder) -> None:
    embedder.rows = scores(1.0, 2.0, 1.0)
    reply = await client.post(PATH, BODY)
    assert [one["index"] for one in reply.json["results"]] == [1, 0, 2]


@pytest.mark.parametrize(("top_n", "indices"), [(1, [1]), (2, [1, 2]), (50, [1, 2, 0]), (None, [1, 2, 0])])
async def test_only_the_best_are_returned_where_asked(client: WorkerClient, top_n: Any, indices: list[int]) -> None:
    reply = await client.post(PATH, BODY | {"top_n": top_n})
    assert [one["index"] for one in reply.json["results"]] == indices


async def test_documents_are_returned_where_asked(client: WorkerClient) -> None:
    reply = await client.post(PATH, BODY | {"return_documents": True, "top_n": 2})
    assert [one["document"] for one in reply.json["results"]] == [{"text": "sea"}, {"text": "ship"}]


@pytest.mark.parametrize(
    ("changed", "param", "words"),
    [
        ({"query": None}, "query", "not empty"),
        ({"query": ""}, "query", "not empty"),
        ({"query": ["why"]}, "query", "not empty"),
        ({"documents": None}, "documents", "a list of strings"),
        ({"documents": []}, "documents", "an empty list"),
        ({"documents": ["a", 5]}, "documents", "at index 1"),
        ({"documents": [{"title": "a"}]}, "documents", "at index 0"),
        ({"top_n": 0}, "top_n", "at least 1"),
        ({"return_documents": "yes"}, "return_documents", "true or false"),
    ],
)
async def test_wrong_request_is_refused_with_its_place(
    client: WorkerClient, embedder: FakeEmbedder, changed: dict[str, Any], param: str, words: str
) -> None:
    error = (await client.post(PATH, BODY | changed)).error
    assert (error.status, error.code, error.param) == (400, "invalid_request_error", param)
    assert words in error.message
    assert embedder.asked == []


async def test_missing_field_is_named(client: WorkerClient) -> None:
    assert (await client.post(PATH, {"query": "why"})).error.param == "documents"
    assert (await client.post(PATH, {"documents": ["a"]})).error.param == "query"


@pytest.mark.parametrize("document", ["x" * 13, "x" * 10**6])
async def test_document_that_is_too_long_is_refused_with_its_index(
    client: WorkerClient, embedder: FakeEmbedder, document: str
) -> None:
    error = (await client.post(PATH, {"query": "why", "documents": ["fine", document]})).error
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "documents")
    assert "'documents[1]" in error.message
    assert embedder.asked == []


async def test_query_that_is_too_long_is_named(client: WorkerClient) -> None:
    assert (await client.post(PATH, {"query": "x" * 10**6, "documents": ["a"]})).error.param == "query"


@pytest.mark.parametrize(("field", "value"), [("texts", ["a"]), ("max_tokens_per_doc", 5), ("stream", True)])
async def test_field_that_is_not_honoured_is_refused(client: WorkerClient, field: str, value: Any) -> None:
    error = (await client.post(PATH, BODY | {field: value})).error
    assert (error.code, error.param) == ("unsupported_parameter", field)


@pytest.mark.parametrize(("can_generate", "hint"), [(True, "a reranker"), (False, "/v1/embeddings")])
async def test_model_that_is_no_reranker_says_so(can_generate: bool, hint: str) -> None:
    async with serve(embedding_engine(can_generate=can_generate), embedder=FakeEmbedder()) as client:
        error = (await client.post(PATH, BODY)).error
    assert (error.status, error.code) == (400, "unsupported_by_model")
    assert "does not support reranking" in error.message
    assert hint in error.message


async def test_score_that_json_lacks_is_an_error(client: WorkerClient, embedder: FakeEmbedder) -> None:
    embedder.rows = scores(1.0, np.nan, 2.0)
    error = (await client.post(PATH, BODY)).error
    assert (error.status, error.code) == (500, "engine_error")
    assert "documents[1]" in error.message
