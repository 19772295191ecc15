"""What the engine runs on: a loaded model with the context that all slots share.

The one door between the engine and the `llama_*` modules. Must not decide anything: it does what a plan says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as lib

from worker.contract import EngineOptions, ModelFacts
from worker.engine.batch import Chunk, KvOp
from worker.engine.errors import BadModel, LoadFailed
from worker.engine.llama_context import LlamaContext
from worker.engine.llama_model import LlamaModel
from worker.engine.llama_params import ContextShape, default_flash_attn, lone_params


class LlamaBackend:
    """A loaded model with the context that all its slots share."""

    def __init__(self, model: LlamaModel, context: LlamaContext, *, fixed_threads: int | None = None) -> None:
        options, uses_gpu = model.options, model.choice.uses_gpu
        self.model = model
        self.context = context
        self._fixed_threads = fixed_threads
        self._is_guest = False
        self.vocabulary = model.vocabulary
        self.max_rows = context.shape.max_rows
        self.uses_gpu = uses_gpu
        num_layers = lib.llama_model_n_layer(model.handle) + 1
        self.facts = ModelFacts(
            context=options.context,
            slots=options.slots,
            kv_cells=options.num_kv_cells,
            trained_context=lib.llama_model_n_ctx_train(model.handle),
            num_params=lib.llama_model_n_params(model.handle),
            size_bytes=lib.llama_model_size(model.handle),
            num_vocab=model.num_vocab,
            description=model.description,
            has_chat_template=model.vocabulary.chat_template is not None,
            device=model.choice.label,
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
        model = LlamaModel.load(path, options, on_progress)
        try:
            if not model.can_generate:
                raise BadModel("this model cannot generate text; encoder models are not supported yet")
            flash_attn = default_flash_attn(options, model.choice)
            context = LlamaContext(model, shape_of(options), num_threads=num_threads, flash_attn=flash_attn)
        except LoadFailed:
            model.close()
            raise
        return cls(model, context)

    @property
    def num_cells(self) -> int:
        """Cells of the shared pool."""
        return self.context.shape.num_cells

    @property
    def can_share(self) -> bool:
        """Whether any prefix of a sequence can be shared and cut."""
        return self.context.can_share

    @property
    def bytes_per_token(self) -> int:
        """Host memory that a saved token takes; 0 = sequences cannot be saved."""
        return self.context.bytes_per_token

    def apply(self, op: KvOp) -> bool:
        """Perform one KV operation; False if this kind of memory cannot do it."""
        return self.context.apply(op)

    def forward(self, chunks: Sequence[Chunk]) -> npt.NDArray[np.float32]:
        """Return the logits of the rows that wanted them: see `LlamaContext.forward`."""
        return self.context.forward(chunks)

    def interrupt(self) -> None:
        """End the pass that runs now, if the device can. From any thread."""
        self.context.interrupt()

    def num_cached(self, seq_id: int) -> int:
        """Return how many tokens of the sequence are in the cache."""
        return self.context.num_cached(seq_id)

    def set_threads(self, num_threads: int) -> None:
        """Use so many CPU threads from the next pass on."""
        self.context.set_threads(self._fixed_threads or num_threads)

    def lone(self, max_rows: int) -> LlamaBackend:
        """Return a backend for one sequence on these weights, which must outlive it. Raises: BadModel, OutOfMemory."""
        flash_attn, num_threads = lone_params(self.model.options, self.model.choice)
        shape = ContextShape(1, self.model.options.context, max_rows, max_outputs=1)
        context = LlamaContext(self.model, shape, num_threads=num_threads or 1, flash_attn=flash_attn)
        backend = LlamaBackend(self.model, context, fixed_threads=num_threads)
        backend._is_guest = True
        return backend

    def close(self) -> None:
        """Free the context and the weights; the backend must not be used afterwards."""
        self.context.close()
        if not self._is_guest:
            self.model.close()


def shape_of(options: EngineOptions) -> ContextShape:
    """Return what the engine's context needs room for."""
    return ContextShape(
        num_slots=options.slots,
        num_cells=options.num_kv_cells,
        max_rows=max(2, options.slots, min(options.batch_size, options.ubatch_size)),
        max_outputs=options.slots + options.max_drafted,
    )


def _gpu_layers(asked: int, num_layers: int) -> int:
    return num_layers if asked < 0 else min(asked, num_layers)
