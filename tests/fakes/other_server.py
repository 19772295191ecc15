"""Another OpenAI-compatible server on a TCP port of this machine; what it answers is up to each test."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

Script = Callable[[web.Request], Awaitable[web.StreamResponse]]

USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 4},
}
EVENTS = (
    b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"he"},"finish_reason":null}],"usage":null}\n\n',
    b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"y"},"finish_reason":"stop"}],"usage":null}\n\n',
    b'data: {"id":"x","choices":[],"usage":' + json.dumps(USAGE).encode() + b"}\n\n",
    b"data: [DONE]\n\n",
)


@dataclass
class Asked:
    """One request as the server got it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class OtherServer:
    """Answers like the real ones, unless a test sets `script`."""

    def __init__(self) -> None:
        self.script: Script = self.say_hey
        self.asked: list[Asked] = []
        self.connections: set[Any] = set()
        self.num_aborted = 0
        self.arrived = asyncio.Event()
        self.aborted = asyncio.Event()
        self.go_on = asyncio.Event()
        """For scripts that wait for the test."""
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(Asked(request.path, dict(request.headers), json.loads(await request.read())))
        assert request.transport is not None
        self.connections.add(request.transport.get_extra_info("peername"))
        self.arrived.set()
        try:
            return await self.script(request)
        except asyncio.CancelledError:
            self.num_aborted += 1
            self.aborted.set()
            raise

    async def say_hey(self, request: web.Request) -> web.StreamResponse:
        if self.asked[-1].body.get("stream") is True:
            return await self.stream(request, *EVENTS)
        choices = [{"index": 0, "message": {"role": "assistant", "content": "hey"}, "finish_reason": "stop"}]
        return web.json_response({"id": "x", "model": "other-name", "choices": choices, "usage": USAGE})

    @staticmethod
    async def stream(request: web.Request, *chunks: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Set-Cookie": "a=b"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        return response

    async def wait(self, request: web.Request) -> web.StreamResponse:
        """Say nothing until the test says so."""
        await self.go_on.wait()
        return await self.say_hey(request)


@asynccontextmanager
async def other_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[OtherServer]:
    server = OtherServer()
    app = web.Application(client_max_size=2**30)
    app.router.add_post("/{path:.*}", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        server.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield server
    finally:
        await runner.cleanup()
