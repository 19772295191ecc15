"""A package index on this machine that can break off in the middle of a wheel."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class FakeIndex:
    """Serves the wheels of `folder`; while `gate` is not set, only the first half of each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.url = ""


@contextmanager
def fake_index(folder: Path) -> Iterator[FakeIndex]:
    """Run the index; `url` is what PIP_INDEX_URL must be."""
    index = FakeIndex(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.seen.append(self.path)
            match self.path.strip("/").split("/"):
                case ["simple", name]:
                    wheels = sorted(index.folder.glob(f"{name.replace('-', '_')}-*.whl"))
                    links = "".join(f'<a href="/files/{w.name}">{w.name}</a>' for w in wheels)
                    self._send(f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), "text/html")
                case ["files", name]:
                    self._send((index.folder / name).read_bytes(), "application/octet-stream")
                case _:
                    self.send_error(404)

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            half = len(body) // 2
            self.wfile.write(body[:half])
            if kind != "text/html":
                index.gate.wait()
            self.wfile.write(body[half:])

        def log_message(self, format: str, *args: object) -> None:
            """Keep the tests' output clean."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that is killed in the middle of a wheel is part of the tests."""

    server = Server(("127.0.0.1", 0), Handler)
    index.url = f"http://127.0.0.1:{server.server_port}/simple"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield index
    finally:
        index.gate.set()
        server.shutdown()
        server.server_close()
