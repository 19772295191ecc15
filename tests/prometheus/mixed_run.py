"""Two hundred mixed requests to a real server, and what each was answered: a source of truth beside the metrics.

Owns the requests and their bookkeeping. Must not read a metric.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NUM_AT_ONCE = 6
"""As many as `main` takes, so that nobody waits for it."""


@dataclass
class Told:
    """What clients were told, all together."""

    outcomes: Counter[str] = field(default_factory=Counter)
    by_model: Counter[tuple[str, str]] = field(default_factory=Counter)
    prompt_tokens: Counter[str] = field(default_factory=Counter)
    cached_tokens: Counter[str] = field(default_factory=Counter)
    generated_tokens: Counter[str] = field(default_factory=Counter)
    num_streamed: Counter[str] = field(default_factory=Counter)
    """Streams of which the client got at least a byte."""

    def note(self, model: str, outcome: str) -> None:
        self.outcomes[outcome] += 1
        self.by_model[model, outcome] += 1

    def note_usage(self, model: str, usage: dict[str, Any]) -> None:
        self.prompt_tokens[model] += usage["prompt_tokens"]
        self.cached_tokens[model] += usage["prompt_tokens_details"]["cached_tokens"]
        self.generated_tokens[model] += usage["completion_tokens"]


class MixedRun:
    """One client program that does everything that clients do."""

    def __init__(self, url: str, session: aiohttp.ClientSession, told: Told, kill: Callable[[str], None]) -> None:
        self._url = url
        self._session = session
        self._kill = kill
        self._places = asyncio.Semaphore(NUM_AT_ONCE)
        self.told = told

    async def first(self) -> None:
        """Send one request of most kinds: Prometheus sees no growth in what it has never seen before."""
        for model in ("main", "narrow", "left"):
            await self._ask(model, COMPLETIONS, {"model": model, "prompt": "x", "max_tokens": 1})
        await self._streamed(0)
        await self._wrong_field()
        await self._unknown_model()
        await self._broken_model()

    async def rest(self) -> None:
        """Send all others."""
        await asyncio.gather(
            *(self._whole(number) for number in range(68)),
            *(self._streamed(number) for number in range(1, 50)),
            *(self._completion(number) for number in range(20)),
            *(self._too_long() for _ in range(5)),
            *(self._wrong_field() for _ in range(9)),
            *(self._unknown_model() for _ in range(10)),
            *(self._broken_model() for _ in range(10)),
            self._leavers(8),
        )
        await asyncio.gather(*(self._crowd(number) for number in range(12)))
        await self._bereaved()
        await self._ask("fragile", COMPLETIONS, {"model": "fragile", "prompt": "x", "max_tokens": 1})

    async def _whole(self, number: int) -> None:
        async with self._places:
            await self._ask("main", CHAT, chat("main", f"Name {number} animals.", max_tokens=2))

    async def _streamed(self, number: int) -> None:
        body = chat("main", f"Count to {number}.", max_tokens=4, stream=True, stream_options={"include_usage": True})
        async with self._places:
            await self._ask("main", CHAT, body)

    async def _completion(self, number: int) -> None:
        body = {"model": "main", "prompt": f"{number} and {number} are", "max_tokens": 1, "temperature": 0}
        async with self._places:
            await self._ask("main", COMPLETIONS, body)

    async def _too_long(self) -> None:
        async with self._places:
            await self._ask("main", CHAT, chat("main", "word " * 3000))

    async def _wrong_field(self) -> None:
        async with self._places:
            await self._ask("main", CHAT, chat("main", "hi", temperature="hot"))

    async def _unknown_model(self) -> None:
        await self._ask("", CHAT, chat("nobody's", "hi"))

    async def _broken_model(self) -> None:
        await self._ask("broken", CHAT, chat("broken", "hi"))

    async def _crowd(self, number: int) -> None:
        """One of many who want the same single slot; some are served, the others give up after a second in line."""
        await self._ask("narrow", CHAT, chat("narrow", f"Tell me story {number}.", max_tokens=48))

    async def _leavers(self, count: int) -> None:
        for number in range(count):
            body = chat("left", f"Write poem {number}.", max_tokens=64, stream=True)
            async with self._session.post(self._url + CHAT, json=body) as reply:
                assert reply.status == 200
                await reply.content.readuntil(b"\n\n")
                reply.close()
            self.told.num_streamed["left"] += 1
            self.told.note("left", "client_gone")

    async def _bereaved(self) -> None:
        """Lose the worker in the middle of an answer."""
        body = chat("fragile", "Write a long story.", max_tokens=64, stream=True)
        async with self._session.post(self._url + CHAT, json=body) as reply:
            await reply.content.readuntil(b"\n\n")
            self._kill("fragile")
            rest = await reply.text()
        assert "worker_died" in rest, rest
        assert "[DONE]" not in rest, "a broken answer must not look complete"
        self.told.num_streamed["fragile"] += 1
        self.told.note("fragile", "worker_died")

    async def _ask(self, model: str, path: str, body: dict[str, Any]) -> None:
        async with self._session.post(self._url + path, json=body) as reply:
            if reply.content_type == "text/event-stream":
                usage = _usage_of_stream(await reply.text())
                self.told.num_streamed[model] += 1
                self.told.note_usage(model, usage)
                self.told.note(model, "ok")
                return
            content = await reply.json()
        if reply.status == 200:
            self.told.note_usage(model, content["usage"])
        self.told.note(model, _outcome(reply.status, content))


def chat(model: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], "temperature": 0} | fields


def _usage_of_stream(text: str) -> dict[str, Any]:
    payloads = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    assert payloads[-1] == "[DONE]", text[-300:]
    usage: dict[str, Any] = next(found for each in payloads[:-1] if (found := json.loads(each).get("usage")))
    return usage


def _outcome(status: int, content: dict[str, Any]) -> str:
    """Return what the operator should see of what the client was told."""
    if status == 200:
        return "ok"
    if content["error"]["code"] in ("queue_timeout", "request_timeout"):
        return "timeout"
    return "rejected" if status < 500 else "error"


@asynccontextmanager
async def mixed_run(url: str, key: str, told: Told, kill: Callable[[str], None]) -> AsyncIterator[MixedRun]:
    """Hold a client of the server at `url`, which notes in `told` what comes of its requests.

    `kill` ends the worker of a model.
    """
    timeout = aiohttp.ClientTimeout(total=90)
    headers = {"Authorization": f"Bearer {key}"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers) as session:
        yield MixedRun(url, session, told, kill)
