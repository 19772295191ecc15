"""Ollama's embeddings: what is read, that long texts are cut unless they must not be, and both shapes of replies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.embedder import LONGEST, SIZE, FakeEmbedder, embedding_engine, unit
from tests.fakes.engine import BOS, FakeEngine, FakeVocabulary
from tests.support.worker_client import WorkerClient, serve

EMBED, EMBEDDINGS = "/api/embed", "/api/embeddings"
SEP = 257


class Bracketed(FakeVocabulary):
    """Puts a token before and one after each text, as the BERT family wants it."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens = super().tokenize(text, add_special=False, parse_special=parse_special)
        return [BOS, *tokens, SEP] if add_special else tokens


@pytest.fixture
def embedder() -> FakeEmbedder:
    return FakeEmbedder()


@pytest.fixture
async def client(embedder: FakeEmbedder) -> AsyncIterator[WorkerClient]:
    async with serve(embedding_engine(), embedder=embedder) as worker:
        yield worker


async def test_each_text_gets_a_vector_of_length_one(client: WorkerClient) -> None:
    reply = (await client.post(EMBED, {"model": "m:latest", "input": ["ab", "c"]})).json
    assert reply["model"] == "m:latest"
    assert reply["embeddings"] == [pytest.approx(unit([97, 98])), pytest.approx(unit([99]))]
    assert reply["prompt_eval_count"] == 3
    assert reply["total_duration"] >= 0


async def test_one_text_is_a_list_of_one(client: WorkerClient) -> None:
    assert (await client.post(EMBED, {"input": "ab"})).json["embeddings"] == [pytest.approx(unit([97, 98]))]


async def test_the_old_route_has_one_vector(client: WorkerClient) -> None:
    reply = (await client.post(EMBEDDINGS, {"model": "m", "prompt": "ab"})).json
    assert reply == {"embedding": pytest.approx(unit([97, 98]))}


@pytest.mark.parametrize("given", ["", []])
async def test_nothing_to_embed_is_no_mistake(client: WorkerClient, embedder: FakeEmbedder, given: Any) -> None:
    assert (await client.post(EMBED, {"input": given})).json["embeddings"] == []
    assert (await client.post(EMBEDDINGS, {"prompt": ""})).json == {"embedding": []}
    assert embedder.asked == []


async def test_dimensions_cut_a_vector_and_scale_it_again(client: WorkerClient) -> None:
    reply = (await client.post(EMBED, {"input": "ab", "dimensions": 2})).json
    assert reply["embeddings"] == [pytest.approx(unit([97, 98], 2))]
    error = (await client.post(EMBED, {"input": "ab", "dimensions": SIZE + 1})).error
    assert (error.status, error.param) == (400, "dimensions")


@pytest.mark.parametrize("truncate", [None, True])
async def test_a_text_that_is_too_long_is_cut_between_what_stands_around_it(truncate: bool | None) -> None:
    embedder, base = FakeEmbedder(), embedding_engine()
    engine = FakeEngine(facts=base.facts, vocabulary=Bracketed())
    async with serve(engine, embedder=embedder) as client:
        await client.post(EMBED, {"input": ["a" * (LONGEST + 5), "bc"], "truncate": truncate})
        await client.post(EMBED, {"input": "x" * 10_000_000, "truncate": truncate})
    first, second = embedder.asked[0]
    assert first == (BOS, *b"a" * (LONGEST - 2), SEP)
    assert second == (BOS, *b"bc", SEP)
    assert embedder.asked[1] == [(BOS, *b"x" * (LONGEST - 2), SEP)]


@pytest.mark.parametrize("length", [LONGEST + 1, 10_000_000])
async def test_a_text_that_must_not_be_cut_is_refused_with_its_place(client: WorkerClient, length: int) -> None:
    error = (await client.post(EMBED, {"input": ["a", "b" * length], "truncate": False})).error
    assert (error.status, error.code) == (400, "context_length_exceeded")
    assert "'input[1]'" in error.message


async def test_num_ctx_cuts_earlier(client: WorkerClient, embedder: FakeEmbedder) -> None:
    await client.post(EMBED, {"input": "abcdef", "options": {"num_ctx": 3}})
    assert embedder.asked == [[(97, 98, 99)]]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (EMBED, {}, "input"),
        (EMBED, {"input": 5}, "input"),
        (EMBED, {"input": ["a", 5]}, "input"),
        (EMBED, {"input": ["a", ""]}, "input"),
        (EMBED, {"input": ["a"] * 2049}, "input"),
        (EMBED, {"input": "a", "truncate": "END"}, "truncate"),
        (EMBED, {"input": "a", "dimensions": -1}, "dimensions"),
        (EMBEDDINGS, {"prompt": ["a"]}, "prompt"),
    ],
)
async def test_what_cannot_be_embedded_is_named(
    client: WorkerClient, embedder: FakeEmbedder, path: str, fields: dict[str, Any], param: str
) -> None:
    error = (await client.post(path, fields)).error
    assert error.status == 400
    assert error.param is not None
    assert error.param.startswith(param)
    assert not embedder.asked


async def test_a_model_that_makes_no_vectors_says_so() -> None:
    async with serve(FakeEngine()) as client:
        for path, fields in ((EMBED, {"input": "a"}), (EMBEDDINGS, {"prompt": "a"})):
            assert (await client.post(path, fields)).error.code == "unsupported_by_model"
