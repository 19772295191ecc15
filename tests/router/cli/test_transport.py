"""Commands reach servers over HTTPS with certificates of one's own, and through Unix sockets."""

from __future__ import annotations

import os
import shutil
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from router.cli.output import CommandFailed, ExitCode
from router.cli.server import default_url, open_server
from tests.support.certificates import Certificates


class Answer(BaseHTTPRequestHandler):
    """Says `{}` to everything."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def address_string(self) -> str:
        return "client"

    def log_message(self, *_: object) -> None: ...


class Quiet(socketserver.ThreadingTCPServer):
    """Whoever shows no certificate is no news."""

    daemon_threads = True

    def handle_error(self, *_: object) -> None: ...


@contextmanager
def answering(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is set that a command would read."""
    for name in [name for name in os.environ if name.startswith(("CORRAL_", "SSL_"))]:
        monkeypatch.delenv(name)


@contextmanager
def https(made: Certificates, *, wants_certificate: bool) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*made.issue())
    if wants_certificate:
        context.load_verify_locations(made.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    server = Quiet(("127.0.0.1", 0), Answer)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with answering(server):
        yield f"https://127.0.0.1:{server.server_address[1]}"


@pytest.mark.parametrize("variable", ["CORRAL_TLS_CA", "SSL_CERT_FILE"])
def test_authority_of_ones_own_is_named_by_a_variable(
    made: Certificates, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with https(made, wants_certificate=False) as url:
        with open_server(url) as server, pytest.raises(CommandFailed, match="CORRAL_TLS_CA"):
            server.get("/x")
        monkeypatch.setenv(variable, str(made.ca))
        with open_server(url) as server:
            assert server.get("/x") == {}


def test_certificate_is_shown_to_a_server_that_asks_for_one(
    made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_TLS_CA", str(made.ca))
    certificate, key = made.issue("operator")
    with https(made, wants_certificate=True) as url:
        with open_server(url) as server, pytest.raises(CommandFailed):
            server.get("/x")
        monkeypatch.setenv("CORRAL_TLS_CLIENT_CERT", str(certificate))
        monkeypatch.setenv("CORRAL_TLS_CLIENT_KEY", str(key))
        with open_server(url) as server:
            assert server.get("/x") == {}


def test_wrong_files_are_named(made: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_TLS_CA", str(tmp_path / "gone"))
    with pytest.raises(CommandFailed, match=r"CORRAL_TLS_CA=.*gone cannot be used: No such file") as caught:
        open_server("https://127.0.0.1:1")
    assert caught.value.exit_code == ExitCode.USAGE
    monkeypatch.setenv("CORRAL_TLS_CA", str(made.ca))
    monkeypatch.setenv("CORRAL_TLS_CLIENT_CERT", str(made.ca))
    with pytest.raises(CommandFailed, match=r"CORRAL_TLS_CLIENT_CERT=.*holds no certificate with its key"):
        open_server("https://127.0.0.1:1")


def test_unix_socket_is_an_address() -> None:
    folder = Path(f"/tmp/corral-transport-{os.getpid()}")
    folder.mkdir()
    try:
        listening = socketserver.ThreadingUnixStreamServer(str(folder / "s"), Answer)
        with answering(listening), open_server(f"unix:{folder}/s") as server:
            assert server.get("/x") == {}
            assert server.url == f"unix:{folder}/s"
        with open_server(f"unix:{folder}/s") as server, pytest.raises(CommandFailed) as caught:
            server.get("/x")
        assert caught.value.exit_code == ExitCode.NO_SERVER
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({}, "http://127.0.0.1:8080"),
        ({"CORRAL_TLS_CERT": "/etc/x.pem", "CORRAL_PORT": "8443"}, "https://127.0.0.1:8443"),
        ({"CORRAL_ADMIN_SOCKET": "/run/corral/admin.sock", "CORRAL_TLS_CERT": "/x"}, "unix:/run/corral/admin.sock"),
        ({"CORRAL_ADMIN_SOCKET": "unix:admin.sock"}, "unix:admin.sock"),
        ({"CORRAL_ADMIN_SOCKET": "~/admin.sock", "HOME": "/home/me"}, "unix:/home/me/admin.sock"),
        ({"CORRAL_ADMIN_SOCKET": "127.0.0.1:8081", "CORRAL_TLS_CERT": "/x"}, "https://127.0.0.1:8081"),
    ],
)
def test_commands_look_where_a_server_with_the_same_settings_would_listen(
    variables: dict[str, str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_url() == url
