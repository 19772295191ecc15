"""What a worker sends (frames, status lines, HTTP replies), and compressed bodies of clients: junk costs an error."""

from __future__ import annotations

import asyncio
import gzip
import math
import zlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, cast

from router.errors import BadRequest
from router.inflation import STEP_BYTES, make_inflater
from router.status import StatusLines, has_moved
from router.worker_session import NotHttp, WorkerSession, _Connection
from tests.fuzz.parsers.subject import Subject, cuts_of
from worker.contract import (
    EngineCounters,
    ErrorPayload,
    Frame,
    FrameDecoder,
    FrameType,
    FramingError,
    Histogram,
    ModelFacts,
    Phase,
    SlotReport,
    SlotState,
    WorkerStatus,
    encode_frame,
)

_MAX_INFLATED = 64 * STEP_BYTES
_loop = asyncio.new_event_loop()


def check(data: bytes) -> None:
    for read in (_frames, _statuses, _reply, _inflated("gzip"), _inflated("deflate")):
        whole = read([data])
        for pieces in cuts_of(data, data):
            found = read(pieces)
            assert found == whole, f"{read}: {found!r} instead of {whole!r}"


def _frames(pieces: Sequence[bytes]) -> object:
    decoder = FrameDecoder()
    frames: list[Frame] = []
    try:
        for piece in pieces:
            frames += decoder.feed(piece)
    except FramingError:
        return "not frames"  # how many of them come before that depends on the cuts
    for frame in frames:
        if frame.type is FrameType.ERROR:
            _check_error(frame.payload)
    made = b"".join(encode_frame(frame.type, frame.payload) for frame in frames)
    assert b"".join(pieces).startswith(made)
    assert decoder.is_at_boundary == (len(made) == sum(map(len, pieces)))
    return frames


def _check_error(payload: bytes) -> None:
    try:
        error = ErrorPayload.from_json(payload)
    except ValueError:
        return
    assert 400 <= error.status <= 599
    assert isinstance(error.code, str)
    assert isinstance(error.message, str)
    math.ceil(error.retry_after_s or 0)
    assert ErrorPayload.from_json(error.to_json()) == error


def _statuses(pieces: Sequence[bytes]) -> object:
    lines = StatusLines()
    found: list[WorkerStatus] = []
    for piece in pieces:
        found += lines.feed(piece)
    last = None
    for status in found:
        has_moved(last, status)
        last = status
        assert isinstance(status.phase, Phase)
    return repr(found), lines.num_garbage  # nan is not equal to itself


class _Transport:
    """An end of a connection that nothing is sent over."""

    def writelines(self, _: object) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def abort(self) -> None: ...


def _reply(pieces: Sequence[bytes]) -> object:
    connection = _Connection(WorkerSession("/nowhere"), _loop)
    connection.connection_made(cast(Any, _Transport()))
    steps: Coroutine[Any, None, object] = _ask_and_read(connection)
    happenings = [lambda piece=piece: connection.data_received(piece) for piece in pieces]
    happenings.append(lambda: connection.connection_lost(None))
    found: object = None
    waits_for = steps.send(None)
    try:
        for happening in happenings:
            happening()
            while waits_for.done():
                waits_for = steps.send(None)
    except StopIteration as done:
        found = done.value
    return found


async def _ask_and_read(connection: _Connection) -> object:
    """Run by hand: what it waits for comes to whoever sends to it."""
    head, body = None, b""
    try:
        reply = await connection.ask(b"", b"")
        head = reply.status, reply.headers
        while piece := await connection.read():
            body += piece
    except (NotHttp, ConnectionError) as error:
        return head, body, type(error).__name__
    return head, body, "whole"


def _inflated(encoding: str) -> Callable[[Sequence[bytes]], object]:
    def read(pieces: Sequence[bytes]) -> object:
        inflater = make_inflater(encoding)
        made, size = 0, 0
        try:
            for piece in pieces:
                for one in inflater.feed(piece):
                    assert 0 < len(one) <= STEP_BYTES
                    size += len(one)
                    made = zlib.crc32(one, made)
                    if size > _MAX_INFLATED:
                        return "much"
            inflater.close()
        except BadRequest:
            return "wrong"
        return made, size

    return read


def seeds() -> Iterator[bytes]:
    yield encode_frame(FrameType.DATA, b"data: x\n\n") + encode_frame(FrameType.END, b'{"outcome": "stop"}')
    error = ErrorPayload(400, "bad", "wrong", "messages", 1.5)
    yield encode_frame(FrameType.ERROR, error.to_json()) + encode_frame(FrameType.PROGRESS, b"{}")
    yield WorkerStatus(Phase.LOADING, 0.5).to_line() + WorkerStatus(Phase.FAILED, error="no").to_line()
    yield WorkerStatus(
        Phase.READY,
        facts=ModelFacts(512, 4, 2048, 512, 10, 10, 10, "tiny", True, "CPU"),
        slots=(SlotReport(0, SlotState.IDLE), SlotReport(1, SlotState.GENERATING, "r", 5, 5)),
        counters=EngineCounters(forwards=3),
        histograms={"batch_rows": Histogram((1.0, 2.0), (0, 1, 2), 5.0)},
        device_bytes={"CPU": {"kv": 1}},
    ).to_line()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-corral-frames\r\nTransfer-Encoding: chunked\r\n\r\n"
    yield head + b"5\r\nhello\r\nC\r\n, wor\r\n ld!!\r\n0\r\n\r\n"
    yield head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + b"1\r\nx\r\n0\r\n\r\n"
    yield b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"
    yield gzip.compress(b'{"model": "a"}' * 20, mtime=0) + gzip.compress(b"more", mtime=0)
    yield zlib.compress(b'{"model": "a"}' * 20)
    raw = zlib.compressobj(wbits=-15)
    yield raw.compress(b"plain deflate" * 5) + raw.flush()


SUBJECT = Subject(
    "framing",
    check,
    seeds,
    (
        *(
            b"D\0\0\0\4",
            b"E\0\0\0\2{}",
            b"Z\0\0\0\0",
            b"P",
            b"R",
            b"S",
            b"\n",
            b"\r\n",
            b"\r\n\r\n",
            b"0\r\n\r\n",
            b"5\r\n",
        ),
        *(b"ffffffff\r\n", b"HTTP/1.1 200 OK\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b": "),
        *(b'{"phase": "ready"', b'"slots": [', b'"facts": {', b'"counters": {', b'"histograms": {', b"null", b"[" * 50),
        *(
            b"NaN",
            b"Infinity",
            b"1" * 40,
            b'"\\ud800"',
            b"\x1f\x8b\x08\0\0\0\0\0\0\3",
            b"\x78\x9c",
            b'"status": ',
            b"{",
            b"}",
        ),
    ),
    max_size=1500,
)
