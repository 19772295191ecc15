"""Embeddings and reranking through a real `corral serve`: tiny encoders, and a model that generates."""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import openai
import pytest
from gguf.constants import PoolingType

from tests.support.models import smollm2_path
from tests.support.real_server import Api, RealServer, api_of, real_server
from tests.support.served import until
from tests.support.tiny_bert import TinyBert, bert_rows, bert_score, normalised, write_tiny_bert

CLOSE = 0.999
WORDS = ("the", "hello", "world", "tell", "story", "red", "marker", "sea", "ship", "winter")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> TinyBert:
    return write_tiny_bert(tmp_path_factory.mktemp("bert") / "bert.gguf")


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> TinyBert:
    return write_tiny_bert(tmp_path_factory.mktemp("rank") / "rank.gguf", pooling=PoolingType.RANK)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, bert: TinyBert, ranker: TinyBert) -> Iterator[RealServer]:
    """`mini` embeds texts of 64 tokens, `rank` ranks, `smol` generates."""
    models: dict[str, dict[str, Any]] = {
        "mini": {"model": str(bert.path), "slots": 4, "aliases": ["text-embedding-3-small"]},
        "rank": {"model": str(ranker.path)},
        "smol": {"model": str(smollm2_path()), "slots": 2, "context": 1024, "device": "cpu", "threads": 2},
    }
    with real_server(tmp_path_factory.mktemp("embeddings"), models) as server:
        yield server


@pytest.fixture
async def api(served: RealServer) -> AsyncIterator[Api]:
    async with api_of(served) as client:
        yield client


@pytest.fixture
async def client(served: RealServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as sdk:
        yield sdk


def cosine(one: Any, other: Any) -> float:
    return float(normalised(np.asarray(one)) @ normalised(np.asarray(other)))


def sentence(number: int, length: int) -> str:
    """Return a text of so many words that differs from all others."""
    return " ".join(WORDS[(number * 7 + step * step + number // 10) % 10] for step in range(length))


def tokens_of(model: TinyBert, text: str) -> list[int]:
    return [model.cls, *(5 + WORDS.index(word) for word in text.split()), model.sep]


# --- vectors ----------------------------------------------------------------------------------------------


async def test_openai_client_gets_the_vectors_that_numpy_computes(client: openai.AsyncOpenAI, bert: TinyBert) -> None:
    texts = [sentence(number, 1 + number % 40) for number in range(300)]
    reply = await client.embeddings.create(model="text-embedding-3-small", input=texts)  # base64, by its own choice
    assert [one.index for one in reply.data] == list(range(300))
    assert reply.model == "mini"
    assert reply.usage.prompt_tokens == reply.usage.total_tokens == sum(3 + number % 40 for number in range(300))
    for text, one in zip(texts, reply.data, strict=True):
        expected = bert_rows(bert.weights, tokens_of(bert, text), heads=bert.heads).mean(axis=0)
        assert cosine(one.embedding, expected) > CLOSE
        assert math.isclose(np.linalg.norm(one.embedding), 1, abs_tol=1e-5)


async def test_floats_are_the_numbers_of_base64(api: Api) -> None:
    body = {"model": "mini", "input": "hello world", "dimensions": 5}
    _, floats = await api.post("/v1/embeddings", body | {"encoding_format": "float"})
    _, packed = await api.post("/v1/embeddings", body | {"encoding_format": "base64"})
    numbers = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), dtype="<f4")
    assert np.float32(floats["data"][0]["embedding"]).tolist() == numbers.tolist()
    assert len(numbers) == 5


@pytest.mark.slow
async def test_many_clients_at_once_each_get_their_own(client: openai.AsyncOpenAI) -> None:
    """32 clients, each with 20 calls one after another, of texts between one word and as long as the model reads."""
    texts = [sentence(number, 1 + number * 13 % 60) for number in range(40)]
    reply = await client.embeddings.create(model="mini", input=texts)
    expected = [one.embedding for one in reply.data]
    assert cosine(expected[0], expected[30]) < CLOSE

    async def call(number: int) -> None:
        for turn in range(20):
            chosen = [(7 * number + 11 * turn + place) % 40 for place in range(1 + turn % 3)]
            reply = await client.embeddings.create(model="mini", input=[texts[one] for one in chosen])
            for one, got in zip(chosen, reply.data, strict=True):
                assert cosine(got.embedding, expected[one]) > CLOSE

    await asyncio.gather(*(call(number) for number in range(32)))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "num_texts"), [("mini", 64), ("smol", 12)])
async def test_vector_is_the_same_in_every_batch_and_order_is_kept(
    client: openai.AsyncOpenAI, model: str, num_texts: int
) -> None:
    texts = [f"{sentence(number, 1 + number % 20)} {number}" for number in range(num_texts)]
    alone = [(await client.embeddings.create(model=model, input=text)).data[0].embedding for text in texts]
    order = [int(one) for one in np.random.default_rng(3).permutation(num_texts)]
    for size in sorted({2, 8, num_texts // 2 - 1, num_texts}):
        for start in range(0, num_texts, size):
            chosen = order[start : start + size]
            reply = await client.embeddings.create(model=model, input=[texts[one] for one in chosen])
            assert [one.index for one in reply.data] == list(range(len(chosen)))
            for one, got in zip(chosen, reply.data, strict=True):
                assert cosine(got.embedding, alone[one]) > CLOSE


async def test_text_that_is_too_long_is_refused_by_its_index_and_the_limit_is_exact(api: Api) -> None:
    longest = " ".join(["sea"] * 62)  # and the two tokens around it
    status, reply = await api.post("/v1/embeddings", {"model": "mini", "input": [longest]})
    assert (status, reply["usage"]["prompt_tokens"]) == (200, 64)
    status, reply = await api.post("/v1/embeddings", {"model": "mini", "input": ["sea", f"{longest} sea"]})
    assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")
    assert "'input[1]' has 65 tokens" in reply["error"]["message"]
    assert "at most 64" in reply["error"]["message"]


# --- scores -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"])
async def test_documents_come_in_the_order_of_their_scores(api: Api, ranker: TinyBert, path: str) -> None:
    documents = [sentence(number, 2 + number) for number in range(12)]
    body = {"model": "rank", "query": "red ship", "documents": documents, "return_documents": True}
    status, reply = await api.post(path, body)
    assert status == 200
    query = tokens_of(ranker, "red ship")
    for one in reply["results"]:
        assert one["document"]["text"] == documents[one["index"]]
        tokens = [*query, *tokens_of(ranker, one["document"]["text"])[1:-1]]
        assert one["relevance_score"] == pytest.approx(bert_score(ranker.weights, tokens, heads=ranker.heads), abs=0.02)
    scores = [one["relevance_score"] for one in reply["results"]]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 12


# --- which model for which route --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "path", "body"),
    [
        ("mini", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("mini", "/v1/completions", {"prompt": "hi", "stream": True}),
        ("rank", "/v1/completions", {"prompt": "hi"}),
        ("rank", "/v1/embeddings", {"input": "hi"}),
        ("mini", "/v1/rerank", {"query": "hi", "documents": ["a"]}),
        ("smol", "/v1/rerank", {"query": "hi", "documents": ["a"]}),
    ],
)
async def test_model_says_what_it_cannot_do(api: Api, model: str, path: str, body: dict[str, Any]) -> None:
    status, reply = await api.post(path, {"model": model} | body)
    assert (status, reply["error"]["code"]) == (400, "unsupported_by_model")
    assert "does not support" in reply["error"]["message"]


async def test_worker_of_an_encoder_looks_like_any_other(api: Api) -> None:
    await api.post("/v1/embeddings", {"model": "mini", "input": "hello"})
    entry = await api.get("/v1/models/mini")
    assert (entry["state"], entry["context_length"], "reason" in entry) == ("ready", 64, False)
    assert await api.states("mini") == ["IDLE"] * 4
    assert await api.metric("corral_requests_total", model="mini", route="/v1/embeddings", outcome="ok") >= 1
    await until(lambda: _has_counted(api), within_s=5)


# --- a model that generates -------------------------------------------------------------------------------


@pytest.mark.slow
async def test_model_that_generates_embeds_long_and_short_texts_alike(client: openai.AsyncOpenAI) -> None:
    long = "The sea was calm and the ship sailed on into the winter night. " * 20
    texts = ["The ship is at sea.", long, "Prices of shares fell.", "A vessel sails on the ocean."]
    together = await client.embeddings.create(model="smol", input=texts, encoding_format="float")
    for text, one in zip(texts, together.data, strict=True):
        alone = await client.embeddings.create(model="smol", input=text, encoding_format="float")
        assert cosine(one.embedding, alone.data[0].embedding) > CLOSE
    assert all(math.isfinite(number) for one in together.data for number in one.embedding)
    assert cosine(together.data[0].embedding, together.data[1].embedding) < CLOSE


@pytest.mark.slow
async def test_answer_goes_on_while_texts_are_embedded(api: Api) -> None:
    texts = ["The sea was calm and the ship sailed on into the winter night. " * 4] * 12
    answering = asyncio.create_task(api.complete("smol", "The sea", 48, ignore_eos=True, cache_prompt=False))
    await until(lambda: _is_busy(api), within_s=20)
    status, reply = await api.post("/v1/embeddings", {"model": "smol", "input": texts})
    assert (status, len(reply["data"])) == (200, 12)
    answer = await answering
    assert (answer.status, answer.counts[1], answer.finish_reason) == (200, 48, "length")


async def _has_counted(api: Api) -> bool:
    return await api.metric("corral_prompt_tokens_total", model="mini", source="computed") >= 3


async def _is_busy(api: Api) -> bool:
    return "GENERATING" in await api.states("smol")
