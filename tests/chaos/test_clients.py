"""Clients that send their requests byte by byte, or no requests at all: the others are served, and nothing is left."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.chaos.arena import Arena, arena
from tests.chaos.rude import Rude, head, request, visit
from tests.chaos.storm import IS_SHORT, dice, rounds, storm
from tests.chaos.table import Table

pytestmark = pytest.mark.chaos

HEAD_S, BODY_S = 1.0, 2.0
LINGER_S = 10.0
"""So long is the rest of a request read whose answer is given already."""
LATER_S = 6.0
"""What a busy machine may take beyond a deadline."""
ENV = {"CORRAL_REQUEST_HEAD_TIMEOUT_S": str(HEAD_S), "CORRAL_REQUEST_BODY_TIMEOUT_S": str(BODY_S)}
SLOW = 200
AT_ONCE = 50
EVERY_S = 0.25
QUIET_S = 1.0
ASKED = {"model": "text", "prompt": "tell", "max_tokens": 2}
WHOLE = request(ASKED)
OTHERS = ("stream", "whole", "chat", "pair", "messages", "embedding")


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with arena(tmp_path_factory.mktemp("clients"), env=ENV) as found:
        yield found


# --- byte by byte ---------------------------------------------------------------------------------------------

CHUNKED = head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
LONG_BODY = b'{"model": "text", "prompt": "' + b"x" * 2000
SLOW_WAYS: dict[str, tuple[bytes, bytes, float, int | None]] = {
    "head": (b"", WHOLE, HEAD_S, 408),
    "second head": (WHOLE, WHOLE, HEAD_S, 408),
    "body": (head(5000), LONG_BODY, BODY_S, 408),
    "chunks": (CHUNKED, b"".join(b"1\r\n%c\r\n" % byte for byte in LONG_BODY), BODY_S, 408),
    "trailers": (CHUNKED + b"5\r\n{}   \r\n0\r\n", b"X-More: y\r\n" * 100, BODY_S, 408),
    "nothing": (b"", b"", HEAD_S, None),
    "unread body": (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n",
        b"x" * 5000,
        LINGER_S,
        200,
    ),
}
"""By name: what is sent at once, what is sent byte by byte, the time after which it is cut off, the last status."""


async def send_slowly(url: str, way: str) -> str:
    """Return what is wrong with how the client was cut off; nothing if all is as documented."""
    at_once, slowly, within_s, status = SLOW_WAYS[way]
    client = await visit(url)
    try:
        await client.send(at_once)
        if way == "second head":
            await client.read_until(b'"text"', within_s=60)
            client.got = b""
        start_s = time.monotonic()
        sending = asyncio.create_task(_trickle(client, slowly))
        try:
            if status == 408:
                await client.read_until(b"request_too_slow", within_s=within_s + LATER_S)
                took_s, within_s = time.monotonic() - start_s, LINGER_S
                if took_s < SLOW_WAYS[way][2] - EVERY_S:
                    return f"{way}: cut off after {took_s:.1f} s already: {client.got!r}"
            if IS_SHORT and within_s == LINGER_S:
                with suppress(TimeoutError):
                    await client.read_all(within_s=2 * HEAD_S + 1)
            else:
                await client.read_all(within_s=within_s + LATER_S)
        except TimeoutError:
            return f"{way}: not cut off within {within_s + LATER_S:g} s; it got {client.got!r}"
        finally:
            sending.cancel()
        if client.statuses() != ([] if status is None else [status]):
            return f"{way}: {client.got!r}"
        return ""
    finally:
        client.leave()


async def _trickle(client: Rude, data: bytes) -> None:
    for at in range(len(data)):
        await client.send(data[at : at + 1])
        await asyncio.sleep(EVERY_S)


async def test_clients_that_send_byte_by_byte_are_cut_off_in_time_and_delay_nobody(field: Arena, table: Table) -> None:
    async def all_slow() -> None:
        ways = [list(SLOW_WAYS)[number % len(SLOW_WAYS)] for number in range(SLOW)]
        it.row.injected += SLOW - 1
        slow = asyncio.gather(*(send_slowly(field.url, way) for way in ways))
        await asyncio.sleep(1)  # all of them are at it
        took_s = [await it.traffic.probe() for _ in range(5)]
        assert max(took_s) < 5, f"a request beside {SLOW} slow ones has taken {max(took_s):.1f} s"
        wrong = [problem for problem in await slow if problem]
        assert wrong == [], f"{len(wrong)} of {SLOW}: {wrong[:5]}"

    async with storm(field, table, f"byte by byte, {SLOW} at once", kinds=OTHERS) as it:
        for _ in range(rounds(3, 1)):
            await it.strike(all_slow)


# --- no requests ----------------------------------------------------------------------------------------------

TLS_HELLO = bytes.fromhex("16030100b0010000ac0303") + bytes(range(32)) + b"\x20" + bytes(range(32)) + bytes(100)
HTTP_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
LINE = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
Made = Callable[[random.Random], bytes]


def _noise(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(1, 3000))


def _mangled(chance: random.Random) -> bytes:
    """Return a whole request with some bytes changed, added or left out."""
    data = bytearray(WHOLE)
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(data))
        data[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
    return bytes(data)


ANSWERED = "requests and half a one"
"""The first of them get their answers, for which the client stays."""
GARBAGE: dict[str, Made] = {
    "noise": _noise,
    "mangled": _mangled,
    "noise behind a request": lambda chance: WHOLE + _noise(chance),
    ANSWERED: lambda chance: WHOLE * chance.randrange(1, 4) + WHOLE[: chance.randrange(len(WHOLE))],
    "half a request": lambda chance: WHOLE[: chance.randrange(len(WHOLE))],
    "half a body": lambda chance: WHOLE[: chance.randrange(WHOLE.index(b"{"), len(WHOLE))],
    "long head": lambda _: LINE + b"X-Long: " + b"x" * 10_000_000 + b"\r\n\r\n",
    "many headers": lambda _: LINE + b"X-More: y\r\n" * 1_000_000 + b"\r\n",
    "long path": lambda _: b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": lambda _: TLS_HELLO,
    "HTTP/2": lambda _: HTTP_2,
    "length too small": lambda chance: head(chance.randrange(20)) + WHOLE[WHOLE.index(b"{") :],
    "length too large": lambda chance: head(10 ** chance.randrange(3, 30)) + WHOLE[WHOLE.index(b"{") :],
    "wrong length": lambda chance: head(chance.choice(["-1", "+5", "0x10", "1e3", "", "5, 6", "5 6", "\x00", "x"])),
    "two lengths": lambda _: LINE + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}    ",
    "length and chunks": lambda _: LINE + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "noise in chunks": lambda chance: CHUNKED + b"5\r\n{}   \r\n" + _noise(chance),
    "wrong chunk size": lambda chance: (
        CHUNKED + chance.choice([b"-5", b"0x5", b"f" * 40, b"", b"\xff"]) + b"\r\n{}\r\n"
    ),
    "unknown coding": lambda _: LINE + b"Transfer-Encoding: gzip, x\r\n\r\n{}",
    "no gzip": lambda chance: LINE + b"Content-Encoding: gzip\r\nContent-Length: 50\r\n\r\n" + chance.randbytes(50),
    "other version": lambda chance: b"GET / HTTP/" + chance.choice([b"9.9", b"0.9", b"x", b"1.1.1"]) + b"\r\n\r\n",
    "bare line feeds": lambda _: WHOLE.replace(b"\r\n", b"\n"),
    "upgrade": lambda _: LINE + b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\n{}" + TLS_HELLO,
    "expectation": lambda _: LINE + b"Expect: the-impossible\r\nContent-Length: 2\r\n\r\n{}",
}
FINE = frozenset({"noise behind a request", ANSWERED, "bare line feeds", "mangled", "length too small"})
"""Some of these are answered as whole requests are."""


async def send_garbage(url: str, kind: str, chance: random.Random, seen: Counter[str]) -> str:
    """Return what is wrong with the answer; nothing if all is well."""
    data = GARBAGE[kind](chance)
    client = await visit(url)
    try:
        sending = asyncio.create_task(client.send(data))
        ends = kind != ANSWERED and chance.random() < 0.5
        try:
            if ends and len(data) < 2**16:
                await sending
                with suppress(OSError):
                    client.writer.write_eof()
            within_s = BODY_S + LATER_S
            while await asyncio.wait_for(client.read(), within_s):
                within_s = QUIET_S  # it may be kept open for more requests
        except TimeoutError:
            if not client.got:
                return f"{kind}: neither answered nor closed: {data[:100]!r}"
        finally:
            sending.cancel()
        for status in client.statuses():
            seen[f"{kind} {status}"] += 1
            if status >= 500 or (status == 200 and kind not in FINE):
                return f"{kind}: {client.got[:300]!r} to {data[:100]!r}"
        return ""
    finally:
        client.leave(is_reset=chance.random() < 0.5)


async def test_garbage_of_every_kind_is_refused_and_never_an_error_of_the_server(field: Arena, table: Table) -> None:
    seen: Counter[str] = Counter()
    kinds = list(GARBAGE)

    async def much() -> None:
        chosen = [kinds[(it.row.injected + number) % len(kinds)] for number in range(AT_ONCE)]
        it.row.injected += AT_ONCE - 1
        found = await asyncio.gather(*(send_garbage(field.url, kind, dice, seen) for kind in chosen))
        wrong = [problem for problem in found if problem]
        assert wrong == [], f"{len(wrong)} of {AT_ONCE}: {wrong[:5]}"

    log_before = len(field.server.lines)
    async with storm(field, table, f"garbage, {AT_ONCE} at once", kinds=OTHERS) as it:
        for _ in range(rounds(20, 1)):
            await it.strike(much)
    assert sum(seen.values()) > it.row.injected / 3, seen
    assert seen[f"{ANSWERED} 200"], "a whole request before the garbage is answered"
    assert errors_of(field.server.lines[log_before:]) == []


def errors_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines of the log that tell an error."""
    return [line for line in lines if line.get("level") in ("error", "critical") or "Traceback" in str(line)]
