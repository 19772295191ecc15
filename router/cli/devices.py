"""`corral devices`: the devices that models can be placed on, and why a GPU is not among them.

Owns the table. Devices are found as the server finds them (`router/devices.py`); the reasons are the doctor's.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from router.cli.catalog_file import read_settings_or_fail
from router.cli.formats import size
from router.cli.model_files import file_option, open_store, try_catalog
from router.cli.output import ExitCode, json_option, note, print_json, print_table
from router.cli.prose import tell, tell_advice
from router.doctor.findings import Finding, Level

if TYPE_CHECKING:
    from router.catalog import Catalog
    from router.device import Device


_KINDS = {"cpu": "CPU", "gpu": "GPU", "integrated": "integrated GPU"}


@dataclass(frozen=True, slots=True)
class FoundDevices:
    """What the server would find if it started now."""

    devices: tuple[Device, ...]
    used: dict[str, int]
    """By device id: bytes that other programs use."""
    problems: tuple[str, ...] = ()
    """What is wrong with `devices:` of the configuration, or with asking llama.cpp."""

    def free_bytes(self, device: Device) -> int:
        """Return what is free of a device now."""
        return max(0, device.total_bytes - self.used.get(device.id, 0))

    def room_bytes(self, device: Device) -> int:
        """Return what models could take of a device now."""
        return min(device.usable_bytes, max(0, self.free_bytes(device) - device.headroom_bytes))


@click.command()
@file_option
@json_option
def devices(file: Path | None, as_json: bool) -> None:
    """Show the devices that llama.cpp sees, their memory, and what models may take of it.

    Bounds of `devices:` in the configuration count. Says why a GPU of this machine is not among them.
    """
    settings = read_settings_or_fail({})
    catalog = try_catalog(file, open_store(settings))
    found = find_devices(catalog)
    reasons = _reasons(found)
    if as_json:
        listed = [_plain(device, found) for device in found.devices]
        notes = [{"level": one.level.value, "text": one.text, "advice": list(one.advice)} for one in reasons]
        print_json({"devices": listed, "problems": list(found.problems), "notes": notes})
    else:
        _show(found, reasons)
    if found.problems:
        raise SystemExit(ExitCode.FAILED)


def find_devices(catalog: Catalog | None) -> FoundDevices:
    """Return the devices of this machine, asked for in a process of its own, as `catalog` bounds them."""
    from router.devices import DeviceMonitor

    logging.getLogger("router").addHandler(logging.NullHandler())  # what is logged there is told below
    monitor = DeviceMonitor()
    found = asyncio.run(monitor.discover({} if catalog is None else catalog.devices))
    problems = [problem.describe(catalog.path if catalog else None) for problem in monitor.problems]
    if monitor.warning is not None:
        problems.append(monitor.warning)
    return FoundDevices(found, monitor.measure({}), tuple(problems))


def _reasons(found: FoundDevices) -> list[Finding]:
    """Return what there is to say of GPUs that are not seen, or could be used better."""
    from router.doctor.backend import Build, ask_llama, rebuild
    from router.doctor.gpu_signs import find_gpu_signs
    from router.doctor.gpus import judge_gpus

    llama = ask_llama(os.environ)
    if not isinstance(llama, Build):
        return [llama]
    seen = [device.id for device in found.devices if device.is_gpu and not device.is_declared]
    findings = judge_gpus(find_gpu_signs(os.environ), llama.backends, seen, rebuild)
    return [one for one in findings if one.level is not Level.OK or not seen]


def _plain(device: Device, found: FoundDevices) -> dict[str, Any]:
    return {
        "id": device.id,
        "kind": device.kind.value,
        "description": device.description,
        "backend": device.backend,
        "is_declared": device.is_declared,
        "total_bytes": device.total_bytes,
        "free_bytes": found.free_bytes(device),
        "usable_bytes": device.usable_bytes,
        "room_bytes": found.room_bytes(device),
        "headroom_bytes": device.headroom_bytes,
        "budget_bytes": device.budget_bytes,
    }


def _show(found: FoundDevices, reasons: list[Finding]) -> None:
    rows = [
        (
            device.id,
            _KINDS[device.kind.value],
            size(device.total_bytes),
            size(found.free_bytes(device)),
            size(found.room_bytes(device)),
            _bounds(device),
            device.description,
        )
        for device in found.devices
    ]
    columns = ("device", "kind", "memory", "free", "room", "bounds", "what")
    print_table(columns, rows, numbers=("memory", "free", "room"), droppable=("bounds", "kind"))
    for problem in found.problems:
        note(f"corral: {problem}")
    for reason in reasons:
        click.echo()
        tell(reason.text)
        for step in reason.advice:
            tell_advice(step, indent=2)


def _bounds(device: Device) -> str:
    parts = [f"{size(device.headroom_bytes)} kept free"]
    if device.budget_bytes is not None:
        parts.insert(0, f"budget {size(device.budget_bytes)}")
    return ", ".join(parts)
