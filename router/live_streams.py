"""Replies that go on until their client leaves: log lines and events as they come.

Owns how much may wait for a slow reader, how many such replies there are, and that they end when the server stops. Must
not know what is sent. Whoever pushes never waits: what one client does not read in time costs that client alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from router.errors import TooManyRequests

MAX_STREAMS = 64
"""Together; each one may have to be written to at every event."""
MAX_WAITING_BYTES = 256 * 1024
"""For one client, beyond what the system has taken."""
PING_EVERY_S = 15.0


class Outbox:
    """What waits to be written to one client. Everything on the event loop."""

    def __init__(self, *, left_out: str | None, max_bytes: int = MAX_WAITING_BYTES) -> None:
        """`left_out` is written in place of what had to be dropped, with `{}` for how many pieces; None = a reader
        that falls behind is cut off instead, because it could not make sense of the rest."""
        self._left_out = left_out
        self._max_bytes = max_bytes
        self._pieces: deque[bytes] = deque()
        self._num_bytes = 0
        self._num_left_out = 0
        self._news = asyncio.Event()
        self.is_closed = False

    def push(self, piece: bytes) -> None:
        """The piece will be written, unless the client is too slow."""
        if self.is_closed:
            return
        self._pieces.append(piece)
        self._num_bytes += len(piece)
        while self._num_bytes > self._max_bytes and len(self._pieces) > 1:
            if self._left_out is None:
                self.close()
                return
            self._num_bytes -= len(self._pieces.popleft())
            self._num_left_out += 1
        self._news.set()

    def close(self) -> None:
        """Nothing more is written."""
        self.is_closed = True
        self._pieces.clear()
        self._news.set()

    async def take(self, within_s: float) -> bytes:
        """Return everything that waits, at once or as soon as something comes; b"" when nothing does."""
        if not self._pieces and not self.is_closed:
            self._news.clear()
            try:
                async with asyncio.timeout(within_s):
                    await self._news.wait()
            except TimeoutError:
                return b""
        taken = b"".join(self._pieces)
        if self._num_left_out and self._left_out is not None:
            taken = self._left_out.format(self._num_left_out).encode() + taken
        self._pieces.clear()
        self._num_bytes = self._num_left_out = 0
        return taken


class LiveStreams:
    """All such replies of one application."""

    def __init__(self, max_streams: int = MAX_STREAMS) -> None:
        self._max_streams = max_streams
        self._boxes: set[Outbox] = set()

    @contextmanager
    def open(self, *, left_out: str | None) -> Iterator[Outbox]:
        """A new outbox exists inside the block. Raises: TooManyRequests."""
        if len(self._boxes) >= self._max_streams:
            raise TooManyRequests(
                f"there are {self._max_streams} clients already that follow logs or events: try again when one leaves",
                code="too_many_streams",
            )
        box = Outbox(left_out=left_out)
        self._boxes.add(box)
        try:
            yield box
        finally:
            self._boxes.discard(box)
            box.close()

    async def end_all(self, _: web.Application) -> None:
        """Every reply ends: the server stops."""
        for box in list(self._boxes):
            box.close()


LIVE_STREAMS = web.AppKey("live_streams", LiveStreams)


async def write_until_left(
    request: web.Request, box: Outbox, content_type: str, *, ping: bytes = b"", every_s: float = PING_EVERY_S
) -> web.StreamResponse:
    """Return when the client has left, was too slow, or the server stops. Whatever comes into `box` is written."""
    headers = {"Content-Type": content_type, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=headers)
    try:
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        while not box.is_closed:
            piece = await box.take(every_s) or ping
            if piece and not box.is_closed:
                await response.write(piece)
        await response.write_eof()
    except ConnectionError:
        pass  # the client has left, as it may
    return response
