"""llama-server's own embeddings: their forms of input, their scales, and the shape of the reply."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fakes.embedder import FakeEmbedder, embedding_engine, fake_vector
from tests.fakes.engine import FakeEngine
from tests.support.worker_client import WorkerReply, serve
from worker.api.vectors import normalized

PATH = "/embedding"


async def embed(embedder: FakeEmbedder | None = None, **fields: Any) -> WorkerReply:
    async with serve(embedding_engine(), embedder=embedder or FakeEmbedder()) as worker:
        return await worker.post(PATH, fields)


@pytest.mark.parametrize("field", ["content", "input"])
@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ("abc", [[97, 98, 99]]),
        (["a", "b"], [[97], [98]]),
        ([97, 98], [[97, 98]]),
        ([97, "b"], [[97, 98]]),
        ([[97, 98], "c"], [[97, 98], [99]]),
        ({"prompt_string": "ab"}, [[97, 98]]),
        ("</s>", [list(b"</s>")]),
    ],
)
async def test_every_form_of_text_is_read(field: str, given: Any, tokens: list[list[int]]) -> None:
    embedder = FakeEmbedder()
    reply = await embed(embedder, **{field: given})
    assert embedder.asked == [[tuple(one) for one in tokens]]
    assert [one["index"] for one in reply.json] == list(range(len(tokens)))


async def test_reply_is_a_list_with_a_list_of_one_vector_for_each_text() -> None:
    reply = await embed(content=["ab", "c"])
    vector = fake_vector([97, 98])
    assert [one.keys() for one in reply.json] == [{"index", "embedding"}] * 2
    [row] = reply.json[0]["embedding"]
    assert row == pytest.approx(list(vector / np.linalg.norm(vector)), rel=1e-6)


@pytest.mark.parametrize(
    ("norm", "length"),
    [
        (-1, lambda row: row / fake_vector([97, 98])),
        (0, lambda row: np.abs(row).max() / 32760),
        (1, lambda row: np.abs(row).sum()),
        (2, np.linalg.norm),
        (3, lambda row: (np.abs(row) ** 3).sum() ** (1 / 3)),
    ],
)
async def test_vectors_are_scaled_as_asked(norm: int, length: Any) -> None:
    reply = await embed(content="ab", embd_normalize=norm)
    row = np.array(reply.json[0]["embedding"][0])
    assert length(row) == pytest.approx(np.ones_like(length(row)), rel=1e-5)


def test_scaling_neither_overflows_nor_divides_by_zero() -> None:
    huge = np.array([1e30, -1e30], dtype=np.float32)
    assert normalized(huge, 2**31) == pytest.approx([1.0, -1.0], rel=1e-5)
    assert list(normalized(np.zeros(2, dtype=np.float32), 2)) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "content"),
        ({"content": "a", "input": "a"}, "content"),
        ({"content": ""}, "content"),
        ({"content": []}, "content"),
        ({"content": [True]}, "content"),
        ({"content": "x" * 17}, "content"),
        ({"content": [9999]}, "content"),
        ({"content": "a", "embd_normalize": -2}, "embd_normalize"),
        ({"content": "a", "encoding_format": "base64"}, "encoding_format"),
        ({"content": "a", "dimensions": 2}, "dimensions"),
    ],
)
async def test_what_cannot_be_embedded_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = (await embed(**fields)).error
    assert (error.status, error.param) == (400, param)


async def test_text_that_is_too_long_is_named_by_its_index() -> None:
    error = (await embed(content=["a", "x" * 17])).error
    assert "'content[1]'" in error.message


async def test_model_without_embeddings_says_so() -> None:
    async with serve(FakeEngine()) as worker:
        reply = await worker.post(PATH, {"content": "a"})
    assert reply.error.code == "unsupported_by_model"
