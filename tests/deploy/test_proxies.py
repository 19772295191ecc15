"""The proxies: they take what Corral takes, and hold back no stream. Real ones before a real server, without TLS."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from router.catalog import Limits
from router.settings import RouterSettings
from tests.support.deploy_files import DEPLOY, run, tool
from tests.support.self_signed import write_self_signed
from tests.support.served import Served, chat_body, served, until

NGINX = (DEPLOY / "nginx" / "corral.conf").read_text(encoding="utf-8")
CADDY = (DEPLOY / "caddy" / "Caddyfile").read_text(encoding="utf-8")
BACKEND = f"{RouterSettings().host}:{RouterSettings().port}"


def test_proxies_find_corral_where_it_is_by_itself_and_take_the_bodies_that_it_takes() -> None:
    assert f"server {BACKEND};" in NGINX
    assert f"reverse_proxy {BACKEND} " in CADDY
    assert f"client_max_body_size {Limits().max_body_bytes // 2**20}m;" in NGINX
    assert f"max_size {Limits().max_body_bytes // 2**20}MiB" in CADDY


@pytest.mark.deploy
def test_nginx_understands_every_line(tmp_path: Path) -> None:
    run(tool("nginx"), "-t", "-c", _nginx_file(tmp_path, NGINX))


@pytest.mark.deploy
def test_caddy_understands_every_line() -> None:
    run(tool("caddy"), "validate", "--adapter", "caddyfile", "--config", DEPLOY / "caddy" / "Caddyfile")


@pytest.mark.deploy
async def test_nginx_passes_tokens_on_as_they_come(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": {}}) as server:
        port = _free_port()
        text = re.sub(r"\n    listen .*ssl;", "", NGINX).replace(
            "server_name", f"listen 127.0.0.1:{port};\n    server_name", 1
        )
        text = re.sub(r"\n    ssl_.*;", "", text).replace(BACKEND, urlsplit(server.url).netloc)
        path = _nginx_file(tmp_path, text)
        async with _proxy(port, tool("nginx"), "-c", str(path), "-g", "daemon off;"):
            await _tokens_come_one_by_one(server, port)


@pytest.mark.deploy
async def test_caddy_passes_tokens_on_as_they_come(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": {}}) as server:
        port = _free_port()
        text = CADDY.replace("\nmodels.example.org {", f"\nhttp://127.0.0.1:{port} {{")
        text = "{\n\tadmin off\n}\n" + text.replace(BACKEND, urlsplit(server.url).netloc)
        path = tmp_path / "Caddyfile"
        path.write_text(text, encoding="utf-8")
        async with _proxy(port, tool("caddy"), "run", "--adapter", "caddyfile", "--config", str(path)):
            await _tokens_come_one_by_one(server, port)


async def _tokens_come_one_by_one(server: Served, port: int) -> None:
    """A streamed answer of two seconds arrives over two seconds, and a client that leaves ends it."""
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    async with aiohttp.ClientSession() as session:
        body = chat_body("small", stream=True, tokens=20, delay_s=0.1)
        async with session.post(url, json=body) as reply:
            assert reply.status == 200
            arrived_s = [time.monotonic() async for line in reply.content if b'"content"' in line]
        gaps = [later - earlier for earlier, later in pairwise(arrived_s)]
        assert len(gaps) >= 15
        assert max(gaps) < 1.0, "they came in lumps"
        assert sorted(gaps)[len(gaps) // 2] > 0.03
        reply = await session.post(url, json=chat_body("small", stream=True, tokens=10_000, delay_s=0.01))
        await reply.content.readuntil(b'"w3 "')
        reply.close()
        await until(lambda: bool(server.journal("aborted")), what="the end of an answer whose client has left")


@asynccontextmanager
async def _proxy(port: int, *command: str) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)

    async def listens() -> bool:
        assert process.returncode is None, "the proxy has ended"
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    try:
        await until(listens, what="the proxy")
        yield
    finally:
        process.terminate()
        await process.wait()


def _nginx_file(folder: Path, text: str) -> Path:
    """Return a whole configuration around `text` that writes nowhere else."""
    certificate, key = write_self_signed(folder)
    text = re.sub(r"ssl_certificate +\S+;", f"ssl_certificate {certificate};", text)
    text = re.sub(r"ssl_certificate_key +\S+;", f"ssl_certificate_key {key};", text)
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    path = folder / "nginx.conf"
    path.write_text(
        f"user root;\npid {folder}/nginx.pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}{text}\n}}\n",
        encoding="utf-8",
    )
    return path


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port
