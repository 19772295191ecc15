"""What a worker tells about itself: one whole snapshot a line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from worker.contract.records import parsed, record


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
    """Tokens in the slot's own cells. What finished requests left for reuse is in `kv_cells`, kind `idle`."""
    started_at_s: float | None = None
    """Monotonic seconds, the clock that all processes of one machine share."""
    first_token_at_s: float | None = None


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
    step_seconds: float = 0.0
    """Time in whole steps: forward passes and all that the engine does around them."""
    rows: int = 0
    prompt_tokens_computed: int = 0
    prompt_tokens_cached: int = 0
    generated_tokens: int = 0
    prefill_seconds: float = 0.0
    generation_seconds: float = 0.0
    finished: int = 0
    aborted: int = 0
    failed_steps: int = 0
    """Passes and KV operations that were refused or failed; each was made good or ended its request."""
    drafted_tokens: int = 0
    """Tokens that were drafted ahead and verified."""
    accepted_tokens: int = 0
    parked: int = 0
    """How often a running sequence had to make room for others."""
    prefix_hits: int = 0
    """Requests of whose prompts a part was cached."""
    prefix_misses: int = 0
    prefixes_demoted: int = 0
    """Finished prefixes that lost their KV cells to make room; where host memory has room, they went there."""
    prefixes_dropped: int = 0
    """Finished prefixes that lost their place in host memory to make room."""


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
    can_generate: bool = True
    """False for encoders: they make vectors or scores of texts, and nothing else."""
    pooling: str = ""
    """What is made of a text: `mean`, `cls`, `last` for vectors, `rank` for scores."""
    embedding_size: int = 0
    """Numbers in a vector."""
    embedding_context: int = 0
    """Tokens of the longest text that can be embedded or ranked."""


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
    max_rows: int = 0
    """Rows that one forward pass can have; 0 = not known."""
    facts: ModelFacts | None = None
    slots: tuple[SlotReport, ...] = ()
    counters: EngineCounters = field(default_factory=EngineCounters)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    """By metric name without prefix: `time_to_first_token_seconds`, `inter_token_seconds`, `batch_rows`,
    `batch_busy_slots`."""
    kv_cells: Mapping[str, int] = field(default_factory=dict)
    """`used`, `shared`, `idle`, `total`."""
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """By kind: `rss`, `private` (what no other process could share), `process` (private, beside what
    llama.cpp has allocated), `pss` where the system tells it, `weights`."""
    device_bytes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """What llama.cpp has allocated, by its name of the device (`CPU` for main memory) and then by kind: `weights`,
    `kv`, `compute`. Empty until the model is loaded, or where the library does not tell."""
    load_seconds: Mapping[str, float] = field(default_factory=dict)
    """By phase: `spawn`, `import`, `read`, `warmup`."""

    def to_line(self) -> bytes:
        """Return one line of JSON, newline included."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Return the snapshot. Raises: ValueError when `line` is not one (a truncated line, another program)."""
        raw = parsed(line)
        if not isinstance(raw, dict):
            raise ValueError("a status line is a JSON object")
        try:
            raw["phase"] = Phase(raw["phase"])
            raw["slots"] = tuple(
                record(SlotReport, slot | {"state": SlotState(slot["state"])}) for slot in raw["slots"]
            )
            raw["counters"] = record(EngineCounters, raw["counters"])
            raw["histograms"] = {
                name: Histogram(tuple(h["bounds"]), tuple(h["counts"]), h["total"])
                for name, h in raw["histograms"].items()
            }
            if raw["facts"] is not None:
                raw["facts"] = record(ModelFacts, raw["facts"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a status line: {error!r}") from None
        return record(cls, raw)
