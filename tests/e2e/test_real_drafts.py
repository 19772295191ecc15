"""Drafted tokens through a real `corral serve`: answers stay what they are, and a misfit is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_server import Api, RealServer, api_of, real_server
from tests.support.tiny_gguf import write_tiny_llama

PROMPT = "hello world tell story hello world tell story hello world"
FIELDS: dict[str, Any] = {"ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder: Path = tmp_path_factory.mktemp("drafts")
    write_tiny_llama(folder / "tiny.gguf")
    write_tiny_llama(folder / "other.gguf", vocab="bpe")
    file = {"model": "./tiny.gguf", "slots": 2, "context": 256}
    models = {
        "plain": file | {"draft_max": 0},
        "text": file,
        "model": file | {"draft_model": "./tiny.gguf"},
        "misfit": file | {"draft_model": "./other.gguf"},
    }
    with real_server(folder, models) as running:
        yield running


@pytest.fixture
async def api(server: RealServer) -> AsyncIterator[Api]:
    async with api_of(server) as client:
        yield client


@pytest.mark.slow
async def test_answers_with_drafts_are_those_without(api: Api) -> None:
    plain = await api.complete("plain", PROMPT, 60, **FIELDS)
    for name in ("text", "model"):
        answer = await api.complete(name, PROMPT, 60, stream=True, **FIELDS)
        assert answer.text == plain.text
    hot: dict[str, Any] = {"ignore_eos": True, "temperature": 0.9, "seed": 5}
    texts = {(await api.complete(name, PROMPT, 60, **hot)).text for name in ("plain", "text", "model")}
    assert len(texts) == 1
    assert await api.metric("corral_drafted_tokens_total", model="plain") == 0
    for seed in range(30):  # drafts are taken as they pay, which in passes so short is a matter of luck
        if await api.metric("corral_drafted_tokens_total", model="model") > 0:
            return
        await api.complete("model", PROMPT, 60, **hot | {"seed": seed})
        await asyncio.sleep(0.2)
    pytest.fail("nothing was ever drafted")


async def test_draft_model_of_another_vocabulary_fails_the_load_with_the_reason(api: Api) -> None:
    answer = await api.complete("misfit", PROMPT, 4)
    assert answer.status == 503
    assert answer.error is not None
    assert "other.gguf: the draft model has another vocabulary" in answer.error["message"]
