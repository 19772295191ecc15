"""A throw-away context on loaded weights that tells what passes of so many rows cost when a thousand cells are in use.

One of the `llama*` modules that may import llama_cpp. Must not decide what is measured (`calibration.py`) nor when
(`calibrator.py`). All methods but `interrupt` belong to the thread that uses the model.
"""

from __future__ import annotations

import time

import numpy as np
from llama_cpp import llama_cpp as lib

from worker.engine.batch import Chunk, Clear, Restore, Save, Share, Trim
from worker.engine.llama_context import LlamaContext
from worker.engine.llama_model import LlamaModel
from worker.engine.llama_params import ContextShape
from worker.engine.request import RequestId

NUM_STREAMS = 8
"""Sequences that fill the cells together at first; they are merged into fewer for fewer rows."""
DEPTH = 1024
NUM_CELLS = 1536

_BLOB = 0


class Probe:
    """Streams of generated tokens and one long prompt, without any content."""

    def __init__(self, model: LlamaModel, *, max_rows: int, num_threads: int, flash_attn: str) -> None:
        """Raises: BadModel, OutOfMemory."""
        shape = ContextShape(NUM_STREAMS + 1, NUM_CELLS, max_rows, max_outputs=NUM_STREAMS)
        self._num_threads = num_threads
        self._wall_s = self._cpu_s = 0.0
        self._context = LlamaContext(model, shape, num_threads=num_threads, flash_attn=flash_attn)
        self._num_vocab = model.num_vocab
        self._can_copy = self._context.can_share and self._context.bytes_per_token > 0
        self._num_streams = NUM_STREAMS if self._can_copy else 1
        self._length = 0
        """Tokens of each stream, and where the next one stands: merged streams have them several times over."""

    def fill(self, num_rows: int) -> float:
        """Compute a prompt of `num_rows` tokens and copy it until all cells are in use; return its pass's seconds.

        Where sequences cannot be copied, nothing is kept: one empty stream stands for all. Raises: ForwardError.
        """
        context = self._context
        seconds = self._seconds([self._chunk(0, num_rows, 0)])
        if not self._can_copy:
            context.apply(Clear(0))
            return seconds
        context.apply(Save(0, _BLOB))
        self._length = num_rows
        num_copies = max(1, DEPTH // (num_rows * self._num_streams))
        for stream in range(self._num_streams):
            for _ in range(num_copies if stream else num_copies - 1):
                # A stream has the same positions several times then, which llama.cpp allows.
                context.apply(Restore(_BLOB, NUM_STREAMS, num_rows))
                context.apply(Share(NUM_STREAMS, stream, num_rows))
                context.apply(Clear(NUM_STREAMS))
        return seconds

    def seconds(self, num_rows: int) -> float:
        """Return what a pass takes: up to `NUM_STREAMS` rows with one row in each stream, beyond that in one prompt.

        Asked from many streams to few, because they are merged on the way. Raises: ForwardError.
        """
        wanted = num_rows if num_rows <= NUM_STREAMS else 1
        self._merge(wanted)
        rows = [num_rows // self._num_streams] * self._num_streams
        try:
            return self._seconds([self._chunk(stream, n, self._length) for stream, n in enumerate(rows)])
        finally:
            for stream in range(self._num_streams):
                self._context.apply(Trim(stream, self._length) if self._length else Clear(stream))

    def _merge(self, num_streams: int) -> None:
        """Have at most so many streams, which own the cells of all others as well."""
        for stream in range(num_streams, self._num_streams):
            self._context.apply(Share(stream, stream % num_streams, self._length))
            self._context.apply(Clear(stream))
        self._num_streams = min(self._num_streams, num_streams)

    @property
    def cpu_share(self) -> float:
        """Processor time that this process had during its passes, of what their threads could have had."""
        return self._cpu_s / (self._wall_s * self._num_threads) if self._wall_s else 1.0

    def interrupt(self) -> None:
        """End the pass that runs now with ForwardAborted. From any thread."""
        self._context.interrupt()

    def close(self) -> None:
        """Free the context. Idempotent."""
        self._context.close()

    def _seconds(self, chunks: list[Chunk]) -> float:
        started_s, cpu_started_s = time.perf_counter(), time.process_time()
        self._context.forward(chunks)
        seconds = time.perf_counter() - started_s
        self._wall_s += seconds
        self._cpu_s += time.process_time() - cpu_started_s
        return seconds

    def _chunk(self, stream: int, num_rows: int, start: int) -> Chunk:
        tokens = np.arange(start, start + num_rows, dtype=np.int32) * 31 % self._num_vocab
        return Chunk(stream, RequestId(-1), tokens, start, num_outputs=1)


def library_version() -> str:
    """Return what tells builds of llama.cpp apart: versions, and the CPU features they use."""
    from llama_cpp import __version__

    info = (lib.llama_print_system_info() or b"").decode("utf-8", "replace")
    return f"{__version__} {info.strip()}"
