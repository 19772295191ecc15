"""A worker's application on a real Unix socket, and a client that reads frames like the router does."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.fakes.engine import FakeEngine
from worker.api.gate import Gate
from worker.api.served import ServedModel
from worker.app import make_app, make_runner
from worker.contract import ErrorPayload, Frame, FrameDecoder, FrameType, Header

HEADERS = {
    Header.REQUEST_ID: "r1",
    Header.CREATED: "1700000000",
    Header.SEED: "7",
    Header.PRIORITY: "3",
    Header.CACHE_SALT: "salt",
}


@dataclass
class WorkerReply:
    """A framed reply, read to its end."""

    status: int
    shown_type: str
    frames: list[Frame]

    @property
    def body(self) -> bytes:
        """What the client would have got."""
        return b"".join(frame.payload for frame in self.frames if frame.type is FrameType.DATA)

    @property
    def json(self) -> Any:
        """The reply that is not streamed."""
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The JSON of each event of a stream, `[DONE]` checked and left out."""
        lines = self.body.decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]

    @property
    def end(self) -> Any:
        """The last frame, which ends every reply."""
        assert self.frames[-1].type is FrameType.END
        return json.loads(self.frames[-1].payload)

    @property
    def error(self) -> ErrorPayload:
        """The refusal, when nothing else was sent."""
        assert [frame.type for frame in self.frames] == [FrameType.ERROR, FrameType.END]
        return ErrorPayload.from_json(self.frames[0].payload)


@dataclass
class WorkerClient:
    """The application under test with its only client."""

    model: ServedModel
    engine: FakeEngine
    gate: Gate
    socket_path: str
    session: aiohttp.ClientSession
    headers: Mapping[str, str] = field(default_factory=lambda: HEADERS)

    async def post(self, path: str, body: Mapping[str, Any] | bytes, **headers: str) -> WorkerReply:
        """Return the whole reply."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        async with self.session.post(f"http://worker{path}", data=data, headers=sent) as response:
            decoder = FrameDecoder()
            frames = decoder.feed(await response.read())
            assert decoder.is_at_boundary
            assert response.headers["Content-Type"] == "application/x-corral-frames"
            return WorkerReply(response.status, response.headers[Header.CONTENT_TYPE], frames)

    async def chat(self, *messages: tuple[str, Any] | Mapping[str, Any], **fields: Any) -> WorkerReply:
        """Return the reply to a chat request; a message may be a pair of role and content."""
        listed = [{"role": one[0], "content": one[1]} if isinstance(one, tuple) else one for one in messages]
        return await self.post("/v1/chat/completions", {"messages": listed, **fields})

    async def complete(self, prompt: Any, **fields: Any) -> WorkerReply:
        """Return the reply to a completion request."""
        return await self.post("/v1/completions", {"prompt": prompt, **fields})

    async def open(self, path: str, body: Mapping[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a raw connection on which the request has been sent."""
        reader, writer = await asyncio.open_unix_connection(self.socket_path)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: worker\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        await writer.drain()
        return reader, writer


@asynccontextmanager
async def serve(engine: FakeEngine, **model: Any) -> AsyncIterator[WorkerClient]:
    """The application answers on a socket as in a real worker."""
    served = replace(ServedModel("tiny", engine, engine.vocabulary), **model)
    gate = Gate()
    # The system's own temporary folder: a socket's path may have 104 bytes at most.
    with tempfile.TemporaryDirectory(prefix="cw") as folder:
        socket_path = str(Path(folder) / "s")
        runner = make_runner(make_app(served, gate))
        await runner.setup()
        await web.UnixSite(runner, socket_path).start()
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=socket_path)) as session:
            yield WorkerClient(served, engine, gate, socket_path, session)
        await runner.cleanup()
