"""Replies that go on until their client leaves: log lines and events as they come.

Owns how much may wait for a slow reader, how many such replies there are, and that they end when the server stops. Must
not know what is sent. Whoever pushes never waits: what one client does not read in time costs that client alone.
Neither does the stop wait for a client that reads nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from functools import partial
from itertools import count

from aiohttp import web

from router.auth import Grant, Scope
from router.errors import TooManyRequests

MAX_STREAMS = 64
"""Of one kind; each one may have to be written to at every event."""
_MAX_OF_KEY = 0.25
"""The share of them that one key may have, unless it is an administrator's."""
MAX_WAITING_BYTES = 256 * 1024
"""For one client, beyond what the system has taken."""
LAST_PIECES_S = 1.0
"""So long may a client take to read what waits for it when its reply ends because the server stops."""
PING_EVERY_S = 15.0


class Kind(Enum):
    """What is followed: those who follow one kind take no places from those who follow the other."""

    EVENTS = auto()
    LOGS = auto()


class Outbox:
    """What waits to be written to one client. Everything on the event loop."""

    def __init__(self, *, left_out: str | None, max_bytes: int = MAX_WAITING_BYTES) -> None:
        """`left_out` is written in place of what had to be dropped, with `{}` for how many pieces; None = a reader
        that falls behind is cut off instead, because it could not make sense of the rest."""
        self._left_out = left_out
        self._max_bytes = max_bytes
        self._pieces: dict[str | int, bytes] = {}
        """What waits, in its order; by what it is the state of, or by a number."""
        self._numbers = count()
        self._num_bytes = 0
        self._num_left_out = 0
        self._news = asyncio.Event()
        self.is_closed = False
        self.is_ending = False
        """What waits is still written, and then the reply ends."""
        self.on_close: Callable[[], None] = lambda: None
        """Called when nothing more is to be written."""

    def push(self, piece: bytes, *, state_of: str | None = None) -> None:
        """The piece will be written, unless the client is too slow.

        `state_of`: the piece tells all of the thing of this name, so that an earlier one that waits is out of date.
        """
        if self.is_closed:
            return
        key = next(self._numbers) if state_of is None else state_of
        self._num_bytes += len(piece) - len(self._pieces.pop(key, b""))
        self._pieces[key] = piece
        while self._num_bytes > self._max_bytes and len(self._pieces) > 1:
            if self._left_out is None:
                self.close()
                return
            self._num_bytes -= len(self._pieces.pop(next(iter(self._pieces))))
            self._num_left_out += 1
        self._news.set()

    @property
    def is_over(self) -> bool:
        """Nothing is left to be written, and nothing will come."""
        return self.is_closed or (self.is_ending and not self._pieces)

    def end(self) -> None:
        """The reply ends once what waits has been written; the client gets `LAST_PIECES_S` to read it."""
        if self.is_closed or self.is_ending:
            return
        self.is_ending = True
        self._news.set()
        asyncio.get_running_loop().call_later(LAST_PIECES_S, self._give_up)

    def _give_up(self) -> None:
        self.close()
        self.on_close()  # also when all is written and the client has not read it

    def close(self) -> None:
        """Nothing more is written."""
        if self.is_closed:
            return
        self.is_closed = True
        self._pieces.clear()
        self._news.set()
        self.on_close()

    async def take(self, within_s: float) -> bytes:
        """Return everything that waits, at once or as soon as something comes; b"" when nothing does."""
        if not self._pieces and not self.is_over:
            self._news.clear()
            try:
                async with asyncio.timeout(within_s):
                    await self._news.wait()
            except TimeoutError:
                return b""
        taken = b"".join(self._pieces.values())
        if self._num_left_out and self._left_out is not None:
            taken = self._left_out.format(self._num_left_out).encode() + taken
        self._pieces.clear()
        self._num_bytes = self._num_left_out = 0
        return taken


class LiveStreams:
    """All such replies of one application."""

    def __init__(self, max_streams: int = MAX_STREAMS) -> None:
        self._max_streams = max_streams
        self._boxes: dict[Outbox, tuple[Kind, str | None]] = {}
        """With the key that each one came with."""
        self._are_short = False

    @contextmanager
    def open(
        self, kind: Kind, grant: Grant, *, left_out: str | None, max_bytes: int = MAX_WAITING_BYTES
    ) -> Iterator[Outbox]:
        """A new outbox exists inside the block. Raises: TooManyRequests."""
        keys = [key_id for other, key_id in self._boxes.values() if other is kind]
        if len(keys) >= self._max_streams:
            raise _refuse(f"there are {self._max_streams} clients already that follow {kind.name.lower()}")
        max_of_key = int(self._max_streams * _MAX_OF_KEY)
        if Scope.ADMIN not in grant.scopes and keys.count(grant.key_id) >= max_of_key:
            raise _refuse(f"{max_of_key} clients with this API key follow {kind.name.lower()} already")
        box = Outbox(left_out=left_out, max_bytes=max_bytes)
        self._boxes[box] = kind, grant.key_id
        if self._are_short:
            box.end()
        try:
            yield box
        finally:
            del self._boxes[box]
            if not box.is_ending:  # else the last pieces may be on their way
                box.close()

    def num_open(self, kind: Kind) -> int:
        """Return how many clients follow this kind now."""
        return sum(other is kind for other, _ in self._boxes.values())

    def dismiss(self, *, for_good: bool) -> None:
        """Every reply ends once it has told what it has to tell: the server is about to stop.

        Those that begin later go on, unless it is `for_good`: then they tell what is, and end at once.
        """
        self._are_short = for_good
        for box in list(self._boxes):
            box.end()

    async def end_all(self, _: web.Application) -> None:
        """Every reply ends now: the server stops."""
        for box in list(self._boxes):
            box.close()


def _refuse(why: str) -> TooManyRequests:
    return TooManyRequests(f"{why}: try again when one leaves", code="too_many_streams")


LIVE_STREAMS = web.AppKey("live_streams", LiveStreams)


async def write_until_left(
    request: web.Request,
    box: Outbox,
    content_type: str,
    *,
    ping: bytes = b"",
    every_s: float = PING_EVERY_S,
    headers: Mapping[str, str] | None = None,
    max_stall_s: float | None = None,
    may_go_on: Callable[[], bool] = lambda: True,
) -> web.StreamResponse:
    """Return when the client has left, was too slow, or the server stops. Whatever comes into `box` is written.

    A client that takes nothing for `max_stall_s` is cut off; None = it may pause for as long as it likes. Nothing more
    is written once `may_go_on` says no, which is asked before each write.
    """
    own = {"Content-Type": content_type, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=own | dict(headers or {}))
    try:
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        box.on_close = partial(_cut_off, request.transport)
        while not box.is_over:
            piece = await box.take(every_s) or ping
            if not may_go_on():
                box.close()
            if piece and not box.is_closed:
                async with asyncio.timeout(max_stall_s):
                    await response.write(piece)
        if box.is_ending:
            response.force_close()  # its client would follow again, on a connection that is to be closed
        await response.write_eof()
    except TimeoutError:
        box.close()
    except ConnectionError:
        pass  # the client has left, as it may
    return response


def _cut_off(transport: asyncio.Transport | None) -> None:
    """Nobody waits for the client: what it has not read is thrown away with the connection."""
    if transport is not None and transport.get_write_buffer_size() > 0:
        transport.abort()
