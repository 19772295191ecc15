"""Clients' connections: how many may be open, which of them have a request, and how long the others may be silent.

Owns the limit, the deadline for a request's head, and who gives way when the limit is reached. Must not accept
connections (`accepting.py` does) nor read requests (aiohttp does, behind each connection's own protocol).

A connection is without a request from the moment that it is accepted, or its last reply is complete, until a whole head
has come. Silence between two requests is free. A new connection, and one whose next request has begun to come, has
`head_timeout_s`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import cast

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_GIVES_WAY_AFTER_S = 1.0
"""So long without a request may a connection be before it has to go in favour of a new one."""
_FULL_AGAIN = 0.9
"""The log is told of a reached limit again when fewer than this share of it have been open meanwhile."""

CONNECTIONS = web.AppKey("connections", Mapping[object, "Connection"])
"""What is known of the connections, by aiohttp's protocol (`request.protocol`)."""


class OpenConnections:
    """Those of one kind of address. Everything is called from the event loop."""

    def __init__(
        self,
        known: dict[object, Connection],
        *,
        limit: int,
        head_timeout_s: float,
        max_stall_s: float = 0.0,
        is_admin: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`known` is shared by all kinds; `is_admin`: of an address for operators.

        `max_stall_s`: how long a client may take nothing of a reply that is complete. 0 = any time, for both times.
        """
        self.limit = limit
        self.head_timeout_s = head_timeout_s
        self._max_stall_s = max_stall_s
        self.is_admin = is_admin
        self._known = known
        self._clock = clock
        self._open: set[Connection] = set()
        self._quiet: dict[Connection, float] = {}
        """Those without a request, and since when; the one for longest first."""
        self._on_room: dict[Callable[[], None], None] = {}
        self._is_full_told = False

    @property
    def num_open(self) -> int:
        """How many are open, those that are still agreeing on TLS included."""
        return len(self._open)

    @property
    def is_full(self) -> bool:
        """As many are open as may be."""
        return len(self._open) >= self.limit

    def has_room(self) -> bool:
        """Whether one more may be accepted; for that, one that has no request is closed if need be.

        If not, those who have asked for it by `when_room` are told once there is.
        """
        if not self.is_full or self.give_way():
            return True
        if not self._is_full_told:
            self._is_full_told = True
            _log.warning(
                "the limit of %d open connections (CORRAL_MAX_CONNECTIONS) is reached, and all of them have requests: "
                "new ones wait until one is closed",
                self.limit,
            )
        return False

    def give_way(self) -> bool:
        """The connection that has been without a request for longest is closed; False if all are at work or new."""
        before_s = self._clock() - _GIVES_WAY_AFTER_S
        for connection, since_s in self._quiet.items():
            if since_s > before_s:
                break
            if not connection.is_sending:
                connection.abort()
                return True
        return False

    def when_room(self, call: Callable[[], None]) -> None:
        """`call` is called, once, when a connection has been closed."""
        self._on_room[call] = None

    def accept(self, handler: web.RequestHandler) -> Connection:
        """Return the protocol of a new connection whose requests aiohttp's `handler` reads."""
        connection = Connection(self, handler)
        self._open.add(connection)
        self._known[handler] = connection
        self.set_quiet(connection, has_begun=True)
        return connection

    def set_quiet(self, connection: Connection, *, has_begun: bool) -> None:
        """The connection has no request from now on; `has_begun`: it owes the head of one."""
        if connection not in self._open:
            return
        now_s = self._clock()
        self._quiet.pop(connection, None)
        self._quiet[connection] = now_s
        connection.is_quiet = True
        connection.due_s = now_s + self.head_timeout_s if has_begun and self.head_timeout_s else None

    def set_busy(self, connection: Connection) -> None:
        """The connection has a request."""
        self._quiet.pop(connection, None)
        connection.is_quiet, connection.due_s = False, None

    def forget(self, connection: Connection) -> None:
        """The connection is closed. May be called again."""
        self._open.discard(connection)
        self._quiet.pop(connection, None)
        self._known.pop(connection.handler, None)
        if len(self._open) < self.limit * _FULL_AGAIN:
            self._is_full_told = False
        calls, self._on_room = self._on_room, {}
        for call in calls:
            call()

    def close_late(self) -> None:
        """Connections whose request's head should have come by now are closed."""
        now_s = self._clock()
        for connection in [one for one in self._quiet if one.due_s is not None and one.due_s <= now_s]:
            connection.refuse_late(self.head_timeout_s)

    def close_stalled(self) -> None:
        """Connections whose clients take nothing of their last reply are closed: it would stay in memory.

        A reply that is still being made has its own look at that (`reply.py`).
        """
        now_s = self._clock()
        for connection in list(self._quiet):
            if connection.stalled_s(now_s) >= self._max_stall_s:
                connection.abort()

    async def run(self) -> None:
        """Look for both until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.close_late()
            if self._max_stall_s:
                self.close_stalled()


class Connection(asyncio.Protocol):
    """Stands between a transport and aiohttp's protocol, and notes when something comes."""

    def __init__(self, group: OpenConnections, handler: web.RequestHandler) -> None:
        self.handler = handler
        self.is_quiet = True
        self.due_s: float | None = None
        self.opening: asyncio.Task[None] | None = None
        """Sets it up, TLS included."""
        self._group = group
        self._transport: asyncio.Transport | None = None
        self._has_received = False
        self._num_requests = 0
        self._rest: aiohttp.StreamReader | None = None
        """Of the body of a request that was answered before all of it had come."""
        self._is_garbled = False
        self._unsent_bytes = 0
        self._unsent_since_s = 0.0

    @property
    def is_sending(self) -> bool:
        """Its client has not taken the whole reply yet."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def stalled_s(self, now_s: float) -> float:
        """Return for how long its client has taken nothing of what is written, as far as this has been asked."""
        unsent_bytes = 0 if self._transport is None else self._transport.get_write_buffer_size()
        if not unsent_bytes or unsent_bytes != self._unsent_bytes:
            self._unsent_bytes, self._unsent_since_s = unsent_bytes, now_s
        return now_s - self._unsent_since_s

    @property
    def is_admin(self) -> bool:
        """It was made to an address for operators."""
        return self._group.is_admin

    def request_begins(self) -> None:
        """A whole head has come."""
        self._num_requests += 1
        self._unsent_bytes = 0  # what is written from now on is of another reply
        self._group.set_busy(self)

    def request_ends(self, body: aiohttp.StreamReader | None = None) -> None:
        """Its reply is complete; what is still to come of its `body` is no next request."""
        self._num_requests -= 1
        self._rest = body
        if not self._num_requests:  # the next one may have begun before this is called
            self._has_received = False
            self._group.set_quiet(self, has_begun=False)

    def abort(self) -> None:
        """It is closed at once."""
        self._group.forget(self)
        if self._transport is not None:
            self._transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    def refuse_late(self, timeout_s: float) -> None:
        """It is closed, and its client told why if it has begun to send a request."""
        if self._transport is None or not self._has_received:
            self.abort()
            return
        text = f"the head of the request did not come within {timeout_s:g} s (CORRAL_REQUEST_HEAD_TIMEOUT_S)"
        body = json.dumps({"error": {"message": text, "type": "request_too_slow", "code": "request_too_slow"}}).encode()
        head = f"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._transport.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        self._group.forget(self)
        self._transport.close()

    # --- asyncio's side -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_garbled:
            return
        if self._rest is not None and self._rest.is_eof():
            self._rest = None
        if self.is_quiet and self._rest is None:
            self._has_received = True
            if self.due_s is None:
                self._group.set_quiet(self, has_begun=True)
        self.handler.data_received(data)
        self._is_garbled = _forget_garbage(self.handler)

    def eof_received(self) -> bool | None:
        self.handler.eof_received()
        return None

    def pause_writing(self) -> None:
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        self.handler.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._group.forget(self)
        self.handler.connection_lost(exc)


def _forget_garbage(handler: web.RequestHandler) -> bool:
    """Return whether the last that has come was no HTTP, which ends the connection; its bytes are let go of at once.

    aiohttp keeps them in a ring of error, traceback and frame, which only the garbage collector opens. Where heads of
    10 MB come these are hundreds of megabytes before it does.
    """
    waiting = getattr(handler, "_messages", None)
    error = getattr(waiting[-1][0], "exc", None) if waiting else None
    if not isinstance(error, BaseException):
        return False
    error.__traceback__ = None
    return True


def watched(known: Mapping[object, Connection]) -> Middleware:
    """Return what tells the connections of the beginning and the end of their requests; the outermost middleware."""

    @web.middleware
    async def watch(request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = known.get(request.protocol)
        if connection is None:  # not one of ours: tests run applications in other ways
            return await handler(request)
        connection.request_begins()
        try:
            return await handler(request)
        finally:
            # Not before aiohttp has written the reply, which it does when this returns.
            asyncio.get_running_loop().call_soon(connection.request_ends, request.content)

    return watch
