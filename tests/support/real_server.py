"""A real `corral serve` over real workers and real models, and ways to ask it and to look behind it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.served import is_running, until

START_WITHIN_S = 60.0
ANSWER_WITHIN_S = 120.0
"""For a machine that is busy with other things too."""
ON_THE_WAY_S = 0.1
"""So long may a report be on its way from a worker."""

_ROOT = Path(__file__).resolve().parents[2]


class RealServer:
    """One server process. Independent of event loops, so that many tests can use it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self.url = ""
        self._is_listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_ready(self) -> None:
        assert self._is_listening.wait(START_WITHIN_S), f"the server does not listen: {self.lines}"
        assert self.url, f"the server has ended: {self.lines}"

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                fields = json.loads(line)
            except ValueError:
                fields = {"message": line.decode("utf-8", "replace")}
            self.lines.append(fields)
            if fields.get("message") == "listening":
                self.url = fields["url"]
                self._is_listening.set()
        self._is_listening.set()

    def worker_pids(self, model: str | None = None) -> list[int]:
        """Return the processes of the workers that run now; of one model alone, as the log has named them."""
        if model is not None:
            started = (
                re.match(rf"{re.escape(model)}: loading .*process (\d+)\)", line["message"]) for line in self.lines
            )
            return [pid for found in started if found and is_running(pid := int(found[1]))]
        return self._children(recursive=False)

    def _children(self, *, recursive: bool) -> list[int]:
        """Return the processes below the server's that run now: its workers, and with them what they have started."""
        children = psutil.Process(self.process.pid).children(recursive=recursive)
        return [child.pid for child in children if is_running(child.pid)]

    def close(self) -> None:
        pids = self._children(recursive=True) if self.process.poll() is None else []
        self.process.terminate()
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        left = [pid for pid in pids if is_running(pid)]
        for pid in left:
            os.kill(pid, 9)
        assert not left, f"workers that outlived their server: {left}"


@contextmanager
def real_server(
    folder: Path, models: Mapping[str, Mapping[str, Any]], *, env: Mapping[str, str] | None = None, **top: Any
) -> Iterator[RealServer]:
    """Run a server over `models` until the end of the block. Nothing is calibrated unless they say so.

    What it learns is kept in `folder`, not where the user's own routers keep it.
    """
    catalogue = folder / "models.yaml"
    described = {
        name: dict(options) if "url" in options else {"calibrate": False} | dict(options)
        for name, options in models.items()
    }
    catalogue.write_text(yaml.safe_dump({"models": described} | top))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CORRAL_")}
    own = {"CORRAL_LOG_FORMAT": "json", "CORRAL_CACHE": str(folder / "cache")}
    process = subprocess.Popen(
        [sys.executable, "-m", "router", "serve", str(catalogue), "--port", "0"],
        cwd=_ROOT,
        env=kept | own | dict(env or {}),
        stdout=subprocess.PIPE,
    )
    server = RealServer(process)
    try:
        server.wait_ready()
        yield server
    finally:
        server.close()


@dataclass(frozen=True)
class Answer:
    """One reply, streamed or not, in the same form."""

    status: int
    body: dict[str, Any]
    """The reply, the error, or the last chunk that carried something."""
    texts: dict[int, str]
    """By choice."""
    finish: dict[int, str]
    usage: dict[str, Any]
    headers: Mapping[str, str]
    pieces: tuple[str, ...] = ()
    """Of a stream, as they came."""
    is_done: bool = False
    """Whether a stream ended with `[DONE]`."""
    error: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        (text,) = self.texts.values()
        return text

    @property
    def finish_reason(self) -> str:
        (reason,) = self.finish.values()
        return reason

    @property
    def counts(self) -> tuple[int, int]:
        """Prompt and answer tokens."""
        return self.usage["prompt_tokens"], self.usage["completion_tokens"]


class Api:
    """A client without any cleverness."""

    def __init__(self, server: RealServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session

    async def get(self, path: str) -> Any:
        async with self.session.get(self.server.url + path) as reply:
            return await reply.json()

    async def post(self, path: str, body: Mapping[str, Any] | bytes) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        async with self.session.post(self.server.url + path, data=data, headers=headers) as reply:
            return reply.status, await reply.json()

    async def complete(self, model: str, prompt: Any, max_tokens: int, **fields: Any) -> Answer:
        """Return the answer to a raw prompt, greedy unless told otherwise."""
        body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0} | fields
        return await self._ask("/v1/completions", body)

    async def chat(self, model: str, content: str, max_tokens: int, **fields: Any) -> Answer:
        """Return the answer to one user message, greedy unless told otherwise."""
        messages = [{"role": "user", "content": content}]
        body = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0} | fields
        return await self._ask("/v1/chat/completions", body)

    async def _ask(self, path: str, body: dict[str, Any]) -> Answer:
        if body.get("stream"):
            body = {"stream_options": {"include_usage": True}} | body
        async with self.session.post(self.server.url + path, json=body) as reply:
            if reply.content_type == "text/event-stream":
                return _from_stream(reply, await reply.text())
            content = await reply.json()
        choices = content.get("choices", [])
        return Answer(
            status=reply.status,
            body=content,
            texts={one["index"]: one["message"]["content"] if "message" in one else one["text"] for one in choices},
            finish={one["index"]: one["finish_reason"] for one in choices},
            usage=content.get("usage", {}),
            headers=reply.headers,
            error=content.get("error"),
        )

    async def raw(self, path: str, body: Mapping[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection on which the request has been sent."""
        parts = urlsplit(self.server.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        return reader, writer

    async def slots(self, model: str) -> list[dict[str, Any]]:
        return [slot for slot in await self.get("/slots") if slot["model"] == model]

    async def states(self, model: str) -> list[str]:
        return [slot["state"] for slot in await self.slots(model)]

    async def is_idle(self, model: str) -> bool:
        queued = (await self.get("/health"))["queue_length"]
        return queued == 0 and set(await self.states(model)) <= {"IDLE"}

    async def state(self, model: str) -> str:
        return str((await self.get(f"/v1/models/{model}"))["state"])

    async def families(self) -> dict[str, Metric]:
        """Return what `/metrics` shows, by family name."""
        async with self.session.get(self.server.url + "/metrics") as reply:
            text = await reply.text()
        return {family.name: family for family in text_string_to_metric_families(text)}

    async def reported(self, model: str) -> None:
        """Return when the figures of the model's one worker are newer than this call."""
        asked_s = time.monotonic()

        async def is_new() -> bool:
            since_s = time.monotonic() - asked_s - ON_THE_WAY_S
            return await self.metric("corral_worker_status_age_seconds", model=model) < since_s

        await until(is_new, within_s=30, what=f"a report of the worker of {model}")

    async def metric(self, name: str, **labels: str) -> float:
        """Return the sum over all series of `name` that have these labels."""
        return sum(
            sample.value
            for family in (await self.families()).values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@asynccontextmanager
async def api_of(server: RealServer) -> AsyncIterator[Api]:
    """Hold a client of the server."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        yield Api(server, session)


def _from_stream(reply: aiohttp.ClientResponse, text: str) -> Answer:
    texts: dict[int, str] = {}
    finish: dict[int, str] = {}
    pieces: list[str] = []
    last: dict[str, Any] = {}
    usage: dict[str, Any] = {}
    error = None
    payloads = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    is_done = bool(payloads) and payloads[-1] == "[DONE]"
    for payload in payloads[:-1] if is_done else payloads:
        last = json.loads(payload)
        error = last.get("error", error)
        usage = last.get("usage") or usage
        for one in last.get("choices", []):
            piece = (one["delta"].get("content") if "delta" in one else one["text"]) or ""
            texts[one["index"]] = texts.get(one["index"], "") + piece
            if piece:
                pieces.append(piece)
            if one["finish_reason"]:
                finish[one["index"]] = one["finish_reason"]
    return Answer(reply.status, last, texts, finish, usage, reply.headers, tuple(pieces), is_done, error)


def wait_gone(pids: list[int], within_s: float) -> None:
    """Return once none of the processes runs any more."""
    deadline_s = time.monotonic() + within_s
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline_s, f"still running after {within_s} s: {pids}"
        time.sleep(0.02)
