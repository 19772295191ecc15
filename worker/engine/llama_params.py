"""Options to llama.cpp's parameter structs, and the devices it sees.

One of the `llama*` modules that may import llama_cpp. Must not load anything.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from llama_cpp import llama_cpp as lib

from worker.contract import EngineOptions
from worker.engine.errors import BadModel
from worker.engine.llama_faults import has_broken_amx

log = logging.getLogger(__name__)

_DEVICE_GPU = 1
_DEVICE_INTEGRATED_GPU = 2
_KINDS = {0: "cpu", _DEVICE_GPU: "gpu", _DEVICE_INTEGRATED_GPU: "integrated", 3: "accelerator"}
"""Source: ggml-backend.h, ggml_backend_dev_type."""

_KV_TYPES = {
    "f32": lib.GGML_TYPE_F32,
    "f16": lib.GGML_TYPE_F16,
    "bf16": 30,  # absent from the binding's names. Source: ggml.h, GGML_TYPE_BF16
    "q8_0": lib.GGML_TYPE_Q8_0,
    "q4_0": lib.GGML_TYPE_Q4_0,
    "q4_1": lib.GGML_TYPE_Q4_1,
    "iq4_nl": lib.GGML_TYPE_IQ4_NL,
    "q5_0": lib.GGML_TYPE_Q5_0,
    "q5_1": lib.GGML_TYPE_Q5_1,
}

_FLASH_ATTN = {
    "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
}

_ROPE_SCALING = {
    "none": lib.LLAMA_ROPE_SCALING_TYPE_NONE,
    "linear": lib.LLAMA_ROPE_SCALING_TYPE_LINEAR,
    "yarn": lib.LLAMA_ROPE_SCALING_TYPE_YARN,
}

_SPLIT_MODES = {
    "none": lib.LLAMA_SPLIT_MODE_NONE,
    "layer": lib.LLAMA_SPLIT_MODE_LAYER,
    "row": lib.LLAMA_SPLIT_MODE_ROW,
}


@dataclass(frozen=True, slots=True)
class BackendDevice:
    """One device of llama.cpp's registry."""

    name: str
    is_gpu: bool
    is_integrated: bool
    handle: int


def list_devices() -> list[BackendDevice]:
    """Return all devices, in llama.cpp's own order."""
    functions = _device_functions()
    devices = []
    for index in range(functions.count()):
        handle = functions.get(index)
        kind = functions.type(handle)
        devices.append(
            BackendDevice(
                functions.name(handle).decode(),
                is_gpu=kind in {_DEVICE_GPU, _DEVICE_INTEGRATED_GPU},
                is_integrated=kind == _DEVICE_INTEGRATED_GPU,
                handle=handle,
            )
        )
    return devices


@dataclass(frozen=True, slots=True)
class DeviceDescription:
    """All that llama.cpp's registry tells of a device. To ask for the memory of a GPU may open a context on it."""

    name: str
    kind: str
    """`cpu`, `gpu`, `integrated`, `accelerator` or `other`."""
    description: str
    backend: str
    free_bytes: int
    total_bytes: int
    device_id: str | None
    """Its PCI address, where the backend tells it."""


def describe_devices() -> list[DeviceDescription]:
    """Return all devices with their memory, in llama.cpp's own order."""
    functions = _device_functions()
    devices = []
    for index in range(functions.count()):
        handle = functions.get(index)
        props = _DeviceProps()
        functions.props(handle, ctypes.byref(props))
        backend = functions.backend_name(functions.backend(handle))
        devices.append(
            DeviceDescription(
                _text(functions.name(handle)) or f"device {index}",
                _KINDS.get(functions.type(handle), "other"),
                _text(props.description) or "",
                _text(backend) or "",
                props.memory_free,
                props.memory_total,
                _text(props.device_id),
            )
        )
    return devices


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace").strip()


class _DeviceProps(ctypes.Structure):
    """Source: ggml-backend.h, ggml_backend_dev_props; with room behind it for what later versions add."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("caps", ctypes.c_byte * 256),
    )


@dataclass(frozen=True, slots=True)
class _DeviceFunctions:
    count: Callable[[], int]
    get: Callable[[int], int]
    name: Callable[[int], bytes]
    type: Callable[[int], int]
    props: Callable[[int, Any], None]
    backend: Callable[[int], int]
    backend_name: Callable[[int], bytes]


def _device_functions() -> _DeviceFunctions:
    """Return the registry's functions, which llama-cpp-python does not declare. Source: ggml-backend.h."""

    def declare(name: str, restype: Any, *argtypes: Any) -> Any:
        function = getattr(lib._lib, name)
        function.restype, function.argtypes = restype, list(argtypes)
        return function

    return _DeviceFunctions(
        count=declare("ggml_backend_dev_count", ctypes.c_size_t),
        get=declare("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t),
        name=declare("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p),
        type=declare("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p),
        props=declare("ggml_backend_dev_get_props", None, ctypes.c_void_p, ctypes.c_void_p),
        backend=declare("ggml_backend_dev_backend_reg", ctypes.c_void_p, ctypes.c_void_p),
        backend_name=declare("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """Where the weights go. `handles` is what llama.cpp gets: None = its own choice among all GPUs."""

    label: str
    uses_gpu: bool
    handles: Any | None


def choose_devices(options: EngineOptions) -> DeviceChoice:
    """Return the devices that `device` and `gpu_layers` mean. Raises: BadModel for a device that is not there."""
    gpus = [device for device in list_devices() if device.is_gpu]
    wanted = options.device
    chosen = [device for device in gpus if wanted is not None and device.name.lower() == wanted.lower()]
    if wanted is not None and wanted.lower() != "cpu" and not chosen:
        names = ", ".join(["cpu", *(device.name for device in gpus)])
        raise BadModel(f"device {wanted!r} is not there; llama.cpp sees: {names}")
    if chosen and options.gpu_layers != 0:
        handles = (ctypes.c_void_p * (len(chosen) + 1))(*(device.handle for device in chosen), None)
        return DeviceChoice(chosen[0].name, uses_gpu=True, handles=handles)
    if wanted is None and gpus and options.gpu_layers != 0:
        discrete = [device.name for device in gpus if not device.is_integrated]
        return DeviceChoice(", ".join(discrete or [device.name for device in gpus]), uses_gpu=True, handles=None)
    # An empty list, not NULL: with NULL a GPU would still be used for long prompts.
    return DeviceChoice("cpu", uses_gpu=False, handles=(ctypes.c_void_p * 1)(None))


def model_params(options: EngineOptions, choice: DeviceChoice, on_progress: Any) -> tuple[Any, list[Any]]:
    """Return llama_model_params and the objects that must live as long as they are used."""
    params = lib.llama_model_default_params()
    keep: list[Any] = [on_progress]
    if choice.handles is not None:
        params.devices = ctypes.cast(choice.handles, ctypes.c_void_p)
        keep.append(choice.handles)
    params.n_gpu_layers = options.gpu_layers if choice.uses_gpu else 0
    params.split_mode = _SPLIT_MODES[options.split_mode]
    params.main_gpu = options.main_gpu
    if options.tensor_split:
        shares = (ctypes.c_float * max(lib.llama_max_devices(), len(options.tensor_split)))(*options.tensor_split)
        params.tensor_split = shares
        keep.append(shares)
    params.load_mode = {
        (True, False): lib.LLAMA_LOAD_MODE_MMAP,
        (True, True): lib.LLAMA_LOAD_MODE_MMAP_MLOCK,
        (False, True): lib.LLAMA_LOAD_MODE_MLOCK,
        (False, False): lib.LLAMA_LOAD_MODE_NONE,
    }[options.mmap, options.mlock]
    params.check_tensors = options.check_tensors
    # The AMX kernels are behind llama.cpp's extra buffer types; without these it uses AVX-512 or AVX2.
    params.use_extra_bufts = not _has_broken_amx()
    params.progress_callback = on_progress
    return params, keep


@cache
def _has_broken_amx() -> bool:
    info = (lib.llama_print_system_info() or b"").decode("utf-8", "replace")
    folder = Path(lib._lib._name).parent
    broken = any(has_broken_amx(info, library) for library in sorted(folder.glob("libggml-cpu*")))
    if broken:
        log.warning(
            "this build of llama-cpp-python has broken AMX kernels (its GCC is too old for them), so they stay off; "
            "a build with GCC 14 or clang can use them"
        )
    return broken


@dataclass(frozen=True, slots=True)
class ContextShape:
    """What one context has room for."""

    num_slots: int
    num_cells: int
    """Of the unified pool that all sequences share."""
    max_rows: int
    """Of one forward pass."""
    max_outputs: int
    """Rows of one forward pass that have logits."""
    is_lone: bool = False
    """Whether there is never more than one sequence, and no holder: then clearing it makes all cells as new."""


def context_params(
    options: EngineOptions, choice: DeviceChoice, shape: ContextShape, *, num_threads: int, flash_attn: str
) -> Any:
    """Return llama_context_params for one unified pool of cells."""
    params = lib.llama_context_default_params()
    params.n_ctx = shape.num_cells
    params.n_batch = params.n_ubatch = shape.max_rows
    # One id more than there are slots: sequences are copied to and from host memory through it.
    params.n_seq_max = shape.num_slots + 1
    # Only rows that are sampled from have outputs; the default would reserve max_rows x num_vocab floats.
    params.n_outputs_max = max(shape.max_outputs, shape.num_slots + 1)
    params.n_threads = params.n_threads_batch = num_threads
    params.kv_unified = True
    params.swa_full = options.swa_full
    params.type_k = _KV_TYPES[options.cache_type_k]
    params.type_v = _KV_TYPES[options.cache_type_v]
    params.flash_attn_type = _FLASH_ATTN[flash_attn]
    params.offload_kqv = not options.no_kv_offload
    params.op_offload = not options.no_op_offload
    params.no_perf = True
    if options.rope_scaling is not None:
        params.rope_scaling_type = _ROPE_SCALING[options.rope_scaling]
    for field, value in (
        ("rope_freq_base", options.rope_freq_base),
        ("rope_freq_scale", 1.0 / options.rope_scale if options.rope_scale else options.rope_freq_scale),
        ("yarn_orig_ctx", options.yarn_orig_ctx),
        ("yarn_ext_factor", options.yarn_ext_factor),
        ("yarn_attn_factor", options.yarn_attn_factor),
        ("yarn_beta_slow", options.yarn_beta_slow),
        ("yarn_beta_fast", options.yarn_beta_fast),
    ):
        if value is not None:
            setattr(params, field, value)
    return params


def lone_params(options: EngineOptions, choice: DeviceChoice) -> tuple[str, int | None]:
    """Return flash attention and, if it must not vary, the threads of a context whose results can be repeated.

    Without flash attention the number of CPU threads changes no result. With it, from some hundred tokens on, a row
    is summed up in as many parts as there are threads.
    """
    if not choice.uses_gpu and options.cache_type_v in {"f32", "f16", "bf16"}:
        return "off", None
    return options.flash_attn, options.threads or 1
