"""A client that leaves is nothing that an operator has to hear of as an error."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import Any

import aiohttp
import pytest

from router.reply import ClientGone, Reply
from tests.fakes.supervisor import EVENTS, Received, Sender
from tests.support.http_side import CHAT, http_side
from tests.support.served import until
from worker.contract import Header

STREAM = {"model": "smol", "messages": [], "stream": True}


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("body", [STREAM, STREAM | {"stream": False}])
async def test_write_to_a_client_that_is_gone_leaves_no_error_in_the_log(
    body: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def gone(*_: object) -> None:
        raise ClientGone

    async def talk(received: Received, sender: Sender) -> None:
        if received.body["stream"]:
            sender.headers[Header.CONTENT_TYPE] = EVENTS
        await sender.data(b"data: {}\n\n")
        if received.body["stream"]:
            await asyncio.Event().wait()  # the end must not be what fails: by then the client is answered
        await sender.end()

    for way in ("write", "send"):
        monkeypatch.setattr(Reply, way, gone)
    async with http_side() as side:
        side.worker.script = talk
        with pytest.raises(aiohttp.ClientError):
            async with side.client.post(CHAT, json=body) as reply:
                await reply.read()
        assert side.num_requests(outcome="client_gone") == 1
        assert (await side.client.get("/health")).status == 200
    assert errors_in(caplog) == []


async def test_client_that_cuts_its_connection_in_mid_stream_leaves_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def talk(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = EVENTS
        while True:
            await sender.data(b"data: " + b"x" * 10_000 + b"\n\n")
            await asyncio.sleep(0)

    async with http_side() as side:
        side.worker.script = talk
        reply = await side.client.post(CHAT, json=STREAM)
        await reply.content.readline()
        assert reply.connection is not None
        assert reply.connection.transport is not None
        reply.connection.transport.abort()
        await until(lambda: side.num_requests(outcome="client_gone") == 1)
        assert side.supervisor.num_leases == 0
    assert errors_in(caplog) == []


async def test_client_that_does_not_read_its_stream_is_cut_off_and_gives_its_place_back() -> None:
    async def talk(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = EVENTS
        while True:
            await sender.data(b"data: " + b"x" * 100_000 + b"\n\n")
            await asyncio.sleep(0)

    async with http_side(max_client_stall_s=0.2) as side:
        side.worker.script = talk
        body = json.dumps(STREAM).encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        server = side.client.server
        reader, writer = await asyncio.open_connection(server.host, server.port, limit=1024)
        try:
            writer.write(head.encode() + b"\r\n\r\n" + body)
            await until(lambda: side.supervisor.num_leases == 1)
            await until(lambda: side.num_requests(outcome="client_gone") == 1)  # it is open, and takes nothing
            assert side.supervisor.num_leases == 0
            got = b""
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(2**20):
                    got = piece
            assert not got.endswith(b"0\r\n\r\n")  # it does not look like a stream that has ended
        finally:
            writer.close()


async def test_client_that_leaves_in_the_middle_of_its_body_leaves_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with http_side() as side:
        server = side.client.server
        _, writer = await asyncio.open_connection(server.host, server.port)
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
        )
        writer.write(head.encode() + b'{"model"')
        await writer.drain()
        writer.transport.abort()
        await until(lambda: side.num_requests(outcome="client_gone") == 1)
    assert errors_in(caplog) == []
