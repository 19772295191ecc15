"""Replies that outlive their connection, on a real `corral serve` with stub workers, over raw sockets."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from router.kept_streams import CONVERSATION
from tests.support.raw_http import ask, read_chunked, read_head, send
from tests.support.served import Served, chat_body, served, until

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
CHAT = "/v1/chat/completions"
SLOW = {"tokens": 5000, "delay_s": 0.01}
KEYED = {"CORRAL_API_KEYS": "one,two", "CORRAL_METRICS_KEYS": "meter"}


def headers(name: str = ID, key: str = "one") -> dict[str, str]:
    return {CONVERSATION: name, "Authorization": f"Bearer {key}"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path, {"stub": {}}, env=KEYED) as running:
        yield running


@asynccontextmanager
async def cut_off(server: Served, num_bytes: int = 1000) -> AsyncIterator[bytes]:
    """A client has read so much of a long answer, and its connection is gone; give what it has."""
    reader, writer = await send(server.url, "POST", CHAT, chat_body("stub", stream=True, **SLOW), headers())
    assert (await read_head(reader))[0] == 200
    got = await read_chunked(reader, num_bytes)
    writer.transport.abort()
    yield got


async def test_generation_goes_on_without_the_client_until_somebody_stops_it(server: Served) -> None:
    async with cut_off(server) as got:
        reader, writer = await send(server.url, "GET", f"/v1/streams/{ID}?from={len(got)}", None, headers())
        assert (await read_head(reader))[0] == 200
        rest = await read_chunked(reader, 1000)  # it is still being made
        assert server.journal("aborted") == server.journal("done") == []
        assert (await ask(server.url, "GET", f"/v1/streams/{ID}", None, headers(key="two")))[0] == 404
        assert (await ask(server.url, "DELETE", f"/v1/streams/{ID}", None, headers(key="two")))[0] == 404
        assert (await ask(server.url, "DELETE", f"/v1/streams/{ID}", None, headers()))[0] == 204
        await until(lambda: len(server.journal("aborted")) == 1, within_s=2, what="the worker's abort")
        rest += await read_chunked(reader, 2**40)
        writer.close()
        numbers = [int(number) for number in re.findall(rb'"w(\d+) "', got + rest)]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > 4
        assert b"stream_stopped" in rest.rsplit(b"data: ", 1)[1]
        assert (await ask(server.url, "GET", f"/v1/streams/{ID}", None, headers()))[0] == 404
    lines = [line for line in server.lines if line.get("route") == CHAT]
    assert [(line["outcome"], line["code"], line["key"]) for line in lines] == [
        ("client_gone", "stream_stopped", "env-1")
    ]


async def test_a_server_that_stops_does_not_wait_for_an_answer_that_nobody_reads(server: Served) -> None:
    async with cut_off(server):
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(server.process.wait(), 8) == 0  # its drain would take 25 s
    lines = [line for line in server.lines if line.get("route") == CHAT]
    assert [line["code"] for line in lines] == ["shutting_down"]
    assert server.worker_pids() == []
