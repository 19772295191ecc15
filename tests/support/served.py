"""A real `corral serve` in a process of its own, over stub workers, and raw sockets to it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil
import yaml

from tests.fakes.worker import fake_worker_command, read_journal
from tests.support.gguf_bytes import gguf_bytes

START_WITHIN_S = 30.0
_ROOT = Path(__file__).resolve().parents[2]


class Served:
    """One running server."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.journal_path = folder / "journal"
        self.lines: list[dict[str, Any]] = []
        self.url = ""
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))
        self._reading: asyncio.Task[None] | None = None

    async def wait_ready(self) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(START_WITHIN_S):
            while not self.url:
                line = await self.process.stdout.readline()
                assert line, f"the server ended with code {await self.process.wait()}: {self.lines}"
                self._take(line)
        self._reading = asyncio.create_task(self._read_on())

    async def _read_on(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            fields = json.loads(line)
        except ValueError:
            fields = {"message": line.decode("utf-8", "replace")}
        self.lines.append(fields)
        if fields["message"] == "listening":
            self.url = fields["url"]

    async def close(self) -> None:
        await self.session.close()
        if self.process.returncode is None:
            self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), 20)
            except TimeoutError:
                self.process.kill()
        for pid in self.worker_pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._reading is not None:
            await self._reading

    # --- asking ---

    async def chat(self, model: str, *, stream: bool = False, **fake: Any) -> aiohttp.ClientResponse:
        return await self.session.post(f"{self.url}/v1/chat/completions", json=chat_body(model, stream=stream, **fake))

    async def get(self, path: str) -> Any:
        async with self.session.get(self.url + path) as reply:
            return await reply.json()

    async def raw_chat(self, model: str, *, stream: bool, **fake: Any) -> tuple[Any, asyncio.StreamWriter]:
        """Return a connection on which the request has been sent."""
        body = json.dumps(chat_body(model, stream=stream, **fake)).encode()
        reader, writer = await self.connect()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        await writer.drain()
        return reader, writer

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.url)
        return await asyncio.open_connection(parts.hostname, parts.port)

    # --- looking behind ---

    def journal(self, event: str) -> list[dict[str, Any]]:
        return read_journal(self.journal_path, event)

    def worker_pids(self) -> list[int]:
        return [entry["pid"] for entry in self.journal("started") if is_running(entry["pid"])]

    async def busy_slots(self) -> int:
        return sum(slot["is_processing"] for slot in await self.get("/slots"))


def chat_body(model: str, *, stream: bool = False, **fake: Any) -> dict[str, Any]:
    return {"model": model, "stream": stream, "messages": [{"role": "user", "content": "hi"}], "fake": fake}


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def until(condition: Callable[[], bool | Awaitable[bool]], *, within_s: float = 10.0, what: str = "it") -> float:
    """Return after how many seconds `condition` has become true. Fails when it does not in time."""
    start_s = time.monotonic()
    while True:
        found = condition()
        if found if isinstance(found, bool) else await found:
            return time.monotonic() - start_s
        assert time.monotonic() - start_s < within_s, f"{what} did not happen within {within_s} s"
        await asyncio.sleep(0.01)


def server_env(folder: Path) -> dict[str, str]:
    """Return the settings of a server over stub workers that keeps what it learns in `folder`, not in the user's."""
    return {
        "CORRAL_WORKER_COMMAND": json.dumps(fake_worker_command()),
        "CORRAL_LOG_FORMAT": "json",
        "CORRAL_CACHE": str(folder / "cache"),
    }


@asynccontextmanager
async def served(
    folder: Path, models: dict[str, dict[str, Any]], *, env: dict[str, str] | None = None, port: int = 0, **top: Any
) -> AsyncIterator[Served]:
    """Run a server over `models`: options of each, where `fake` holds the stub's environment controls.

    `port` 0 = one that is free.
    """
    (folder / "model.gguf").write_bytes(gguf_bytes())
    described = {}
    for name, options in models.items():
        fake = {f"FAKE_{key}": str(value) for key, value in options.pop("fake", {}).items()}
        if "url" in options:  # it is on another server
            described[name] = options
            continue
        described[name] = {"model": "./model.gguf", "slots": 2} | options
        described[name]["env"] = {"FAKE_JOURNAL": str(folder / "journal")} | fake
    (folder / "models.yaml").write_text(yaml.safe_dump({"models": described} | top))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CORRAL_", "FAKE_"))}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "router",
        "serve",
        str(folder / "models.yaml"),
        "--port",
        str(port),
        cwd=_ROOT,
        env=kept | server_env(folder) | (env or {}),
        stdout=asyncio.subprocess.PIPE,
    )
    server = Served(process, folder)
    try:
        await server.wait_ready()
        yield server
    finally:
        await server.close()
