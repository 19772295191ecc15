"""What the client of one inference request sees: one response, opened once, that ends in exactly one way.

Owns the client's side of a relayed request: headers, the moment at which a stream opens, pings while it is silent, and
the shape of a failure before and after the status line. Must not know workers, leases or frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable

from aiohttp import web

from router.dialects import Dialect, error_body, error_event, event_end, ping, stream_type
from worker.contract import ErrorPayload


class ClientGone(Exception):
    """The client has closed the connection: there is nobody to answer."""


def error_response(dialect: Dialect, error: ErrorPayload, request_id: str | None = None) -> web.Response:
    """Return the HTTP response that tells `error`, with `Retry-After` where waiting helps."""
    body = error_body(dialect, error, request_id)
    response = web.Response(status=error.status, body=body, content_type="application/json")
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    return response


class Reply:
    """The one response of one request.

    A stream's status goes out with its first bytes, so that an early failure keeps its HTTP status; from
    then on a failure is an event, and the end of the stream never looks like a finished answer.
    """

    _leaves_at_once = True
    """All that is written is on its way even if the wait for the client is broken off."""

    def __init__(
        self, request: web.Request, dialect: Dialect, request_id: str | None = None, *, max_stall_s: float | None = None
    ) -> None:
        """A client that takes nothing of its stream for `max_stall_s` counts as gone; None = it may take for ever."""
        self._request = request
        self._max_stall_s = max_stall_s
        self.dialect = dialect
        self._request_id = request_id
        self._event_end = event_end(dialect)
        self._lock = asyncio.Lock()  # the pings and the answer come from two tasks
        self._stream: web.StreamResponse | None = None
        self._wrote_at_s = 0.0
        self._is_at_event_end = True
        self._num_events = 0
        """Of the answer; pings are none of it."""
        self.headers: dict[str, str] = {}
        """Sent with the response, whichever it will be."""

    @property
    def is_open(self) -> bool:
        """True when the client has got a status line and a failure can only be told in the stream."""
        return self._stream is not None

    async def write(self, data: bytes) -> None:
        """Send `data` as part of an event stream, opening it if need be, at the client's pace.

        Raises: ClientGone.
        """
        async with self._lock:
            self._num_events += data.count(self._event_end)  # first: a wait for the client may be broken off
            await self._write(data)

    async def send(self, content_type: str, body: bytes) -> web.StreamResponse:
        """Return the response that carries the whole answer at once."""
        assert not self.is_open
        response = web.Response(body=body, headers=self.headers)
        response.headers["Content-Type"] = content_type
        return response

    async def finish(self, data: bytes = b"") -> web.StreamResponse:
        """Return the stream, complete, with `data` as the last of it. Raises: ClientGone."""
        async with self._lock:
            stream = await self._open()
            await self._end(stream, data)
            return stream

    async def fail(self, error: ErrorPayload) -> web.StreamResponse:
        """Return the response that tells `error`: by its HTTP status, or as the last event of the open stream.

        Raises: ClientGone.
        """
        async with self._lock:
            if self._stream is None:
                response = error_response(self.dialect, error, self._request_id)
                response.headers.update(self.headers)
                return response
            event = error_event(self.dialect, error, self._request_id, num_events=self._num_events)
            if not self._is_at_event_end:
                event = self._event_end + event  # a half-sent event must not swallow this one
            await self._end(self._stream, event)
            return self._stream

    @contextlib.asynccontextmanager
    async def kept_alive(self, open_after_s: float, ping_interval_s: float) -> AsyncIterator[None]:
        """Open the stream if nothing was sent for `open_after_s`, and ping whenever it is silent, while inside.

        In a dialect without pings nothing happens: an early failure keeps its status for as long as it takes.
        """
        signal = ping(self.dialect)
        if signal is None:
            yield
            return
        pinger: asyncio.Task[None] | None = None

        def start() -> None:
            nonlocal pinger
            pinger = asyncio.create_task(self._ping_forever(signal, ping_interval_s))

        # Many streams are over by then: those do without the task.
        timer = asyncio.get_running_loop().call_later(open_after_s, start)
        try:
            yield
        finally:
            timer.cancel()
            if pinger is not None:
                pinger.cancel()
                with contextlib.suppress(asyncio.CancelledError, ClientGone):
                    await pinger

    async def _ping_forever(self, signal: bytes, ping_interval_s: float) -> None:
        clock = asyncio.get_running_loop().time
        async with self._lock:
            if self._stream is None:
                await self._write(signal)
        while True:
            silent_s = clock() - self._wrote_at_s
            await asyncio.sleep(max(ping_interval_s - silent_s, 0.001))
            async with self._lock:
                if self._is_at_event_end and clock() - self._wrote_at_s >= ping_interval_s:
                    await self._write(signal)

    async def _write(self, data: bytes) -> None:
        stream = await self._open()
        is_at_end = data.endswith(self._event_end)
        self._is_at_event_end = is_at_end and self._leaves_at_once
        await self._sent(stream.write(data))
        self._is_at_event_end = is_at_end
        self._wrote_at_s = asyncio.get_running_loop().time()

    async def _open(self) -> web.StreamResponse:
        if self._stream is None:
            stream = web.StreamResponse(headers=self._stream_headers())
            try:
                await stream.prepare(self._request)
            except ConnectionError:
                raise ClientGone from None
            self._stream = stream
        return self._stream

    def _stream_headers(self) -> dict[str, str]:
        return {
            "Content-Type": stream_type(self.dialect),
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",  # nginx would send the stream in one lump
            **self.headers,
        }

    async def _end(self, stream: web.StreamResponse, data: bytes) -> None:
        await self._sent(stream.write_eof(data))

    async def _sent(self, writing: Awaitable[None]) -> None:
        """Return when the client's side has taken enough of what is written. Raises: ClientGone.

        A client that keeps its connection but does not read holds a lease that others wait for.
        """
        try:
            async with asyncio.timeout(self._max_stall_s):
                await writing
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()  # a close would wait for the client to read what it was sent
            raise ClientGone from None
        except ConnectionError:
            raise ClientGone from None
