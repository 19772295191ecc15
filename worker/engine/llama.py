"""What the engine runs on: a loaded model, with the context that all slots share if it generates text.

The one door between the engine and the `llama_*` modules. Must not decide anything: it does what a plan says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as lib

from worker.contract import EngineOptions, ModelFacts
from worker.engine.batch import Chunk, KvOp
from worker.engine.calibration import PROMPT_ROWS
from worker.engine.errors import BadModel, InvalidBatch, LoadFailed, NoKvCache
from worker.engine.llama_context import LlamaContext
from worker.engine.llama_model import LlamaModel
from worker.engine.llama_params import ContextShape, lone_params
from worker.engine.llama_pooling import PooledContext
from worker.engine.llama_probe import Probe
from worker.engine.llama_vocabulary import LlamaVocabulary
from worker.engine.pooling import PoolingShape
from worker.engine.request import AdapterSet

OnProgress = Callable[[float], bool]


def load_backend(
    path: str,
    options: EngineOptions,
    *,
    num_threads: int = 1,
    on_progress: OnProgress | None = None,
    on_vocabulary: Callable[[LlamaVocabulary], Callable[[], object]] | None = None,
) -> LlamaBackend | EncoderBackend:
    """Return the backend of whatever kind of model the file holds, with its weights in memory and its first pass done.

    `on_progress` gets the fraction read and returns False to give up. `on_vocabulary` is called when the weights are
    there and the longest part of the rest, llama.cpp's own work, begins; what it returns waits until nobody needs the
    vocabulary, and is called before that goes with a model that is of no use. Raises: BadModel, OutOfMemory.
    """
    model = LlamaModel.load(path, options, on_progress)
    vocabulary_is_free = None if on_vocabulary is None else on_vocabulary(model.vocabulary)
    try:
        if model.is_encoder:
            return EncoderBackend(model, num_threads=num_threads)
        try:
            return LlamaBackend.on(model, num_threads=num_threads)
        except NoKvCache:
            if model.declared_pooling in {None, "0"}:
                raise
            model.is_encoder = True  # its file does not say so, but it pools rows and keeps none
            return EncoderBackend(model, num_threads=num_threads)
    except LoadFailed:
        if vocabulary_is_free is not None:
            vocabulary_is_free()
        model.close()
        raise


class LlamaBackend:
    """A loaded model with the context that all its slots share."""

    def __init__(self, model: LlamaModel, context: LlamaContext, *, fixed_threads: int | None = None) -> None:
        uses_gpu = model.choice.uses_gpu
        self.model = model
        self.context = context
        self._fixed_threads = fixed_threads
        self._is_guest = False
        self.vocabulary = model.vocabulary
        self.max_rows = context.shape.max_rows
        self.uses_gpu = uses_gpu
        self.pooled = PooledContext(model)
        self.facts = _facts(model, self.pooled.shape)

    @classmethod
    def load(
        cls,
        path: str,
        options: EngineOptions,
        *,
        num_threads: int = 1,
        on_progress: OnProgress | None = None,
    ) -> LlamaBackend:
        """Return the backend of a model that generates, as `load_backend` does.

        Raises: BadModel, OutOfMemory.
        """
        model = LlamaModel.load(path, options, on_progress)
        try:
            return cls.on(model, num_threads=num_threads)
        except LoadFailed:
            model.close()
            raise

    @classmethod
    def on(cls, model: LlamaModel, *, num_threads: int) -> LlamaBackend:
        """Return the backend on loaded weights. Raises: BadModel, OutOfMemory."""
        if not model.can_generate:
            raise BadModel("this model reads with an encoder and writes with a decoder; such models are not supported")
        options = model.options
        model.load_adapters()
        context = LlamaContext(model, shape_of(options), num_threads=num_threads, flash_attn=options.flash_attn)
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

    @property
    def window(self) -> int:
        """Positions that layers with a sliding window look back on; 0 = all layers see everything."""
        return self.context.window

    @property
    def device_bytes(self) -> dict[str, dict[str, int]]:
        """What llama.cpp has allocated: see `LlamaModel.device_bytes`."""
        return self.model.device_bytes

    @property
    def private_bytes(self) -> int:
        """How much of it no other process could share: see `LlamaModel.private_bytes`."""
        return self.model.private_bytes

    def apply(self, op: KvOp) -> bool:
        """Perform one KV operation; False if this kind of memory cannot do it."""
        return self.context.apply(op)

    def blob(self, blob_id: int) -> npt.NDArray[np.uint8] | None:
        """Return the bytes of a saved sequence; None if there are none."""
        return self.context.blob(blob_id)

    def put_blob(self, blob_id: int, data: npt.NDArray[np.uint8]) -> None:
        """Host memory holds these bytes of a sequence."""
        self.context.put_blob(blob_id, data)

    def use_adapters(self, adapters: AdapterSet) -> None:
        """Have these adapters in force from the next pass on: see `LlamaContext.use_adapters`."""
        self.context.use_adapters(adapters)

    def forward(self, chunks: Sequence[Chunk]) -> npt.NDArray[np.float32]:
        """Return the logits of the rows that wanted them: see `LlamaContext.forward`."""
        return self.context.forward(chunks)

    def interrupt(self) -> None:
        """End the pass that runs now, if the device can. From any thread."""
        self.context.interrupt()

    def num_cached(self, seq_id: int) -> int:
        """Return how many tokens of the sequence are in the cache."""
        return self.context.num_cached(seq_id)

    def first_cached(self, seq_id: int) -> int:
        """Return the first position of which the cache holds all there is: see `LlamaContext.first_cached`."""
        return self.context.first_cached(seq_id)

    def set_threads(self, num_threads: int) -> None:
        """Use so many CPU threads from the next pass on."""
        self.context.set_threads(self._fixed_threads or num_threads)
        self.pooled.set_threads(num_threads)

    def lone(self, max_rows: int) -> LlamaBackend:
        """Return a backend for one sequence on these weights, which must outlive it. Raises: BadModel, OutOfMemory."""
        flash_attn, num_threads = lone_params(self.model.options, self.model.choice)
        shape = ContextShape(1, self.model.options.context, max_rows, max_outputs=1, is_lone=True)
        context = LlamaContext(self.model, shape, num_threads=num_threads or 1, flash_attn=flash_attn)
        backend = LlamaBackend(self.model, context, fixed_threads=num_threads)
        backend._is_guest = True
        return backend

    def probe(self, flash_attn: str, num_threads: int) -> Probe:
        """Return a throw-away context for measuring. Raises: BadModel, OutOfMemory."""
        rows = min(max(PROMPT_ROWS), self.max_rows)
        return Probe(self.model, max_rows=rows, num_threads=num_threads, flash_attn=flash_attn)

    def close(self) -> None:
        """Free the contexts and the weights; the backend must not be used afterwards."""
        self.pooled.close()
        self.context.close()
        if not self._is_guest:
            self.model.close()


class EncoderBackend:
    """A loaded model that makes vectors or scores of texts: it has pooled passes and no slots that could run."""

    can_share = False
    bytes_per_token = 0
    window = 0

    def __init__(self, model: LlamaModel, *, num_threads: int) -> None:
        """Raises: BadModel, OutOfMemory."""
        if model.options.loras:
            raise BadModel("LoRA adapters are for generated text, and this model only reads: remove its `loras`")
        self.model = model
        self.vocabulary = model.vocabulary
        self.uses_gpu = model.choice.uses_gpu
        self.pooled = PooledContext(model, num_threads=num_threads)
        self.pooled.warm_up()
        self.facts = _facts(model, self.pooled.shape)

    @property
    def device_bytes(self) -> dict[str, dict[str, int]]:
        """What llama.cpp has allocated: see `LlamaModel.device_bytes`."""
        return self.model.device_bytes

    @property
    def private_bytes(self) -> int:
        """How much of it no other process could share: see `LlamaModel.private_bytes`."""
        return self.model.private_bytes

    def apply(self, op: KvOp) -> bool:
        """There is no KV cache."""
        return False

    def blob(self, blob_id: int) -> npt.NDArray[np.uint8] | None:
        """Return None: no sequence is ever saved."""
        return None

    def put_blob(self, blob_id: int, data: npt.NDArray[np.uint8]) -> None:
        """Nothing is restored."""

    def use_adapters(self, adapters: AdapterSet) -> None:
        """Raises: InvalidBatch."""
        raise InvalidBatch("adapters are for generated text")

    def forward(self, chunks: Sequence[Chunk]) -> npt.NDArray[np.float32]:
        """Raises: InvalidBatch."""
        raise InvalidBatch("an encoder generates nothing")

    def interrupt(self) -> None:
        """Passes are short and are not interrupted."""

    def num_cached(self, seq_id: int) -> int:
        """Return 0: nothing is kept between passes."""
        return 0

    def first_cached(self, seq_id: int) -> int:
        """Return -1: nothing is kept between passes."""
        return -1

    def set_threads(self, num_threads: int) -> None:
        """Use so many CPU threads from the next pass on."""
        self.pooled.set_threads(num_threads)

    def lone(self, max_rows: int) -> EncoderBackend:
        """Raises: BadModel."""
        raise BadModel("an encoder generates nothing")

    def close(self) -> None:
        """Free the context and the weights; the backend must not be used afterwards."""
        self.pooled.close()
        self.model.close()


def _facts(model: LlamaModel, pooled: PoolingShape) -> ModelFacts:
    """Return what loading has shown."""
    options, is_encoder = model.options, model.is_encoder
    num_layers = lib.llama_model_n_layer(model.handle) + 1
    return ModelFacts(
        context=pooled.max_document if is_encoder else options.context,
        slots=options.slots,
        kv_cells=0 if is_encoder else options.num_kv_cells,
        trained_context=lib.llama_model_n_ctx_train(model.handle),
        num_params=lib.llama_model_n_params(model.handle),
        size_bytes=lib.llama_model_size(model.handle),
        num_vocab=model.num_vocab,
        description=model.description,
        has_chat_template=model.vocabulary.chat_template is not None,
        device=model.used_devices,
        gpu_layers=0 if model.used_devices == "cpu" else _gpu_layers(options.gpu_layers, num_layers),
        total_layers=num_layers,
        can_generate=not is_encoder,
        pooling=pooled.pooling.value,
        embedding_size=lib.llama_model_n_embd_out(model.handle),
        embedding_context=pooled.max_document,
    )


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
