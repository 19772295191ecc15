"""The other servers that models are on: connections to them, places at them, and what they are told.

Owns the session that all share, and every header and field that leaves for another server. Must not read replies
(`remote.py` does).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import aiohttp

from router.catalog import ModelSpec, Remote
from router.dialects import EVENT_STREAM
from router.errors import ModelUnavailable, RemoteFailed, ShuttingDown, TooManyRequests

HOPS = "X-Corral-Hops"
"""Request header that counts the Corrals on the way, so that two that send to each other notice it."""
_MAX_HOPS = 4
_PASSED_ON = ("anthropic-version", "anthropic-beta", "traceparent", "tracestate")
"""They say how the body is to be understood, and which trace the request belongs to."""

# The model's own request_timeout_s says how long an answer may take.
_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=10.0, sock_connect=10.0, sock_read=None)

_KEEP_ALIVE_S = 4.0
"""Shorter than the five seconds after which widespread servers close idle connections."""


class Remotes:
    """Connections to all other servers, and how many requests are on their way for each model."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._session: aiohttp.ClientSession | None = None
        self._num_running: Counter[str] = Counter()
        self._is_closing = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._answers: set[asyncio.Timeout] = set()

    @property
    def session(self) -> aiohttp.ClientSession:
        """The session that all of them share, opened when first asked for."""
        if self._session is None or self._session.closed:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S, socket_factory=_make_socket)
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=_TIMEOUT,
                trust_env=False,
                auto_decompress=False,  # a few bytes could become gigabytes; we ask for none that are compressed
            )
        return self._session

    def num_running(self, model: str) -> int:
        """Return how many requests for the model are on their way to its server."""
        return self._num_running[model]

    def authorization(self, spec: ModelSpec, remote: Remote) -> dict[str, str]:
        """Return the header that tells the router's own key. Raises: ModelUnavailable when there is none to tell."""
        if remote.key_env is None:
            return {}
        key = self._key(remote)
        if not key:
            raise ModelUnavailable(
                f"`{spec.name}` cannot be asked: the environment variable {remote.key_env} is not set"
            )
        return {"Authorization": f"Bearer {key}"}

    def without_key(self, remote: Remote, body: bytes) -> bytes:
        """Return what the other server says without the router's key, which some repeat in their errors."""
        key = self._key(remote).encode()
        return body.replace(key, b"***") if key else body

    def _key(self, remote: Remote) -> str:
        return "" if remote.key_env is None else self._environ.get(remote.key_env, "").strip()

    @contextlib.contextmanager
    def place(self, spec: ModelSpec) -> Iterator[None]:
        """Hold one of the places that the model has. Raises: TooManyRequests, ShuttingDown."""
        name = spec.name
        if self._is_closing:
            raise ShuttingDown("the server is stopping")
        if self._num_running[name] >= spec.max_queue:
            raise TooManyRequests(
                f"{self._num_running[name]} requests for `{name}` are on their way to its server, and more may not be "
                f"at the same time (max_queue in models.yaml); try again when some are answered",
                retry_after_s=2.0,
            )
        self._num_running[name] += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._num_running[name] -= 1
            if self._num_running[name] <= 0:
                del self._num_running[name]
            if not self._num_running:
                self._is_idle.set()

    @contextlib.asynccontextmanager
    async def answer(self) -> AsyncIterator[Callable[[], None]]:
        """Let an answer run inside the block until a stop cuts it off; what is yielded tells that it is complete.

        Raises: ShuttingDown.
        """
        try:
            async with asyncio.timeout(None) as cut:
                self._answers.add(cut)
                try:
                    yield lambda: self._answers.discard(cut)
                finally:
                    self._answers.discard(cut)
        except TimeoutError:
            if not cut.expired():
                raise
            raise ShuttingDown("the server is stopping; the answer was cut off") from None

    async def drain(self, timeout_s: float) -> None:
        """No request begins any more, and those that run have ended, or are cut off after `timeout_s`."""
        self._is_closing = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_idle.wait()
        except TimeoutError:
            self.cut_off()

    def cut_off(self) -> None:
        """No request begins any more, and those that run end now: their clients are told why."""
        self._is_closing = True
        now_s = asyncio.get_running_loop().time()
        for answer in self._answers:
            answer.reschedule(now_s)
        self._answers.clear()

    async def close(self) -> None:
        """All connections are closed."""
        self._is_closing = True
        if self._session is not None:
            await self._session.close()


def remote_fields(fields: Mapping[str, Any], remote: Remote) -> dict[str, Any]:
    """Return the JSON that goes to the other server: as the client sent it, under the name that is known there.

    `priority` stays here: it is about the lines of this server, and others mean other things by it.
    """
    return {name: value for name, value in fields.items() if name != "priority"} | {"model": remote.model}


def remote_headers(asked: Mapping[str, str], request_id: str, *, is_stream: bool) -> dict[str, str]:
    """Return all headers that the other server gets besides the key.

    Raises: RemoteFailed when requests go in a circle.
    """
    told = asked.get(HOPS, "0")
    hops = int(told) + 1 if told.isascii() and told.isdigit() and len(told) < 4 else 1
    if hops > _MAX_HOPS:
        raise RemoteFailed(
            f"the request has passed {hops - 1} routers already: their models are on each other's servers (`url`)"
        )
    return {
        "Content-Type": "application/json",
        "Accept": f"{EVENT_STREAM}, application/json" if is_stream else "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": "corral",
        "X-Request-Id": request_id,
        HOPS: str(hops),
        **{name: asked[name] for name in _PASSED_ON if name in asked},
    }


def _make_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket that notices, within a minute or so, that the machine at its other end is gone."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
        if (option := getattr(socket, name, None)) is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
