"""The rows of one forward pass as llama.cpp wants them.

One of the `llama*` modules that may import llama_cpp. Must not call into a context.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from llama_cpp import llama_cpp as lib

from worker.engine.batch import Chunk


class LlamaBatch:
    """A llama_batch over numpy arrays, filled by slices: element stores through ctypes cost 0.6 us each."""

    def __init__(self, max_rows: int) -> None:
        self._token = np.zeros(max_rows, dtype=np.int32)
        self._pos = np.zeros(max_rows, dtype=np.int32)
        self._num_seq = np.ones(max_rows, dtype=np.int32)
        self._seq = np.zeros((max_rows, 1), dtype=np.int32)
        self._wants = np.zeros(max_rows, dtype=np.int8)
        base, stride = self._seq.ctypes.data, self._seq.strides[0]
        self._seq_pointers = np.arange(base, base + stride * max_rows, stride, dtype=np.uint64)
        self._positions = np.arange(max_rows, dtype=np.int32)
        self.struct = lib.llama_batch(
            n_tokens=0,
            token=self._token.ctypes.data_as(ctypes.POINTER(lib.llama_token)),
            embd=None,
            pos=self._pos.ctypes.data_as(ctypes.POINTER(lib.llama_pos)),
            n_seq_id=self._num_seq.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            seq_id=self._seq_pointers.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(lib.llama_seq_id))),
            logits=self._wants.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, chunks: Sequence[Chunk]) -> int:
        """Write the rows of all chunks; return how many of them have outputs."""
        row = 0
        num_outputs = 0
        for chunk in chunks:
            end = row + len(chunk.tokens)
            self._token[row:end] = chunk.tokens
            np.add(self._positions[: end - row], chunk.start, out=self._pos[row:end])
            self._seq[row:end, 0] = chunk.seq_id
            self._wants[row : end - chunk.num_outputs] = 0
            self._wants[end - chunk.num_outputs : end] = 1
            num_outputs += chunk.num_outputs
            row = end
        self.struct.n_tokens = row
        return num_outputs
