"""Slots that clients save by name, through a real `corral serve`: they outlive the worker and belong to one client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_server import Api, RealServer, api_of, real_server
from tests.support.served import until
from tests.support.tiny_gguf import write_tiny_llama

PROMPT = "tell story red marker hello world " * 12
GREEDY = {"temperature": 0, "ignore_eos": True, "n_predict": 8}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder: Path = tmp_path_factory.mktemp("slots")
    write_tiny_llama(folder / "tiny.gguf")
    file = {"model": "./tiny.gguf", "slots": 2, "context": 512, "device": "cpu"}
    models = {"kept": file | {"prompt_cache_disk_bytes": "10MiB"}, "plain": file}
    with real_server(folder, models) as running:
        yield running


async def act(api: Api, action: str, slot: int = 0, *, expected: int = 200, **fields: Any) -> dict[str, Any]:
    status, body = await api.post(f"/slots/{slot}?action={action}", {"model": "kept"} | fields)
    assert status == expected, body
    return dict(body)


async def complete(api: Api, prompt: str = PROMPT, slot: int = 0, **fields: Any) -> dict[str, Any]:
    body = {"model": "kept", "prompt": prompt, "id_slot": slot} | GREEDY | fields
    status, reply = await api.post("/completion", body)
    assert status == 200, reply
    assert reply["id_slot"] == slot
    return dict(reply)


async def unload(api: Api) -> None:
    await api.post("/models/unload", {"model": "kept"})

    async def is_unloaded() -> bool:
        return await api.state("kept") == "unloaded"

    await until(is_unloaded, within_s=20, what="the unload")


@pytest.mark.slow
async def test_a_slot_that_was_saved_outlives_the_worker_and_what_was_erased_does_not(
    server: RealServer, tmp_path: Path
) -> None:
    async with api_of(server) as api:
        first = await complete(api, cache_salt="mine")
        saved = await act(api, "save", filename="../../chat", cache_salt="mine")
        assert saved["n_saved"] == first["tokens_evaluated"] + first["tokens_predicted"] - 1
        assert saved["filename"] == "../../chat"
        assert saved["timings"]["save_ms"] > 0
        erased = await act(api, "erase", cache_salt="mine")
        assert erased == {"id_slot": 0, "n_erased": saved["n_saved"]}
        assert (await complete(api, cache_salt="mine"))["timings"]["cache_n"] == 0, "it is computed anew"
        await act(api, "erase", cache_salt="mine")
        await unload(api)

        refused = await act(api, "save", filename="x", expected=400)
        assert "not loaded" in refused["error"]["message"]
        for others in ({}, {"cache_salt": "another"}):
            refused = await act(api, "restore", filename="../../chat", expected=400, **others)
            assert "Nothing is saved" in refused["error"]["message"]
        await unload(api)
        restored = await act(api, "restore", 1, filename="../../chat", cache_salt="mine")
        assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
        assert (await complete(api))["timings"]["cache_n"] == 0, "who sends another salt, or none, shares nothing"
        longer = PROMPT + first["content"] + " user"
        cached = await complete(api, longer, 1, cache_salt="mine")
        assert cached["timings"]["cache_n"] >= first["tokens_evaluated"], "the answer may be other tokens as text"
        computed = await complete(api, longer, 1, cache_prompt=False)
        assert computed["timings"]["cache_n"] == 0
        assert cached["content"] == computed["content"]


@pytest.mark.slow
async def test_a_model_that_keeps_nothing_saves_nothing(server: RealServer) -> None:
    async with api_of(server) as api:
        refused = await act(api, "save", model="plain", filename="x", expected=501)
        assert "`prompt_cache_disk_bytes`" in refused["error"]["message"]
        assert await api.state("plain") == "unloaded"
