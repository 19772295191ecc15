"""What this build of llama.cpp is: its version, the backends in it, the processor features that it uses.

One of the `llama*` modules that may import llama_cpp. For a process that ends afterwards. Must not open a device.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp import llama_cpp as lib


@dataclass(frozen=True, slots=True)
class Build:
    """One build of the library."""

    version: str
    """Of llama-cpp-python."""
    library_folder: str
    """Where the shared libraries are that are used."""
    backends: tuple[str, ...]
    """Of ggml's registry: `CPU`, `CUDA`, `ROCm`, `Vulkan`, `Metal`, …"""
    supports_gpu: bool
    supports_mlock: bool
    features: tuple[str, ...]
    """Of the processor and the build, as llama.cpp prints them: `AVX2 = 1`, …"""


def describe_build() -> Build:
    """Return what is loaded in this process."""
    info = (lib.llama_print_system_info() or b"").decode("utf-8", "replace")
    return Build(
        llama_cpp.__version__,
        str(Path(lib._lib._name).parent),
        tuple(_backends()),
        bool(lib.llama_supports_gpu_offload()),
        bool(lib.llama_supports_mlock()),
        tuple(part.strip() for part in info.replace(":", "|").split("|") if "=" in part),
    )


def _backends() -> list[str]:
    """Return the names in ggml's registry. Source: ggml-backend.h."""
    count = _declared("ggml_backend_reg_count", ctypes.c_size_t)
    get = _declared("ggml_backend_reg_get", ctypes.c_void_p, ctypes.c_size_t)
    name = _declared("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)
    return [(name(get(index)) or b"").decode("utf-8", "replace") for index in range(count())]


def _declared(name: str, restype: Any, *argtypes: Any) -> Any:
    function = getattr(lib._lib, name)
    function.restype, function.argtypes = restype, list(argtypes)
    return function
