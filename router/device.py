"""Devices that models are placed on, and what a model needs of them: plain data, in bytes.

Owns the words that placement speaks. Must not ask the system for anything: `devices.py` finds and measures devices,
`footprints.py` knows what models need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

CPU: Final = "CPU"
"""Id of the device that is the processor with the machine's main memory."""


class DeviceKind(StrEnum):
    """What a device is for placement."""

    CPU = "cpu"
    GPU = "gpu"
    INTEGRATED = "integrated"
    """A GPU that uses the machine's main memory."""


@dataclass(frozen=True, slots=True)
class Device:
    """One place for models: a GPU, or the CPU with the machine's (or container's) main memory."""

    id: str
    """As llama.cpp names it (`CPU`, `CUDA0`, …) or as `devices:` declares it."""
    kind: DeviceKind
    total_bytes: int
    headroom_bytes: int = 0
    """Kept free for whatever cannot be foreseen."""
    budget_bytes: int | None = None
    """Most that models may use together; None = all but the headroom."""
    prefer: int = 0
    """Devices with a higher number are taken first where a model fits on several."""
    description: str = ""
    backend: str = ""
    """Of llama.cpp's registry: `CPU`, `CUDA`, `ROCm`, `Vulkan`, `Metal`, …"""
    visible_as: str = ""
    """What the backend's variable of visible devices calls it: a UUID or a number."""
    is_declared: bool = False
    """It stands in `devices:` with its memory and was not found on this machine."""

    @property
    def is_gpu(self) -> bool:
        """Whether layers can be offloaded to it."""
        return self.kind is not DeviceKind.CPU

    @property
    def usable_bytes(self) -> int:
        """What models could use if nobody else used anything."""
        usable = max(0, self.total_bytes - self.headroom_bytes)
        return usable if self.budget_bytes is None else min(usable, self.budget_bytes)


class FootprintSource(StrEnum):
    """How a footprint is known, from the roughest to the surest."""

    HEADER = "header"
    """Arithmetic on the file's header."""
    PROBE = "probe"
    """llama.cpp's own plan, made without allocating anything."""
    MEASURED = "measured"
    """A worker with these options has run on this machine."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one worker of a model needs."""

    cpu_bytes: int
    """Of main memory, when all of it is on the CPU: weights, KV cache, compute buffers, process."""
    gpu_bytes: int = 0
    """Of GPU memory, when all layers are offloaded: weights and KV cache, over all GPUs together."""
    gpu_compute_bytes: int = 0
    """Of each GPU that computes: compute buffer and the backend's own context."""
    host_bytes: int = 0
    """Of main memory beside offloaded layers."""
    num_layers: int = 0
    """That can be offloaded, the output layer included."""
    source: FootprintSource = FootprintSource.HEADER


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a worker runs and what is reserved for it."""

    reserved: Mapping[str, int] = field(default_factory=dict)
    """Bytes by device id; empty when nothing is known of devices or of the model's needs."""
    gpus: tuple[str, ...] = ()
    """Ids of the GPUs that compute, in the order of `tensor_split`; empty = the CPU alone."""
    tensor_split: tuple[float, ...] = ()
    """Each GPU's share of the layers; empty = there is at most one."""
    gpu_layers: int | None = None
    """Layers that are offloaded; None = as the model's options say."""


NOWHERE = Placement()
"""Nothing is known of devices or of the model's needs: llama.cpp chooses."""
