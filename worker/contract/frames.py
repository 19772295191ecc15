"""The body of a reply on a worker's socket: frames, errors, and the headers that travel with a request."""

from __future__ import annotations

import dataclasses
import json
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from worker.contract.records import parsed, record

FRAMES_CONTENT_TYPE = "application/x-corral-frames"
"""`Content-Type` of a framed reply on the worker's socket."""

MAX_FRAME_BYTES = 64 * 2**20
"""A longer frame is a broken worker, not an answer."""


class FrameType(StrEnum):
    """What a frame of a reply body carries; the value is its first byte."""

    DATA = "D"
    """Bytes for the client, already in its dialect."""
    RESUME = "R"
    """JSON `[{choice, token_ids, sampler_state?, ...}, ...]`: the step of the reply that the data before it show.
    With all of these payloads another worker can go on with the reply."""
    PROGRESS = "P"
    """Reserved: nobody sends it."""
    STORE = "S"
    """What to keep of the reply for later requests, before its last data frame: lines of JSON, of which the first has
    its `id`, the second is the reply itself, and the others are the items of the conversation, each on a line."""
    ERROR = "E"
    """JSON `ErrorPayload`."""
    END = "Z"
    """JSON `{outcome, usage, timings, finish_reasons}`; a body without it is a crash."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a reply body."""

    type: FrameType
    payload: bytes


class FramingError(ValueError):
    """The bytes are not frames: an unknown type or a length beyond `MAX_FRAME_BYTES`."""


_FRAME_HEADER = struct.Struct(">cI")
_TYPES = {type_.value.encode(): type_ for type_ in FrameType}
_FIRST_BYTES = {type_: first for first, type_ in _TYPES.items()}


def encode_frame(type_: FrameType, payload: bytes) -> bytes:
    """Return the wire bytes: type (1 byte), length (4 bytes, big-endian), payload."""
    return _FRAME_HEADER.pack(_FIRST_BYTES[type_], len(payload)) + payload


class FrameDecoder:
    """Cuts a byte stream into frames, however the bytes arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def is_at_boundary(self) -> bool:
        """True when no frame is half read: only then may a stream end."""
        return not self._buffer

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes.

        Raises: FramingError, after which the decoder must not be used again.
        """
        self._buffer += data
        frames: list[Frame] = []
        start = 0
        while len(self._buffer) - start >= _FRAME_HEADER.size:
            type_byte, length = _FRAME_HEADER.unpack_from(self._buffer, start)
            type_ = _TYPES.get(type_byte)
            if type_ is None:
                raise FramingError(f"unknown frame type {type_byte!r}")
            if length > MAX_FRAME_BYTES:
                raise FramingError(f"frame of {length} bytes, the limit is {MAX_FRAME_BYTES}")
            end = start + _FRAME_HEADER.size + length
            if len(self._buffer) < end:
                break
            frames.append(Frame(type_, bytes(self._buffer[start + _FRAME_HEADER.size : end])))
            start = end
        del self._buffer[:start]
        return frames


@dataclass(frozen=True, slots=True)
class ErrorPayload:
    """A refusal or failure as it travels in an error frame; the router puts it in the dialect's shape."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None

    def to_json(self) -> bytes:
        """Return the frame's payload."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Return the error that `data` describes. Raises: ValueError when it describes none."""
        error = record(cls, parsed(data))
        texts = (error.code, error.message, "" if error.param is None else error.param)
        wait_s = 0 if error.retry_after_s is None else error.retry_after_s
        if type(error.status) is not int or type(wait_s) not in (int, float) or set(map(type, texts)) != {str}:
            raise ValueError("ErrorPayload: its fields are not of their types")
        if not (400 <= error.status <= 599 and 0 <= wait_s < float("inf")):
            raise ValueError("ErrorPayload: its numbers make no sense")
        "".join(texts).encode()  # half of a pair of surrogates is no text
        return error


class Header(StrEnum):
    """Request headers that only the router sets. What a worker writes depends on the request and these alone."""

    REQUEST_ID = "X-Corral-Request-Id"
    KEY_ID = "X-Corral-Key-Id"
    OWNER = "X-Corral-Owner"
    """Tells apart API keys, those of one id as well, and nothing about them."""
    PRIORITY = "X-Corral-Priority"
    CREATED = "X-Corral-Created"
    """Unix seconds at which the router accepted the request."""
    SEED = "X-Corral-Seed"
    """Seed to use when the body names none."""
    RESUME = "X-Corral-Resume"
    """So many bytes in front of everything else are the payloads of the `RESUME` frames of a reply that goes on here,
    one a line. On the reply: what the worker is that writes such frames; only one of the same name can go on."""
    RESUME_OF = "X-Corral-Resume-Of"
    """What the lost worker called itself."""
    CACHE_SALT = "X-Corral-Cache-Salt"
    LORA = "X-Corral-Lora"
    """Adapters of requests that name none, as their field `lora` has them, percent-encoded: those of the alias that was
    asked for, else those that were set for the model."""
    LOAD_MS = "X-Corral-Load-Ms"
    """Milliseconds that the request has waited for its worker to load; only for a dialect that tells them."""
    HISTORY_BYTES = "X-Corral-History-Bytes"
    """So many bytes in front of the client's body are items that an earlier worker gave in a `STORE` frame."""
    CONTENT_TYPE = "X-Corral-Content-Type"
    """On the reply: the `Content-Type` that the client should see."""
