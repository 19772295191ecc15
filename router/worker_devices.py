"""A placement in a worker's own terms: which devices it may see, what it loads where, and whether it obeyed.

Owns the variables by which each backend of llama.cpp limits what a process sees. Must not decide where anything runs
(`placement.py` does) nor find devices: placement and devices are passed in.

A worker sees the GPUs of its placement and no others, in that order. So it cannot take memory anywhere else, and
llama.cpp numbers them from 0, whatever their number is outside. What a worker tells is translated as soon as it comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from router.device import CPU, Device, Placement
from worker.contract import ModelFacts, WorkerStatus

_CPU = "cpu"
"""As the engine's option `device` calls it."""

_HIDING: Mapping[str, Mapping[str, str]] = {
    "CUDA": {"CUDA_VISIBLE_DEVICES": "-1"},
    "ROCm": {"HIP_VISIBLE_DEVICES": "-1"},
    "Vulkan": {"GGML_VK_VISIBLE_DEVICES": ""},
}
"""By backend of llama.cpp: what hides all of its GPUs. Without it a worker on the CPU would still open a context on
each. Builds without the backend do not read it. Metal has one device, and SYCL nothing that hides all."""


def device_variables(placement: Placement, devices: Mapping[str, Device]) -> dict[str, str]:
    """Return the environment variables that show a worker the GPUs of its placement alone.

    None where nothing was decided, or where a backend knows no such variable. `devices`: all of the machine, by id.
    """
    is_on_cpu = _is_on_cpu(placement, devices)
    if not (placement.gpus or is_on_cpu):
        return {}
    variables: dict[str, str] = {}
    backends = {device.backend for device in devices.values() if device.is_gpu}
    for backend in sorted(backends | _HIDING.keys() if is_on_cpu else backends):
        chosen = [device for id_ in placement.gpus if (device := devices.get(id_)) and device.backend == backend]
        variables |= _showing(backend, chosen) if chosen else _HIDING.get(backend, {})
    return variables


def _is_on_cpu(placement: Placement, devices: Mapping[str, Device]) -> bool:
    """Return whether the worker must keep off all GPUs: it was placed on the CPU, or there is no other known device.

    The latter also when llama.cpp could not be asked for its devices: a GPU that nobody counts is not used.
    """
    if placement.gpus:
        return False
    is_any_found = any(device.is_gpu and not device.is_declared for device in devices.values())
    return bool(placement.reserved) or (bool(devices) and not is_any_found)


def _showing(backend: str, chosen: Sequence[Device]) -> dict[str, str]:
    """Return the variables that show these devices alone, in this order."""
    names = [device.visible_as for device in chosen]
    listed = ",".join(names)
    match backend if all(names) else None:
        case "CUDA":
            # Numbers mean what they meant to the process that found the devices, so the order is the router's own.
            is_numbered = any(name.isdecimal() for name in names)
            order = {} if is_numbered else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
            return order | {"CUDA_VISIBLE_DEVICES": listed}
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
        is_cpu_meant = bool(wanted) or _is_on_cpu(placement, devices)
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


def _names_inside(gpus: Sequence[str], devices: Mapping[str, Device]) -> list[str]:
    """Return what llama.cpp calls these GPUs in a worker that sees them alone; each backend counts its own from 0."""
    places: Counter[str] = Counter()
    names = []
    for id_ in gpus:
        backend = devices[id_].backend if id_ in devices else ""
        names.append(name_inside(id_, places[backend], devices))
        places[backend] += 1
    return names


def status_outside(status: WorkerStatus, placement: Placement, devices: Mapping[str, Device]) -> WorkerStatus:
    """Return what a worker tells, with the ids that its GPUs have outside of it.

    Unchanged when it tells of a GPU that it should not see: then it does not count them as it should, either.
    """
    outside = dict(zip(_names_inside(placement.gpus, devices), placement.gpus, strict=True))
    facts = status.facts
    used = [] if facts is None or facts.device.lower().startswith(_CPU) else _listed(facts.device)
    told = {*status.device_bytes, *used} - {CPU}
    if not told <= outside.keys():
        return status
    return replace(
        status,
        device_bytes={outside.get(name, name): kinds for name, kinds in status.device_bytes.items()},
        facts=replace(facts, device=", ".join(outside[name] for name in used)) if facts is not None and used else facts,
    )


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def find_mismatch(placement: Placement, facts: ModelFacts) -> str | None:
    """Return, in words for the operator, how a loaded worker does not run where it was placed; None = it does.

    `facts`: with the names that devices have outside of the worker, as `status_outside` gives them.
    """
    if not (placement.gpus or placement.reserved):
        return None
    return _elsewhere(placement.gpus, facts.device) or _other_layers(placement, facts)


def _elsewhere(gpus: Sequence[str], used: str) -> str | None:
    is_on_cpu = used.lower().startswith(_CPU)
    if not gpus:
        return None if is_on_cpu else f"it was placed on the CPU and runs on {used}"
    if is_on_cpu:
        return f"it was placed on {', '.join(gpus)} and runs on the CPU"
    if [id_.lower() for id_ in gpus] == [name.lower() for name in _listed(used)]:
        return None
    return f"it was placed on {', '.join(gpus)} and runs on {used}"


def _other_layers(placement: Placement, facts: ModelFacts) -> str | None:
    if not placement.gpus or placement.gpu_layers is None or placement.gpu_layers < 0:
        return None
    num_layers = min(placement.gpu_layers, facts.total_layers)
    if facts.gpu_layers == num_layers:
        return None
    return f"{num_layers} of its {facts.total_layers} layers were to be offloaded, and {facts.gpu_layers} are"
