"""Raw connections of clients that do not behave: they leave, do not read, or send what is no request.

Owns the bytes and how a connection ends. Must not judge.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

PATH = "/v1/completions"
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of a socket whose end is a reset."""


class Rude:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.got = b""
        """All that has come."""

    async def send(self, data: bytes) -> None:
        """All of it is under way, unless the server has closed the connection."""
        with suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def read(self, num_bytes: int = 2**16) -> bytes:
        """Return what comes next; nothing when the server has closed the connection."""
        try:
            data = await self.reader.read(num_bytes)
        except ConnectionError:
            return b""
        self.got += data
        return data

    async def read_until(self, mark: bytes, *, within_s: float) -> bool:
        """Read until `mark` has come. Return False when the connection is closed before. Raises: TimeoutError."""
        async with asyncio.timeout(within_s):
            while mark not in self.got:
                if not await self.read():
                    return False
        return True

    async def read_all(self, *, within_s: float) -> bytes:
        """Return all that has come when the server has closed the connection. Raises: TimeoutError."""
        async with asyncio.timeout(within_s):
            while await self.read():
                pass
        return self.got

    def statuses(self) -> list[int]:
        """Return the status of every reply that has come."""
        return [int(found) for found in _STATUS.findall(self.got)]

    def leave(self, *, is_reset: bool = False) -> None:
        """The connection is closed, in the usual way or by a reset."""
        if is_reset and (sock := self.writer.get_extra_info("socket")) is not None:
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.writer.transport.abort()


async def visit(url: str, *, receive_bytes: int | None = None) -> Rude:
    """Return a new connection; of `receive_bytes` is what the system takes for a client that does not read."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    if receive_bytes is None:
        return Rude(*await asyncio.open_connection(parts.hostname, parts.port))
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
    return Rude(*await asyncio.open_connection(sock=sock, limit=receive_bytes))


def request(body: Mapping[str, Any], headers: Mapping[str, str] | None = None, *, path: str = PATH) -> bytes:
    """Return a whole request."""
    data = json.dumps(body).encode()
    return head(len(data), headers, path=path) + data


def head(length: object, headers: Mapping[str, str] | None = None, *, path: str = PATH) -> bytes:
    """Return the head of a request that says so of its length."""
    lines = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": str(length)}
    shown = "".join(f"{name}: {value}\r\n" for name, value in (lines | dict(headers or {})).items())
    return f"POST {path} HTTP/1.1\r\n{shown}\r\n".encode()


def need_files(num: int) -> None:
    """This process may have so many descriptors open; otherwise the test fails and says what is to be changed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < num:
        if hard != resource.RLIM_INFINITY and hard < num:
            pytest.fail(f"this test needs {num} open files, and the system allows {hard}: raise `ulimit -Hn`")
        resource.setrlimit(resource.RLIMIT_NOFILE, (num, hard))
