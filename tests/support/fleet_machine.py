"""Fleets on machines with devices, and models whose needs are known. All sizes in gigabytes."""

from __future__ import annotations

from typing import Any

from router.device import Device, DeviceKind, Footprint, FootprintSource, Placement
from router.events import DevicesChanged, ModelPolicy, ModelSized
from router.fleet import Fleet
from router.lifecycle import WorkerState
from tests.support.fleet_scenes import make_fleet

GB = 10**9


def cpu(gigabytes: int, **fields: int) -> Device:
    """Return the machine's main memory."""
    return Device("CPU", DeviceKind.CPU, gigabytes * GB, **fields)


def gpu(number: int, gigabytes: int, **fields: int) -> Device:
    """Return a card of so many gigabytes."""
    return Device(f"GPU{number}", DeviceKind.GPU, gigabytes * GB, **fields)


def size(gigabytes: float, source: FootprintSource = FootprintSource.PROBE) -> Footprint:
    """Return a need that is the same on every device."""
    num_bytes = round(gigabytes * GB)
    return Footprint(num_bytes, gpu_bytes=num_bytes, num_layers=10, source=source)


def machine(*devices: Device, sizes: dict[str, float], policies: tuple[ModelPolicy, ...] = (), **limits: Any) -> Fleet:
    """Return a fleet of models whose sizes are known."""
    special = {policy.name: policy for policy in policies}
    fleet = make_fleet(*(special.get(name, name) for name in sizes), **limits)
    fleet.handle(DevicesChanged(devices), 0.0)
    for name, gigabytes in sizes.items():
        fleet.handle(ModelSized(name, size(gigabytes)), 0.0)
    return fleet


def cpu_place(gigabytes: float) -> Placement:
    """Return where a worker of this size is on the CPU."""
    return Placement({"CPU": round(gigabytes * GB)}, gpu_layers=0)


def gpu_place(number: int, gigabytes: float) -> Placement:
    """Return where a worker of this size is on one card."""
    return Placement({f"GPU{number}": round(gigabytes * GB), "CPU": 0}, gpus=(f"GPU{number}",))


def state(fleet: Fleet, model: str, now_s: float = 0.0) -> WorkerState:
    """Return the state of `model`."""
    return fleet.snapshot(now_s).models[model].state
