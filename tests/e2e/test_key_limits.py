"""Limits and shares of API keys on a real server with real workers, as clients of several keys meet them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from tests.support.real_server import RealServer, real_server
from tests.support.tiny_gguf import write_tiny_llama

KEYS = {
    "flood": {"weight": 1},
    "small": {"weight": 2},
    "late": {},
    "poor": {"requests_per_min": 2, "tokens_per_min": 10_000},
    "root": {"scopes": ["admin"]},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder: Path = tmp_path_factory.mktemp("keys")
    write_tiny_llama(folder / "tiny.gguf")
    models = {"tiny": {"model": "./tiny.gguf", "slots": 2, "device": "cpu", "threads": 1, "idle_unload_s": 0}}
    keys = {name: {"env": f"{name.upper()}_KEY"} | fields for name, fields in KEYS.items()}
    env = {f"{name.upper()}_KEY": name for name in KEYS}
    with real_server(folder, models, env=env, keys=keys) as running:
        yield running


class Client:
    """Asks in the name of one key."""

    def __init__(self, server: RealServer, session: aiohttp.ClientSession, key: str) -> None:
        self._server = server
        self._session = session
        self._headers = {"Authorization": f"Bearer {key}"}
        self.num_ended = 0
        self.ended: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        """Set when so many of its requests have ended."""

    async def get(self, path: str) -> Any:
        async with self._session.get(self._server.url + path, headers=self._headers) as reply:
            return await reply.json()

    async def complete(self, num_tokens: int) -> None:
        """Return when an answer of so many tokens has come."""
        body = {"model": "tiny", "prompt": "x", "max_tokens": num_tokens, "min_tokens": num_tokens, "ignore_eos": True}
        async with self._session.post(self._server.url + "/v1/completions", json=body, headers=self._headers) as reply:
            answer = await reply.json()
            assert reply.status == 200, answer
            assert answer["usage"]["completion_tokens"] == num_tokens
        self.num_ended += 1
        self.ended[self.num_ended].set()


@pytest.mark.slow
async def test_tokens_go_by_weight_although_one_key_floods_the_server_with_long_requests(server: RealServer) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        flood, small, late, root = (Client(server, session, key) for key in ("flood", "small", "late", "root"))
        await root.complete(1)  # the model is loaded
        asked = [asyncio.ensure_future(flood.complete(32)) for _ in range(40)]
        asked += [asyncio.ensure_future(small.complete(8)) for _ in range(90)]
        await small.ended[10].wait()
        before = flood.num_ended + small.num_ended
        await late.complete(4)
        passed_by = flood.num_ended + small.num_ended - before
        await small.ended[60].wait()
        used = {one["id"]: one for one in await root.get("/admin/keys")}
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    assert passed_by <= 12, "it waits for what runs, and for about one request of each other key"
    assert 1.5 < used["small"]["tokens"] / used["flood"]["tokens"] < 3.5
    assert 20 <= used["small"]["running"] <= 30, "those that wait count as well"


async def test_openais_client_sees_a_limit_as_one(server: RealServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="poor", max_retries=0) as client:
        for left in ("1", "0"):
            reply = await client.completions.with_raw_response.create(model="tiny", prompt="x", max_tokens=2)
            assert reply.headers["x-ratelimit-remaining-requests"] == left
        with pytest.raises(openai.RateLimitError) as caught:
            await client.completions.create(model="tiny", prompt="x", max_tokens=2)
    assert caught.value.code == "rate_limit_exceeded"
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 30
    assert "`requests_per_min`" in caught.value.message
