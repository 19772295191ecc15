"""A kept reply that fails in the middle of an event still tells its error in an event of its own."""

from __future__ import annotations

import asyncio
import contextlib

from aiohttp.test_utils import make_mocked_request

from router.dialects import Dialect
from router.kept_reply import KeptReply
from router.kept_streams import Head
from worker.contract import ErrorPayload

EVENT = b'data: {"n": 1}\n\n'


class Slow:
    """A keeper that has no room for the second half of what it is given until its request is broken off."""

    def __init__(self) -> None:
        self.kept = b""
        self.is_full = asyncio.Event()

    def begin(self, head: Head) -> None: ...

    async def take(self, data: bytes) -> None:
        if self.is_full.is_set():
            self.kept += data
            return
        self.kept += data[: len(data) // 2]
        self.is_full.set()
        await asyncio.Event().wait()

    def end(self) -> None: ...


async def test_an_error_is_never_put_into_half_an_event() -> None:
    keeper = Slow()
    reply = KeptReply(make_mocked_request("POST", "/"), Dialect.OPENAI, "r1", keeper)
    writing = asyncio.create_task(reply.write(EVENT))
    await keeper.is_full.wait()
    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writing
    await reply.fail(ErrorPayload(503, "request_timeout", "too long"))
    half, error, rest = keeper.kept.split(b"\n\n")
    assert (half, rest) == (EVENT[: len(EVENT) // 2], b"")
    assert error.startswith(b"data: {")
    assert b"too long" in error
