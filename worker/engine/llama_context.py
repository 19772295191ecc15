"""One llama_context: KV operations and forward passes on a unified pool of cells.

Every call that could abort the process is checked before it is made; return codes become types. Must not
decide anything: it does what a plan says. All methods but `interrupt` belong to the thread that uses the context.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as lib

from worker.engine.batch import Chunk, Clear, Forget, KvOp, Restore, Save, Share, Trim, Wipe
from worker.engine.errors import (
    BackendFailed,
    BadModel,
    ForwardAborted,
    InvalidBatch,
    KvCacheFull,
    NoKvCache,
    OutOfMemory,
)
from worker.engine.kv_store import MAX_SEQ_IDS, MAX_WINDOWED_IDS
from worker.engine.llama_batch import LlamaBatch
from worker.engine.llama_log import capture_log, load_error
from worker.engine.llama_model import LlamaModel
from worker.engine.llama_params import ContextShape, context_params
from worker.engine.request import AdapterSet, RequestId

_is_set = ctypes.cast(ctypes.CDLL(None).strlen, lib.ggml_abort_callback)
"""The abort callback: the length of a string of one byte or none. Called for every node of every graph by
ggml's threads, so it must not be Python."""


class LlamaContext:
    """A context on loaded weights, which must outlive it."""

    def __init__(self, model: LlamaModel, shape: ContextShape, *, num_threads: int, flash_attn: str) -> None:
        """Raises: BadModel, OutOfMemory."""
        lines = capture_log()
        params = context_params(model.options, model.choice, shape, num_threads=num_threads, flash_attn=flash_attn)
        context = lib.llama_init_from_model(model.handle, params)
        if not context:
            raise load_error(lines, "llama.cpp could not make a context", default=OutOfMemory)
        self.shape = shape
        self.flash_attn = flash_attn
        self._context: Any = context
        self._model = model
        self._memory = lib.llama_get_memory(context)
        if not self._memory:
            self.close()
            raise NoKvCache("this model has no KV cache and cannot generate text, nor does its file say how it embeds")
        self._scratch_id = shape.num_slots
        self._blobs: dict[int, npt.NDArray[np.uint8]] = {}
        self._batch = LlamaBatch(max(2, shape.max_rows))  # the first pass has two rows
        self._max_position = lib.llama_n_ctx(context)
        self._adapters: AdapterSet = ()
        self._flag = ctypes.create_string_buffer(2)
        if not model.choice.uses_gpu:  # other backends do not look at it
            lib.llama_set_abort_callback(context, _is_set, ctypes.cast(self._flag, ctypes.c_void_p))
        self.window = max(0, int(lib.llama_model_n_swa(model.handle)))
        """Positions that layers with a sliding window look back on; 0 = all layers see everything."""
        self.bytes_per_token = 0
        """Host memory that a saved token takes; 0 = sequences cannot be saved."""
        self._num_pinned = 0
        self.can_share = self._warm_up()
        """Whether any prefix of a sequence can be shared and cut."""
        if self.window and self.can_share:
            self._num_pinned = MAX_WINDOWED_IDS
        model.note_context(context)

    # --- KV operations ----------------------------------------------------------------------------------

    def apply(self, op: KvOp) -> bool:
        """Perform one KV operation; False if this kind of memory cannot do it."""
        match op:
            case Clear(seq_id):
                return self._clear(seq_id)
            case Trim(seq_id, num_tokens):
                return self._remove(seq_id, num_tokens)
            case Share(src, dst, num_tokens):
                _check_seq(src)
                _check_seq(dst)
                if not self._is_whole(src, num_tokens):
                    return False
                lib.llama_memory_seq_cp(self._memory, src, dst, 0, num_tokens)
                self._pin(dst, 0, num_tokens)
            case Save(seq_id, blob_id):
                return self._save(seq_id, blob_id)
            case Restore(blob_id, seq_id, num_tokens):
                return self._restore(blob_id, seq_id, num_tokens)
            case Forget(blob_id):
                self._blobs.pop(blob_id, None)
            case Wipe():
                lib.llama_memory_clear(self._memory, True)
        return True

    def _clear(self, seq_id: int) -> bool:
        _check_seq(seq_id)
        if self.shape.is_lone:  # the next sequence finds the cells as the first one did
            lib.llama_memory_clear(self._memory, False)
            return True
        return self._remove(seq_id, -1)

    def _remove(self, seq_id: int, num_tokens: int) -> bool:
        """Take all cells but the first `num_tokens` from the sequence; -1 = all. False if the memory cannot do it."""
        _check_seq(seq_id)
        if seq_id < self._num_pinned:
            lib.llama_memory_seq_rm(self._memory, seq_id + self._num_pinned, num_tokens, -1)
        return bool(lib.llama_memory_seq_rm(self._memory, seq_id, num_tokens, -1))

    def _pin(self, seq_id: int, start: int, end: int) -> None:
        """Have the cells of these positions stay, although they may lie before the window of some layers.

        Cells of one owner that no later row will look at are given to other rows, and a prompt that shares less than
        the whole sequence would miss them: they get a second owner. Source: llama-kv-cache.cpp, find_slot.
        """
        if seq_id < self._num_pinned:
            lib.llama_memory_seq_cp(self._memory, seq_id, seq_id + self._num_pinned, start, end)

    def _save(self, seq_id: int, blob_id: int) -> bool:
        """Copy a sequence to host memory.

        Through the scratch id: only ids below n_seq_max are written into a blob in a form that can be read back.
        Source: llama-kv-cache.cpp, state_write_meta.
        """
        _check_seq(seq_id)
        lib.llama_memory_seq_cp(self._memory, seq_id, self._scratch_id, -1, -1)
        try:
            size = lib.llama_state_seq_get_size(self._context, self._scratch_id)
            try:
                blob = np.empty(size, dtype=np.uint8)
            except MemoryError:
                return False
            written = lib.llama_state_seq_get_data(self._context, _bytes_of(blob), size, self._scratch_id)
        finally:
            lib.llama_memory_seq_rm(self._memory, self._scratch_id, -1, -1)
        if written != size:
            return False
        self._blobs[blob_id] = blob
        return True

    def _restore(self, blob_id: int, seq_id: int, num_tokens: int) -> bool:
        """Copy the beginning of a blob into an empty sequence; False leaves it empty.

        Of what is no slot through the scratch id: only ids below n_seq_max are written to. Source: llama-kv-cache.cpp,
        state_read.
        """
        blob = self._blobs.get(blob_id)
        if blob is None:
            return False
        _check_seq(seq_id)
        direct = seq_id if seq_id < self.shape.num_slots else self._scratch_id
        read = lib.llama_state_seq_set_data(self._context, _bytes_of(blob), len(blob), direct)
        is_read = bool(read) and lib.llama_memory_seq_rm(self._memory, direct, num_tokens, -1)
        is_read = is_read and self.num_cached(direct) == num_tokens and self._is_whole(direct, num_tokens)
        if is_read and direct != seq_id:
            lib.llama_memory_seq_cp(self._memory, direct, seq_id, -1, -1)
        if is_read:
            self._pin(seq_id, 0, num_tokens)
        if not is_read or direct != seq_id:
            lib.llama_memory_seq_rm(self._memory, direct, -1, -1)
        return bool(is_read)

    def _is_whole(self, seq_id: int, num_tokens: int) -> bool:
        """Whether a sequence of the first `num_tokens` of these cells could go on.

        A blob does not hold what lies before the window of layers that have one. Source: llama-kv-cache.cpp,
        state_write.
        """
        return not self.window or 0 <= self.first_cached(seq_id) <= max(0, num_tokens - self.window + 1)

    def blob(self, blob_id: int) -> npt.NDArray[np.uint8] | None:
        """Return the bytes of a blob; None if there is none of this id."""
        return self._blobs.get(blob_id)

    def put_blob(self, blob_id: int, data: npt.NDArray[np.uint8]) -> None:
        """Host memory holds these bytes of an earlier blob of the same model and context."""
        self._blobs[blob_id] = data

    # --- adapters ---------------------------------------------------------------------------------------

    def use_adapters(self, adapters: AdapterSet) -> None:
        """Have these adapters in force from the next pass on, which then takes longer: its graph is planned anew.

        Raises: InvalidBatch for an adapter that is not there.
        """
        if adapters == self._adapters:
            return
        known = self._model.adapters
        if not all(0 <= index < len(known) for index, _ in adapters):
            raise InvalidBatch(f"adapters {adapters} are not among the {len(known)} of the model")
        handles = (lib.llama_adapter_lora_p_ctypes * len(adapters))(*(known[index] for index, _ in adapters))
        scales = (ctypes.c_float * len(adapters))(*(scale for _, scale in adapters))
        lib.llama_set_adapters_lora(self._context, handles, len(adapters), scales)
        self._adapters = adapters

    # --- forward passes ---------------------------------------------------------------------------------

    def forward(self, chunks: Sequence[Chunk]) -> npt.NDArray[np.float32]:
        """Return the logits of the rows that wanted them, in order.

        Shapes: (num_outputs, num_vocab); a view that is valid until the next pass and may be written to.
        Raises: KvCacheFull, ForwardAborted, InvalidBatch, BackendFailed. Source: llama.h, llama_decode.
        """
        self._check(chunks)
        self._flag[0] = b"\0"
        num_outputs = self._batch.fill(chunks)
        code = lib.llama_decode(self._context, self._batch.struct)
        match code:
            case 0:
                for chunk in chunks if self._num_pinned else ():
                    self._pin(chunk.seq_id, chunk.start, chunk.start + len(chunk.tokens))
            case 1:
                raise KvCacheFull
            case 2:
                raise ForwardAborted
            case -1:
                raise InvalidBatch("llama.cpp refused the batch")
            case _:
                raise BackendFailed(code)
        if num_outputs == 0:
            lib.llama_synchronize(self._context)
            return np.empty((0, self._model.num_vocab), dtype=np.float32)
        # llama_get_logits waits for the pass to end, and its address may change from pass to pass.
        logits = lib.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, shape=(num_outputs, self._model.num_vocab))

    def interrupt(self) -> None:
        """End the pass that runs now with ForwardAborted, if the device can; later passes are not touched.

        May be called from any thread.
        """
        self._flag[0] = b"\x01"

    def num_cached(self, seq_id: int) -> int:
        """Return how many tokens of the sequence are in the cache."""
        _check_seq(seq_id)
        return int(lib.llama_memory_seq_pos_max(self._memory, seq_id)) + 1

    def first_cached(self, seq_id: int) -> int:
        """Return the first position of which the cache holds all there is; -1 if it holds nothing.

        Of a windowed memory it is the window's first, of a state that cannot be cut the last. Source:
        llama-kv-cache-iswa.cpp and llama-memory-hybrid.cpp, seq_pos_min.
        """
        _check_seq(seq_id)
        return int(lib.llama_memory_seq_pos_min(self._memory, seq_id))

    def set_threads(self, num_threads: int) -> None:
        """Use so many CPU threads from the next pass on."""
        lib.llama_set_n_threads(self._context, num_threads, num_threads)

    def close(self) -> None:
        """Free the context; it must not be used afterwards. Idempotent."""
        if self._context:
            self._model.forget_context(self._context)
            lib.llama_free(self._context)
            self._context = None

    # --- guards -----------------------------------------------------------------------------------------

    def _check(self, chunks: Sequence[Chunk]) -> None:
        """Refuse what would abort the process instead of returning a code.

        Raises: InvalidBatch. Source: llama-batch.cpp and llama-context.cpp: more rows than n_batch, more outputs
        than n_outputs_max, tokens and sequence ids out of range.
        """
        num_rows = sum(len(chunk.tokens) for chunk in chunks)
        num_outputs = sum(chunk.num_outputs for chunk in chunks)
        if not 0 < num_rows <= self.shape.max_rows:
            raise InvalidBatch(f"{num_rows} rows, the limit is {self.shape.max_rows}")
        if num_outputs > self.shape.max_outputs:
            raise InvalidBatch(f"{num_outputs} outputs, the limit is {self.shape.max_outputs}")
        for chunk in chunks:
            if not 0 <= chunk.seq_id < self.shape.num_slots:
                raise InvalidBatch(f"sequence id {chunk.seq_id} is not a slot")
            if chunk.start + len(chunk.tokens) > self._max_position:
                raise InvalidBatch(f"position {chunk.start + len(chunk.tokens)} is beyond the context")
            if not 0 <= chunk.num_outputs <= len(chunk.tokens):
                raise InvalidBatch(f"{chunk.num_outputs} outputs of {len(chunk.tokens)} rows")
            if chunk.tokens.min() < 0 or chunk.tokens.max() >= self._model.num_vocab:
                raise InvalidBatch("a token id is not in the vocabulary")
            if chunk.start != self.num_cached(chunk.seq_id):  # llama.cpp lets an empty sequence begin anywhere
                raise InvalidBatch(f"sequence {chunk.seq_id} cannot go on at position {chunk.start}")

    def _warm_up(self) -> bool:
        """Touch all weights once, so that the first request does not pay for it; return whether prefixes can be shared.

        Tried on a sequence of two tokens, not believed from names. With all adapters at once, so that one that cannot
        be computed shows itself now and not beside other requests. Raises: BadModel when the pass fails.
        """
        model = self._model
        token = model.vocabulary.bos if model.vocabulary.bos is not None else 0
        self.use_adapters(tuple((index, 1.0) for index in range(len(model.adapters))))
        lib.llama_set_warmup(self._context, True)
        self._batch.fill([Chunk(0, RequestId(-1), np.full(2, token, dtype=np.int32), 0, num_outputs=1)])
        code = lib.llama_decode(self._context, self._batch.struct)
        lib.llama_synchronize(self._context)
        lib.llama_set_warmup(self._context, False)
        if code != 0:
            self.close()
            raise BadModel(f"llama.cpp could not run a first pass (code {code})")
        two_tokens = lib.llama_state_seq_get_size(self._context, 0)
        can_share = bool(lib.llama_memory_seq_rm(self._memory, 0, 1, -1))
        if can_share:
            self.bytes_per_token = max(0, two_tokens - lib.llama_state_seq_get_size(self._context, 0))
        # Zeroing all cells takes longer than the pass. It is needed where the pass may have left numbers that are not
        # finite, which would reach other sequences: adapters are made for being used one at a time.
        lib.llama_memory_clear(self._memory, bool(model.adapters))
        self.use_adapters(())
        if lib.llama_model_is_recurrent(model.handle) or lib.llama_model_is_hybrid(model.handle):
            return False
        return can_share and (lib.llama_model_n_swa(model.handle) == 0 or model.options.swa_full)


def _check_seq(seq_id: int) -> None:
    """Raises: ValueError for an id that would abort the process. Source: llama-kv-cache.cpp, LLAMA_MAX_SEQ."""
    if not 0 <= seq_id < MAX_SEQ_IDS:
        raise ValueError(f"sequence id {seq_id} is outside 0..{MAX_SEQ_IDS - 1}")


def _bytes_of(blob: npt.NDArray[np.uint8]) -> Any:
    return blob.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
