"""A client that reads server-sent events, for tests. Owns no expectation about them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from router.topics import TOPIC_HUB
from tests.support.http_side import HttpSide


class EventReader:
    """One client that follows."""

    def __init__(self, reply: aiohttp.ClientResponse) -> None:
        self.reply = reply

    async def next(self) -> tuple[str, Any]:
        """Return the kind and the data of the next event."""
        fields = {}
        async with asyncio.timeout(10):
            while line := (await self.reply.content.readline()).decode().rstrip("\n"):
                name, _, value = line.partition(": ")
                fields[name] = value
        return fields["event"], json.loads(fields["data"])

    async def until(self, kind: str) -> Any:
        """Return the data of the next event of this kind; others pass unseen."""
        while True:
            found, data = await self.next()
            if found == kind:
                return data

    async def take(self, num: int) -> list[tuple[str, Any]]:
        """Return the next events."""
        return [await self.next() for _ in range(num)]


@asynccontextmanager
async def following(
    side: HttpSide, topics: str, headers: dict[str, str] | None = None, *, every_s: float = 0.01
) -> AsyncIterator[EventReader]:
    """Follow `topics`, which are looked at every `every_s` seconds."""
    assert side.client.app is not None
    side.client.app[TOPIC_HUB].every_s = every_s
    async with side.client.get(f"/events?topics={topics}", headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        assert reply.headers["Content-Type"] == "text/event-stream"
        yield EventReader(reply)
