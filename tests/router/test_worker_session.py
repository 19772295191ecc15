"""Connections to a worker are kept when their reply was read to its end, and cut in every other case."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from router.worker_session import MAX_HELD_BYTES, ConnectionCut, NoConnection, NotHttp, WorkerReply, WorkerSession
from tests.support.stub_world import eventually

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-corral-frames\r\nTransfer-Encoding: chunked\r\n\r\n"
HELLO = HEAD + b"5\r\nhello\r\n0\r\n\r\n"

Script = Callable[["Wire"], Awaitable[None]]


class Wire:
    """The worker's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.received: list[bytes] = []

    async def request(self) -> bool:
        """Return whether one more request has come."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        (length,) = (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:"))
        self.received.append(head + await self.reader.readexactly(length))
        return True

    async def is_cut(self) -> bool:
        """Return whether the other end closes the connection; what still comes is an error."""
        with suppress(ConnectionError):
            assert await self.reader.read() == b""
        return True


class Worker:
    """Answers every connection by the same script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.wires: list[Wire] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(reader, writer)
        self.wires.append(wire)
        try:
            await self.script(wire)
        finally:
            writer.close()


@asynccontextmanager
async def talking_to(script: Script) -> AsyncIterator[tuple[WorkerSession, Worker]]:
    worker = Worker(script)
    with tempfile.TemporaryDirectory(prefix="cw", dir="/tmp") as folder:
        path = Path(folder) / "s"
        server = await asyncio.start_unix_server(worker.answer, str(path))
        session = WorkerSession(path)
        yield session, worker
        await session.close()
        server.close()


def always(reply: bytes, *, in_pieces_of: int | None = None) -> Script:
    async def script(wire: Wire) -> None:
        while await wire.request():
            for start in range(0, len(reply), in_pieces_of or len(reply)):
                wire.writer.write(reply[start : start + (in_pieces_of or len(reply))])
                await wire.writer.drain()
                await asyncio.sleep(0)

    return script


def once(reply: bytes) -> Script:
    """Answer with these bytes, then hang up."""

    async def script(wire: Wire) -> None:
        await wire.request()
        wire.writer.write(reply)
        await wire.writer.drain()

    return script


async def ask(session: WorkerSession) -> WorkerReply:
    return await session.post("/v1/completions", b"{}", {"X-Seed": "1"})


async def body_of(reply: WorkerReply) -> bytes:
    found = b""
    while data := await reply.read():
        found += data
    return found


async def test_a_request_is_its_path_its_headers_and_its_body() -> None:
    async with talking_to(always(HELLO)) as (session, worker):
        reply = await session.post("/v1/x", b'{"a":1}', {"X-Seed": "1", "Content-Type": "application/json"})
        assert (reply.status, await body_of(reply)) == (200, b"hello")
        assert reply.headers["content-type"] == "application/x-corral-frames"
        assert worker.wires[0].received == [
            b"POST /v1/x HTTP/1.1\r\nHost: worker\r\nContent-Length: 7\r\n"
            b'X-Seed: 1\r\nContent-Type: application/json\r\n\r\n{"a":1}'
        ]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_a_reply_is_the_same_however_its_bytes_arrive(size: int) -> None:
    reply_bytes = HEAD + b"5\r\nhello\r\nC\r\n, wor\r\n ld!!\r\n0\r\n\r\n"
    async with talking_to(always(reply_bytes, in_pieces_of=size)) as (session, _):
        for _ in range(2):
            reply = await ask(session)
            assert await body_of(reply) == b"hello, wor\r\n ld!!"[:17]
            reply.release()
        assert session.num_connections == 1


async def test_a_connection_serves_one_request_after_the_other() -> None:
    async with talking_to(always(HELLO)) as (session, worker):
        for _ in range(3):
            reply = await ask(session)
            await body_of(reply)
            reply.release()
        assert len(worker.wires) == session.num_connections == 1
        assert len(worker.wires[0].received) == 3


async def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    async with talking_to(always(HELLO)) as (session, worker):
        first, second = await ask(session), await ask(session)
        assert [await body_of(first), await body_of(second)] == [b"hello", b"hello"]
        assert len(worker.wires) == 2


async def test_the_end_of_a_released_reply_is_waited_for_before_the_next_request() -> None:
    finish = asyncio.Event()

    async def slow_end(wire: Wire) -> None:
        while await wire.request():
            wire.writer.write(HEAD + b"5\r\nhello\r\n")
            await finish.wait()
            wire.writer.write(b"0\r\n\r\n")

    async with talking_to(slow_end) as (session, worker):
        reply = await ask(session)
        assert await reply.read() == b"hello"
        reply.release()
        other = await ask(session)  # the first connection is not free yet
        assert len(worker.wires) == 2
        finish.set()
        assert await body_of(other) == b"hello"
        other.release()
        await eventually(lambda: len(session._idle) == 2)
        assert (await ask(session)).status == 200
        assert len(worker.wires) == 2


async def test_a_released_reply_whose_end_does_not_come_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.worker_session.TAIL_WITHIN_S", 0.01)

    async def no_end(wire: Wire) -> None:
        await wire.request()
        wire.writer.write(HEAD + b"5\r\nhello\r\n")
        await wire.is_cut()

    async with talking_to(no_end) as (session, _):
        reply = await ask(session)
        assert await reply.read() == b"hello"
        reply.release()
        await eventually(lambda: session.num_connections == 0)


async def test_a_reply_that_is_closed_early_tells_the_worker_at_once() -> None:
    was_cut = asyncio.Event()

    async def endless(wire: Wire) -> None:
        await wire.request()
        wire.writer.write(HEAD + b"5\r\nhello\r\n")
        if await wire.is_cut():
            was_cut.set()

    async with talking_to(endless) as (session, _):
        reply = await ask(session)
        reply.close()
        await asyncio.wait_for(was_cut.wait(), 5)
        await eventually(lambda: session.num_connections == 0)


async def test_a_request_that_is_given_up_while_it_waits_is_cut() -> None:
    was_cut = asyncio.Event()

    async def silent(wire: Wire) -> None:
        await wire.request()
        if await wire.is_cut():
            was_cut.set()

    async with talking_to(silent) as (session, worker):
        asking = asyncio.create_task(ask(session))
        await eventually(lambda: worker.wires and worker.wires[0].received)
        asking.cancel()
        await asyncio.wait_for(was_cut.wait(), 5)


async def test_what_came_before_a_cut_can_be_read() -> None:
    async with talking_to(once(HEAD + b"5\r\nhello\r\n")) as (session, _):
        reply = await ask(session)
        await eventually(lambda: session.num_connections == 0)
        assert await reply.read() == b"hello"
        with pytest.raises(ConnectionCut):
            await reply.read()
        reply.close()


async def test_a_worker_that_hangs_up_without_a_reply_is_told_from_one_that_is_not_there() -> None:
    async with talking_to(once(b"")) as (session, _):
        with pytest.raises(ConnectionCut):
            await ask(session)
    with pytest.raises(NoConnection):
        await ask(WorkerSession("/nonexistent/socket"))
    with pytest.raises(NoConnection):
        await ask(session)  # it was closed


async def test_an_idle_connection_that_the_worker_closes_is_not_used_again() -> None:
    async with talking_to(once(HELLO)) as (session, worker):
        for number in (1, 2):
            reply = await ask(session)
            assert await body_of(reply) == b"hello"
            reply.release()
            await eventually(lambda: session.num_connections == 0)
            assert len(worker.wires) == number


async def test_a_worker_that_says_so_gets_no_second_request_on_a_connection() -> None:
    reply_bytes = HELLO.replace(b"\r\n\r\n5", b"\r\nConnection: close\r\n\r\n5")
    async with talking_to(always(reply_bytes)) as (session, worker):
        for _ in range(2):
            reply = await ask(session)
            await body_of(reply)
            reply.release()
        assert len(worker.wires) == 2


@pytest.mark.parametrize(
    "reply_bytes",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 20x OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nX: " + 70_000 * b"x",
        HEAD + b"5;a=b\r\nhello\r\n0\r\n\r\n",
        HEAD + b"-5\r\nhello\r\n0\r\n\r\n",
        HEAD + b"\r\nhello\r\n0\r\n\r\n",
        HEAD + b"5\r\nhello!\r\n0\r\n\r\n",
        HEAD + b"5\r\nhello\r\n0\r\nTrailer: x\r\n\r\n",
        HEAD + b"123456789\r\n",
        HEAD + b"5\nhello\r\n0\r\n\r\n",
    ],
)
async def test_anything_else_than_a_reply_in_chunks_is_refused_and_cut(reply_bytes: bytes) -> None:
    async with talking_to(always(reply_bytes)) as (session, _):
        with pytest.raises(NotHttp):
            await body_of(await ask(session))
        await eventually(lambda: session.num_connections == 0)


async def test_bytes_after_the_end_of_a_reply_spoil_the_connection_and_not_the_reply() -> None:
    async with talking_to(always(HELLO + b"HTTP/1.1 200 OK\r\n")) as (session, _):
        reply = await ask(session)
        assert await body_of(reply) == b"hello"
        reply.release()
        await eventually(lambda: session.num_connections == 0)


async def test_bytes_that_nobody_asked_for_cut_an_idle_connection() -> None:
    speak = asyncio.Event()

    async def chatty(wire: Wire) -> None:
        await wire.request()
        wire.writer.write(HELLO)
        await speak.wait()
        wire.writer.write(HELLO)
        await wire.is_cut()

    async with talking_to(chatty) as (session, _):
        reply = await ask(session)
        await body_of(reply)
        reply.release()
        speak.set()
        await eventually(lambda: session.num_connections == 0)


async def test_a_worker_waits_for_a_reader_that_is_slow() -> None:
    chunk = b"10000\r\n" + 2**16 * b"x" + b"\r\n"
    num_chunks = 200
    written = 0

    async def flood(wire: Wire) -> None:
        nonlocal written
        await wire.request()
        wire.writer.write(HEAD)
        for _ in range(num_chunks):
            wire.writer.write(chunk)
            await wire.writer.drain()
            written += 1
        wire.writer.write(b"0\r\n\r\n")
        await wire.writer.drain()

    async with talking_to(flood) as (session, _):
        reply = await ask(session)
        await eventually(lambda: reply._connection._is_paused)  # type: ignore[union-attr]
        before = -1
        while before != written:  # until the system's own buffers are full
            before = written
            await asyncio.sleep(0.05)
        assert written < num_chunks
        first = await reply.read()
        assert len(first) < 4 * MAX_HELD_BYTES
        assert len(first) + len(await body_of(reply)) == num_chunks * 2**16


async def test_closing_the_session_cuts_what_runs() -> None:
    async def silent(wire: Wire) -> None:
        await wire.request()
        wire.writer.write(HEAD)
        await wire.is_cut()

    async with talking_to(silent) as (session, _):
        reply = await ask(session)
        await session.close()
        with pytest.raises(ConnectionCut):
            await reply.read()
        assert session.closed


async def test_a_header_of_two_lines_is_refused() -> None:
    async with talking_to(always(HELLO)) as (session, worker):
        with pytest.raises(ValueError, match="X-Seed"):
            await session.post("/v1/x", b"{}", {"X-Seed": "1\r\nX-Corral-Resume: evil"})
        assert not worker.wires
