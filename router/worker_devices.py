"""A placement in a worker's own terms: which devices it may see, what it loads where, and whether it obeyed.

Owns the variables by which each backend of llama.cpp limits what a process sees. Must not decide where anything runs
(`placement.py` does) nor find devices: placement and devices are passed in.

A worker sees the GPUs of its placement and no others, in that order. So it cannot take memory anywhere else, and
llama.cpp numbers them from 0, whatever their number is outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from router.device import Device, Placement
from worker.contract import ModelFacts

_CPU = "cpu"
"""As the engine's option `device` calls it."""

_HIDING: Mapping[str, Mapping[str, str]] = {
    "CUDA": {"CUDA_VISIBLE_DEVICES": "-1"},
    "ROCm": {"HIP_VISIBLE_DEVICES": "-1"},
    "Vulkan": {"GGML_VK_VISIBLE_DEVICES": ""},
}
"""By backend of llama.cpp: what hides all of its GPUs. Without it a worker on the CPU would still open a context on
each. Metal has one device, and SYCL nothing that hides all."""


def device_variables(placement: Placement, devices: Mapping[str, Device]) -> dict[str, str]:
    """Return the environment variables that show a worker the GPUs of its placement alone.

    None where nothing was decided, or where a backend knows no such variable. `devices`: all of the machine, by id.
    """
    if not (placement.gpus or placement.reserved):
        return {}
    variables: dict[str, str] = {}
    for backend in sorted({device.backend for device in devices.values() if device.is_gpu}):
        chosen = [device for id_ in placement.gpus if (device := devices.get(id_)) and device.backend == backend]
        variables |= _showing(backend, chosen) if chosen else _HIDING.get(backend, {})
    return variables


def _showing(backend: str, chosen: Sequence[Device]) -> dict[str, str]:
    """Return the variables that show these devices alone, in this order."""
    names = [device.visible_as for device in chosen]
    listed = ",".join(names)
    match backend if all(names) else None:
        case "CUDA":
            return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": listed}
        case "ROCm" if all(name.isdecimal() for name in names):
            return {"HIP_VISIBLE_DEVICES": listed}
        case "ROCm":
            # HIP counts what the lower layer shows; only that one knows UUIDs.
            return {"ROCR_VISIBLE_DEVICES": listed, "HIP_VISIBLE_DEVICES": ",".join(map(str, range(len(names))))}
        case "Vulkan":
            return {"GGML_VK_VISIBLE_DEVICES": listed}
        case "SYCL":
            return {"ONEAPI_DEVICE_SELECTOR": listed if ":" in listed else f"level_zero:{listed}"}
        case _:
            return {}


def device_options(
    wanted: Sequence[str], options: Mapping[str, Any], placement: Placement, devices: Mapping[str, Device]
) -> dict[str, Any]:
    """Return the options of `EngineOptions` that the placement sets, over the model's own `options`.

    `wanted` are the devices that the model's configuration names: then its own `tensor_split` is obeyed as well.
    """
    gpus = placement.gpus
    if not gpus:
        is_cpu_meant = bool(wanted) or (placement.reserved and any(device.is_gpu for device in devices.values()))
        return {"device": _CPU, "tensor_split": ()} if is_cpu_meant else {}
    own_split = tuple(options.get("tensor_split", ()))
    changed: dict[str, Any] = {
        "device": _device_name(gpus, devices),
        "tensor_split": own_split if wanted and len(own_split) == len(gpus) else placement.tensor_split,
    }
    if placement.gpu_layers is not None:
        changed["gpu_layers"] = placement.gpu_layers
    if options.get("main_gpu", 0) >= len(gpus):
        changed["main_gpu"] = 0
    return changed


def _device_name(gpus: Sequence[str], devices: Mapping[str, Device]) -> str | None:
    """Return the option `device` for these GPUs; None = all that the worker sees."""
    if len(gpus) == 1:
        return name_inside(gpus[0], 0, devices)
    # Devices that are only declared are not there: the worker shall say so instead of taking others.
    is_any_declared = any(id_ in devices and devices[id_].is_declared for id_ in gpus)
    return ",".join(gpus) if is_any_declared else None


def name_inside(id_: str, place: int, devices: Mapping[str, Device]) -> str:
    """Return what llama.cpp calls the device in a worker that sees it as the `place`-th, counted from 0."""
    device = devices.get(id_)
    if device is None or not _showing(device.backend, [device]):
        return id_
    return f"{device.id.rstrip('0123456789')}{place}"


def find_mismatch(placement: Placement, devices: Mapping[str, Device], facts: ModelFacts) -> str | None:
    """Return, in words for the operator, how a loaded worker does not run where it was placed; None = it does."""
    if not (placement.gpus or placement.reserved):
        return None
    return _elsewhere(placement.gpus, devices, facts.device) or _other_layers(placement, facts)


def _elsewhere(gpus: Sequence[str], devices: Mapping[str, Device], used: str) -> str | None:
    is_on_cpu = used.lower().startswith(_CPU)
    if not gpus:
        return None if is_on_cpu else f"it was placed on the CPU and runs on {used}"
    if is_on_cpu:
        return f"it was placed on {', '.join(gpus)} and runs on the CPU"
    expected = [name_inside(id_, place, devices) for place, id_ in enumerate(gpus)]
    if [name.lower() for name in expected] == [name.strip().lower() for name in used.split(",")]:
        return None
    return f"it was placed on {', '.join(gpus)} ({', '.join(expected)} to the worker) and runs on {used}"


def _other_layers(placement: Placement, facts: ModelFacts) -> str | None:
    if not placement.gpus or placement.gpu_layers is None or placement.gpu_layers < 0:
        return None
    num_layers = min(placement.gpu_layers, facts.total_layers)
    if facts.gpu_layers == num_layers:
        return None
    return f"{num_layers} of its {facts.total_layers} layers were to be offloaded, and {facts.gpu_layers} are"
