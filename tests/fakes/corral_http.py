"""A server that answers what a test has told it to, over real HTTP: what commands see of a running Corral.

Owns replies by method and path, in turn, and what was asked. It knows no model: what it says is the test's.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class Reply:
    """What is answered: `pieces` one after another, and before the last of them is sent, `hold` is waited for."""

    status: int = 200
    pieces: Sequence[bytes] = ()
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    hold: threading.Event | None = None
    """Set = the reply ends."""
    gap_s: float = 0.0
    """Between two pieces, so that a client gets them apart."""


def as_json(value: Any, status: int = 200) -> Reply:
    return Reply(status, [json.dumps(value).encode()])


def refusal(status: int, message: str, code: str = "") -> Reply:
    return as_json({"error": {"message": message, "type": "x", "param": None, "code": code}}, status)


def as_text(text: str, hold: threading.Event | None = None) -> Reply:
    return Reply(200, [text.encode()], "text/plain; charset=utf-8", hold=hold)


def as_events(*events: tuple[str, Any], hold: threading.Event | None = None) -> Reply:
    """Return a stream of named events."""
    pieces = [f"event: {name}\ndata: {json.dumps(data)}\n\n".encode() for name, data in events]
    return Reply(200, [b": ping\n\n", *pieces], "text/event-stream", hold=hold)


def as_chunks(*chunks: Any, is_whole: bool = True, hold: threading.Event | None = None) -> Reply:
    """Return a stream as chat completions have it."""
    pieces = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]
    return Reply(200, [*pieces, *([b"data: [DONE]\n\n"] if is_whole else [])], "text/event-stream", hold=hold)


def said(text: str = "", *, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """Return a chunk of a chat."""
    return {"model": "tiny", "choices": [{"index": 0, "delta": {"content": text, **delta}, "finish_reason": finish}]}


class FakeCorral:
    """Answers each path with what is in its line, the last reply again and again."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Asked] = []
        self._replies: defaultdict[tuple[str, str], deque[Reply]] = defaultdict(deque)
        self._lock = threading.Lock()

    def answers(self, method: str, path: str, *replies: Any) -> None:
        """From now on this path is answered with `replies` in turn, and with the last of them for good."""
        made = [reply if isinstance(reply, Reply) else as_json(reply) for reply in replies]
        with self._lock:
            self._replies[method, path] = deque(made)

    def bodies(self, method: str, path: str) -> list[Any]:
        """Return what was sent to a path."""
        return [one.body for one in self.asked if (one.method, one.path) == (method, path)]

    def reply_to(self, asked: Asked) -> Reply:
        with self._lock:
            self.asked.append(asked)
            line = self._replies.get((asked.method, asked.path))
            if not line:
                return refusal(404, "no such route", "not_found")
            return line[0] if len(line) == 1 else line.popleft()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has left is nothing to tell: what is printed here would be taken for a command's words."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@contextmanager
def fake_corral() -> Iterator[FakeCorral]:
    """Run such a server until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            parts = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.loads(raw) if raw else None
            query = dict(parse_qsl(parts.query))
            reply = fake.reply_to(Asked(self.command, unquote(parts.path), query, dict(self.headers), body))
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.content_type)
            self.send_header("Transfer-Encoding", "chunked")
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                for piece in reply.pieces:
                    self._write(piece)
                    if reply.gap_s:
                        time.sleep(reply.gap_s)
                if reply.hold is not None:
                    reply.hold.wait()
                self._write(b"")

        def _write(self, piece: bytes) -> None:
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    fake = FakeCorral(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
