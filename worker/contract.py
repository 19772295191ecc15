"""All that the router knows of a worker: launch spec, request headers, reply frames, status lines, exit codes.

Owns the wire formats between the two processes. Must not do any I/O, read a clock or know what a model is:
both sides import it, and the router may import nothing else of this package.

Three channels join a router to each worker:

- stdin: the first line is a `LaunchSpec`, later lines are `Control`s; end of file means "exit now".
- a Unix socket: plain HTTP whose reply bodies are frames (`encode_frame`, `FrameDecoder`).
- a status pipe: one JSON `WorkerStatus` a line, at every transition and at least once a second.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Self, TypeVar

T = TypeVar("T")

PROTOCOL = 1
"""Both sides must agree on this number; a worker of another release refuses to start."""

FRAMES_CONTENT_TYPE = "application/x-corral-frames"
"""`Content-Type` of a framed reply on the worker's socket."""

MAX_FRAME_BYTES = 64 * 2**20
"""A longer frame is a broken worker, not an answer."""


# --- frames -----------------------------------------------------------------------------------------------


class FrameType(StrEnum):
    """What a frame of a reply body carries; the value is its first byte."""

    DATA = "D"
    """Bytes for the client, already in its dialect."""
    RESUME = "R"
    """JSON `{choice, token_ids, sampler_state?}` that covers exactly the data frames before it."""
    PROGRESS = "P"
    """JSON prefill progress."""
    STORE = "S"
    """JSON conversation to keep for a later request."""
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


def encode_frame(type_: FrameType, payload: bytes) -> bytes:
    """Return the wire bytes: type (1 byte), length (4 bytes, big-endian), payload."""
    return _FRAME_HEADER.pack(type_.value.encode(), len(payload)) + payload


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
            try:
                type_ = FrameType(type_byte.decode("latin-1"))
            except ValueError:
                raise FramingError(f"unknown frame type {type_byte!r}") from None
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
        return _record(cls, json.loads(data))


class Header(StrEnum):
    """Request headers that only the router sets. What a worker writes depends on the request and these alone."""

    REQUEST_ID = "X-Corral-Request-Id"
    KEY_ID = "X-Corral-Key-Id"
    PRIORITY = "X-Corral-Priority"
    DEADLINE_MS = "X-Corral-Deadline-Ms"
    CREATED = "X-Corral-Created"
    """Unix seconds at which the router accepted the request."""
    SEED = "X-Corral-Seed"
    """Seed to use when the body names none."""
    RESUME = "X-Corral-Resume"
    CACHE_SALT = "X-Corral-Cache-Salt"
    DIALECT = "X-Corral-Dialect"
    CONTENT_TYPE = "X-Corral-Content-Type"
    """On the reply: the `Content-Type` that the client should see."""


# --- launch -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Resolved options of one engine: every number is final, nothing is left to guess."""

    context: int
    """Tokens that one request may use, prompt and answer together."""
    slots: int = 4
    """Sequences that run at the same time."""
    kv_tokens: int | None = None
    """Size of the shared pool of KV cells; None = slots x context."""
    gpu_layers: int = -1
    """Layers on the GPU; -1 = all."""
    device: str | None = None
    """Name of a device as llama.cpp lists it, `cpu` for none; None = its own choice."""
    threads: int | None = None
    """Upper bound of CPU threads; None = the router's share alone decides."""
    batch_size: int = 512
    """Rows of one forward pass at most."""
    ubatch_size: int = 512
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: str = "auto"
    """`on`, `off`, or `auto`: off on a CPU (slow there under 64 rows), llama.cpp's choice on a GPU."""
    swa_full: bool = True
    """Keep full-size caches for sliding-window layers, so that any prefix can be reused."""
    rope_scaling: str | None = None
    rope_scale: float | None = None
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    yarn_orig_ctx: int | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_slow: float | None = None
    yarn_beta_fast: float | None = None
    mmap: bool = True
    mlock: bool = False
    check_tensors: bool = False
    split_mode: str = "layer"
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    no_kv_offload: bool = False
    no_op_offload: bool = False

    @property
    def num_kv_cells(self) -> int:
        """Cells of the shared pool."""
        return self.kv_tokens if self.kv_tokens is not None else self.slots * self.context


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """The first line on a worker's stdin: what to load and where to listen."""

    model: str
    """Canonical name, as replies show it."""
    model_path: str
    socket_path: str
    status_fd: int
    engine: EngineOptions
    replica: int = 0
    incarnation: int = 1
    num_threads: int = 1
    """CPU threads to start with."""
    max_tokens: int | None = None
    """Cap on the answer's length for this model; None = the room left in the context."""
    chat_template: str | None = None
    """Source of a template that replaces the file's own."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    log_level: str = "INFO"
    check_cells: bool = False
    """Compare the recorded tokens of every sequence with the KV positions after each pass."""
    protocol: int = PROTOCOL

    def to_line(self) -> bytes:
        """Return one line of JSON, newline included."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Return the spec. Raises: ValueError on anything else, another protocol included."""
        raw = json.loads(line)
        if not isinstance(raw, dict) or raw.get("protocol") != PROTOCOL:
            raise ValueError(f"launch spec of protocol {PROTOCOL} expected")
        engine = raw.pop("engine")
        engine["tensor_split"] = tuple(engine.get("tensor_split", ()))
        return _record(cls, raw | {"engine": _record(EngineOptions, engine)})


class ControlOp(StrEnum):
    """What a later line on stdin asks for."""

    THREADS = "threads"
    """Use `num_threads` from the next pass on."""
    DRAIN = "drain"
    """Take no new requests, finish the running ones, exit."""


@dataclass(frozen=True, slots=True)
class Control:
    """One later line on a worker's stdin."""

    op: ControlOp
    num_threads: int = 0

    def to_line(self) -> bytes:
        """Return one line of JSON, newline included."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Return the order. Raises: ValueError on anything else."""
        raw = json.loads(line)
        return cls(ControlOp(raw["op"]), int(raw.get("num_threads", 0)))


class ExitCode(IntEnum):
    """Why a worker ended by its own will; signals are negative numbers as `subprocess` shows them."""

    OK = 0
    """Asked for: drained, TERM, or the router is gone."""
    BAD_SPEC = 64
    BAD_MODEL = 65
    """The file cannot be loaded: it or the configuration must change."""
    NO_MEMORY = 66
    """Weights or KV did not fit: may work later."""
    ENGINE_FAILED = 70
    """The engine gave up while running."""


# --- status -----------------------------------------------------------------------------------------------


class Phase(StrEnum):
    """How far a worker is."""

    STARTING = "starting"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class SlotState(StrEnum):
    """`IDLE -> STARTED -> PROCESSING_PROMPT -> DONE_PROMPT -> GENERATING -> IDLE`; any state -> IDLE on abort."""

    IDLE = "IDLE"
    STARTED = "STARTED"
    PROCESSING_PROMPT = "PROCESSING_PROMPT"
    DONE_PROMPT = "DONE_PROMPT"
    GENERATING = "GENERATING"


@dataclass(frozen=True, slots=True)
class SlotReport:
    """One slot as `/slots` shows it. Never any text."""

    id: int
    state: SlotState
    request_id: str | None = None
    prompt_total: int = 0
    prompt_processed: int = 0
    prompt_cached: int = 0
    generated: int = 0
    cached_tokens: int = 0
    """Tokens resident in the slot, running or left over for reuse."""
    started_at_s: float | None = None
    """Monotonic seconds, the clock that all processes of one machine share."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of a histogram since the worker's start; `counts` has one more entry than `bounds` (+Inf)."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """Totals since the worker's start."""

    forwards: int = 0
    forward_seconds: float = 0.0
    rows: int = 0
    prompt_tokens_computed: int = 0
    prompt_tokens_cached: int = 0
    generated_tokens: int = 0
    prefill_seconds: float = 0.0
    generation_seconds: float = 0.0
    finished: int = 0
    aborted: int = 0


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What loading the file has shown."""

    context: int
    slots: int
    kv_cells: int
    trained_context: int
    num_params: int
    size_bytes: int
    num_vocab: int
    description: str
    has_chat_template: bool
    device: str
    gpu_layers: int = 0
    total_layers: int = 0


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One line of the status link: a whole snapshot, so that a lost line loses nothing."""

    phase: Phase
    progress: float | None = None
    """Of the current phase, 0 to 1; None = unknown."""
    error: str | None = None
    """Why the phase is FAILED, in words for the operator."""
    at_s: float = 0.0
    """Monotonic seconds at which the snapshot was taken."""
    step: int = 0
    """Passes of the engine's loop; must grow while `has_work`."""
    step_at_s: float = 0.0
    has_work: bool = False
    max_leases: int = 0
    queue_length: int = 0
    """Requests that are in the worker and hold no slot yet."""
    num_threads: int = 0
    facts: ModelFacts | None = None
    slots: tuple[SlotReport, ...] = ()
    counters: EngineCounters = field(default_factory=EngineCounters)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    """By metric name without prefix: `time_to_first_token_seconds`, `inter_token_seconds`, `batch_rows`."""
    kv_cells: Mapping[str, int] = field(default_factory=dict)
    """`used`, `shared`, `idle`, `total`."""
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """By kind: `rss`, `pss` where the system tells it, `weights`."""
    load_seconds: Mapping[str, float] = field(default_factory=dict)
    """By phase: `spawn`, `import`, `read`, `warmup`."""

    def to_line(self) -> bytes:
        """Return one line of JSON, newline included."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Return the snapshot. Raises: ValueError when `line` is not one (a truncated line, another program)."""
        raw = json.loads(line)
        if not isinstance(raw, dict):
            raise ValueError("a status line is a JSON object")
        try:
            raw["phase"] = Phase(raw["phase"])
            raw["slots"] = tuple(
                _record(SlotReport, slot | {"state": SlotState(slot["state"])}) for slot in raw["slots"]
            )
            raw["counters"] = _record(EngineCounters, raw["counters"])
            raw["histograms"] = {
                name: Histogram(tuple(h["bounds"]), tuple(h["counts"]), h["total"])
                for name, h in raw["histograms"].items()
            }
            if raw["facts"] is not None:
                raw["facts"] = _record(ModelFacts, raw["facts"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a status line: {error!r}") from None
        return _record(cls, raw)


def _record(cls: type[T], raw: object) -> T:
    """Return `cls(**raw)`. Raises: ValueError when the fields do not fit."""
    if not isinstance(raw, dict):
        raise ValueError(f"{cls.__name__}: a JSON object is expected")
    try:
        return cls(**raw)
    except TypeError as error:
        raise ValueError(f"{cls.__name__}: {error}") from None
