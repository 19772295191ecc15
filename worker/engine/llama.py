"""The one place where tokens meet C: loads a model, performs KV operations, runs forward passes.

Every call that could abort the process is checked before it is made; return codes become types. Must not
decide anything: it does what a plan says. All methods but `load` belong to the engine thread.
"""

from __future__ import annotations

import ctypes
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as lib

from worker.contract import EngineOptions, ModelFacts
from worker.engine.batch import Chunk, Clear, Forget, KvOp, Restore, Save, Share, Trim
from worker.engine.errors import (
    BackendFailed,
    BadModel,
    ForwardAborted,
    InvalidBatch,
    KvCacheFull,
    LoadFailed,
    OutOfMemory,
)
from worker.engine.kv_store import MAX_SEQ_IDS
from worker.engine.llama_params import choose_devices, context_params, model_params
from worker.engine.llama_vocabulary import LlamaVocabulary
from worker.engine.request import RequestId

log = logging.getLogger(__name__)

_LEVEL_WARN, _LEVEL_ERROR, _LEVEL_CONTINUED = 3, 4, 5
"""Source: ggml.h, ggml_log_level."""


class LlamaBackend:
    """A loaded model with one context: a unified pool of KV cells for all sequences."""

    def __init__(
        self,
        model: Any,
        context: Any,
        options: EngineOptions,
        *,
        max_rows: int,
        device: str,
        uses_gpu: bool,
        keep: Sequence[Any],
    ) -> None:
        self._model = model
        self._context = context
        self._memory = lib.llama_get_memory(context)
        self._keep = keep
        self._num_slots = options.slots
        self._scratch_id = options.slots
        self._blobs: dict[int, npt.NDArray[np.uint8]] = {}
        self.max_rows = max_rows
        self.uses_gpu = uses_gpu
        self.vocabulary = LlamaVocabulary(model)
        self.num_cells = options.num_kv_cells
        self._batch = _Batch(max(2, max_rows))  # the first pass has two rows
        self._max_position = lib.llama_n_ctx(context)
        self.bytes_per_token = 0
        self.can_share = self._warm_up(options)
        num_layers = lib.llama_model_n_layer(model) + 1
        self.facts = ModelFacts(
            context=options.context,
            slots=options.slots,
            kv_cells=options.num_kv_cells,
            trained_context=lib.llama_model_n_ctx_train(model),
            num_params=lib.llama_model_n_params(model),
            size_bytes=lib.llama_model_size(model),
            num_vocab=self.vocabulary.num_vocab,
            description=_description(model),
            has_chat_template=self.vocabulary.chat_template is not None,
            device=device,
            gpu_layers=_gpu_layers(options.gpu_layers, num_layers) if uses_gpu else 0,
            total_layers=num_layers,
        )

    @classmethod
    def load(
        cls,
        path: str,
        options: EngineOptions,
        *,
        num_threads: int = 1,
        on_progress: Callable[[float], bool] | None = None,
    ) -> LlamaBackend:
        """Return the backend with its weights in memory and its first pass done.

        `on_progress` gets the fraction read and returns False to give up. Raises: BadModel, OutOfMemory.
        """
        lines = _capture_log()
        lib.llama_backend_init()
        choice = choose_devices(options)

        def report(fraction: float, _: object) -> bool:
            return on_progress is None or on_progress(fraction)

        params, keep = model_params(options, choice, lib.llama_progress_callback(report))
        model = lib.llama_model_load_from_file(path.encode(), params)
        if not model:
            raise _load_error(lines, "llama.cpp could not load the file")
        try:
            if lib.llama_model_has_encoder(model) or not lib.llama_model_has_decoder(model):
                raise BadModel("this model cannot generate text; encoder models are not supported yet")
            max_rows = max(2, options.slots, min(options.batch_size, options.ubatch_size))
            context = lib.llama_init_from_model(model, context_params(options, choice, max_rows, num_threads))
            if not context:
                raise _load_error(lines, "llama.cpp could not make a context", default=OutOfMemory)
            if not lib.llama_get_memory(context):
                lib.llama_free(context)
                raise BadModel("this model has no KV cache and cannot generate text; it is not supported yet")
        except LoadFailed:
            lib.llama_model_free(model)
            raise
        return cls(
            model,
            context,
            options,
            max_rows=max_rows,
            device=choice.label,
            uses_gpu=choice.uses_gpu,
            keep=keep,
        )

    # --- what the engine does with it -------------------------------------------------------------------

    def apply(self, op: KvOp) -> bool:
        """Perform one KV operation; False if this kind of memory cannot do it."""
        match op:
            case Clear(seq_id):
                _check_seq(seq_id)
                return bool(lib.llama_memory_seq_rm(self._memory, seq_id, -1, -1))
            case Trim(seq_id, num_tokens):
                _check_seq(seq_id)
                return bool(lib.llama_memory_seq_rm(self._memory, seq_id, num_tokens, -1))
            case Share(src, dst, num_tokens):
                _check_seq(src)
                _check_seq(dst)
                lib.llama_memory_seq_cp(self._memory, src, dst, 0, num_tokens)
                return True
            case Save(seq_id, blob_id):
                return self._save(seq_id, blob_id)
            case Restore(blob_id, seq_id, num_tokens):
                return self._restore(blob_id, seq_id, num_tokens)
            case Forget(blob_id):
                self._blobs.pop(blob_id, None)
                return True

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
        """Copy the beginning of a blob into an empty slot; False leaves the slot empty."""
        blob = self._blobs.get(blob_id)
        if blob is None or not 0 <= seq_id < self._num_slots:
            return False
        read = lib.llama_state_seq_set_data(self._context, _bytes_of(blob), len(blob), seq_id)
        if read and lib.llama_memory_seq_rm(self._memory, seq_id, num_tokens, -1):
            return True
        lib.llama_memory_seq_rm(self._memory, seq_id, -1, -1)
        return False

    def forward(self, chunks: Sequence[Chunk]) -> npt.NDArray[np.float32]:
        """Return the logits of the rows that wanted them, in order.

        Shapes: (num_outputs, num_vocab); a view that is valid until the next pass and may be written to.
        Raises: KvCacheFull, ForwardAborted, InvalidBatch, BackendFailed. Source: llama.h, llama_decode.
        """
        self._check(chunks)
        num_outputs = self._batch.fill(chunks)
        code = lib.llama_decode(self._context, self._batch.struct)
        match code:
            case 0:
                pass
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
            return np.empty((0, self.vocabulary.num_vocab), dtype=np.float32)
        # llama_get_logits waits for the pass to end, and its address may change from pass to pass.
        logits = lib.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, shape=(num_outputs, self.vocabulary.num_vocab))

    def num_cached(self, seq_id: int) -> int:
        """Return how many tokens of the sequence are in the cache."""
        _check_seq(seq_id)
        return int(lib.llama_memory_seq_pos_max(self._memory, seq_id)) + 1

    def set_threads(self, num_threads: int) -> None:
        """Use so many CPU threads from the next pass on."""
        lib.llama_set_n_threads(self._context, num_threads, num_threads)

    def close(self) -> None:
        """Free the context and the weights; the backend must not be used afterwards."""
        lib.llama_free(self._context)
        lib.llama_model_free(self._model)

    # --- guards -----------------------------------------------------------------------------------------

    def _check(self, chunks: Sequence[Chunk]) -> None:
        """Refuse what would abort the process instead of returning a code.

        Raises: InvalidBatch. Source: llama-batch.cpp and llama-context.cpp: more rows than n_batch, more outputs
        than n_outputs_max, tokens and sequence ids out of range.
        """
        num_rows = sum(len(chunk.tokens) for chunk in chunks)
        num_outputs = sum(chunk.wants_logits for chunk in chunks)
        if not 0 < num_rows <= self.max_rows:
            raise InvalidBatch(f"{num_rows} rows, the limit is {self.max_rows}")
        if num_outputs > self._num_slots:
            raise InvalidBatch(f"{num_outputs} outputs, the limit is {self._num_slots}")
        for chunk in chunks:
            if not 0 <= chunk.seq_id < self._num_slots:
                raise InvalidBatch(f"sequence id {chunk.seq_id} is not a slot")
            if chunk.start + len(chunk.tokens) > self._max_position:
                raise InvalidBatch(f"position {chunk.start + len(chunk.tokens)} is beyond the context")
            if chunk.tokens.min() < 0 or chunk.tokens.max() >= self.vocabulary.num_vocab:
                raise InvalidBatch("a token id is not in the vocabulary")

    def _warm_up(self, options: EngineOptions) -> bool:
        """Touch all weights once, so that the first request does not pay for it; return whether prefixes can be shared.

        Tried on a sequence of two tokens, not believed from names. Raises: BadModel when the pass fails.
        """
        token = self.vocabulary.bos if self.vocabulary.bos is not None else 0
        lib.llama_set_warmup(self._context, True)
        self._batch.fill([Chunk(0, RequestId(-1), np.full(2, token, dtype=np.int32), 0, wants_logits=True)])
        code = lib.llama_decode(self._context, self._batch.struct)
        lib.llama_synchronize(self._context)
        lib.llama_set_warmup(self._context, False)
        if code != 0:
            raise BadModel(f"llama.cpp could not run a first pass (code {code})")
        two_tokens = lib.llama_state_seq_get_size(self._context, 0)
        can_share = bool(lib.llama_memory_seq_rm(self._memory, 0, 1, -1))
        if can_share:
            self.bytes_per_token = max(0, two_tokens - lib.llama_state_seq_get_size(self._context, 0))
        lib.llama_memory_clear(self._memory, True)
        if lib.llama_model_is_recurrent(self._model) or lib.llama_model_is_hybrid(self._model):
            return False
        return can_share and (lib.llama_model_n_swa(self._model) == 0 or options.swa_full)


class _Batch:
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
        """Write the rows of all chunks; return how many of them want logits."""
        row = 0
        num_outputs = 0
        for chunk in chunks:
            end = row + len(chunk.tokens)
            self._token[row:end] = chunk.tokens
            np.add(self._positions[: end - row], chunk.start, out=self._pos[row:end])
            self._seq[row:end, 0] = chunk.seq_id
            self._wants[row:end] = 0
            if chunk.wants_logits:
                self._wants[end - 1] = 1
                num_outputs += 1
            row = end
        self.struct.n_tokens = row
        return num_outputs


def _check_seq(seq_id: int) -> None:
    """Raises: ValueError for an id that would abort the process. Source: llama-kv-cache.cpp, LLAMA_MAX_SEQ."""
    if not 0 <= seq_id < MAX_SEQ_IDS:
        raise ValueError(f"sequence id {seq_id} is outside 0..{MAX_SEQ_IDS - 1}")


def _bytes_of(blob: npt.NDArray[np.uint8]) -> Any:
    return blob.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def _description(model: Any) -> str:
    buffer = ctypes.create_string_buffer(256)
    lib.llama_model_desc(model, buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")


def _gpu_layers(asked: int, num_layers: int) -> int:
    return num_layers if asked < 0 else min(asked, num_layers)


# --- llama.cpp's log ------------------------------------------------------------------------------------------

_lines: deque[str] = deque(maxlen=200)
_last_level = 0


def _on_log(level: int, text: bytes, _: object) -> None:
    """Keep warnings and errors for the load report and the log. Called from llama.cpp's own threads too."""
    global _last_level  # noqa: PLW0603 - the C library has one log for the process
    level = _last_level if level == _LEVEL_CONTINUED else level
    _last_level = level
    line = text.decode("utf-8", "replace").rstrip()
    if line and level in {_LEVEL_WARN, _LEVEL_ERROR}:
        if level == _LEVEL_ERROR:
            _lines.append(line)
        log.log(logging.ERROR if level == _LEVEL_ERROR else logging.DEBUG, "llama.cpp: %s", line)


_log_callback = lib.llama_log_callback(_on_log)


def _capture_log() -> deque[str]:
    """Return the place where llama.cpp's error lines will be kept, empty now."""
    lib.llama_log_set(_log_callback, ctypes.c_void_p(0))
    _lines.clear()
    return _lines


_OUT_OF_MEMORY_WORDS = ("failed to allocate", "out of memory", "unable to allocate", "cudaMalloc failed")


def _load_error(lines: deque[str], what: str, *, default: type[LoadFailed] = BadModel) -> LoadFailed:
    """Return the error that llama.cpp's own words mean; the first line is the cause, later ones wrap it."""
    reasons = list(dict.fromkeys(lines))
    text = "; ".join(reasons[:3])
    if any(word.lower() in text.lower() for word in _OUT_OF_MEMORY_WORDS):
        default = OutOfMemory
    return default(f"{what}: {text}" if text else what)
