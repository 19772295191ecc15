"""A second llama_context on loaded weights, for vectors and scores of whole texts.

It is made at its first pass, because most models are never asked. Every call that could abort the process is checked
before it is made. Must not decide which texts share a pass. All methods belong to the thread that uses the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as lib

from worker.engine.batch import Chunk
from worker.engine.errors import BackendFailed, BadModel, InvalidBatch, OutOfMemory
from worker.engine.llama_batch import LlamaBatch
from worker.engine.llama_log import capture_log, load_error
from worker.engine.llama_model import LlamaModel
from worker.engine.llama_params import ContextShape, context_params
from worker.engine.pooling import Piece, Pooling, PoolingShape, pooling_shape
from worker.engine.request import RequestId

_POOLING_TYPES = {
    Pooling.MEAN: lib.LLAMA_POOLING_TYPE_MEAN,
    Pooling.CLS: lib.LLAMA_POOLING_TYPE_CLS,
    Pooling.LAST: lib.LLAMA_POOLING_TYPE_LAST,
    Pooling.RANK: lib.LLAMA_POOLING_TYPE_RANK,
}


class PooledContext:
    """Pooled passes over the weights of `model`, which must outlive it."""

    def __init__(self, model: LlamaModel, *, num_threads: int = 1) -> None:
        self.shape = shape_of_model(model)
        self._model = model
        self._num_threads = num_threads
        self._context: Any = None
        self._memory: Any = None
        self._batch = LlamaBatch(self.shape.max_rows)

    def open(self) -> None:
        """The context exists. Raises: BadModel, OutOfMemory. Idempotent."""
        if self._context is not None:
            return
        lines = capture_log()
        params = pooled_params(self._model, self.shape, num_threads=self._num_threads)
        context = lib.llama_init_from_model(self._model.handle, params)
        if not context:
            raise load_error(lines, "llama.cpp could not make a context for embeddings", default=OutOfMemory)
        self._model.note_context(context)
        self._context = context
        self._memory = lib.llama_get_memory(context)

    def warm_up(self) -> None:
        """Touch all weights once, so that the first request does not pay for it. Raises: LoadFailed."""
        token = self._model.vocabulary.bos if self._model.vocabulary.bos is not None else 0
        try:
            self.forward([Piece(np.full(2, token, dtype=np.int32))])
        except BackendFailed as error:
            self.close()
            raise BadModel(f"llama.cpp could not run a first pass (code {error.code})") from None

    def forward(self, pieces: Sequence[Piece], *, is_last: bool = True) -> npt.NDArray[np.float32]:
        """Return a vector of each text, or its scores.

        Several pieces are several whole texts. A text in several passes is alone in each of them, from its start on;
        only its last pass, which `is_last` tells, returns what is meant.

        Shapes: (num_pieces, size). Raises: LoadFailed at the first pass; InvalidBatch, BackendFailed.
        Source: llama.h, llama_decode and llama_get_embeddings_seq.
        """
        self.open()
        self._check(pieces)
        if self._memory and pieces[0].start == 0:
            lib.llama_memory_clear(self._memory, False)
        self._batch.fill(
            [
                Chunk(index, RequestId(-1), piece.tokens, piece.start, num_outputs=len(piece.tokens))
                for index, piece in enumerate(pieces)
            ]
        )
        code = lib.llama_decode(self._context, self._batch.struct)
        if code != 0:
            raise BackendFailed(code)
        pooled = np.stack([self._read(index) for index in range(len(pieces))])
        if self._memory and is_last:
            lib.llama_memory_clear(self._memory, False)
        return pooled

    def _read(self, seq_id: int) -> npt.NDArray[np.float32]:
        """Return a copy of what was pooled for a sequence; this waits for the pass to end."""
        vector = lib.llama_get_embeddings_seq(self._context, seq_id)
        if not vector:
            raise BackendFailed(-3)
        return np.ctypeslib.as_array(vector, shape=(self.shape.size,)).copy()

    def _check(self, pieces: Sequence[Piece]) -> None:
        """Refuse what would abort the process instead of returning a code.

        Raises: InvalidBatch. Source: llama-context.cpp, encode: more rows than n_ubatch; llama-batch.cpp: ids; and
        ggml's get_rows, which reads position embeddings without looking at their number.
        """
        num_rows = sum(len(piece.tokens) for piece in pieces)
        if not 0 < num_rows <= self.shape.max_rows:
            raise InvalidBatch(f"{num_rows} rows, the limit is {self.shape.max_rows}")
        if len(pieces) > self.shape.max_documents:
            raise InvalidBatch(f"{len(pieces)} texts, the limit is {self.shape.max_documents}")
        for piece in pieces:
            if piece.start and (len(pieces) > 1 or not self.shape.is_divisible):
                raise InvalidBatch("only a text that is alone can go on")
            if piece.start + len(piece.tokens) > self.shape.max_document:
                raise InvalidBatch(f"a text of more than {self.shape.max_document} tokens")
            if not len(piece.tokens):
                raise InvalidBatch("a text without tokens")
            if piece.tokens.min() < 0 or piece.tokens.max() >= self._model.num_vocab:
                raise InvalidBatch("a token id is not in the vocabulary")

    def set_threads(self, num_threads: int) -> None:
        """Use so many CPU threads from the next pass on."""
        self._num_threads = num_threads
        if self._context is not None:
            lib.llama_set_n_threads(self._context, num_threads, num_threads)

    def close(self) -> None:
        """Free the context. Idempotent."""
        if self._context is not None:
            self._model.forget_context(self._context)
            lib.llama_free(self._context)
            self._context = None


def pooled_params(model: LlamaModel, shape: PoolingShape, *, num_threads: int) -> Any:
    """Return llama_context_params of a context for pooled passes."""
    options = model.options
    room = ContextShape(shape.max_documents, shape.num_cells, shape.max_rows, max_outputs=shape.max_rows)
    params = context_params(options, model.choice, room, num_threads=num_threads, flash_attn=options.flash_attn)
    params.n_seq_max = shape.max_documents
    params.n_outputs_max = shape.max_rows  # all rows are outputs: which of them count is the pooling's affair
    params.embeddings = True
    params.pooling_type = _POOLING_TYPES[shape.pooling]
    return params


def shape_of_model(model: LlamaModel) -> PoolingShape:
    """Return the shape of pooled passes over the weights of `model`, as its file tells it."""
    handle = model.handle
    return pooling_shape(
        model.declared_pooling,
        configured=model.options.pooling,
        size=lib.llama_model_n_embd_out(handle),
        num_scores=lib.llama_model_n_cls_out(handle),
        trained_context=lib.llama_model_n_ctx_train(handle),
        context=model.options.context,
        is_encoder=model.is_encoder,
        is_recurrent=lib.llama_model_is_recurrent(handle) or lib.llama_model_is_hybrid(handle),
        uses_gpu=model.choice.uses_gpu,
    )
