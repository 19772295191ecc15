"""The reply of a request that goes on without its client: its bytes go to whoever keeps them.

Owns that it behaves like any other `Reply` towards those who write it, pings included, so that every byte a client gets
is one that is kept. Must not know who reads it.
"""

from __future__ import annotations

from typing import Protocol

from aiohttp import web

from router.dialects import Dialect
from router.kept_streams import Head
from router.reply import Reply


class Keeper(Protocol):
    """Takes a reply that comes in pieces."""

    def begin(self, head: Head) -> None:
        """The reply has begun: the rest comes piece by piece."""
        ...

    async def take(self, data: bytes) -> None:
        """Return when there is room for more."""
        ...

    def end(self) -> None:
        """All of it has been taken."""
        ...


class KeptReply(Reply):
    """One reply, for a keeper. It never finds that its client is gone."""

    _leaves_at_once = False

    def __init__(self, request: web.Request, dialect: Dialect, request_id: str, keeper: Keeper) -> None:
        super().__init__(request, dialect, request_id)
        self._keeper = keeper

    async def _open(self) -> web.StreamResponse:
        if self._stream is None:
            headers = self._stream_headers()
            self._keeper.begin(Head(200, headers))
            self._stream = _KeptResponse(self._keeper, headers)
        return self._stream


class _KeptResponse(web.StreamResponse):
    """Stands where a client's response would."""

    def __init__(self, keeper: Keeper, headers: dict[str, str]) -> None:
        super().__init__(headers=headers)
        self._keeper = keeper

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        await self._keeper.take(bytes(data))

    async def write_eof(self, data: bytes = b"") -> None:
        await self._keeper.take(data)
        self._keeper.end()
