"""Takes clients' connections from a listening socket, one by one, and opens them.

Owns the accepting itself: at the limit it stops until there is room, when the system has no descriptors left it goes
on as soon as it has, and what fails while TLS is agreed on ends that connection alone. Must not decide how many may be
open (`open_connections.py` does).

asyncio's own servers are not enough here: they take whatever comes, and uvloop's accept and close, without a word,
what the system has no descriptors for.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

from aiohttp import web

from router.open_connections import Connection, OpenConnections

_log = logging.getLogger(__name__)

_AT_ONCE = 64
"""Accepted in one turn of the loop; others have theirs in between."""
_TRY_AGAIN_S = 0.25
"""After the system had no descriptors, and while all connections are new."""
_TOLD_EVERY_S = 60.0
_HANDSHAKE_S = 30.0
_GOODBYE_S = 5.0
_OUT_OF = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

MakeContext = Callable[[], ssl.SSLContext | None]


class Entrance(web.BaseSite):
    """One listening socket of a runner. aiohttp stops it with the runner."""

    def __init__(
        self, runner: web.AppRunner, sock: socket.socket, opened: OpenConnections, *, context: MakeContext | None = None
    ) -> None:
        """`context` gives what the next connection speaks TLS with; None = plain HTTP. To be made after `setup`."""
        super().__init__(runner)
        self._sock = sock
        self._opened = opened
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._is_open = False
        self._is_paused = False
        self._is_short_told = False
        self._told_at_s: dict[str, float] = {}

    @property
    def name(self) -> str:
        """As aiohttp shows it."""
        return f"{'http' if self._context is None else 'https'}://{self._sock.getsockname()}"

    async def start(self) -> None:
        """Connections are accepted."""
        await super().start()
        self._sock.setblocking(False)
        self._sock.listen(1024)
        self._is_open = True
        self._loop.add_reader(self._sock, self._accept)

    async def stop(self) -> None:
        """No more are; those that are being opened go on."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._sock)
            self._sock.close()
        await super().stop()

    # --- accepting ----------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for count in range(_AT_ONCE):
            if count and self._opened.is_full:
                return  # whether somebody waits at all is known in the next turn
            if not self._opened.has_room():
                self._pause()
                self._opened.when_room(self._resume)
                self._loop.call_later(_TRY_AGAIN_S, self._resume)  # one may give way by then
                return
            try:
                client, _address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._be_short(error)
                return
            if self._is_short_told:
                self._is_short_told = False
                _log.info("connections are accepted again")
            self._open(client)

    def _be_short(self, error: OSError) -> None:
        """Wait a little. Nobody is helped by a server that spins; a connection without a request gives way."""
        self._pause()
        if error.errno not in _OUT_OF:
            _log.error("a connection cannot be accepted: %s", error)
        elif not self._is_short_told:
            self._is_short_told = True
            _log.error(
                "connections cannot be accepted: %s. The limit is the system's (ulimit -n, LimitNOFILE=); those that "
                "are open go on, new ones wait until some are closed",
                error.strerror,
            )
        self._opened.give_way()
        self._loop.call_later(_TRY_AGAIN_S, self._resume)

    def _pause(self) -> None:
        if self._is_open and not self._is_paused:
            self._is_paused = True
            self._loop.remove_reader(self._sock)

    def _resume(self) -> None:
        if self._is_open and self._is_paused:
            self._is_paused = False
            self._loop.add_reader(self._sock, self._accept)

    # --- opening ------------------------------------------------------------------------------------------

    def _open(self, client: socket.socket) -> None:
        server = self._runner.server
        assert server is not None, "an entrance is made after its runner's setup"
        client.setblocking(False)
        if client.family != socket.AF_UNIX:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = self._opened.accept(server())
        task = self._loop.create_task(self._connect(client, connection), name="a client's connection")
        connection.opening = task
        self._opening.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._opening.discard(task)
            if task.cancelled():  # maybe before its first step, which then nobody has cleaned up after
                self._give_up(client, connection)

        task.add_done_callback(ended)

    async def _connect(self, client: socket.socket, connection: Connection) -> None:
        context = None if self._context is None else self._context()
        timeouts = (
            {} if context is None else {"ssl_handshake_timeout": _HANDSHAKE_S, "ssl_shutdown_timeout": _GOODBYE_S}
        )
        peer = _name_of(client)
        try:
            await self._loop.connect_accepted_socket(lambda: connection, client, ssl=context, **timeouts)
        except (ssl.SSLError, OSError) as error:
            self._tell(_words(error), peer)
            self._give_up(client, connection)
        except Exception:
            self._give_up(client, connection)
            raise

    def _give_up(self, client: socket.socket, connection: Connection) -> None:
        connection.opening = None
        connection.abort()
        client.close()

    def _tell(self, words: str, peer: str) -> None:
        """The log has it, once a minute for each kind: strangers may do it as often as they like."""
        now_s = self._loop.time()
        if now_s - self._told_at_s.get(words, -_TOLD_EVERY_S) >= _TOLD_EVERY_S:
            self._told_at_s[words] = now_s
            _log.warning("a connection from %s was closed: %s", peer, words)


def _words(error: OSError) -> str:
    """Return what has happened while TLS was agreed on; from a closed set."""
    reason = getattr(error, "reason", None)
    if reason == "HTTP_REQUEST":
        return "it sent plain HTTP, and this address speaks TLS; its client is to use https://"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it showed no certificate, and CORRAL_TLS_CLIENT_CA asks for one"
    if reason == "CERTIFICATE_VERIFY_FAILED":
        why = str(getattr(error, "verify_message", "") or "it cannot be verified")
        return f"its certificate was refused ({why})"
    if isinstance(error, ssl.SSLError) and reason is not None:
        return f"TLS could not be agreed on ({reason.lower().replace('_', ' ')})"
    return "it ended before TLS was agreed on"


def _name_of(client: socket.socket) -> str:
    try:
        address = client.getpeername()
    except OSError:
        return "a client"
    return str(address[0]) if isinstance(address, tuple) else "this machine"
