"""Requests that go on while a test looks at the page, and a line to the server that can be cut.

Must not look at pages.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx


def chat(
    url: str, *, model: str = "smollm2", key: str | None = None, text: str = "Say hello.", **fields: object
) -> httpx.Response:
    """Return the reply to one message."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 16,
        "temperature": 0,
    } | fields
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=120)


@contextmanager
def chatting(url: str, num: int = 2) -> Iterator[None]:
    """Until the end of the block `num` conversations go on without a pause."""
    is_over = threading.Event()

    def talk(number: int) -> None:
        while not is_over.is_set():
            reply = chat(url, text=f"Tell story {number} about a farm.", max_tokens=64)
            assert reply.status_code == 200, reply.text

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(num)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


class Line:
    """A local address that leads to a server, until it is cut."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._sockets: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self._port = 0
        self.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def join(self) -> None:
        """Let connections through."""
        self._listener = socket.create_server(("127.0.0.1", self._port), reuse_port=False)
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        assert self._listener is not None
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in list(self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(self._target)
                self._sockets |= {near, far}
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                sink.sendall(piece)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._sockets -= {source, sink}
        source.close()
