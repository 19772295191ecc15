"""What a model will take before it is loaded: llama.cpp plans its buffers and allocates none of them.

One of the `llama*` modules that may import llama_cpp. For a process that ends afterwards: models that llama.cpp
cannot plan may end it. Must not plan other contexts than the worker makes: their parameters come from where the
worker takes them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llama_cpp import llama_cpp as lib

from worker.contract import EngineOptions
from worker.engine.draft_model import draft_shape
from worker.engine.errors import BadModel, LoadFailed, OutOfMemory
from worker.engine.llama import shape_of
from worker.engine.llama_log import capture_log, load_error, record_log
from worker.engine.llama_memory import CPU, BufferBytes, by_device, read_breakdown
from worker.engine.llama_model import LlamaModel
from worker.engine.llama_params import ContextShape, choose_devices, context_params, model_params
from worker.engine.llama_pooling import pooled_params, shape_of_model

_SIZES = (
    ("kv", re.compile(r"size = +([\d.]+) MiB \( *\d+ cells")),
    ("kv", re.compile(r"size = +([\d.]+) MiB \( *\d+ cells, +\d+ layers, .*R \(f32\)")),
    ("compute", re.compile(r"compute buffer size = +([\d.]+) MiB")),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What llama.cpp would allocate."""

    device_bytes: dict[str, dict[str, int]]
    """By device, then `weights`, `kv`, `compute`."""
    output_bytes: int
    """Of main memory, for the rows of logits or vectors that one pass may return: not in `device_bytes`."""
    num_layers: int
    """That can be offloaded, the output layer included."""
    num_vocab: int
    is_exact: bool
    """False when it was read from log lines, which do not say what lies where."""


def plan(path: str, options: EngineOptions, *, is_draft: bool = False) -> Plan:
    """Return what a worker with `options` allocates for the file. Raises: BadModel, OutOfMemory."""
    lib.llama_backend_init()
    with record_log() as said:
        model = _open(path, options)
        try:
            params, output_bytes = _context_params(model, is_draft=is_draft)
            lines = capture_log()
            context = lib.llama_init_from_model(model.handle, params)
            if not context:
                raise load_error(lines, "llama.cpp could not plan a context", default=OutOfMemory)
            found = read_breakdown(context)
            is_exact = bool(found)
            weights = lib.llama_model_size(model.handle)
            lib.llama_free(context)
            return Plan(
                by_device([found or (_from_log(said, weights),)], is_mapped=False),
                output_bytes,
                num_layers=lib.llama_model_n_layer(model.handle) + 1,
                num_vocab=model.num_vocab,
                is_exact=is_exact,
            )
        finally:
            model.close()


def _open(path: str, options: EngineOptions) -> LlamaModel:
    lines = capture_log()
    choice = choose_devices(options)
    report = lib.llama_progress_callback(lambda *_: True)
    params, keep = model_params(options, choice, report)
    params.no_alloc = True
    params.load_mode = lib.LLAMA_LOAD_MODE_NONE
    handle = lib.llama_model_load_from_file(path.encode(), params)
    if not handle:
        raise load_error(lines, "llama.cpp could not read the file")
    return LlamaModel(handle, options, choice, keep)


def _context_params(model: LlamaModel, *, is_draft: bool) -> tuple[Any, int]:
    """Return llama_context_params as the worker makes them, and the bytes of the output buffer."""
    options = model.options
    if model.is_encoder:
        pooled = shape_of_model(model)
        return pooled_params(model, pooled, num_threads=1), 4 * pooled.size * pooled.max_rows
    if not model.can_generate:
        raise BadModel("this model reads with an encoder and writes with a decoder; such models are not supported")
    shape: ContextShape = draft_shape(options) if is_draft else shape_of(options)
    params = context_params(options, model.choice, shape, num_threads=1, flash_attn=options.flash_attn)
    return params, 4 * model.num_vocab * params.n_outputs_max


def _from_log(lines: Sequence[str], weights: int) -> BufferBytes:
    """Return what llama.cpp's log says of sizes, all of it as if it were main memory.

    Raises: LoadFailed when it says nothing.
    """
    found = {"kv": 0.0, "compute": 0.0}
    for line in lines:
        for kind, pattern in _SIZES:
            if match := pattern.search(line):
                found[kind] += float(match[1])
                break
    if not found["compute"]:
        raise LoadFailed("this build of llama.cpp does not tell what it would allocate")
    return BufferBytes("log", CPU, weights, int(found["kv"] * 2**20), int(found["compute"] * 2**20))
