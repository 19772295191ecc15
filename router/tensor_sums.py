"""How many bytes of a model's weights belong to which part of it, summed up from the names of its tensors.

Owns what those names mean. Must not read files: `gguf_header.py` does.

Source: llama.cpp's llama-arch.cpp, the table of tensor names, and llama-model.cpp, which of them stay on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# Tensor types by number: elements in a block, bytes of a block. A type that is not here (a newer one, or
# one that files never hold) is checked by its offset only. Source: type_traits in ggml.c.
TENSOR_BLOCKS: Final[Mapping[int, tuple[int, int]]] = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    24: (1, 1),  # I8
    25: (1, 2),  # I16
    26: (1, 4),  # I32
    27: (1, 8),  # I64
    28: (1, 8),  # F64
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
    39: (32, 17),  # MXFP4
    40: (64, 36),  # NVFP4
    41: (128, 18),  # Q1_0
}

UNFIT_TYPES: Final = frozenset(range(24, 29))
"""Whole numbers and doubles: llama.cpp has no product of matrices of these and ends the process."""

_INPUT = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")
"""Prefixes of tensors that are looked up row by row: llama.cpp keeps them in main memory, whatever is offloaded."""
_KEYS = ("attn_k.", "attn_kv_a_mqa.", "attn_k_b.", "attn_kv.")
_GATES = ("ffn_gate.", "ffn_gate_exps.", "ffn_gate_up_exps.")
_RECURRENT = ("ssm_", "time_mix_", "shortconv.")


@dataclass(frozen=True, slots=True)
class TensorSums:
    """Bytes by part of the model, and what kinds of memory its layers keep between passes."""

    input_bytes: int = 0
    """Of the embeddings in front of the first layer."""
    output_bytes: int = 0
    """Of all that belongs to no layer and is no embedding: the output matrix, above all."""
    layer_bytes: Mapping[int, int] = field(default_factory=dict)
    attention_layers: frozenset[int] = frozenset()
    """Layers with keys and values of their own."""
    recurrent_layers: frozenset[int] = frozenset()
    """Layers with a state for each sequence."""
    is_gated: bool = False
    """Whether the feed-forward parts have a gate, and with it one more wide row for each token."""
    has_output: bool = False
    """Whether the file has an output matrix; if not, the embeddings serve as that too."""

    @property
    def total_bytes(self) -> int:
        """All weights."""
        return self.input_bytes + self.output_bytes + sum(self.layer_bytes.values())

    def __add__(self, other: TensorSums) -> TensorSums:
        """Return the sums over both, as for the parts of a split model."""
        layers = dict(self.layer_bytes)
        for layer, num_bytes in other.layer_bytes.items():
            layers[layer] = layers.get(layer, 0) + num_bytes
        return TensorSums(
            self.input_bytes + other.input_bytes,
            self.output_bytes + other.output_bytes,
            layers,
            self.attention_layers | other.attention_layers,
            self.recurrent_layers | other.recurrent_layers,
            self.is_gated or other.is_gated,
            self.has_output or other.has_output,
        )


class TensorCounter:
    """Adds up tensors one by one."""

    def __init__(self) -> None:
        self._input = self._output = 0
        self._layers: dict[int, int] = {}
        self._keys: set[int] = set()
        self._joint: set[int] = set()
        self._recurrent: set[int] = set()
        self._is_gated = self._has_output = False

    def add(self, name: str, num_bytes: int) -> None:
        """Count one tensor of the file."""
        block, _, rest = name.partition(".")
        number, _, role = rest.partition(".")
        if block == "blk" and number.isdecimal() and len(number) < 7:
            layer = int(number)
            self._layers[layer] = self._layers.get(layer, 0) + num_bytes
            if role.startswith(_KEYS):
                self._keys.add(layer)
            elif role.startswith("attn_qkv."):  # some recurrent layers have one too
                self._joint.add(layer)
            elif role.startswith(_RECURRENT):
                self._recurrent.add(layer)
            elif role.startswith(_GATES):
                self._is_gated = True
        elif block in _INPUT:
            self._input += num_bytes
        else:
            self._output += num_bytes
            self._has_output = self._has_output or name == "output.weight"

    def sums(self) -> TensorSums:
        """Return what has been added up."""
        attention = self._keys | (self._joint - self._recurrent)
        return TensorSums(
            self._input,
            self._output,
            self._layers,
            frozenset(attention),
            frozenset(self._recurrent),
            self._is_gated,
            self._has_output,
        )
