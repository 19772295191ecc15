"""The server's addresses: which sockets it has, what is spoken there, and how many clients may connect.

Owns composing them: the address for everybody, the operators' one, TLS for both, the limit and the deadlines. Must not
know routes. Where operators have an address of their own, `app.py` answers their requests nowhere else.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from router.accepting import Entrance, MakeContext
from router.app import make_runner
from router.body import BODY_TIMEOUT_S
from router.listen import CannotListen, admin_path, bind_admin, bind_sockets, is_answered, url_of
from router.open_connections import CONNECTIONS, Connection, OpenConnections, watched
from router.settings import RouterSettings
from router.stopping import Connections, Signals
from router.tasks import Tasks
from router.tls import TlsFiles, TlsProblem
from router.watcher import Watcher

_MAX_OPEN_FILES = 65536
_USUAL_LIMIT = 10_000
_FOR_OPERATORS = 256
"""Connections to their address are counted apart, so that clients cannot keep them out."""
_KEPT_BACK = 256
"""Descriptors that are not for clients: workers, model files, logs."""
_CLOSE_WITHIN_S = 3.0
"""How long answers may take to reach their clients once every worker has stopped."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Bound sockets, which do not listen yet."""

    main: Sequence[socket.socket]
    admin: Sequence[socket.socket] = ()
    tls: TlsFiles | None = None
    admin_path: Path | None = None
    """Where the operators' socket lies if it is a Unix socket."""

    @property
    def url(self) -> str:
        """Where clients on this machine reach the server."""
        return url_of(self.main[0], is_tls=self.tls is not None)

    @property
    def admin_url(self) -> str | None:
        """Where operators do, if they have an address of their own."""
        if self.admin_path is not None:
            return f"unix:{self.admin_path}"
        return url_of(self.admin[0], is_tls=self.tls is not None) if self.admin else None

    def close(self) -> None:
        """None of the sockets is left."""
        for sock in (*self.main, *self.admin):
            sock.close()


def open_addresses(settings: RouterSettings, passed: Sequence[socket.socket]) -> Addresses:
    """Return the addresses that the settings name; `passed` sockets take the place of those for everybody.

    Raises: CannotListen, also when TLS is wanted and cannot be had.
    """
    try:
        tls = read_tls(settings)
    except TlsProblem as problem:
        raise CannotListen(str(problem)) from None
    text = settings.admin_socket
    admin = [] if text is None else bind_admin(text, may_replace=bool(passed))
    path = None if text is None else admin_path(text)
    try:
        return Addresses(passed or bind_sockets(settings.host, settings.port), admin, tls, path)
    except CannotListen:
        for sock in admin:
            sock.close()
        if path is not None and not is_answered(path):
            path.unlink(missing_ok=True)  # it was made in vain
        raise


def read_tls(settings: RouterSettings) -> TlsFiles | None:
    """Return what TLS is spoken with; None = plain HTTP is. Raises: TlsProblem."""
    if settings.tls_cert is not None:
        return TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    if settings.tls_key is not None or settings.tls_client_ca is not None:
        given = "CORRAL_TLS_KEY" if settings.tls_key is not None else "CORRAL_TLS_CLIENT_CA"
        raise TlsProblem(f"{given} is set and CORRAL_TLS_CERT is not: set it to the file with the server's certificate")
    return None


@contextlib.asynccontextmanager
async def listening(
    app: web.Application, addresses: Addresses, settings: RouterSettings, stop: Signals
) -> AsyncIterator[Connections]:
    """Clients are answered inside the block, and with TLS the certificate follows its files."""
    known: dict[object, Connection] = {}
    app[CONNECTIONS] = known
    app[BODY_TIMEOUT_S] = settings.request_body_timeout_s
    head_timeout_s = settings.request_head_timeout_s
    limit = settings.max_connections or usual_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    stall_s = settings.max_client_stall_s
    everybody = OpenConnections(known, limit=limit, head_timeout_s=head_timeout_s, max_stall_s=stall_s)
    operators = OpenConnections(
        known, limit=_FOR_OPERATORS, head_timeout_s=head_timeout_s, max_stall_s=stall_s, is_admin=True
    )
    tls = addresses.tls
    make_context: MakeContext | None = None if tls is None else lambda: tls.context
    runner = make_runner(app, _CLOSE_WITHIN_S)
    connections = Connections(app, runner, [*addresses.main, *addresses.admin])
    app.middlewares.insert(0, watched(known))
    await runner.setup()
    tasks = Tasks()
    for group in (everybody, operators):
        tasks.spawn(group.run(), "late requests")
    if tls is not None:
        tasks.spawn(Watcher(tls).run(), "the certificate's files")
    try:
        for sock in addresses.main:
            await Entrance(runner, sock, everybody, context=make_context).start()
        for sock in addresses.admin:
            is_plain = sock.family == socket.AF_UNIX
            await Entrance(runner, sock, operators, context=None if is_plain else make_context).start()
        with _path_removed(addresses.admin_path):
            yield connections
    finally:
        await connections.close(stop.second)
        await tasks.close()


def usual_limit(max_files: int) -> int:
    """Return how many connections may be open where nobody says: each may need a descriptor of a worker's, too."""
    if max_files == resource.RLIM_INFINITY:
        return _USUAL_LIMIT
    return max(16, min(_USUAL_LIMIT, (max_files - min(_KEPT_BACK, max_files // 2)) // 2))


def raise_open_files_limit() -> None:
    """Each stream takes two descriptors; some systems start with a limit of 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS may refuse; the old limit still works
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextlib.contextmanager
def _path_removed(path: Path | None) -> Iterator[None]:
    """The path of the operators' socket is gone after the block, unless another server has put its own there."""
    if path is None:
        yield
        return
    made = os.stat(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(path), made):
                path.unlink()
