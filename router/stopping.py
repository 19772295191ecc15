"""How the server stops: who is still answered, what clients are told meanwhile, and when it is over.

Owns the signals and the order of a stop. Must not start anything, and must not know routes.

A server that has bound its address itself refuses new requests while it drains, and says so on `/health`. One whose
sockets were passed to it leaves new connections to the server that is passed them next, answers whatever comes on those
that it has, and closes each one once it is quiet: no request fails. Replies that would go on for ever are no answers:
they are told of the stop and end, in both cases.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Sequence

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from router.early_hangup import EarlyHangup, has_terminal
from router.kept_runs import KEPT_RUNS
from router.live_streams import LIVE_STREAMS
from router.remotes import Remotes
from router.services import SERVICES
from router.supervisor import Supervisor
from router.topics import TOPIC_HUB

_log = logging.getLogger(__name__)

QUIET_S = 1.0
"""A kept connection on which nothing has come for so long is closed: its client will hardly be sending just now."""
_EMPTY_S = 0.3
"""So long after the last one may a connection still turn up that was accepted before and has not been told to us."""
_LOOK_EVERY_S = 0.05
_HURRIED_S = 0.3
"""So long may the last words to clients take where the server is to stop at once."""


class Signals:
    """Two events: somebody wants a stop; somebody wants it now. And a call: the configuration is to be read again."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._on_reload: Callable[[], object] | None = None
        early = signal.getsignal(signal.SIGHUP)
        self._is_reload_due = isinstance(early, EarlyHangup) and early.is_noted
        self._hangs_up = has_terminal() and early is not signal.SIG_IGN
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._note)
        loop.add_signal_handler(signal.SIGHUP, self._note_hangup)

    def reload_with(self, call: Callable[[], object] | None) -> None:
        """`call` is what SIGHUP does, also one that has come before there was any; None = nothing any more."""
        self._on_reload = call
        if call is not None and self._is_reload_due:
            self._is_reload_due = False
            call()

    def _note(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    def _note_hangup(self) -> None:
        """The same signal also says that the terminal has been closed: then nobody is there to serve."""
        if self._hangs_up and not has_terminal():
            self._note()
        elif self._on_reload is not None:
            self._on_reload()
        else:
            self._is_reload_due = True


class Connections:
    """Which of the clients' connections have a request, and since when the others are quiet."""

    def __init__(self, app: web.Application, runner: web.AppRunner, sockets: Sequence[socket.socket]) -> None:
        """To be made before `runner` is set up and listens on `sockets`."""
        self._app = app
        self._runner = runner
        self._sockets = sockets
        self._busy: set[object] = set()
        self._quiet_since_s: dict[object, float] = {}
        self._is_ending = False
        app.middlewares.insert(0, self._watched())
        app.on_response_prepare.append(self._stamp)

    @property
    def num_open(self) -> int:
        """How many there are."""
        return 0 if self._runner.server is None else len(self._runner.server.connections)

    def end(self) -> None:
        """Every response from now on is the last one on its connection, and says so."""
        self._is_ending = True

    def dismiss_followers(self, *, for_good: bool) -> None:
        """All who follow events or logs know that the server stops, and their replies end; answers without readers do.

        Whoever comes then is told the same, and may stay as long as the server does, unless it is `for_good`.
        """
        self._app[TOPIC_HUB].tell_stop(self._app[SERVICES])
        self._app[LIVE_STREAMS].dismiss(for_good=for_good)
        self._app[KEPT_RUNS].dismiss()

    async def close(self, hurry: asyncio.Event) -> None:
        """All are closed, their answers sent as far as clients take them in time, which is short from `hurry` on."""
        cleanup = asyncio.create_task(self._runner.cleanup())
        hurrying = asyncio.create_task(hurry.wait())
        await asyncio.wait({cleanup, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        await asyncio.wait({cleanup}, timeout=_HURRIED_S)
        if not cleanup.done():
            for connection in [] if self._runner.server is None else self._runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
        await cleanup

    async def leave(self) -> None:
        """No new connection is accepted; return once all are closed, each after it was quiet for a while."""
        clock = asyncio.get_running_loop().time
        self.end()
        start_s = clock()
        await self._stop_accepting()
        empty_since_s = None
        while empty_since_s is None or clock() - empty_since_s < _EMPTY_S:
            found = [] if self._runner.server is None else self._runner.server.connections
            if found:
                empty_since_s = None
            elif empty_since_s is None:
                empty_since_s = clock()
            for connection in found:
                quiet_s = clock() - self._quiet_since_s.get(connection, start_s)
                if connection not in self._busy and quiet_s >= QUIET_S:
                    connection.force_close()  # what has been written is still sent
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _stop_accepting(self) -> None:
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            loop.remove_reader(sock)  # asyncio's own loop drops what it has accepted and not told yet when it closes
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for site in list(self._runner.sites):
            await site.stop()

    def _watched(self) -> Middleware:
        @web.middleware
        async def watch(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = request.protocol
            self._busy.add(connection)
            try:
                return await handler(request)
            finally:
                self._busy.discard(connection)
                if self._is_ending:
                    self._quiet_since_s[connection] = asyncio.get_running_loop().time()

        return watch

    async def _stamp(self, request: web.Request, response: web.StreamResponse) -> None:
        if self._is_ending:
            response.force_close()
            response.headers[hdrs.CONNECTION] = "close"  # aiohttp has made its own headers by now


async def drain(
    supervisor: Supervisor,
    remotes: Remotes,
    connections: Connections,
    stop: Signals,
    *,
    drain_s: float,
    is_handed_over: bool,
) -> bool:
    """Let running requests end and stop every worker; return True when that was cut short by a second signal.

    `is_handed_over`: another server will take the connections that this one does not.
    """
    views = supervisor.snapshot().models.values()
    num_running = sum(resident.num_leases for view in views for resident in view.residents)
    num_waiting = sum(view.queue_length for view in views)
    what = "new connections are left to the next server" if is_handed_over else "new requests are refused"
    _log.info(
        "stopping: %s; the same signal again stops at once",
        what,
        extra={"running_requests": num_running, "waiting_requests": num_waiting, "drain_s": drain_s},
    )
    closing = asyncio.create_task(
        _close(supervisor, remotes, connections, drain_s=drain_s, is_handed_over=is_handed_over)
    )
    hurry = asyncio.create_task(stop.second.wait())
    await asyncio.wait({closing, hurry}, return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    if closing.done():
        await closing
        return False
    _log.info("stopping at once")
    closing.cancel()
    await asyncio.wait({closing})
    remotes.cut_off()
    await supervisor.close(0.0, is_hurried=True)
    return True


async def _close(
    supervisor: Supervisor, remotes: Remotes, connections: Connections, *, drain_s: float, is_handed_over: bool
) -> None:
    clock = asyncio.get_running_loop().time
    until_s = clock() + drain_s
    connections.end()
    connections.dismiss_followers(for_good=is_handed_over)
    if is_handed_over:
        try:
            async with asyncio.timeout(drain_s):
                await connections.leave()
        except TimeoutError:
            _log.info("stopping: %d connections have not ended in time", connections.num_open)
    left_s = max(0.0, until_s - clock())
    await asyncio.gather(supervisor.close(left_s), remotes.drain(left_s))
