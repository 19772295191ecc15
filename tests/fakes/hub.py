"""A small Hugging Face Hub on this machine, as far as its client library asks for it.

Two servers as in real life: the Hub (metadata, access rights, redirects) at `localhost`, and the storage (bytes,
ranges) at `127.0.0.1`, which is another host for the client, so that tokens must not follow there.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "1234567890abcdef1234567890abcdef12345678"


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as a server got it."""

    method: str
    path: str
    authorization: str | None
    range: str | None


@dataclass
class Repo:
    """One repository of one commit."""

    files: dict[str, bytes] = field(default_factory=dict)
    commit: str = COMMIT
    token: str | None = None
    """Who does not send this one is told that there is no such repository."""
    is_gated: bool = False
    """Its listing is public, its files need a token."""


class FakeHub:
    """Serves `repos`; the switches make it misbehave."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.seen: list[Seen] = []
        """Requests to the Hub."""
        self.seen_storage: list[Seen] = []
        self.status: int | None = None
        """The Hub answers everything with this status."""
        self.cut_after: list[int] = []
        """The storage breaks the connection after so many bytes of a reply; one entry is used up each time."""
        self.has_ranges = True
        self.flips_a_byte = False
        self.has_extra_bytes = False
        self.gate = threading.Event()
        """While it is not set, the storage sends the first half of a reply and then nothing."""
        self.gate.set()
        self.endpoint = ""
        self.storage = ""

    def reply(self, handler: _Handler) -> None:
        """Answer a request to the Hub."""
        path = unquote(urlsplit(handler.path).path)
        if self.status is not None:
            handler.answer(self.status, {"error": "the fake was told to"})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/revision/(.+))?", path):
            self._list(handler, match[1], match[2] or "main")
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(handler, match[1], match[2], match[3])
        else:
            handler.answer(404, {"error": "no such page"})

    def _repo(self, handler: _Handler, name: str, revision: str) -> Repo | None:
        repo = self.repos.get(name)
        if repo is None or (repo.token and handler.headers.get("Authorization") != f"Bearer {repo.token}"):
            handler.answer(401, {"error": "Invalid username or password."}, {"X-Error-Code": "RepoNotFound"})
        elif revision not in {"main", repo.commit}:
            handler.answer(404, {"error": "no such revision"}, {"X-Error-Code": "RevisionNotFound"})
        else:
            return repo
        return None

    def _list(self, handler: _Handler, name: str, revision: str) -> None:
        repo = self._repo(handler, name, revision)
        if repo is not None:
            siblings = [_sibling(path, content) for path, content in repo.files.items()]
            handler.answer(200, {"id": name, "sha": repo.commit, "siblings": siblings})

    def _resolve(self, handler: _Handler, name: str, revision: str, file: str) -> None:
        repo = self._repo(handler, name, revision)
        if repo is None:
            return
        if repo.is_gated and not handler.headers.get("Authorization"):
            handler.answer(401, {"error": "gated"}, {"X-Error-Code": "GatedRepo"})
        elif file not in repo.files:
            handler.answer(404, {"error": "no such file"}, {"X-Error-Code": "EntryNotFound"})
        else:
            content = repo.files[file]
            handler.answer(
                302,
                {},
                {
                    "Location": f"{self.storage}/blob/{name}/{file}",
                    "X-Repo-Commit": repo.commit,
                    "X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"',
                    "X-Linked-Size": str(len(content)),
                },
            )

    def reply_storage(self, handler: _Handler) -> None:
        """Send a blob's bytes, or the range that is asked for."""
        _, _, owner, repo, file = unquote(handler.path).split("/", 4)
        content = self.repos[f"{owner}/{repo}"].files[file]
        if self.flips_a_byte:
            content = bytes([content[0] ^ 1]) + content[1:]
        if self.has_extra_bytes:
            content += bytes(1000)
        first = 0
        headers = {"ETag": '"storage"', "Content-Type": "application/octet-stream"}
        if self.has_ranges and (match := re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))):
            first = int(match[1])
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        handler.send_response(206 if first else 200)
        headers["Content-Length"] = str(len(content) - first)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        body = content[first:]
        if self.cut_after:
            handler.wfile.write(body[: self.cut_after.pop(0)])
            handler.close_connection = True
            return
        half = len(body) // 2
        handler.wfile.write(body[:half])
        self.gate.wait()
        handler.wfile.write(body[half:])


def _sibling(path: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "rfilename": path,
        "size": len(content),
        "blobId": hashlib.sha1(content, usedforsecurity=False).hexdigest(),
    }
    if path.endswith(".gguf"):
        entry["lfs"] = {
            "sha256": hashlib.sha256(content).hexdigest(),
            "size": len(content),
            "pointerSize": 134,
        }
    return entry


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def do_GET(self) -> None:
        seen = Seen(self.command, self.path, self.headers.get("Authorization"), self.headers.get("Range"))
        self.server.note(seen)  # type: ignore[attr-defined]
        self.server.reply(self)  # type: ignore[attr-defined]

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Keep the tests' output clean."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is killed in the middle of a reply is part of the tests."""


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """Run a fake Hub and its storage; `endpoint` is what HF_ENDPOINT must be."""
    hub = FakeHub()
    servers = []
    for reply, seen in ((hub.reply, hub.seen), (hub.reply_storage, hub.seen_storage)):
        server = _Server(("127.0.0.1", 0), _Handler)
        server.reply, server.note = reply, seen.append  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
    hub.endpoint = f"http://localhost:{servers[0].server_port}"
    hub.storage = f"http://127.0.0.1:{servers[1].server_port}"
    try:
        yield hub
    finally:
        hub.gate.set()
        for server in servers:
            server.shutdown()
            server.server_close()
