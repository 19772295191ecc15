"""Ten thousand requests that are wrong in every way that a client, a proxy or an attacker can get them wrong."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from openapi.document import document
from tests.fuzz.target import ANSWER_WITHIN_S, MAX_BODY_BYTES, NEVER, Connection, Reply, Target, model_for, undisturbed
from tests.support.json_bodies import ANYTHING, example, nearly
from tests.support.json_bodies import bodies as nearly_right

pytestmark = pytest.mark.fuzz

NUM_REQUESTS = 10_000
BUDGET_S = 150.0
"""On a machine that is so busy that this is not enough a tenth of them has to do."""
BATCH = 50
AT_ONCE = 5
"""Requests of one example."""

NUMBERS = (
    b"1e999",
    b"-1e999",
    b"1" + b"0" * 400,
    b"0." + b"3" * 400,
    b"-0",
    b"1e-999",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"0x10",
    b"01",
    b"1.",
)
STRINGS = (
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b'"\\u0000"',
    b'"\xff\xfe"',
    b'"\xed\xa0\x80"',
    b'"\xc0\xaf"',
    b'"\x00"',
    b'"\\x41"',
    b"'a'",
    b'"' + b"a" * 70_000 + b'"',
)
SHAPES = (
    b"[]",
    b"{}",
    b"null",
    b"true",
    b'""',
    b"[" * 300 + b"]" * 300,
    b'{"a":' * 300 + b"1" + b"}" * 300,
    b"[" * 90_000,
    b'[{"a":' * 20_000,
    b"[" + b"0," * 50_000 + b"0]",
    b'{"' + b"k" * 70_000 + b'":1}',
)
VALUES = st.one_of(st.sampled_from((*NUMBERS, *STRINGS, *SHAPES)), ANYTHING.map(lambda one: json.dumps(one).encode()))
WHOLE = (
    b"",
    b" ",
    b"\n",
    b"\xef\xbb\xbf",
    b"\xff\xfe{\x00}\x00",
    b"{",
    b"}",
    b'{"model"',
    b'{"model":',
    b'{"model":"text"',
    b'{"model":"text",}',
    b'{"model":"text"}{}',
    b'{model:"text"}',
    b'{"model":"text","model":[]}',
    b"// a\n{}",
    *SHAPES,
    *NUMBERS,
    *STRINGS,
)
TYPES = (
    "application/json",
    "application/json; charset=utf-16",
    "application/vnd.api+json",
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/octet-stream",
    "",
    "a",
)


@dataclass(frozen=True)
class Posted:
    """One route that takes a body."""

    path: str
    right: bytes
    """A body that it takes."""
    names: tuple[str, ...]
    """Its fields, but for the one that has models unloaded."""
    nearly: st.SearchStrategy[Any]
    """Bodies that look right, with anything in a few places."""


@functools.cache
def routes() -> tuple[Posted, ...]:
    """Return all routes that take a body and change nothing."""
    described = document()
    schemas = described["components"]["schemas"]
    found = []
    for path, operations in described["paths"].items():
        body = operations.get("post", {}).get("requestBody")
        if body is None or path in ("/models/load", "/models/unload", "/api/pull"):
            continue
        schema = body["content"]["application/json"]["schema"]
        schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        properties = {name: one for name, one in schema.get("properties", {}).items() if name != "keep_alive"}
        right = example(schema, schemas)
        if properties:
            schema = schema | {"properties": properties | {"model": {"const": model_for(path)}}}
            right["model"] = model_for(path)
        strategy = nearly_right(schema, schemas) if properties else nearly(schema, schemas)
        found.append(Posted(path, json.dumps(right).encode(), tuple(sorted(properties)), strategy))
    return tuple(found)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """Return a path and a body that is wrong as a whole, in one place, or in some fields."""
    route = draw(st.sampled_from(routes()))
    right = route.right
    match draw(st.integers(0, 9)):
        case 0:
            return route.path, draw(st.one_of(st.sampled_from(WHOLE), st.binary(max_size=60)))
        case 1:  # cut off
            return route.path, right[: draw(st.integers(0, len(right) - 1))]
        case 2:  # one byte is another
            place = draw(st.integers(0, len(right) - 1))
            return route.path, right[:place] + bytes([draw(st.integers(0, 255))]) + right[place + 1 :]
        case 3 | 4:
            return route.path, json.dumps(draw(route.nearly)).encode()
        case _ if not route.names:
            return route.path, draw(VALUES)
        case _:
            names = draw(st.lists(st.sampled_from(route.names), min_size=1, max_size=3, unique=True))
            kept = {name: json.dumps(value).encode() for name, value in json.loads(right).items()}
            fields = kept | {name: draw(VALUES) for name in names}
            if draw(st.booleans()):
                fields["model"] = kept["model"]
            parts = (json.dumps(name).encode() + b":" + value for name, value in fields.items())
            return route.path, b"{" + b",".join(parts) + b"}"


Sent = tuple[str, bytes | tuple[bytes, int], Mapping[str, str]]
"""Path, body (with the size of its chunks, if it comes in chunks) and headers of a request."""


def chunks(body: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


@st.composite
def sent(draw: st.DrawFn) -> Sent:
    """Return a request."""
    path, body = draw(bodies())
    headers: dict[str, str] = {}
    how = draw(st.integers(0, 19))
    if how == 0:
        body, headers = gzip.compress(body, 1), {"Content-Encoding": "gzip"}
    elif how == 1:
        body, headers = gzip.compress(body, 1)[: draw(st.integers(0, 30))], {"Content-Encoding": "gzip"}
    elif how == 2:
        headers = {
            "Content-Encoding": draw(st.sampled_from(("gzip", "deflate", "br", "zstd", "identity", "x", "gzip, gzip")))
        }
    elif how == 3:
        body, headers = zlib.compress(body, 1), {"Content-Encoding": "deflate"}
    elif how == 4:
        headers = {"Content-Type": draw(st.sampled_from(TYPES))}
    elif how == 5 and len(body) < 4_000:
        return path, (body, draw(st.integers(1, 500))), headers
    return path, body, headers


def check(path: str, reply: Reply, what: object) -> None:
    shown = repr(what)[:300]
    assert reply.status not in NEVER, f"{path} answered {reply.status} to {shown}: {reply.body[:500]!r}"
    assert reply.status not in (501, 503, 507), f"{path} answered {reply.status} to {shown}: {reply.body[:500]!r}"
    if reply.status >= 400:
        assert reply.content_type == "application/json", f"{path} answered {reply.content_type} to {shown}"
        assert reply.json["error"], f"{path} does not say what is wrong with {shown}"


def test_ten_thousand_malformed_requests_are_refused_one_by_one(
    fuzzed: Target, record_property: Callable[[str, object], None]
) -> None:
    connection = Connection(fuzzed.url)
    statuses: dict[int, int] = {}
    faults: list[str] = []
    ends_at_s = time.monotonic() + BUDGET_S

    @settings(
        max_examples=BATCH,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(batch=st.lists(sent(), min_size=AT_ONCE, max_size=AT_ONCE))
    def ask(batch: list[Sent]) -> None:
        for path, body, headers in batch:
            reply = connection.send("POST", path, chunks(*body) if isinstance(body, tuple) else body, headers)
            statuses[reply.status] = statuses.get(reply.status, 0) + 1
            try:
                check(path, reply, (body, headers))
            except (AssertionError, ValueError) as fault:
                faults.append(str(fault))

    with undisturbed(fuzzed) as streams:
        for number in itertools.count():
            seed(number)(ask)()
            if sum(statuses.values()) >= NUM_REQUESTS or time.monotonic() > ends_at_s or len(faults) > 20:
                break
    connection.close()
    assert not faults, "\n\n".join(faults[:10])
    num = sum(statuses.values())
    record_property("requests", num)
    assert num >= NUM_REQUESTS or (time.monotonic() > ends_at_s and num > NUM_REQUESTS / 10), statuses
    assert sum(one for status, one in statuses.items() if status >= 400) > num / 2, statuses
    assert {400, 404, 415} <= statuses.keys()
    assert streams.num_done > 3


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses", "/completion", "/tokenize"]
)
def test_body_that_inflates_beyond_the_limit_is_refused_before_it_is_read(fuzzed: Target, path: str) -> None:
    connection = Connection(fuzzed.url)
    bomb = gzip.compress(b'{"model":"text","prompt":"' + b"a" * (20 * MAX_BODY_BYTES) + b'"}', 9)
    assert len(bomb) < MAX_BODY_BYTES / 20
    with undisturbed(fuzzed):
        reply = connection.send("POST", path, bomb, {"Content-Encoding": "gzip"})
        assert reply.status == 413
        assert reply.content_type == "application/json"
    connection.close()


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
RIGHT = b'{"model":"text","prompt":"hello","max_tokens":1}'
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BROKEN_HTTP = (
    b"",
    b"\r\n\r\n",
    b"\x00" * 100,
    b"POST\r\n\r\n",
    b"POST /v1/completions HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),  # TLS
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    HEAD + b"Content-Length: -1\r\n\r\n" + RIGHT,
    HEAD + b"Content-Length: 1e3\r\n\r\n" + RIGHT,
    HEAD + b"Content-Length: 99999999999999999999\r\n\r\n" + RIGHT,
    HEAD + b"Content-Length: 500\r\n\r\n" + RIGHT,
    HEAD + b"Content-Length: 48\r\nContent-Length: 2\r\n\r\n" + RIGHT,
    HEAD + b"Content-Length: 48\r\nTransfer-Encoding: chunked\r\n\r\n" + RIGHT,
    HEAD + b"Transfer-Encoding: gzip, x\r\n\r\n" + RIGHT,
    CHUNKED + b"zz\r\n" + RIGHT,
    CHUNKED + b"-1\r\n" + RIGHT,
    CHUNKED + b"ffffffffffffffffffff\r\n" + RIGHT,
    CHUNKED + b"30\r\n" + RIGHT,
    CHUNKED + b"30;" + b"x" * 20_000 + b"\r\n" + RIGHT + b"\r\n0\r\n\r\n",
    HEAD + b"X-A: " + b"a" * 100_000 + b"\r\n\r\n",
    HEAD + b"X-A: b\r\n" * 5_000 + b"\r\n",
    HEAD + b"Content-Encoding: gzip\r\nContent-Length: 20\r\n\r\n" + gzip.compress(b"{}")[:20],
    HEAD + b"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n",
    b"POST /" + b"%00%ff%c0%af..%2f" * 500 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/models/%ed%a0%80?model=%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /health?model=%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n",
)


def test_broken_http_harms_nobody_else(fuzzed: Target) -> None:
    parts = urlsplit(fuzzed.url)
    with undisturbed(fuzzed):
        for raw in BROKEN_HTTP * 3:
            with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=ANSWER_WITHIN_S) as open_:
                open_.sendall(raw)
                open_.shutdown(socket.SHUT_WR)
                reply = open_.recv(65536)
            status = int(reply.split(b" ", 2)[1]) if reply.startswith(b"HTTP/1") else 0
            assert status < 500, f"{reply[:300]!r} to {raw[:200]!r}"
    connection = Connection(fuzzed.url)
    assert connection.send("POST", "/v1/completions", RIGHT).status == 200
    connection.close()
