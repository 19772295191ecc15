"""What llama.cpp has allocated, or would allocate, for a context and its model: bytes by device.

One of the `llama*` modules that may import llama_cpp. Must not load anything (`llama_plan.py` and others do).

llama.cpp tells it through a C++ function that its libraries export. Its result, a std::map, is walked as libstdc++ lays
it out; where that cannot be, nothing is told. Source: llama-ext.h, llama_get_memory_breakdown; libstdc++'s
bits/stl_tree.h.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from llama_cpp import llama_cpp as lib

log = logging.getLogger(__name__)

CPU = "CPU"
"""What main memory is called in the reports, whatever device's own host buffers it holds."""

_SYMBOL = "_Z26llama_get_memory_breakdownPK13llama_context"
_MAPPED = "CPU_Mapped"
_MAX_NODES = 256

_DEVICE_CPU = 0
"""Source: ggml-backend.h, ggml_backend_dev_type."""


@dataclass(frozen=True, slots=True)
class BufferBytes:
    """Bytes of one type of buffer."""

    buffer: str
    """llama.cpp's name of the type: `CPU`, `CPU_Mapped`, `CPU_REPACK`, `CUDA0`, `CUDA_Host`, …"""
    device: str
    """`CPU` for all of main memory."""
    weights: int = 0
    kv: int = 0
    compute: int = 0

    @property
    def is_repacked(self) -> bool:
        """Whether it holds weights in another layout than the file's. Source: ggml-cpu.cpp, its extra buffer types."""
        return self.buffer.startswith(("CPU_", "AMX")) and self.buffer != _MAPPED


class _Map(ctypes.Structure):
    """A std::map as it is returned: the comparator, the header node (colour, root, leftmost, rightmost), the count."""

    _fields_ = (
        ("compare", ctypes.c_size_t),
        ("color", ctypes.c_size_t),
        ("root", ctypes.c_void_p),
        ("leftmost", ctypes.c_void_p),
        ("rightmost", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
    )


class _Node(ctypes.Structure):
    """A node of that map. Source: llama-ext.h, llama_memory_breakdown_data."""

    _fields_ = (
        ("color", ctypes.c_size_t),
        ("parent", ctypes.c_void_p),
        ("left", ctypes.c_void_p),
        ("right", ctypes.c_void_p),
        ("buffer_type", ctypes.c_void_p),
        ("model", ctypes.c_size_t),
        ("context", ctypes.c_size_t),
        ("compute", ctypes.c_size_t),
    )


def read_breakdown(context: Any) -> tuple[BufferBytes, ...]:
    """Return the bytes that belong to `context` and its model, by type of buffer; none where the library does not tell.

    To be called where nothing else uses the context. A few hundred bytes stay allocated: nobody destroys the map.
    """
    function = _breakdown_function()
    if function is None:
        return ()
    found = function(context)
    nodes: list[_Node] = []
    pending = [found.root]
    while pending and len(nodes) < _MAX_NODES:
        address = pending.pop()
        if address:
            node = _Node.from_address(address)
            nodes.append(node)
            pending += [node.left, node.right]
    if len(nodes) != found.count:
        log.debug("llama.cpp's memory breakdown cannot be read: %d nodes of %d", len(nodes), found.count)
        return ()
    return tuple(_buffer_bytes(node) for node in nodes)


@cache
def _breakdown_function() -> Any | None:
    """Return the exported function; None on platforms whose C++ library lays maps out differently."""
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    function = getattr(lib._lib, _SYMBOL, None)
    if function is not None:
        # A structure of this size is returned through memory in all 64-bit calling conventions, as a class is.
        function.restype, function.argtypes = _Map, [ctypes.c_void_p]
    return function


def _buffer_bytes(node: _Node) -> BufferBytes:
    functions = _functions()
    buffer_type = node.buffer_type
    name = functions["buft_name"](buffer_type).decode("utf-8", "replace")
    device = CPU
    if not functions["buft_is_host"](buffer_type):
        handle = functions["buft_device"](buffer_type)
        if handle and functions["dev_type"](handle) != _DEVICE_CPU:
            device = functions["dev_name"](handle).decode("utf-8", "replace")
    return BufferBytes(name, device, node.model, node.context, node.compute)


@cache
def _functions() -> Mapping[str, Any]:
    """Return functions that llama-cpp-python does not declare. Source: ggml-backend.h."""

    def declare(name: str, restype: Any) -> Any:
        function = getattr(lib._lib, name)
        function.restype, function.argtypes = restype, [ctypes.c_void_p]
        return function

    return {
        "buft_name": declare("ggml_backend_buft_name", ctypes.c_char_p),
        "buft_is_host": declare("ggml_backend_buft_is_host", ctypes.c_bool),
        "buft_device": declare("ggml_backend_buft_get_device", ctypes.c_void_p),
        "dev_type": declare("ggml_backend_dev_type", ctypes.c_int),
        "dev_name": declare("ggml_backend_dev_name", ctypes.c_char_p),
    }


def by_device(contexts: Iterable[Sequence[BufferBytes]], *, is_mapped: bool) -> dict[str, dict[str, int]]:
    """Return the bytes of contexts on the same weights by device and kind.

    A mapped file's pages that were only read to be stored anew, in the layout that the processor likes, are left out:
    nothing needs them any more, and the system takes them back when it wants to.
    """
    found: dict[str, dict[str, int]] = {}
    for number, buffers in enumerate(contexts):
        for one in buffers:
            kinds = found.setdefault(one.device, {"weights": 0, "kv": 0, "compute": 0})
            kinds["kv"] += one.kv
            kinds["compute"] += one.compute
            if number == 0:
                kinds["weights"] += one.weights
                if is_mapped and one.is_repacked:
                    kinds["weights"] -= one.weights
    return found


def private_bytes(contexts: Iterable[Sequence[BufferBytes]]) -> int:
    """Return how much of main memory is allocated for contexts on the same weights, mapped files left out."""
    total = 0
    for number, buffers in enumerate(contexts):
        for one in buffers:
            if one.device == CPU:
                is_read = number == 0 and one.buffer != _MAPPED
                total += one.kv + one.compute + (one.weights if is_read else 0)
    return total
