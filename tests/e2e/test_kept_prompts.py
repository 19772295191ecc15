"""A conversation with a model that had to make room for another one meanwhile goes on where it was."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.support.real_server import Api, api_of, real_server
from tests.support.served import until
from tests.support.tiny_gguf import write_tiny_llama

PROMPT = "tell story red marker hello world " * 12


@pytest.mark.slow
async def test_a_swap_there_and_back_costs_no_prompt(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_tiny_llama(tmp_path / f"{name}.gguf", name=name)
    file = {"slots": 2, "context": 512, "device": "cpu"}
    models = {
        "kept": file | {"model": "./a.gguf", "prompt_cache_disk_bytes": "10MiB"},
        "plain": file | {"model": "./b.gguf"},
    }
    env = {"CORRAL_CACHE": str(tmp_path / "cache")}
    with real_server(tmp_path, models, env=env, limits={"max_loaded": 1}) as server:
        async with api_of(server) as api:
            text = (await api.complete("kept", PROMPT, 8, ignore_eos=True)).text
            longer = PROMPT + text + " user"
            await _swap_to(api, "plain", "kept")
            (path,) = (tmp_path / "cache" / "prompts").rglob("*.kv")
            assert [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent)] == [0o600, 0o700]
            swapped = await api.complete("kept", longer, 8, ignore_eos=True)
            assert _cached(swapped.usage) >= swapped.counts[0] - 12
            uncached = await api.complete("kept", longer, 8, ignore_eos=True, cache_prompt=False)
            assert _cached(uncached.usage) == 0
            assert swapped.text == uncached.text

            plain = await api.complete("plain", PROMPT, 8, ignore_eos=True)
            await _swap_to(api, "kept", "plain")
            again = await api.complete("plain", PROMPT, 8, ignore_eos=True)
            assert (_cached(again.usage), again.text) == (0, plain.text), "a model that keeps nothing on the disk"
            assert len(list((tmp_path / "cache" / "prompts").iterdir())) == 1


@pytest.mark.slow
async def test_a_restart_of_the_server_costs_no_prompt(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "a.gguf")
    models = {"kept": {"model": "./a.gguf", "context": 512, "device": "cpu", "prompt_cache_disk_bytes": "10MiB"}}
    env = {"CORRAL_CACHE": str(tmp_path / "cache")}
    cached = []
    for _ in range(2):
        with real_server(tmp_path, models, env=env) as server:
            async with api_of(server) as api:
                answer = await api.complete("kept", PROMPT, 8, ignore_eos=True)
                cached.append(_cached(answer.usage))
    assert cached == [0, answer.counts[0] - 1]


async def _swap_to(api: Api, model: str, other: str) -> None:
    """`model` has taken the place of `other`."""
    assert (await api.complete(model, "hello", 1)).status == 200

    async def is_unloaded() -> bool:
        return await api.state(other) == "unloaded"

    await until(is_unloaded, within_s=20, what=f"{other} to be unloaded")


def _cached(usage: dict[str, dict[str, int]]) -> int:
    return usage["prompt_tokens_details"]["cached_tokens"]
