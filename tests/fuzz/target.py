"""The server that is fuzzed, what must stay true of it all the while, and plain requests over one kept connection."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gguf.constants import PoolingType
from prometheus_client.parser import text_string_to_metric_families

from tests.support.real_server import RealServer, real_server
from tests.support.tiny_bert import write_tiny_bert
from tests.support.tiny_gguf import write_tiny_llama

MAX_BODY_BYTES = 4_000_000
STEADY_TOKENS = 48
ANSWER_WITHIN_S = 30.0
NEVER = frozenset({500, 502, 504})
"""What no request may be answered with, however wrong it is."""
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_NEEDS_VECTORS = ("/embed", "/api/embed")
_NEEDS_SCORES = ("/rerank", "/reranking")


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    content_type: str
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """One connection that is kept; a new one when the server has closed it. For one thread."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_WITHIN_S)

    def send(
        self,
        method: str,
        path: str,
        body: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Return the whole reply. A body that is an iterator is sent in chunks."""
        sent = {"Content-Type": "application/json"} | dict(headers or {})
        try:
            self._connection.request(method, path, body, sent, encode_chunked=not isinstance(body, bytes | None))
            response = self._connection.getresponse()
            return Reply(response.status, response.headers.get_content_type(), response.read())
        except (ConnectionError, http.client.RemoteDisconnected) as error:
            self._connection.close()
            raise AssertionError(f"the server left without a reply to {method} {path}: {error!r}") from error

    def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        return self.send("POST", path, json.dumps(body).encode())

    def close(self) -> None:
        self._connection.close()


@dataclass
class Target:
    """The server with its models, all loaded."""

    server: RealServer
    url: str = field(init=False)

    def __post_init__(self) -> None:
        self.url = self.server.url

    def worker_starts(self, connection: Connection) -> float:
        text = connection.send("GET", "/metrics").body.decode()
        families = {family.name: family for family in text_string_to_metric_families(text)}
        return sum(
            sample.value for sample in families["corral_worker_starts"].samples if sample.name.endswith("_total")
        )


def model_for(path: str) -> str:
    """Return the model that can answer requests to `path`."""
    bare = path.removeprefix("/v1")
    if bare.startswith(_NEEDS_SCORES):
        return "rank"
    return "embed" if bare.startswith(_NEEDS_VECTORS) else "text"


@contextmanager
def target(folder: Path) -> Iterator[Target]:
    """Serve a model that generates at most 64 tokens, one that embeds and a reranker, all tiny and loaded."""
    write_tiny_llama(folder / "text.gguf", chat_template=TEMPLATE)
    write_tiny_bert(folder / "embed.gguf")
    write_tiny_bert(folder / "rank.gguf", pooling=PoolingType.RANK)
    here = {"idle_unload_s": 0, "device": "cpu", "threads": 1, "preload": True}
    models = {
        "text": here | {"model": "./text.gguf", "slots": 4, "context": 512, "max_tokens": 64},
        "embed": here | {"model": "./embed.gguf"},
        "rank": here | {"model": "./rank.gguf"},
    }
    with real_server(folder, models, default_model="text", limits={"max_body_bytes": MAX_BODY_BYTES}) as server:
        connection = Connection(server.url)
        assert connection.post("/v1/completions", {"model": "text", "prompt": "hello", "max_tokens": 1}).status == 200
        assert connection.post("/v1/embeddings", {"model": "embed", "input": "hello"}).status == 200
        assert connection.post("/v1/rerank", {"model": "rank", "query": "a", "documents": ["b"]}).status == 200
        connection.close()
        yield Target(server)


class SteadyStreams:
    """A client that streams one answer after another; each must be whole, and those with a seed the same."""

    def __init__(self, url: str) -> None:
        self.num_done = 0
        self.faults: list[str] = []
        self._connection = Connection(url)
        self._is_over = threading.Event()
        self._expected = self._text(is_reproducible=True)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(ANSWER_WITHIN_S)
        self._connection.close()

    def _run(self) -> None:
        while not self._is_over.is_set() and not self.faults:
            try:
                is_reproducible = self.num_done % 4 == 0
                text = self._text(is_reproducible=is_reproducible)
                if is_reproducible and text != self._expected:
                    self.faults.append(f"the text is {text!r} instead of {self._expected!r}")
            except Exception as error:  # noqa: BLE001 - whatever it is, the test must tell
                self.faults.append(repr(error))
            self.num_done += 1
            self._is_over.wait(0.2)

    def _text(self, *, is_reproducible: bool) -> str:
        body = {
            "model": "text",
            "prompt": "tell the story",
            "max_tokens": STEADY_TOKENS,
            "temperature": 0,
            "seed": 1,
            "ignore_eos": True,
            "reproducible": is_reproducible,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        reply = self._connection.post("/v1/completions", body)
        assert (reply.status, reply.content_type) == (200, "text/event-stream"), reply
        lines = [line.removeprefix("data: ") for line in reply.body.decode().split("\n") if line.startswith("data: ")]
        assert lines[-1] == "[DONE]", lines[-1]
        events = [json.loads(line) for line in lines[:-1]]
        choices = [choice for event in events for choice in event["choices"]]
        assert [one["finish_reason"] for one in choices if one["finish_reason"]] == ["length"]
        assert events[-1]["usage"]["completion_tokens"] == STEADY_TOKENS
        return "".join(one["text"] for one in choices)


@contextmanager
def undisturbed(found: Target) -> Iterator[SteadyStreams]:
    """Whatever is sent inside the block, no worker ends and a stream beside it gets all that it is owed."""
    connection = Connection(found.url)
    pids, starts = found.server.worker_pids(), found.worker_starts(connection)
    streams = SteadyStreams(found.url)
    streams.start()
    try:
        yield streams
    finally:
        streams.stop()
    assert not streams.faults, f"stream {streams.num_done} beside the wrong requests: {streams.faults[0]}"
    assert streams.num_done >= 1
    assert found.server.worker_pids() == pids, "a worker has ended"
    assert found.worker_starts(connection) == starts
    connection.close()
