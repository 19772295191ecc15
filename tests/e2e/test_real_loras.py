"""LoRA adapters through a real `corral serve`: by alias and by request, beside each other, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.real_server import Api, RealServer, api_of, real_server
from tests.support.tiny_gguf import write_tiny_llama
from tests.support.tiny_lora import write_tiny_lora

PROMPT = "hello world tell story"
ALONE = {"cache_prompt": False, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """`tiny` with two adapters and aliases for them; `broken` with an adapter for another shape."""
    folder: Path = tmp_path_factory.mktemp("loras")
    write_tiny_llama(folder / "tiny.gguf")
    write_tiny_lora(folder / "first.gguf", seed=1)
    write_tiny_lora(folder / "second.gguf", seed=2)
    write_tiny_lora(folder / "large.gguf", embedding=64)
    aliases = {
        "tiny-first": {"lora": "first"},
        "tiny-second": {"lora": "second"},
        "tiny-mixed": {"lora": {"first": 0.5, "second": 1.0}},
        "tiny-plain": None,
    }
    file = {"model": "./tiny.gguf", "slots": 4, "context": 256}
    loras = {"first": "./first.gguf", "second": {"model": "./second.gguf", "scale": 0.75}}
    models = {
        "tiny": file | {"loras": loras, "aliases": aliases},
        "broken": file | {"loras": {"first": "./first.gguf", "large": "./large.gguf"}},
    }
    with real_server(folder, models) as running:
        yield running


@pytest.fixture
async def api(server: RealServer) -> AsyncIterator[Api]:
    async with api_of(server) as client:
        yield client


@pytest.mark.slow
async def test_every_alias_answers_with_its_adapters_and_the_model_without(api: Api) -> None:
    names = ("tiny", "tiny-first", "tiny-second", "tiny-mixed")
    texts = [(await api.complete(name, PROMPT, 24, **ALONE)).text for name in names]
    assert len(set(texts)) == 4
    assert (await api.complete("tiny-plain", PROMPT, 24, **ALONE)).text == texts[0]
    asked = {
        1: [{"id": 0}],
        2: [{"name": "second"}],
        3: [{"id": 1, "scale": 1}, {"name": "first", "scale": 0.5}],
    }
    for index, lora in asked.items():
        assert (await api.complete("tiny", PROMPT, 24, lora=lora, **ALONE)).text == texts[index]
    assert (await api.complete("tiny-first", PROMPT, 24, lora=[{"id": 1}], **ALONE)).text == texts[2]
    assert (await api.complete("tiny-first", PROMPT, 24, lora=[], **ALONE)).text == texts[0]
    assert (await api.complete("tiny", PROMPT, 24, lora=[{"id": 0, "scale": 0}], **ALONE)).text == texts[0]


async def test_answers_with_different_adapters_at_once_are_those_they_are_alone(api: Api) -> None:
    names = ("tiny", "tiny-first", "tiny-second", "tiny-mixed")
    lone = [(await api.complete(name, PROMPT, 16, **ALONE)).text for name in names]
    together = await asyncio.gather(*(api.complete(name, PROMPT, 16, stream=True, **ALONE) for name in names))
    assert [answer.text for answer in together] == lone


async def test_unknown_adapter_is_refused_with_those_that_there_are(api: Api) -> None:
    for lora in ([{"id": 2}], [{"name": "third"}]):
        answer = await api.complete("tiny", PROMPT, 4, lora=lora)
        assert answer.status == 400
        assert answer.error is not None
        assert answer.error["param"] == "lora"
        assert "0: first, 1: second" in answer.error["message"]


async def test_client_cannot_set_the_routers_header(api: Api) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, **ALONE}
    headers = {"X-Corral-Lora": "%5B%7B%22id%22%3A0%7D%5D"}
    async with api.session.post(api.server.url + "/v1/completions", json=body, headers=headers) as reply:
        text = (await reply.json())["choices"][0]["text"]
    assert text == (await api.complete("tiny", PROMPT, 24, **ALONE)).text


async def test_model_whose_adapter_does_not_fit_says_which_one(api: Api) -> None:
    answer = await api.complete("broken", PROMPT, 4)
    assert answer.status == 503
    assert answer.error is not None
    assert "LoRA adapter `large`" in answer.error["message"]
    assert "incorrect shape" in answer.error["message"]
