"""What a running `corral serve` loads and holds while nothing happens, with one model and with a thousand."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.support.gguf_bytes import gguf_bytes
from tests.support.served import server_env

MAX_IDLE_BYTES = 80e6
RELOAD_WITHIN_S = 0.3
SLOWER = 6
"""By how much a machine that runs other tests too may exceed what holds on an idle one."""

NEVER = {"huggingface_hub", "httpx", "rich", "typer", "llama_cpp", "numpy", "jinja2", "openai", "pip", "worker.engine"}


def thousand_models() -> str:
    lines = ["limits: {max_loaded: 2}", "defaults: {context: 4096, batch_size: 512}", "models:"]
    for number in range(1000):
        lines += [
            f"  model-{number:04}:",
            "    model: ./model.gguf",
            f"    aliases: [alias-{number:04}, org/name-{number}:fast]",
            f"    idle_unload_s: {300 + number}",
            "    request: {defaults: {temperature: 0.7, top_p: 0.9}}",
            f"    description: Model number {number} of many",
        ]
    return "\n".join(lines) + "\n"


@asynccontextmanager
async def serving(folder: Path, text: str) -> AsyncIterator[tuple[str, psutil.Process]]:
    """Run a server that writes every import to the file `imports`."""
    (folder / "model.gguf").write_bytes(gguf_bytes())
    (folder / "models.yaml").write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CORRAL_")}
    log, imports = folder / "log", folder / "imports"
    with log.open("wb") as out, imports.open("wb") as err:
        command = [sys.executable, "-X", "importtime", "-m", "router", "serve", str(folder / "models.yaml")]
        process = await asyncio.create_subprocess_exec(
            *command, "--port", "0", env=kept | server_env(folder), stdout=out, stderr=err
        )
    try:
        async with asyncio.timeout(60):
            while not (found := re.search(r'"url": "([^"]+)"', log.read_text())):
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.05)
        yield found[1], psutil.Process(process.pid)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def test_serving_loads_nothing_that_only_fetching_or_computing_needs(tmp_path: Path) -> None:
    async with serving(tmp_path, "models: {small: ./model.gguf}\n") as (url, _), aiohttp.ClientSession() as client:
        body = {"model": "small", "messages": [{"role": "user", "content": "hi"}]}
        async with client.post(f"{url}/v1/chat/completions", json=body) as reply:
            assert reply.status == 200, await reply.text()
        for path in ("/", "/v1/models", "/models", "/slots", "/metrics"):
            async with client.get(url + path) as reply:
                assert reply.status == 200, path
        async with client.post(f"{url}/admin/reload") as reply:
            assert reply.status == 200
    imported = set(re.findall(r"^import time:.*\| +(\S+)$", (tmp_path / "imports").read_text(), re.MULTILINE))
    assert "router.supervisor" in imported
    assert not imported & NEVER


async def test_an_idle_server_stays_below_its_bound_of_memory(tmp_path: Path) -> None:
    async with serving(tmp_path, "models: {small: ./model.gguf}\n") as (_, process):
        assert process.memory_info().rss < MAX_IDLE_BYTES


@pytest.mark.slow
async def test_a_thousand_models_are_read_again_in_no_time_and_little_memory(tmp_path: Path) -> None:
    async with serving(tmp_path, thousand_models()) as (url, process), aiohttp.ClientSession() as client:
        assert process.memory_info().rss < MAX_IDLE_BYTES
        taken_s = []
        for number in range(3):
            edited = thousand_models().replace("idle_unload_s: 300\n", f"idle_unload_s: {number + 1}\n")
            (tmp_path / "models.yaml").write_text(edited)
            start_s = time.monotonic()
            async with client.post(f"{url}/admin/reload") as reply:
                verdict = await reply.json()
            taken_s.append(time.monotonic() - start_s)
            assert verdict["changed"] == {"model-0000": ["idle_unload_s"]}
            assert verdict["unchanged"] == 999
        assert min(taken_s) < RELOAD_WITHIN_S * SLOWER
