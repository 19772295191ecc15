"""A real embedding model, all-MiniLM-L6-v2, through a real `corral serve`: its vectors, and what they mean."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import openai
import pytest

from tests.support.minilm import HEADS, minilm_path, read_weights
from tests.support.real_server import Api, RealServer, api_of, real_server
from tests.support.tiny_bert import bert_rows, normalised

pytestmark = pytest.mark.models

CLOSE = 0.999

SENTENCES = {
    "A man is playing the guitar on stage.": "music",
    "Somebody performs a song with a stringed instrument.": "music",
    "The central bank raised interest rates again.": "money",
    "Borrowing has become more expensive this year.": "money",
    "Bake the bread for forty minutes until golden.": "food",
    "Knead the dough and let it rise before it goes into the oven.": "food",
}
TOKENS = {
    "Hello, World!": [101, 7592, 1010, 2088, 999, 102],
    "unbelievably": [101, 4895, 8671, 2666, 3567, 6321, 102],
}
"""By the model's own tokenizer."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    models: dict[str, dict[str, Any]] = {"mini": {"model": str(minilm_path()), "device": "cpu", "threads": 2}}
    with real_server(tmp_path_factory.mktemp("minilm"), models) as server:
        yield server


@pytest.fixture
async def api(served: RealServer) -> AsyncIterator[Api]:
    async with api_of(served) as client:
        yield client


async def vectors_of(api: Api, given: Any) -> list[npt.NDArray[np.float32]]:
    body = {"model": "mini", "input": given, "encoding_format": "base64"}
    status, reply = await api.post("/v1/embeddings", body)
    assert status == 200, reply
    return [np.frombuffer(base64.b64decode(one["embedding"]), dtype="<f4") for one in reply["data"]]


async def test_vectors_are_those_that_numpy_computes_from_the_same_weights(api: Api) -> None:
    weights = read_weights(minilm_path())
    vectors = await vectors_of(api, list(TOKENS))
    for tokens, vector in zip(TOKENS.values(), vectors, strict=True):
        expected = bert_rows(weights, tokens, heads=HEADS).mean(axis=0)
        assert float(vector @ normalised(expected)) > CLOSE


async def test_texts_and_their_token_ids_have_the_same_vectors(api: Api) -> None:
    for one, other in zip(
        await vectors_of(api, list(TOKENS)), await vectors_of(api, list(TOKENS.values())), strict=True
    ):
        assert float(one @ other) > CLOSE


async def test_sentences_about_one_thing_are_closer_than_others(api: Api) -> None:
    vectors = dict(zip(SENTENCES, await vectors_of(api, list(SENTENCES)), strict=True))
    for text, topic in SENTENCES.items():
        others = sorted(
            (other for other in SENTENCES if other != text), key=lambda other: -vectors[text] @ vectors[other]
        )
        assert SENTENCES[others[0]] == topic, text


async def test_vector_is_the_same_whatever_else_is_asked(api: Api) -> None:
    texts = [" ".join(list(SENTENCES)[: 1 + number % 5]) + f" {number}" for number in range(40)]
    together = await vectors_of(api, texts)
    shuffled = np.random.default_rng(0).permutation(len(texts))
    parts = await asyncio.gather(
        *(vectors_of(api, [texts[index] for index in shuffled[n : n + 8]]) for n in range(0, 40, 8))
    )
    again = [vector for part in parts for vector in part]
    for place, index in enumerate(shuffled):
        assert float(together[index] @ again[place]) > CLOSE


@pytest.mark.parametrize(("num_tokens", "status"), [(500, 200), (512, 200), (513, 400), (600, 400)])
async def test_longest_text_is_as_long_as_the_model_reads(api: Api, num_tokens: int, status: int) -> None:
    found, reply = await api.post("/v1/embeddings", {"model": "mini", "input": ["sea " * (num_tokens - 2)]})
    assert found == status
    if status == 400:
        assert f"'input[0]' has {num_tokens} tokens" in reply["error"]["message"]
        assert "at most 512" in reply["error"]["message"]


async def test_openai_client_cuts_vectors_and_ranks_by_them(served: RealServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused") as client:
        reply = await client.embeddings.create(model="mini", input=[*SENTENCES, "guitar music"], dimensions=128)
    *documents, query = [np.array(one.embedding) for one in reply.data]
    assert len(query) == 128
    best = max(zip(SENTENCES.values(), documents, strict=True), key=lambda pair: float(pair[1] @ query))
    assert best[0] == "music"
