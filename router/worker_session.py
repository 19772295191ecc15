"""Requests over one worker's Unix socket: HTTP/1.1 as both ends of this package speak it, and no more of it.

Owns connections, which are kept for later requests, and the strict reading of a reply's head and chunks. Must not know
leases or frames, nor what a status means. It is on the path of every request: that is why it is no general client.

    post -> request written -> head of the reply -> chunks ... -> `release`: kept as soon as the last chunk has come
                                                               -> `close`: cut, so that the worker stops at once
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast

CONNECT_WITHIN_S = 10.0
TAIL_WITHIN_S = 0.5
"""How long the last chunk of a released reply may take to come."""
MAX_HEAD_BYTES = 64 * 1024
MAX_HELD_BYTES = 256 * 1024
"""What may lie here unread, for a slow client, before the worker is made to wait."""

_HEAD_END = b"\r\n\r\n"
_STATUS_LINE = re.compile(r"HTTP/1\.1 ([2-9][0-9]{2})(?: .*)?")
_CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,8}")
_MAX_SIZE_LINE = 10


class NoConnection(ConnectionError):
    """There is no connection to the worker: nothing was sent."""


class ConnectionCut(ConnectionError):
    """The connection ended before the reply was complete."""


class NotHttp(Exception):
    """What came is not a reply as workers write it; the message says what is wrong with it."""


class WorkerSession:
    """All connections to one worker. To be used on one event loop."""

    def __init__(self, socket_path: Path | str) -> None:
        self._socket_path = str(socket_path)
        self._connections: set[_Connection] = set()
        self._idle: list[_Connection] = []
        self.closed = False
        """No request can be sent any more."""

    @property
    def num_connections(self) -> int:
        """How many connections there are, idle ones and busy ones. For whoever watches: one too many is a leak."""
        return len(self._connections)

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> WorkerReply:
        """Return the reply to a request as soon as its head has come.

        Raises: NoConnection when nothing was sent; ConnectionCut when nothing came back; NotHttp; ValueError for a
        header that would not stay one line.
        """
        head = _head(path, len(body), headers)
        connection = self._idle.pop() if self._idle else await self._connect()
        try:
            return await connection.ask(head, body)
        except BaseException:
            connection.cut()
            raise

    async def close(self) -> None:
        """Every connection is cut, whatever runs on it, and none can be made any more."""
        self.closed = True
        for connection in list(self._connections):
            connection.cut()

    async def _connect(self) -> _Connection:
        if self.closed:
            raise NoConnection("the worker is gone")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                _, connection = await loop.create_unix_connection(lambda: _Connection(self, loop), self._socket_path)
        except TimeoutError:
            raise NoConnection(f"the worker took no connection within {CONNECT_WITHIN_S:g} s") from None
        except OSError as error:
            raise NoConnection(error.strerror or str(error)) from None
        return connection

    # --- told by connections ---

    def _note_made(self, connection: _Connection) -> None:
        self._connections.add(connection)
        if self.closed:
            connection.cut()

    def _note_idle(self, connection: _Connection) -> None:
        self._idle.append(connection)

    def _note_gone(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


class WorkerReply:
    """One reply: its head, and its body as it comes. Must be released or closed."""

    __slots__ = ("_connection", "headers", "status")

    def __init__(self, connection: _Connection, status: int, headers: Mapping[str, str]) -> None:
        self._connection: _Connection | None = connection
        self.status = status
        self.headers = headers
        """By their names in lower case."""

    async def read(self) -> bytes:
        """Return what has come of the body since the last call, at least one byte; b"" at its end.

        Raises: ConnectionCut and NotHttp, after everything that came before.
        """
        assert self._connection is not None, "read after its end"
        return await self._connection.read()

    def release(self) -> None:
        """What matters of the body has been read: its connection serves the next request once it has ended."""
        if self._connection is not None:
            self._connection.release()
            self._connection = None

    def close(self) -> None:
        """Its connection is cut, unless it was released: the worker stops at once. May be called twice."""
        if self._connection is not None:
            self._connection.cut()
            self._connection = None


class _Connection(asyncio.Protocol):
    """One connection, on which one request runs at a time."""

    def __init__(self, session: WorkerSession, loop: asyncio.AbstractEventLoop) -> None:
        self._session = session
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._unread = bytearray()
        """What has come of the reply and is neither head nor part of a chunk yet."""
        self._pieces: list[bytes] = []
        """Parts of the body that nobody has taken yet."""
        self._num_held = 0
        self._num_missing = 0
        """Bytes of the present chunk that have not come, its line end included."""
        self._reply: WorkerReply | None = None
        self._is_busy = False
        self._is_complete = False
        self._is_last = False
        self._is_paused = False
        self._is_released = False
        self._problem: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._tail_timer: asyncio.TimerHandle | None = None

    # --- asked by the session and its replies ---

    async def ask(self, head: bytes, body: bytes) -> WorkerReply:
        """Return the reply once its head has come. Raises: ConnectionCut, NotHttp."""
        if self._problem is not None or self._transport is None:
            raise ConnectionCut("the connection was closed")
        self._is_busy = True
        self._transport.writelines((head, body))
        while self._reply is None:
            await self._wait()
        return self._reply

    async def read(self) -> bytes:
        """See `WorkerReply.read`."""
        while not self._pieces:
            if self._is_complete:
                return b""
            await self._wait()
        pieces, self._pieces, self._num_held = self._pieces, [], 0
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def release(self) -> None:
        """See `WorkerReply.release`."""
        if self._is_complete and not self._pieces:
            self._become_idle()
        elif self._pieces or self._num_missing > len(b"\r\n") or self._is_paused:
            self.cut()
        else:
            self._is_released = True
            self._tail_timer = self._loop.call_later(TAIL_WITHIN_S, self.cut)

    def cut(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is not registered as one
        self._session._note_made(self)

    def data_received(self, data: bytes) -> None:
        if not self._is_busy or self._problem is not None:
            self.cut()  # nobody has asked for it
            return
        try:
            self._take(data)
        except NotHttp as problem:
            self._problem = problem
            self.cut()
        if self._is_released and (self._is_complete or self._pieces):
            self._end_release()
        else:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._problem is None:
            self._problem = ConnectionCut(str(exc) if exc is not None else "the worker closed the connection")
        if self._tail_timer is not None:
            self._tail_timer.cancel()
        self._session._note_gone(self)
        self._wake()

    # ----------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Return when something has come. Raises what is wrong with the connection."""
        if self._problem is not None:
            raise self._problem
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end_release(self) -> None:
        if self._tail_timer is not None:
            self._tail_timer.cancel()
            self._tail_timer = None
        if self._is_complete:
            self._become_idle()
        else:
            self.cut()

    def _become_idle(self) -> None:
        if self._is_last or self._problem is not None or self._session.closed:
            self.cut()
            return
        self._reply = None
        self._is_busy = self._is_complete = self._is_released = False
        self._session._note_idle(self)

    def _take(self, data: bytes) -> None:
        """Cut `data` into head and chunks. Raises: NotHttp."""
        self._unread += data
        if self._reply is None:
            end = self._unread.find(_HEAD_END)
            if end < 0:
                if len(self._unread) > MAX_HEAD_BYTES:
                    raise NotHttp("its head does not end")
                return
            self._reply = self._read_head(self._unread[:end].decode("latin-1"))
            del self._unread[: end + len(_HEAD_END)]
        self._cut_chunks()
        if self._num_held > MAX_HELD_BYTES and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def _read_head(self, text: str) -> WorkerReply:
        status_line, *lines = text.split("\r\n")
        found = _STATUS_LINE.fullmatch(status_line)
        if found is None:
            raise NotHttp(f"its first line is {status_line[:80]!r}")
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise NotHttp(f"{line[:80]!r} is no header")
            headers[name.lower()] = value.strip()
        self._is_last = headers.get("connection", "").lower() == "close"
        return WorkerReply(self, int(found[1]), headers)

    def _cut_chunks(self) -> None:
        """Move every part of a chunk that has come to the pieces. Raises: NotHttp."""
        assert self._reply is not None
        if self._reply.headers.get("transfer-encoding", "").lower() != "chunked":
            raise NotHttp(f"it has the status {self._reply.status} and does not come in chunks")
        unread, at = self._unread, 0
        while at < len(unread):
            if self._is_complete:
                raise NotHttp("something comes after its end")
            if self._num_missing > 2:
                piece = bytes(unread[at : at + self._num_missing - 2])
                self._pieces.append(piece)
                self._num_held += len(piece)
                self._num_missing -= len(piece)
                at += len(piece)
            elif self._num_missing:
                if unread[at] != b"\n\r"[self._num_missing - 1]:
                    raise NotHttp("a chunk is longer than it says")
                self._num_missing -= 1
                at += 1
            elif (begin := self._begin_chunk(at)) is None:
                break
            else:
                at = begin
        del unread[:at]

    def _begin_chunk(self, at: int) -> int | None:
        """Return where the chunk begins whose size stands at `at`; None while its line is not complete.

        Raises: NotHttp.
        """
        unread = self._unread
        end = unread.find(b"\r\n", at, at + _MAX_SIZE_LINE)
        if end < 0:
            if len(unread) - at >= _MAX_SIZE_LINE:
                raise NotHttp("the size of a chunk cannot be read")
            return None
        if _CHUNK_SIZE.fullmatch(unread, at, end) is None:
            raise NotHttp("the size of a chunk cannot be read")
        size = int(unread[at:end], 16)
        if size:
            self._num_missing = size + 2
            return end + 2
        if len(unread) < end + 4:
            return None
        if unread[end + 2 : end + 4] != b"\r\n":
            raise NotHttp("something stands between its last chunk and its end")
        self._is_complete = True
        return end + 4


def _head(path: str, num_bytes: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"POST {path} HTTP/1.1\r\nHost: worker\r\nContent-Length: {num_bytes}\r\n"]
    for name, value in headers.items():
        if "\r" in value or "\n" in value:
            raise ValueError(f"the header {name} has more than one line")
        lines.append(f"{name}: {value}\r\n")
    lines.append("\r\n")
    return "".join(lines).encode("latin-1")
