"""The stub worker's HTTP: one connection, one request's controls, and answers in OpenAI's shapes.

Owns bytes and JSON. Must not hold slots or write the status link (`worker.py` does).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from worker.contract import FRAMES_CONTENT_TYPE, ErrorPayload, FrameType, Header, SlotState, encode_frame


@dataclass
class Job:
    """One request: its controls and how far it is."""

    id: str
    path: str
    body: dict[str, Any]
    controls: dict[str, Any]
    num_pieces: int
    is_capped: bool
    created: int
    generated: int = 0
    started_s: float = field(default_factory=time.monotonic)
    first_s: float | None = None

    @property
    def is_stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def is_chat(self) -> bool:
        return self.path.endswith("/chat/completions")


class Connection:
    """One HTTP/1.1 connection: reads requests, writes chunked replies."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def read_request(self) -> tuple[str, str, dict[str, str], bytes] | None:
        """Return method, path, headers and body; None when the router has closed the connection."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
        body = b""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int(await self.reader.readline(), 16):
                body += await self.reader.readexactly(size)
                await self.reader.readline()
            await self.reader.readline()
        elif length := int(headers.get("content-length", 0)):
            body = await self.reader.readexactly(length)
        return method, path.partition("?")[0], headers, body

    async def start(self, status: int, headers: dict[str, str]) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.writer.write(f"HTTP/1.1 {status} Stub\r\n{lines}Transfer-Encoding: chunked\r\n\r\n".encode())
        await self.writer.drain()

    async def write(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self.writer.drain()

    async def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()


class Engine(Protocol):
    """What an answer needs of the stub it belongs to."""

    model: str
    counts: dict[str, int]

    def move(self, slot: int, state: SlotState, **changes: Any) -> None: ...
    def count_token(self, job: Job, slot: int) -> None: ...
    def journal(self, event: str, **more: Any) -> None: ...


async def until_exists(name: str) -> None:
    path = Path(name)
    while name and not path.exists():  # noqa: ASYNC110, ASYNC240 - released from another process
        await asyncio.sleep(0.005)


async def write_reply(engine: Engine, connection: Connection, job: Job, slot: int) -> bool:
    controls = job.controls
    shown = "text/event-stream" if job.is_stream else "application/json"
    await connection.start(
        int(controls.get("status", 200)),
        {"Content-Type": FRAMES_CONTENT_TYPE, Header.CONTENT_TYPE: shown},
    )
    await _prefill(engine, connection, job, slot)
    pieces: list[str] = []
    for index in range(job.num_pieces + 1):
        if await _misbehave(connection, job, index):
            return False
        if "error" in controls and index == int(controls.get("error_after", 0)):
            payload = ErrorPayload(**{"param": None, "retry_after_s": None} | controls["error"])
            await connection.write(encode_frame(FrameType.ERROR, payload.to_json()))
            return await _finish(engine, connection, job, "rejected" if index == 0 else "error")
        if index == job.num_pieces:
            break
        if index and controls.get("delay_s"):
            await asyncio.sleep(controls["delay_s"])
        pieces.append(controls.get("text", f"w{index} "))
        engine.count_token(job, slot)
        if job.is_stream:
            await _write_event(connection, _stream_chunk(engine.model, job, pieces[-1]))
    reason = "length" if job.is_capped else "stop"
    if job.is_stream:
        await _write_event(connection, _stream_chunk(engine.model, job, "", reason))
        if (job.body.get("stream_options") or {}).get("include_usage"):
            usage = _stream_chunk(engine.model, job, "") | {"choices": [], "usage": _usage_of(job)}
            await _write_event(connection, usage)
        await connection.write(encode_frame(FrameType.DATA, b"data: [DONE]\n\n"))
    else:
        whole = json.dumps(_whole_reply(engine.model, job, "".join(pieces), reason)).encode()
        await connection.write(encode_frame(FrameType.DATA, whole))
    return await _finish(engine, connection, job, "ok", reason)


async def _prefill(engine: Engine, connection: Connection, job: Job, slot: int) -> None:
    prefill_s = float(job.controls.get("prefill_s", 0))
    for tenth in range(10 if prefill_s else 0):
        if job.controls.get("progress"):
            progress = {"processed": tenth, "total": 10, "cached": 0}
            await connection.write(encode_frame(FrameType.PROGRESS, json.dumps(progress).encode()))
        await asyncio.sleep(prefill_s / 10)
    engine.counts["prompt"] += 7
    engine.counts["forwards"] += 1
    engine.move(slot, SlotState.GENERATING, prompt_processed=7, cached_tokens=7)
    engine.journal("generating", id=job.id, slot=slot)


async def _misbehave(connection: Connection, job: Job, index: int) -> bool:
    """Do what the controls ask before piece `index`; True when the reply ends here."""
    controls = job.controls
    if index == int(controls.get("hold_after", 0)):
        await until_exists(controls.get("hold", ""))
    if index == controls.get("die_after"):
        os.kill(os.getpid(), signal.SIGKILL)
    if "exit_after" in controls and index == controls["exit_after"][0]:
        os._exit(controls["exit_after"][1])
    if index == controls.get("cut_after"):
        connection.writer.transport.abort()
        return True
    return False


async def _write_event(connection: Connection, event: dict[str, Any]) -> None:
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    await connection.write(encode_frame(FrameType.DATA, data))


async def _finish(engine: Engine, connection: Connection, job: Job, outcome: str, reason: str = "") -> bool:
    engine.counts["finished"] += 1
    if not job.controls.get("end_without_z"):
        end = {
            "outcome": outcome,
            "usage": _usage_of(job),
            "timings": _timings_of(job),
            "finish_reasons": [reason] if reason else [],
        }
        await connection.write(encode_frame(FrameType.END, json.dumps(end).encode()))
    await connection.end()
    return True


def _usage_of(job: Job) -> dict[str, int]:
    return {"prompt_tokens": 7, "completion_tokens": job.generated, "total_tokens": 7 + job.generated}


def _timings_of(job: Job) -> dict[str, float]:
    now_s = time.monotonic()
    first_s = job.first_s or now_s
    prompt_ms, predicted_ms = (first_s - job.started_s) * 1e3, (now_s - first_s) * 1e3
    return {
        "cache_n": 0,
        "prompt_n": 7,
        "prompt_ms": prompt_ms,
        "predicted_n": job.generated,
        "predicted_ms": predicted_ms,
    }


def _stream_chunk(model: str, job: Job, text: str, reason: str | None = None) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
    choice |= {"delta": {"role": "assistant", "content": text}} if job.is_chat else {"text": text}
    kind = "chat.completion.chunk" if job.is_chat else "text_completion"
    return {"id": job.id, "object": kind, "created": job.created, "model": model, "choices": [choice]}


def _whole_reply(model: str, job: Job, text: str, reason: str) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
    choice |= {"message": {"role": "assistant", "content": text}} if job.is_chat else {"text": text}
    return {
        "id": job.id,
        "object": "chat.completion" if job.is_chat else "text_completion",
        "created": job.created,
        "model": model,
        "choices": [choice],
        "usage": _usage_of(job),
        "timings": _timings_of(job),
    }
