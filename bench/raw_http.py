"""A client that costs next to nothing, for times of a tenth of a millisecond: prepared requests over plain sockets."""

from __future__ import annotations

import json
import selectors
import socket
import time
from dataclasses import dataclass

WITHIN_S = 60.0
WORKER_HEADERS = {
    "X-Corral-Request-Id": "0123456789abcdef01234567",
    "X-Corral-Priority": "0",
    "X-Corral-Created": "1700000000",
    "X-Corral-Seed": "1",
}
"""What the router sends to a worker, for requests that go there directly."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Where a request goes, and its bytes."""

    address: tuple[str, int] | str
    """A port, or the path of a Unix socket."""
    request: bytes

    @classmethod
    def of(cls, address: tuple[str, int] | str, body: dict[str, object], *, is_kept: bool) -> Asked:
        """Return a POST to /v1/completions; `is_kept`: its connection serves later ones."""
        data = json.dumps(body).encode()
        headers = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(len(data))}
        headers |= {} if is_kept else {"Connection": "close"}
        headers |= WORKER_HEADERS if isinstance(address, str) else {}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return cls(address, f"POST /v1/completions HTTP/1.1\r\n{lines}\r\n".encode() + data)

    def connect(self) -> socket.socket:
        """Return a new connection. Raises: OSError."""
        if isinstance(self.address, str):
            made = socket.socket(socket.AF_UNIX)
            made.settimeout(WITHIN_S)
            made.connect(self.address)
            return made
        made = socket.create_connection(self.address, WITHIN_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made


class Kept:
    """One connection, made again whenever the server ends it."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._socket: socket.socket | None = None

    def ask_s(self) -> float:
        """Return the seconds from the request's first byte to the reply's last. Raises: RuntimeError, OSError."""
        was_used = self._socket is not None
        if self._socket is None:
            self._socket = self._asked.connect()
        begun_s = time.perf_counter()
        self._socket.sendall(self._asked.request)
        reply = b""
        while not is_complete(reply):
            data = self._socket.recv(65536)
            if not data:
                self.close()
                if was_used and not reply:  # some servers close a connection without a word after so many requests
                    return self.ask_s()
                raise RuntimeError(f"the connection ended within a reply: {reply[-200:]!r}")
            reply += data
        seconds = time.perf_counter() - begun_s
        if b"connection: close" in reply.partition(b"\r\n\r\n")[0].lower():
            self.close()
        return seconds

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def at_once_s(asked: Asked, streams: int, num_each: int) -> list[float]:
    """Return the seconds of every request when so many run at any time, each on a connection of its own.

    Raises: RuntimeError when one fails, OSError.
    """
    seconds: list[float] = []
    left = streams * (num_each - 1)
    with selectors.DefaultSelector() as selector:
        for _ in range(streams):
            _send(selector, asked)
        while selector.get_map():
            ready = selector.select(WITHIN_S)
            if not ready:
                raise RuntimeError(f"nothing came for {WITHIN_S:g} s")
            for key, _ in ready:
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                begun_s, reply = key.data
                data = connection.recv(65536)
                reply += data
                if not data and not is_complete(reply):
                    raise RuntimeError(f"a connection ended within a reply: {bytes(reply[-200:])!r}")
                if is_complete(reply):
                    seconds.append(time.perf_counter() - begun_s)
                    selector.unregister(connection)
                    connection.close()
                    if left:
                        left -= 1
                        _send(selector, asked)
    return seconds


def _send(selector: selectors.BaseSelector, asked: Asked) -> None:
    begun_s = time.perf_counter()
    connection = asked.connect()
    connection.sendall(asked.request)
    selector.register(connection, selectors.EVENT_READ, (begun_s, bytearray()))


def is_complete(reply: bytes | bytearray) -> bool:
    """Return whether all of a reply has come. Raises: RuntimeError when it is no success."""
    head, separator, body = bytes(reply).partition(b"\r\n\r\n")
    if not separator:
        return False
    first, *lines = head.lower().split(b"\r\n")
    if first.split(b" ")[1] != b"200":
        raise RuntimeError(f"the server answered {first.decode('latin-1')}: {body[:200]!r}")
    headers = dict(line.split(b": ", 1) for line in lines)
    if b"content-length" in headers:
        return len(body) >= int(headers[b"content-length"])
    return body.endswith(b"\r\n0\r\n\r\n")
