"""Real sockets before a small application: TLS, the operators' address, deadlines, limits, and too few descriptors."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from router.accepting import Entrance
from router.app import all_routes
from router.auth import KeyProblem, Scope
from router.dialects import Dialect
from router.entrances import Addresses, listening, open_addresses, usual_limit
from router.listen import CannotListen
from router.open_connections import CONNECTIONS, Connection, OpenConnections
from router.reload import read_keys
from router.settings import RouterSettings
from router.stopping import Signals
from router.tls import TlsFiles
from tests.support.certificates import Certificates
from tests.support.http_side import http_side, make_catalog
from tests.support.served import until

HELLO = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Side:
    """A running application and its addresses."""

    def __init__(self, addresses: Addresses) -> None:
        self.addresses = addresses
        self.release = asyncio.Event()
        self.num_held = 0

    async def get(self, context: ssl.SSLContext | None = None, path: str = "/") -> str:
        """Return what a client of its own connection is told."""
        connector = aiohttp.TCPConnector(ssl=context or True, force_close=True)
        url = self.addresses.url.replace("127.0.0.1", "localhost") + path
        async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as reply:
            return await reply.text()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.addresses.main[0].getsockname())

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/hold":
            self.num_held += 1
            await self.release.wait()
        connection = request.app[CONNECTIONS][request.protocol]
        return web.Response(text=f"{request.scheme} {'operator' if connection.is_admin else 'client'}")


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Side]:
    chosen = RouterSettings(port=0, **settings)
    side = Side(open_addresses(chosen, []))
    app = web.Application()
    app.router.add_get("/{name:.*}", side.answer)
    async with listening(app, side.addresses, chosen, Signals()):
        yield side
        side.release.set()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def tls(made: Certificates, name: str = "server") -> dict[str, Path]:
    return dict(zip(("tls_cert", "tls_key"), made.issue(name), strict=True))


# --- TLS ----------------------------------------------------------------------------------------------------


async def test_client_that_trusts_the_authority_is_served_over_https(made: Certificates) -> None:
    async with running(**tls(made)) as side:
        assert side.addresses.url.startswith("https://127.0.0.1:")
        assert await side.get(made.client()) == "https client"


async def test_plain_http_to_the_tls_port_is_logged_and_hurts_nobody(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(**tls(made)) as side:
        for _ in range(3):
            reader, writer = await side.connect()
            writer.write(HELLO)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1000)
        assert caplog.text.count("it sent plain HTTP, and this address speaks TLS") == 1, "once a minute is enough"
        assert await side.get(made.client()) == "https client"


async def test_only_clients_of_the_named_authority_get_in(
    made: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = Certificates(tmp_path)
    async with running(**tls(made), tls_client_ca=made.ca) as side:
        assert await side.get(made.client(made.issue("somebody"))) == "https client"
        for context in (made.client(), made.client(foreign.issue("stranger"))):
            with pytest.raises(aiohttp.ClientError):
                await side.get(context)
        assert await side.get(made.client(made.issue("somebody"))) == "https client"
    assert "showed no certificate" in caplog.text
    assert "its certificate was refused" in caplog.text


async def test_old_connections_stay_and_new_ones_get_the_new_certificate(made: Certificates, tmp_path: Path) -> None:
    certificate, key = (Path(shutil.copy(path, tmp_path)) for path in made.issue("first"))
    files = TlsFiles(certificate, key)
    chosen = RouterSettings(port=0)
    side = Side(Addresses(open_addresses(chosen, []).main, tls=files))
    app = web.Application()
    app.router.add_get("/{name:.*}", side.answer)
    async with listening(app, side.addresses, chosen, Signals()):
        old_reader, old_writer = await _open_tls(side, made)
        shutil.copy(made.issue("second")[0], certificate)
        shutil.copy(made.folder / "second.key", key)
        await files.take_edits()
        _, new_writer = await _open_tls(side, made)
        numbers = [one.get_extra_info("peercert")["serialNumber"] for one in (old_writer, new_writer)]
        assert numbers[0] != numbers[1]
        old_writer.write(HELLO)
        assert (await old_reader.readline()).startswith(b"HTTP/1.1 200")


async def _open_tls(side: Side, made: Certificates) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = side.addresses.main[0].getsockname()
    return await asyncio.open_connection(host, port, ssl=made.client(), server_hostname="localhost")


# --- the operators' address ---------------------------------------------------------------------------------


async def test_operators_socket_is_for_this_user_alone_and_goes_with_the_server(made: Certificates) -> None:
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"corral-admin-{os.getpid()}"
    folder.mkdir()
    path = folder / "admin.sock"
    try:
        async with running(admin_socket=str(path), **tls(made)) as side:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert side.addresses.admin_url == f"unix:{path}"
            connector = aiohttp.UnixConnector(str(path))
            async with aiohttp.ClientSession(connector=connector) as session, session.get("http://localhost/") as reply:
                assert await reply.text() == "http operator"
            with pytest.raises(CannotListen, match="in use by another program"):
                open_addresses(RouterSettings(port=0, admin_socket=str(path)), [])
        assert list(folder.iterdir()) == []
    finally:
        shutil.rmtree(folder)


async def test_operators_address_may_be_a_port() -> None:
    async with running(admin_socket="127.0.0.1:0") as side:
        async with aiohttp.ClientSession() as session, session.get(str(side.addresses.admin_url)) as reply:
            assert await reply.text() == "http operator"
        assert await side.get() == "http client"


async def test_everything_that_needs_an_admins_key_is_refused_at_the_address_for_everybody() -> None:
    routes = [route for route in all_routes() if route.scopes == (Scope.ADMIN,)]
    assert len(routes) >= 10
    async with http_side(admin_socket="/run/corral/admin.sock") as side:
        for route in routes:
            async with side.client.request(route.method, route.path) as reply:
                assert reply.status == 403, route.path
                assert "wrong_address" in await reply.text() or route.dialect is not Dialect.OPENAI
        async with side.client.get("/metrics") as reply:
            assert reply.status == 200


def test_operators_address_in_reach_of_others_needs_keys_like_any() -> None:
    with pytest.raises(KeyProblem, match=r"refusing to listen on 0\.0\.0\.0 without API keys"):
        read_keys(RouterSettings(admin_socket="0.0.0.0:8081"), make_catalog(), {})
    assert read_keys(RouterSettings(admin_socket="/run/admin.sock"), make_catalog(), {}).is_empty


@pytest.mark.parametrize("text", ["8081", "localhost", "localhost:http", "localhost:70000", ":80"])
def test_operators_address_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(CannotListen, match=r"CORRAL_ADMIN_SOCKET=.*/run/corral/admin\.sock"):
        open_addresses(RouterSettings(port=0, admin_socket=text), [])


def test_file_in_the_place_of_the_operators_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("words")
    with pytest.raises(CannotListen, match="is there already and no socket"):
        open_addresses(RouterSettings(port=0, admin_socket=str(path)), [])
    assert path.read_text() == "words"


# --- slow and many clients ----------------------------------------------------------------------------------


async def test_client_that_sends_its_head_byte_by_byte_is_told_and_closed() -> None:
    async with running(request_head_timeout_s=0.3) as side:
        reader, writer = await side.connect()
        writer.write(HELLO[:20])
        answer = await asyncio.wait_for(reader.read(), 5.0)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"request_too_slow" in answer


async def test_at_the_limit_quiet_clients_give_way_and_busy_ones_make_new_ones_wait() -> None:
    async with running(max_connections=2) as side:
        quiet_reader, _ = await side.connect()
        busy_reader, busy = await side.connect()
        busy.write(HELLO.replace(b"/ ", b"/hold "))
        await until(lambda: side.num_held == 1)
        third_reader, third = await side.connect()
        third.write(HELLO.replace(b"/ ", b"/hold "))
        assert await asyncio.wait_for(quiet_reader.read(), 5.0) == b"", "it has sent nothing, and is closed"
        await until(lambda: side.num_held == 2)
        fourth_reader, fourth = await side.connect()
        fourth.write(HELLO)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fourth_reader.readline(), 0.3)
        side.release.set()
        for reader in (busy_reader, third_reader, fourth_reader):
            assert (await asyncio.wait_for(reader.readline(), 5.0)).startswith(b"HTTP/1.1 200")


async def test_server_without_descriptors_says_so_once_and_goes_on_when_there_are_some(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Starved:
        """A listening socket in a process whose descriptors are used up."""

        is_starved = True

        def __init__(self, sock: socket.socket) -> None:
            self._sock = sock

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sock, name)

        def accept(self) -> Any:
            if Starved.is_starved:
                raise OSError(errno.EMFILE, "Too many open files")
            return self._sock.accept()

    make = Entrance.__init__

    def starve(self: Entrance, runner: Any, sock: Any, *args: Any, **options: Any) -> None:
        make(self, runner, Starved(sock), *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Entrance, "__init__", starve)
    async with running() as side:
        reader, writer = await side.connect()
        writer.write(HELLO)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readline(), 0.6)
        assert caplog.text.count("connections cannot be accepted: Too many open files") == 1
        Starved.is_starved = False
        assert (await asyncio.wait_for(reader.readline(), 5.0)).startswith(b"HTTP/1.1 200")


async def test_connection_that_is_closed_before_its_setup_has_begun_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accept, open_one = OpenConnections.accept, Entrance._open
    made: list[Connection] = []

    def note(self: OpenConnections, handler: web.RequestHandler) -> Connection:
        made.append(accept(self, handler))
        return made[-1]

    def open_and_close(self: Entrance, client: socket.socket) -> None:
        open_one(self, client)
        made[-1].abort()

    monkeypatch.setattr(OpenConnections, "accept", note)
    monkeypatch.setattr(Entrance, "_open", open_and_close)
    async with running() as side:
        reader, _ = await side.connect()
        assert await asyncio.wait_for(reader.read(), 5.0) == b"", "the socket is closed"
        assert side.num_held == 0


@pytest.mark.parametrize(
    ("max_files", "limit"), [(20_000, 9872), (1024, 384), (256, 64), (-1, 10_000), (10**6, 10_000)]
)
def test_usual_limit_leaves_descriptors_for_the_rest(max_files: int, limit: int) -> None:
    assert usual_limit(max_files) == limit


def test_operators_socket_is_not_left_behind_when_the_port_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = RouterSettings(host="127.0.0.1", port=taken.getsockname()[1], admin_socket=str(path))
        with pytest.raises(CannotListen, match="in use"):
            open_addresses(settings, [])
    assert not list(tmp_path.iterdir())


async def test_the_end_of_a_look_at_late_requests_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise RuntimeError("broken look")

    monkeypatch.setattr(OpenConnections, "run", fail)
    async with running():
        await until(lambda: "late requests failed" in caplog.text, what="the fault in the log")
