"""Ollama's dialect through a real `corral serve` with tiny models, asked as its clients ask: by plain HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.real_server import Api, RealServer, api_of, real_server
from tests.support.served import until
from tests.support.tiny_bert import write_tiny_bert
from tests.support.tiny_gguf import write_tiny_llama

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GREEDY = {"temperature": 0, "num_predict": 8}
HI = [{"role": "user", "content": "hello world"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """`tiny` talks, `bert` embeds texts of 64 tokens; neither is ever unloaded by itself."""
    folder = tmp_path_factory.mktemp("ollama")
    write_tiny_llama(folder / "tiny.gguf", chat_template=CHATML)
    write_tiny_bert(folder / "bert.gguf")
    common = {"device": "cpu", "threads": 1, "slots": 2, "idle_unload_s": 0}
    models = {
        "tiny": {"model": "./tiny.gguf", "context": 256, "aliases": ["tiny:135m"]} | common,
        "bert": {"model": "./bert.gguf"} | common,
    }
    with real_server(folder, models) as server:
        yield server


@pytest.fixture
async def api(served: RealServer) -> AsyncIterator[Api]:
    async with api_of(served) as client:
        yield client


async def lines(api: Api, path: str, **body: Any) -> list[dict[str, Any]]:
    async with api.session.post(api.server.url + path, json=body) as reply:
        assert (reply.status, reply.content_type) == (200, "application/x-ndjson")
        return [json.loads(line) for line in (await reply.text()).splitlines()]


async def test_streamed_and_whole_answers_say_the_same(api: Api) -> None:
    for path, asked in (("/api/chat", {"messages": HI}), ("/api/generate", {"prompt": "hello world"})):
        body = {"model": "tiny:latest", **asked, "options": GREEDY}
        told = await lines(api, path, **body)
        status, whole = await api.post(path, body | {"stream": False})
        assert status == 200

        def text(line: dict[str, Any]) -> str:
            return str(line["message"]["content"] if "message" in line else line["response"])

        assert "".join(map(text, told)) == text(whole) != ""
        assert [line["done"] for line in told] == [False] * (len(told) - 1) + [True]
        assert (told[-1]["done_reason"], told[-1]["eval_count"]) == ("length", 8)
        assert whole["prompt_eval_count"] == told[-1]["prompt_eval_count"] > 4
        assert whole["total_duration"] == whole["prompt_eval_duration"] + whole["eval_duration"] > 0
        assert {line["model"] for line in told} == {"tiny:latest"}


async def test_an_answer_is_the_same_in_openais_dialect(api: Api) -> None:
    _, whole = await api.post("/api/chat", {"model": "tiny", "messages": HI, "options": GREEDY, "stream": False})
    assert (await api.chat("tiny", "hello world", 8)).text == whole["message"]["content"]


async def test_the_context_of_a_reply_is_what_the_next_one_goes_on_from(api: Api) -> None:
    body = {"model": "tiny", "options": GREEDY, "stream": False}
    _, first = await api.post("/api/generate", body | {"prompt": "hello"})
    assert len(first["context"]) == first["prompt_eval_count"] + first["eval_count"]
    _, second = await api.post("/api/generate", body | {"prompt": "world", "context": first["context"]})
    assert second["context"][: len(first["context"])] == first["context"]
    assert second["prompt_eval_count"] > len(first["context"])


async def test_log_probabilities_are_those_of_the_answer(api: Api) -> None:
    body = {"model": "tiny", "messages": HI, "options": GREEDY, "logprobs": True, "top_logprobs": 2}
    told = [entry for line in await lines(api, "/api/chat", **body) for entry in line.get("logprobs", [])]
    _, whole = await api.post("/api/chat", body | {"stream": False})
    assert [entry["token"] for entry in told] == [entry["token"] for entry in whole["logprobs"]]
    assert len(told) == 8
    for entry in told:
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] <= 0, "a greedy answer takes the likeliest"


async def test_vectors_have_length_one_and_long_texts_are_cut(api: Api) -> None:
    long_text = "hello world " * 500
    _, reply = await api.post("/api/embed", {"model": "bert", "input": ["hello", long_text]})
    vectors = np.asarray(reply["embeddings"])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1.0, 1.0], abs=1e-5)
    _, old = await api.post("/api/embeddings", {"model": "bert", "prompt": "hello"})
    assert np.dot(old["embedding"], vectors[0]) > 0.999, "what else is in a pass changes the last digits"
    status, error = await api.post("/api/embed", {"model": "bert", "input": long_text, "truncate": False})
    assert (status, error.keys()) == (400, {"error"})


async def test_a_model_is_loaded_shown_and_let_go_as_requests_say(api: Api) -> None:
    async def running() -> dict[str, Any]:
        return {entry["name"]: entry for entry in (await api.get("/api/ps"))["models"]}

    async def is_gone() -> bool:
        return "tiny:latest" not in await running()

    _, loaded = await api.post("/api/generate", {"model": "tiny", "keep_alive": "10m"})
    assert (loaded["response"], loaded["done"], loaded["done_reason"]) == ("", True, "load")
    shown = (await running())["tiny:latest"]
    assert shown["size"] > 0
    assert shown["size_vram"] == 0
    assert shown["context_length"] == 256
    assert shown["expires_at"] < "2300"
    await api.post("/api/chat", {"model": "tiny", "messages": [], "keep_alive": -1})
    assert (await running())["tiny:latest"]["expires_at"].startswith("2300")
    _, gone = await api.post("/api/chat", {"model": "tiny", "messages": [], "keep_alive": 0})
    assert gone["done_reason"] == "unload"
    await until(is_gone, what="the unload")
    status, _ = await api.post("/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 1, "keep_alive": 0})
    assert status == 200
    await until(is_gone, what="the unload after the answer")


async def test_lists_tell_what_the_files_say(api: Api) -> None:
    await api.post("/api/generate", {"model": "tiny"})
    tags = {entry["name"]: entry for entry in (await api.get("/api/tags"))["models"]}
    assert tags.keys() == {"tiny:latest", "tiny:135m", "bert:latest"}
    assert tags["tiny:latest"]["details"]["family"] == "llama"
    _, shown = await api.post("/api/show", {"model": "tiny"})
    assert (shown["template"], shown["capabilities"]) == (CHATML, ["completion"])
    assert shown["model_info"]["general.architecture"] == "llama"
    assert "num_ctx" in shown["parameters"]
    _, shown = await api.post("/api/show", {"model": "bert"})
    assert shown["capabilities"] == ["embedding"]


async def test_pulling_what_is_here_succeeds_at_once(api: Api) -> None:
    told = await lines(api, "/api/pull", model="tiny")
    assert [line["status"] for line in told] == ["pulling manifest", "success"]
