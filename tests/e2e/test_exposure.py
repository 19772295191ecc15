"""A real server that speaks TLS and has an address for operators, asked by clients and by commands."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.certificates import Certificates
from tests.support.served import Served, served, until


async def command(*words: str, env: dict[str, str]) -> tuple[int | None, str]:
    """Return how `corral WORDS` ends, and what it says."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CORRAL_", "SSL_"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", *words),
        env=kept | env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode()


@pytest.fixture
def admin() -> Iterator[Path]:
    """A path that is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="corral-admin-", dir="/tmp") as folder:
        yield Path(folder) / "admin.sock"


async def test_everything_goes_over_tls_and_operators_have_a_socket_of_their_own(tmp_path: Path, admin: Path) -> None:
    made = Certificates(tmp_path)
    certificate, key = made.issue()
    env = {"CORRAL_TLS_CERT": str(certificate), "CORRAL_TLS_KEY": str(key), "CORRAL_ADMIN_SOCKET": str(admin)}
    async with served(tmp_path, {"small": {}}, env=env) as server:
        assert server.url.startswith("https://127.0.0.1:")
        assert server.lines[-1]["admin_url"] == f"unix:{admin}"
        server.session._connector._ssl = made.client()  # type: ignore[union-attr]
        reply = await server.chat("small", tokens=3)
        assert reply.status == 200
        _, plain = await server.connect()
        plain.write(b"GET / HTTP/1.1\r\n\r\n")
        await until(lambda: any("it sent plain HTTP" in line["message"] for line in server.lines), what="the log")
        await _check_operators_address(server, admin)
        await _check_commands(server, admin, made)
        before = await _serial_number(server, made)
        shutil.copy(made.issue("renewed")[0], certificate)
        shutil.copy(made.folder / "renewed.key", key)
        server.process.send_signal(signal.SIGHUP)
        await until(lambda: _has_changed(server, made, before), what="the new certificate")


async def _check_operators_address(server: Served, admin: Path) -> None:
    refused = await server.session.post(f"{server.url}/models/unload", json={"model": "small"})
    assert refused.status == 403
    assert "CORRAL_ADMIN_SOCKET" in await refused.text()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(admin))) as session:
        taken = await session.post("http://localhost/models/unload", json={"model": "small"})
        assert taken.status == 200
        listed = await session.get("http://localhost/v1/models")
        assert listed.status == 200, "everything else is answered there, too"


async def _check_commands(server: Served, admin: Path, made: Certificates) -> None:
    over_tls = {"CORRAL_URL": server.url}
    (trusting, shown), (wary, refused), (inside, loaded) = await asyncio.gather(
        command("ps", env=over_tls | {"CORRAL_TLS_CA": str(made.ca)}),
        command("ps", env=over_tls),
        command("load", "small", "--url", f"unix:{admin}", env={}),
    )
    assert trusting == 0, shown
    assert "small" in shown
    assert wary != 0
    assert "CORRAL_TLS_CA" in refused
    assert inside == 0, loaded


async def _has_changed(server: Served, made: Certificates, before: str) -> bool:
    return await _serial_number(server, made) != before


async def _serial_number(server: Served, made: Certificates) -> str:
    host, port = server.url.removeprefix("https://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=made.client(), server_hostname="localhost")
    number: str = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return number


@pytest.mark.slow
async def test_wrong_certificate_stops_the_start_with_the_files_name(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text("models: {small: {model: ./model.gguf}}")
    env = {"CORRAL_TLS_CERT": str(tmp_path / "gone.pem")}
    code, said = await command("serve", str(tmp_path / "models.yaml"), "--port", "0", env=env)
    assert code != 0
    assert "gone.pem cannot be read (No such file or directory)" in said


@pytest.mark.slow
async def test_body_that_does_not_come_is_answered_with_408_and_the_others_do_not_notice(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": {}}, env={"CORRAL_REQUEST_BODY_TIMEOUT_S": "0.5"}) as server:
        reader, writer = await server.connect()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b'Content-Length: 1000\r\n\r\n{"model": '
        )
        assert (await server.chat("small", tokens=1)).status == 200
        answer = await asyncio.wait_for(reader.readuntil(b"}}"), 10)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"CORRAL_REQUEST_BODY_TIMEOUT_S" in answer


async def test_files_are_opened_again_after_all_descriptors_were_used_up(tmp_path: Path) -> None:
    import resource

    async with served(tmp_path, {"small": {}}, env={"CORRAL_MAX_CONNECTIONS": "1000"}) as server:
        assert (await server.chat("small", tokens=1)).status == 200
        num_now = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        limits = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (num_now + 20, limits[1]))
        clients = [await server.connect() for _ in range(60)]
        await until(lambda: any("Too many open files" in line["message"] for line in server.lines), what="the log")
        for _, writer in clients:
            writer.close()
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limits)
        assert (await server.chat("small", tokens=1)).status == 200
        told = [line for line in server.lines if "connections cannot be accepted" in line["message"]]
        assert len(told) == 1
