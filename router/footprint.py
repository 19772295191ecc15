"""What a model will need of memory, by arithmetic on its file's header: a first guess that no process is started for.

Owns the formulas. Must not read files (`gguf_header.py` does) nor know what has been measured (`footprints.py` does).

Source: llama.cpp's llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp and llama-context.cpp; the
compute buffer's formula is fitted to what llama.cpp reserves for several models on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from router.device import Footprint, FootprintSource
from router.tensor_sums import TENSOR_BLOCKS, TensorSums
from worker.contract import EngineOptions

PROCESS_BYTES: Final = 88 * 2**20
"""Of a worker beside what llama.cpp allocates for the model: interpreter, libraries, HTTP server."""
PROCESS_BYTES_A_TOKEN: Final = 100
"""The same for each token of the vocabulary: llama.cpp's tables of tokens and merges."""
GPU_CONTEXT_BYTES: Final = 450 * 2**20
"""What a process takes on each GPU that it computes on, whatever it loads: CUDA's context and libraries. A guess."""

_CELLS_STEP = 256
_MAX_LAYERS = 4096
"""No model has as many; a number in a file may be anything."""
_SWA_PATTERNS: Final[Mapping[str, int]] = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "cohere2": 4,
    "gpt-oss": 2,
    "llama4": 4,
    "exaone4": 4,
    "smallthinker": 4,
}
"""By architecture: every so manieth layer sees everything, the others a window. Source: llama.cpp's src/models."""

_KV_TYPES: Final[Mapping[str, int]] = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
"""Numbers of `TENSOR_BLOCKS`."""


class Header(Protocol):
    """What is needed of a file's header here."""

    @property
    def architecture(self) -> str: ...
    @property
    def trained_context(self) -> int | None: ...
    @property
    def metadata(self) -> Mapping[str, int | float | bool | str]: ...
    @property
    def lists(self) -> Mapping[str, tuple[int | float | bool, ...]]: ...
    @property
    def num_vocab(self) -> int: ...
    @property
    def tensors(self) -> TensorSums: ...


@dataclass(frozen=True, slots=True)
class Room:
    """What one context has room for; the router's idea of the worker's `ContextShape`."""

    num_cells: int
    num_sequences: int
    max_rows: int
    max_outputs: int


def room_of(options: EngineOptions) -> Room:
    """Return what the engine's context has room for, as the worker makes it."""
    return Room(
        num_cells=options.num_kv_cells,
        num_sequences=options.slots + 1,
        max_rows=max(2, options.slots, min(options.batch_size, options.ubatch_size)),
        max_outputs=max(options.slots + options.max_drafted, options.slots + 1),
    )


def draft_room_of(options: EngineOptions) -> Room:
    """Return what the context of a draft model has room for."""
    return Room(
        num_cells=options.slots * options.context,
        num_sequences=options.slots + 1,
        max_rows=max(256, options.slots),
        max_outputs=options.slots + 1,
    )


def footprint_of(
    header: Header,
    options: EngineOptions,
    *,
    tensors: TensorSums | None = None,
    draft: Header | None = None,
    lora_bytes: int = 0,
) -> Footprint:
    """Return what a worker of the model needs, with everything on the CPU and with all layers offloaded.

    `tensors`: of all parts of a split model. Weights that are mapped count like others: they must be in memory for the
    model to be quick.
    """
    model = _Model(header, header.tensors if tensors is None else tensors)
    room = model.room(options)
    weights = model.tensors.total_bytes + lora_bytes
    cells, compute = model.cell_bytes(options, room), model.compute_bytes(options, room)
    beside = output_bytes(header, options) + process_bytes(header.num_vocab)
    drafted = 0 if draft is None else _draft_bytes(draft, options)
    # Embeddings stay on the CPU; if they serve as output matrix too, the GPU gets a copy.
    offloaded = weights - (model.tensors.input_bytes if model.tensors.has_output else 0)
    host_cells, gpu_cells = (cells, 0) if options.no_kv_offload else (0, cells)
    return Footprint(
        cpu_bytes=weights + cells + compute + beside + drafted,
        gpu_bytes=offloaded + gpu_cells + drafted,
        gpu_compute_bytes=compute + GPU_CONTEXT_BYTES,
        host_bytes=model.tensors.input_bytes + host_cells + model.input_bytes(room) + beside,
        num_layers=model.num_layers + 1,
        source=FootprintSource.HEADER,
    )


@dataclass(frozen=True, slots=True)
class Parts:
    """What makes up the need of main memory when everything is on the CPU, in bytes."""

    weights: int
    kv: int
    """Keys and values of all cells, and states of recurrent layers."""
    compute: int
    other: int
    """Rows of results, tables of the vocabulary, the process itself; a draft model with all that it needs."""


def parts_of(
    header: Header,
    options: EngineOptions,
    *,
    tensors: TensorSums | None = None,
    draft: Header | None = None,
    lora_bytes: int = 0,
) -> Parts:
    """Return the parts of `footprint_of(...).cpu_bytes`."""
    model = _Model(header, header.tensors if tensors is None else tensors)
    room = model.room(options)
    return Parts(
        weights=model.tensors.total_bytes + lora_bytes,
        kv=model.cell_bytes(options, room),
        compute=model.compute_bytes(options, room),
        other=output_bytes(header, options)
        + process_bytes(header.num_vocab)
        + (0 if draft is None else _draft_bytes(draft, options)),
    )


def output_bytes(header: Header, options: EngineOptions) -> int:
    """Return what the results of one pass take of main memory: rows of logits, or vectors."""
    model = _Model(header, header.tensors)
    room = model.room(options)
    return 4 * room.max_outputs * (model.size if model.is_encoder else model.num_vocab)


def _draft_bytes(header: Header, options: EngineOptions) -> int:
    model, room = _Model(header, header.tensors), draft_room_of(options)
    buffers = model.tensors.total_bytes + model.cell_bytes(options, room) + model.compute_bytes(options, room)
    return buffers + 4 * room.max_outputs * model.num_vocab + PROCESS_BYTES_A_TOKEN * model.num_vocab


def process_bytes(num_vocab: int) -> int:
    """Return what a worker takes beside llama.cpp's buffers, by the size of its vocabulary.

    Measured on Linux, x86-64, Python 3.11: private memory less what llama.cpp has allocated and nobody shares. Right
    after READY it is 36 to 54 MiB, with compute buffers and rows of logits not yet touched; after four prompts of 900
    tokens at once 85 MiB for vocabularies of 49,152 and 262,144 tokens. An embedding model reached 110 MiB. Caches of
    finished prompts are not in it: they grow to what `prompt_cache_bytes` allows.
    """
    return PROCESS_BYTES + PROCESS_BYTES_A_TOKEN * num_vocab


class _Model:
    """A header with the questions that the formulas ask."""

    def __init__(self, header: Header, tensors: TensorSums) -> None:
        self._header = header
        self.tensors = tensors
        self.num_layers = min(self._number("block_count") or len(tensors.layer_bytes), _MAX_LAYERS)
        self.size = self._number("embedding_length")
        self.num_vocab = header.num_vocab

    @property
    def is_encoder(self) -> bool:
        return self._header.metadata.get(f"{self._header.architecture}.attention.causal") is False

    def room(self, options: EngineOptions) -> Room:
        """Return the room of the model's main context."""
        if not self.is_encoder:
            return room_of(options)
        # The longest text in one pass. Source: worker/engine/pooling.py.
        longest = min(options.context, self._header.trained_context or options.context)
        rows = -(-max(128, longest) // 64) * 64
        return Room(num_cells=rows, num_sequences=64, max_rows=rows, max_outputs=rows)

    def cell_bytes(self, options: EngineOptions, room: Room) -> int:
        """Return what keys and values take, and the states of recurrent layers."""
        if self.is_encoder:
            return 0
        full, window = self.padded_cells(room), self._windowed_cells(options, room)
        owners = self._layers_with_cells()
        total = sum(
            (window if self._is_windowed(layer) else full) * self._cell_bytes(layer, options) for layer in owners
        )
        return total + len(self.tensors.recurrent_layers) * room.num_sequences * self._state_bytes()

    def compute_bytes(self, options: EngineOptions, room: Room) -> int:
        """Return the compute buffer of one device: what the widest part of a pass has in memory at once.

        That is attention where its scores are computed as a whole, else the feed-forward part, or the logits.
        """
        rows, size, wide = room.max_rows, self.size, self._wide_values()
        is_whole = options.flash_attn == "off"
        masks = rows * self._seen_cells(options, room) * (4 if is_whole else 2)
        queries = max((self._query_values(layer) for layer in range(self.num_layers)), default=size)
        attention = masks + 4 * rows * (5 * size + 2 * queries)
        if is_whole:
            attention += 4 * rows * self._most_cells(room) * self._most("attention.head_count")
        feed_forward = masks + 4 * rows * ((3 if self.tensors.is_gated else 1) * wide + 4 * size)
        outputs = 0 if self.is_encoder else 4 * min(room.max_outputs, rows) * self.num_vocab
        return max(attention, feed_forward, outputs + 4 * rows * size)

    def _wide_values(self) -> int:
        """Return the values of a token in the widest layer: of all experts that it goes through."""
        experts = self._number("expert_used_count")
        return max(
            self._most("feed_forward_length"),
            experts * (self._number("expert_feed_forward_length") + self.size),
            2 * self._number("ssm.inner_size"),
        )

    def _query_values(self, layer: int) -> int:
        length = self._number("attention.key_length")
        return self._per_layer("attention.head_count", layer) * length if length else self.size

    def _most_cells(self, room: Room) -> int:
        """Return how many cells the rows of a pass see at most; an encoder's see each other."""
        if self.is_encoder:
            return room.max_rows
        return self.padded_cells(room) if self.tensors.attention_layers else 0

    def _seen_cells(self, options: EngineOptions, room: Room) -> int:
        """Return the columns of all masks: there is a second one where some layers see a window only."""
        seen = self._most_cells(room)
        if any(self._is_windowed(layer) for layer in self.tensors.attention_layers):
            seen += self._windowed_cells(options, room)
        return seen

    def input_bytes(self, room: Room) -> int:
        """Return the buffer in main memory through which rows and masks go to a GPU."""
        return room.max_rows * (4 * self.size + 2 * self.padded_cells(room))

    def padded_cells(self, room: Room) -> int:
        """Return the cells of layers that see everything."""
        return -(-room.num_cells // _CELLS_STEP) * _CELLS_STEP

    def _windowed_cells(self, options: EngineOptions, room: Room) -> int:
        full = self.padded_cells(room)
        window = self._number("attention.sliding_window")
        if options.swa_full or not window:
            return full
        needed = min(full, window * room.num_sequences + room.max_rows)
        return -(-needed // _CELLS_STEP) * _CELLS_STEP

    def _layers_with_cells(self) -> list[int]:
        """Return the layers with keys and values; the last ones may use those of earlier layers."""
        shared = self._number("attention.shared_kv_layers")
        return [layer for layer in sorted(self.tensors.attention_layers) if layer < self.num_layers - shared]

    def _is_windowed(self, layer: int) -> bool:
        architecture = self._header.architecture
        pattern = self._header.lists.get(f"{architecture}.attention.sliding_window_pattern")
        if pattern is not None:
            return layer < len(pattern) and bool(pattern[layer])
        period = self._number("attention.sliding_window_pattern") or _SWA_PATTERNS.get(architecture, 0)
        return period > 0 and layer % period < period - 1

    def _cell_bytes(self, layer: int, options: EngineOptions) -> int:
        heads = self._per_layer("attention.head_count_kv", layer) or self._per_layer("attention.head_count", layer)
        suffix = "_swa" if self._is_windowed(layer) else ""
        keys = self._number(f"attention.key_length{suffix}") or self._number("attention.key_length")
        values = self._number(f"attention.value_length{suffix}") or self._number("attention.value_length")
        all_heads = max(1, self._per_layer("attention.head_count", layer))
        keys = keys or self.size // all_heads
        values = values or self.size // all_heads
        if self._number("attention.key_length_mla"):  # one latent row of keys, which the values are computed from
            return _row_bytes(keys * heads, options.cache_type_k)
        return _row_bytes(keys * heads, options.cache_type_k) + _row_bytes(values * heads, options.cache_type_v)

    def _state_bytes(self) -> int:
        """Return what one sequence takes in one recurrent layer. Source: llama-hparams.cpp, n_embd_r and n_embd_s."""
        if head := self._number("wkv.head_size"):
            return 4 * self.size * ((self._number("token_shift_count") or 2) + head)
        if cache := self._number("shortconv.l_cache"):
            return 4 * self.size * (cache - 1)
        inner, state = self._number("ssm.inner_size"), self._number("ssm.state_size")
        kernel, groups = self._number("ssm.conv_kernel"), self._number("ssm.group_count")
        return 4 * (max(0, kernel - 1) * (inner + 2 * groups * state) + state * inner)

    def _number(self, key: str) -> int:
        """Return a whole number that the file gives for the whole model; 0 = none."""
        value = self._header.metadata.get(f"{self._header.architecture}.{key}")
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else 0

    def _most(self, key: str) -> int:
        return max((self._per_layer(key, layer) for layer in range(self.num_layers)), default=0)

    def _per_layer(self, key: str, layer: int) -> int:
        """Return a number that may differ from layer to layer; 0 = none."""
        items = self._header.lists.get(f"{self._header.architecture}.{key}")
        if items is None:
            return self._number(key)
        return min(max(0, int(items[layer])), 2**40) if layer < len(items) else 0


def _row_bytes(num_values: int, cache_type: str) -> int:
    block, block_bytes = TENSOR_BLOCKS[_KV_TYPES[cache_type]]
    return -(-num_values // block) * block_bytes
