"""Tiny LoRA adapters for the models of `tiny_gguf.py`, in the form that llama.cpp loads.

Owns the file's keys and shapes. Must not load anything. The weights are random: an adapter changes every answer, and
the same arguments give the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

RANK = 4


def write_tiny_lora(
    path: Path | str,
    *,
    architecture: str = "llama",
    num_layers: int = 2,
    embedding: int = 32,
    alpha: float = 8.0,
    strength: float = 0.5,
    seed: int = 0,
    tensor: str = "blk.{layer}.ffn_down.weight",
    kind: str = "adapter",
    adapter_type: str = "lora",
    **keys: Any,
) -> Path:
    """Write an adapter of the down projections of `write_tiny_llama(embedding=…)` and return its path.

    `keys` are further lists of whole numbers, by name with `__` for `.`.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type(kind)
    writer.add_string("adapter.type", adapter_type)
    writer.add_float32("adapter.lora.alpha", alpha)
    for key, value in keys.items():
        writer.add_key_value(key.replace("__", "."), value, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32)
    random = np.random.RandomState(seed)
    for layer in range(num_layers):
        name = tensor.format(layer=layer)
        a = random.standard_normal((RANK, 2 * embedding))
        b = strength * random.standard_normal((embedding, RANK))
        writer.add_tensor(f"{name}.lora_a", np.ascontiguousarray(a, dtype=np.float32))
        writer.add_tensor(f"{name}.lora_b", np.ascontiguousarray(b, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)
