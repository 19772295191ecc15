"""Answers of which a client has read half, and what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from pydantic import SecretStr

from router.kept_runs import KEPT_RUNS
from router.kept_streams import CONVERSATION, KeptStreams
from tests.fakes.supervisor import EVENTS, Received, Sender
from tests.support.http_side import CHAT, HttpSide, http_side
from tests.support.served import until
from worker.contract import Header

ID = "conversation-".ljust(30, "x")
PIECES = [f'data: {{"n":{number}}}\n\n'.encode() for number in range(6)]
ALL = b"".join(PIECES)
ASK = {"model": "smol", "messages": [{"role": "user", "content": "hi"}], "stream": True}
KEYS = {"api_keys": (SecretStr("one"), SecretStr("two"))}


class Talk:
    """A worker's script: the first half of the pieces, and the rest once it may go on."""

    def __init__(self, pieces: list[bytes] = PIECES, content_type: str = EVENTS) -> None:
        self.may_go_on = asyncio.Event()
        self.is_over = asyncio.Event()
        self.pieces = pieces
        self._content_type = content_type

    async def __call__(self, received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = self._content_type
        half = len(self.pieces) // 2
        for piece in self.pieces[:half]:
            await sender.data(piece)
        await self.may_go_on.wait()
        for piece in self.pieces[half:]:
            await sender.data(piece)
        await sender.end(usage={"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9})
        self.is_over.set()


def headers(conversation: str = ID, key: str = "") -> dict[str, str]:
    return {CONVERSATION: conversation} | ({"Authorization": f"Bearer {key}"} if key else {})


def store_of(side: HttpSide) -> KeptStreams:
    return side.client.server.app[KEPT_RUNS].store


async def read_half(reply: aiohttp.ClientResponse, pieces: list[bytes] = PIECES) -> bytes:
    return await reply.content.readexactly(len(b"".join(pieces[: len(pieces) // 2])))


def leave(reply: aiohttp.ClientResponse) -> None:
    """The client's connection is gone."""
    assert reply.connection is not None
    assert reply.connection.transport is not None
    reply.connection.transport.abort()


@asynccontextmanager
async def left(
    body: Mapping[str, Any] = ASK, *, path: str = CHAT, key: str = "", talk: Talk | None = None, **options: Any
) -> AsyncIterator[tuple[HttpSide, Talk, bytes]]:
    """An answer of which a client has read half and then lost its connection, with that half."""
    async with http_side(**options) as side:
        side.worker.script = talk = talk or Talk()
        reply = await side.client.post(path, json=body, headers=headers(key=key))
        assert (reply.status, reply.headers[CONVERSATION]) == (200, ID), await reply.text()
        got = await read_half(reply, talk.pieces)
        leave(reply)
        await until(lambda: store_of(side).counts()["detached"] == 1)
        yield side, talk, got


async def read_on(side: HttpSide, offset: int | str = 0, *, key: str = "", name: str = ID) -> tuple[int, bytes]:
    reply = await side.client.get(f"/v1/streams/{name}?from={offset}", headers=headers(key=key))
    return reply.status, await reply.read()
