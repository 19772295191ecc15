"""What a router writes to a worker's stdin, and how the worker says why it ended."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Self

from worker.contract.records import parsed, record

PROTOCOL = 1
"""Both sides must agree on this number; a worker of another release refuses to start."""

WRITES_ARGUMENT = "--writes="
"""Before each folder in which a worker may write; without any it is not confined to folders."""
SPARE_ARGUMENT = "--spare"
"""Of a process that is told only later what to load."""


def default_max_leases(slots: int) -> int:
    """Return how many requests a worker may hold: its slots, and a few that wait right behind them."""
    return slots + max(2, slots // 4)


@dataclass(frozen=True, slots=True)
class LoraFile:
    """An adapter that is loaded with the model; its id in requests is its place in the list."""

    name: str
    path: str
    scale: float = 1.0
    """Where a request asks for it without one."""


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
    itl_target_ms: float | None = None
    """Longest gap between two tokens of an answer that prompts of others may cause; None = a few usual gaps."""
    prompt_cache_bytes: int | None = None
    """Host memory for finished prefixes that had to leave the KV cache; None = a sixteenth of the machine's, at
    most 4 GiB; 0 = none."""
    prompt_cache_disk_bytes: int = 0
    """Disk for finished prompts, written when the worker is told to leave; 0 = none are, and earlier ones go."""
    draft_max: int = 32
    """Tokens of an answer that are drafted ahead in one step at most; 0 = none."""
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: str = "auto"
    """`on`, `off`, or `auto`: llama.cpp's choice, on a CPU `on` unless a calibration has found `off` clearly faster."""
    swa_full: bool = True
    """Keep full-size caches for sliding-window layers, so that any prefix can be reused."""
    pooling: str | None = None
    """Rows that embeddings are made of: `mean`, `cls`, `last`; None = as the file says."""
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
    loras: tuple[LoraFile, ...] = ()

    @property
    def max_drafted(self) -> int:
        """Drafted tokens of all sequences in one step at most: each needs a row of logits."""
        return min(self.draft_max * self.slots, 32)

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
    draft_model_path: str | None = None
    """A small model that drafts for this one."""
    replica: int = 0
    incarnation: int = 1
    num_threads: int = 1
    """CPU threads to start with."""
    max_tokens: int | None = None
    """Cap on the answer's length for this model; None = the room left in the context."""
    chat_template: str | None = None
    """Source of a template that replaces the file's own."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    allow_request_templates: bool = False
    """Whether requests may bring a chat template of their own."""
    drop_billing_header: bool = True
    """Whether the line that changes with every request is taken out of system prompts."""
    calibration_dir: str | None = None
    """Folder in which it is kept what passes cost on this machine; None = not measured."""
    prompts_dir: str | None = None
    """Folder for the prompts of all models that have a `prompt_cache_disk_bytes`; None = there is none."""
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
        raw = parsed(line)
        if not isinstance(raw, dict) or raw.get("protocol") != PROTOCOL:
            raise ValueError(f"launch spec of protocol {PROTOCOL} expected")
        engine = raw.pop("engine")
        engine["tensor_split"] = tuple(engine.get("tensor_split", ()))
        engine["loras"] = tuple(record(LoraFile, one) for one in engine.get("loras", ()))
        return record(cls, raw | {"engine": record(EngineOptions, engine)})


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
        raw = parsed(line)
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
