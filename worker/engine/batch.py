"""What one step does: KV operations, then rows of one forward pass, and what came of it.

Plain data between the scheduler, which decides it, and the engine, which performs it. Must not hold state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.engine.request import AdapterSet, Pick, RequestId

TokenArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Clear:
    """Sequence `seq_id` owns no cells any more."""

    seq_id: int


@dataclass(frozen=True, slots=True)
class Share:
    """Sequence `dst`, empty before, owns the first `num_tokens` cells of `src` as well. No bytes move."""

    src: int
    dst: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Trim:
    """Sequence `seq_id` keeps its first `num_tokens` cells."""

    seq_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Save:
    """Host memory holds a copy of all cells of sequence `seq_id` under `blob_id`."""

    seq_id: int
    blob_id: int


@dataclass(frozen=True, slots=True)
class Restore:
    """Sequence `seq_id`, empty before, has the first `num_tokens` of the blob's tokens. The blob stays.

    For a moment the whole blob needs cells.
    """

    blob_id: int
    seq_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Host memory holds the bytes of a blob that lay on the disk. Not for the backend, which knows no files."""

    blob_id: int


@dataclass(frozen=True, slots=True)
class Forget:
    """The blob's memory is free again."""

    blob_id: int


@dataclass(frozen=True, slots=True)
class Wipe:
    """No sequence owns any cell, and all cells are zero: numbers that are not finite would leak out of free ones."""


KvOp = Clear | Share | Trim | Save | Restore | Forget | Wipe


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive pending tokens of one sequence: one row when generating, several in prefill."""

    seq_id: int
    request_id: RequestId
    tokens: TokenArray
    """Shape: (num_rows,)."""
    start: int
    """Position of the first row."""
    num_outputs: int = 0
    """So many of the last rows are sampled from: 0 within a prompt, 1 at its end and when generating, more when
    the rows after the first of them are drafts to verify."""
    num_prompt_rows: int = 0
    """Rows that belong to the prompt; the others compute tokens of the answer."""

    @property
    def drafts(self) -> TokenArray:
        """The tokens at the end that nobody has sampled yet. Shape: (num_outputs - 1,)."""
        return self.tokens[len(self.tokens) - max(0, self.num_outputs - 1) :]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. KV operations come first, in order; then one forward pass over all chunks."""

    before: tuple[KvOp | Fetch, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    adapters: AdapterSet = ()
    """Of all sequences in this pass."""

    @property
    def num_rows(self) -> int:
        """Rows of the forward pass."""
        return sum(len(chunk.tokens) for chunk in self.chunks)

    @property
    def num_outputs(self) -> int:
        """Rows that are sampled from."""
        return sum(chunk.num_outputs for chunk in self.chunks)

    @property
    def is_empty(self) -> bool:
        """Nothing to do at all."""
        return not self.before and not self.chunks


@dataclass(frozen=True, slots=True)
class Sampled:
    """The pass succeeded. For each chunk with outputs, in order, what was picked: at least one token, and one more
    for each draft that turned out right."""

    picks: tuple[tuple[Pick, ...], ...]


@dataclass(frozen=True, slots=True)
class ForwardFailed:
    """The pass did not succeed.

    `code` is llama_decode's; `num_cached` tells, for codes after which cells may have changed,
    how many tokens each sequence really has in the cache.
    """

    code: int
    num_cached: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True)
class NotFinite:
    """The pass succeeded, but what it computed for these requests are no numbers."""

    request_ids: tuple[RequestId, ...]


StepResult = Sampled | ForwardFailed | NotFinite
