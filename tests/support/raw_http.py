"""Requests over raw sockets, so that a test decides when a connection is cut, and sees what came until then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit


async def send(
    url: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection on which the request has been sent, and which the server will close after the reply."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    data = b"" if body is None else json.dumps(body).encode()
    lines = {"Host": "localhost", "Connection": "close", "Content-Length": str(len(data))} | dict(headers or {})
    if body is not None:
        lines["Content-Type"] = "application/json"
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
    await writer.drain()
    return reader, writer


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Return the status and the headers, by their names in lower case."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    return int(first.split()[1]), {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


async def read_chunked(reader: asyncio.StreamReader, num_bytes: int) -> bytes:
    """Return at least so many bytes of a body that comes in chunks, up to the end of one of them; less = all of it."""
    got = b""
    while len(got) < num_bytes:
        size = int(await reader.readuntil(b"\r\n"), 16)
        got += await reader.readexactly(size)
        await reader.readexactly(2)
        if size == 0:
            break
    return got


async def ask(
    url: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Return a whole reply: status, headers, body."""
    reader, writer = await send(url, method, path, body, headers)
    try:
        status, found = await read_head(reader)
        if found.get("transfer-encoding") == "chunked":
            return status, found, await read_chunked(reader, 2**40)
        return status, found, await reader.read()
    finally:
        writer.close()
