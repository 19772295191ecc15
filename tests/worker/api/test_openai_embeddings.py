"""OpenAI's embeddings: what is read, what is refused with its place, and the shape of the reply."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from openai.types import CreateEmbeddingResponse

from tests.fakes.embedder import LONGEST, SIZE, FakeEmbedder, embedding_engine, unit
from tests.fakes.engine import FakeEngine
from tests.support.served import until
from tests.support.worker_client import WorkerClient, serve
from worker.api.pooled import FRAME_BYTES, MAX_TEXTS
from worker.contract import FrameType
from worker.engine.errors import BackendFailed, EngineStopped, OutOfMemory

PATH = "/v1/embeddings"


@pytest.fixture
def embedder() -> FakeEmbedder:
    return FakeEmbedder()


@pytest.fixture
async def client(embedder: FakeEmbedder) -> AsyncIterator[WorkerClient]:
    async with serve(embedding_engine(), embedder=embedder) as worker:
        yield worker


# --- input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ("abc", [[97, 98, 99]]),
        (["a", "b"], [[97], [98]]),
        ([97, 98], [[97, 98]]),
        ([[97, 98], [99]], [[97, 98], [99]]),
        (["a", [98]], [[97], [98]]),
    ],
)
async def test_every_form_of_input_is_read(
    client: WorkerClient, embedder: FakeEmbedder, given: Any, tokens: list[list[int]]
) -> None:
    reply = await client.post(PATH, {"input": given})
    assert embedder.asked == [[tuple(one) for one in tokens]]
    assert [(one["object"], one["index"]) for one in reply.json["data"]] == [
        ("embedding", index) for index in range(len(tokens))
    ]
    for one, expected in zip(reply.json["data"], tokens, strict=True):
        assert one["embedding"] == pytest.approx(unit(expected))


async def test_texts_of_control_tokens_stay_text_and_special_tokens_are_added(embedder: FakeEmbedder) -> None:
    engine = embedding_engine()
    engine.vocabulary.add_bos = True
    async with serve(engine, embedder=embedder) as client:
        await client.post(PATH, {"input": "</s>"})
    assert embedder.asked == [[(256, *b"</s>")]]


async def test_reply_has_openais_shape(client: WorkerClient) -> None:
    reply = await client.post(PATH, {"model": "alias", "input": ["ab", "c"], "user": "me", "encoding_format": "float"})
    assert reply.shown_type == "application/json"
    assert {name: value for name, value in reply.json.items() if name != "data"} == {
        "object": "list",
        "model": "tiny",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    assert (reply.end["outcome"], reply.end["usage"]["prompt_tokens"]) == ("ok", 3)
    assert reply.end["usage"]["completion_tokens"] == 0


async def test_reply_is_what_openais_own_types_expect(client: WorkerClient) -> None:
    reply = CreateEmbeddingResponse.model_validate((await client.post(PATH, {"input": ["ab", "c"]})).json, strict=True)
    assert [one.index for one in reply.data] == [0, 1]
    assert reply.usage.total_tokens == 3


async def test_base64_has_the_same_numbers(client: WorkerClient) -> None:
    as_floats = await client.post(PATH, {"input": "hello"})
    as_text = await client.post(PATH, {"input": "hello", "encoding_format": "base64"})
    raw = base64.b64decode(as_text.json["data"][0]["embedding"])
    numbers = np.frombuffer(raw, dtype="<f4")
    assert numbers.tolist() == np.float32(as_floats.json["data"][0]["embedding"]).tolist()
    assert np.linalg.norm(numbers) == pytest.approx(1)


async def test_fewer_dimensions_are_the_first_ones_at_length_1(client: WorkerClient) -> None:
    reply = await client.post(PATH, {"input": "hello", "dimensions": 2})
    (vector,) = [one["embedding"] for one in reply.json["data"]]
    assert vector == pytest.approx(unit(list(b"hello"), 2))
    full = await client.post(PATH, {"input": "hello", "dimensions": SIZE})
    assert full.json["data"][0]["embedding"] == pytest.approx(unit(list(b"hello")))


async def test_vector_of_zeros_stays_one(client: WorkerClient, embedder: FakeEmbedder) -> None:
    embedder.rows = [np.zeros(SIZE, dtype=np.float32)]
    assert (await client.post(PATH, {"input": "x"})).json["data"][0]["embedding"] == [0, 0, 0, 0]


async def test_long_reply_comes_in_many_frames(client: WorkerClient, embedder: FakeEmbedder) -> None:
    embedder.rows = [np.arange(1, 400_001, dtype=np.float32)]
    reply = await client.post(PATH, {"input": "x"})
    sizes = [len(frame.payload) for frame in reply.frames if frame.type is FrameType.DATA]
    assert len(sizes) > 2
    assert max(sizes) <= FRAME_BYTES
    assert len(reply.json["data"][0]["embedding"]) == 400_000


# --- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "input", "missing"),
        ({"input": None}, "input", "must be a string"),
        ({"input": []}, "input", "an empty list"),
        ({"input": ""}, "input", "'input' is empty"),
        ({"input": ["a", ""]}, "input", "'input[1]' is empty"),
        ({"input": ["a", 5]}, "input", "at index 1"),
        ({"input": [[97], []]}, "input", "at index 1"),
        ({"input": [True]}, "input", "at index 0"),
        ({"input": [[97], [100_000]]}, "input", "'input[1]' has the token id 100000"),
        ({"input": [-1]}, "input", "'input' has the token id -1"),
        ({"input": ["x"] * (MAX_TEXTS + 1)}, "input", f"at most {MAX_TEXTS}"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", '"float" or "base64"'),
        ({"input": "a", "dimensions": 0}, "dimensions", "at least 1"),
        ({"input": "a", "dimensions": SIZE + 1}, "dimensions", f"have {SIZE} numbers"),
        ({"input": "a", "dimensions": 1.5}, "dimensions", "an integer"),
        ({"input": "a", "user": 5}, "user", "a string"),
    ],
)
async def test_wrong_request_is_refused_with_its_place(
    client: WorkerClient, embedder: FakeEmbedder, body: dict[str, Any], param: str, words: str
) -> None:
    error = (await client.post(PATH, body)).error
    assert (error.status, error.code, error.param) == (400, "invalid_request_error", param)
    assert words in error.message
    assert embedder.asked == []


@pytest.mark.parametrize("text", ["x" * (LONGEST + 1), [97] * (LONGEST + 1), "x" * 10**6])
async def test_text_that_is_too_long_is_refused_with_its_index_and_nothing_is_computed(
    client: WorkerClient, embedder: FakeEmbedder, text: Any
) -> None:
    error = (await client.post(PATH, {"input": ["fine", "fine", text]})).error
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "input")
    assert "'input[2]' has" in error.message
    assert f"at most {LONGEST} tokens" in error.message
    assert embedder.asked == []


async def test_single_text_that_is_too_long_is_named_without_an_index(client: WorkerClient) -> None:
    assert "'input' has 17 tokens" in (await client.post(PATH, {"input": "x" * 17})).error.message
    assert len((await client.post(PATH, {"input": "x" * LONGEST})).json["data"]) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("stream", True), ("input_type", "query"), ("normalize", False), ("truncate", True), ("content", "x")],
)
async def test_field_that_is_not_honoured_is_refused(client: WorkerClient, field: str, value: Any) -> None:
    error = (await client.post(PATH, {"input": "a", field: value})).error
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", field)


async def test_reranker_makes_no_vectors() -> None:
    async with serve(embedding_engine(pooling="rank"), embedder=FakeEmbedder()) as client:
        error = (await client.post(PATH, {"input": "a"})).error
    assert (error.status, error.code) == (400, "unsupported_by_model")
    assert "/v1/rerank" in error.message


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
    ],
)
@pytest.mark.parametrize(("pooling", "route"), [("mean", "/v1/embeddings"), ("rank", "/v1/rerank")])
async def test_encoder_generates_nothing_and_says_what_it_is_for(
    path: str, body: dict[str, Any], pooling: str, route: str
) -> None:
    async with serve(embedding_engine(pooling=pooling), embedder=FakeEmbedder()) as client:
        error = (await client.post(path, body)).error
        assert not client.engine.requests
    assert (error.status, error.code) == (400, "unsupported_by_model")
    assert route in error.message


async def test_model_without_an_embedder_says_so() -> None:
    async with serve(FakeEngine()) as client:
        assert (await client.post(PATH, {"input": "a"})).error.code == "unsupported_by_model"


# --- failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (BackendFailed(-3), 500, "engine_error"),
        (OutOfMemory("no room"), 500, "engine_error"),
        (EngineStopped("gone"), 503, "engine_stopped"),
    ],
)
async def test_failure_of_the_engine_is_told(
    client: WorkerClient, embedder: FakeEmbedder, failure: Exception, status: int, code: str
) -> None:
    embedder.failure = failure
    error = (await client.post(PATH, {"input": "a"})).error
    assert (error.status, error.code) == (status, code)


@pytest.mark.parametrize("number", [np.nan, np.inf])
async def test_numbers_that_json_lacks_are_an_error_and_not_null(
    client: WorkerClient, embedder: FakeEmbedder, number: float
) -> None:
    embedder.rows = [np.ones(SIZE, dtype=np.float32), np.array([1, number, 0, 0], dtype=np.float32)]
    error = (await client.post(PATH, {"input": ["a", "b"]})).error
    assert (error.status, error.code) == (500, "engine_error")
    assert "input[1]" in error.message


async def test_client_that_leaves_takes_its_texts_along(embedder: FakeEmbedder) -> None:
    embedder.is_endless = True
    async with serve(embedding_engine(), embedder=embedder) as client:
        _, writer = await client.open(PATH, {"input": "a"})
        await until(lambda: bool(embedder.asked))
        writer.close()
        await until(lambda: embedder.num_left == 1)
        await until(lambda: client.gate.num_inside == 0)


async def test_malformed_body_is_refused(client: WorkerClient) -> None:
    for body in (b"[]", b"null", b"{", json.dumps({"input": {"text": "a"}}).encode()):
        assert (await client.post(PATH, body)).error.status == 400
