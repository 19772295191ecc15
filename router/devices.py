"""Which devices this machine has, and how much of them others use: found and measured without opening a GPU.

Owns asking the system. Must not decide where models go (`placement.py` does) nor read what the system's texts mean
(`device_facts.py` does).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from router.catalog import DeviceSpec
from router.catalog_problems import Problem
from router.device import CPU, Device, DeviceKind
from router.device_facts import (
    FoundDevice,
    cgroup_folders,
    found_devices,
    limit_bytes,
    reclaimable_bytes,
    take_inventory,
    used_by_others,
)
from router.nvml import Nvml
from router.probe_process import ProbeFailed, ask_probe

logger = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 60.0
"""The first look at a GPU after the machine's start takes many seconds."""

_NO_NVML = (
    "NVIDIA's management library cannot be read, so what other programs use of GPU memory counts as it was at the "
    "start: install llama-corral[nvidia], or nvidia-ml-py, to have it measured"
)

_LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")
_USAGE_FILES = ("memory.current", "memory.usage_in_bytes")


class DeviceMonitor:
    """The devices as they were last found, and what others use of them now."""

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        *,
        command: Sequence[str] | None = None,
        timeout_s: float = PROBE_TIMEOUT_S,
        may_probe: bool = True,
        memory: MachineMemory | None = None,
        sys_folder: Path = Path("/sys"),
    ) -> None:
        """Without `may_probe` llama.cpp is not asked: there are the CPU and what is declared."""
        self.devices: tuple[Device, ...] = ()
        self.problems: tuple[Problem, ...] = ()
        """What is wrong with the configured devices."""
        self.warning: str | None = None
        """Why llama.cpp's devices are not known, if they are not."""
        self._environ = environ
        self._command = command
        self._timeout_s = timeout_s
        self._memory = MachineMemory() if memory is None else memory
        self._sys_folder = sys_folder
        self._nvml: Nvml | None = None
        self._found: tuple[FoundDevice, ...] | None = None if may_probe else ()
        self._addresses: Mapping[str, str] = {}
        self._imagined: frozenset[str] = frozenset()
        self._last_free: dict[str, int] = {}

    async def discover(
        self, declared: Mapping[str, DeviceSpec], ours: Mapping[str, int] | None = None
    ) -> tuple[Device, ...]:
        """Return all devices, the CPU first; `declared` bounds them or adds to them.

        The machine is asked once in this object's life, in a process of its own: what it has does not change. If that
        fails, there is the CPU alone until it is asked again, and `warning` says why.
        `ours`: bytes by device id that workers use already.
        """
        found = self._found if self._found is not None else await self._ask(ours or {})
        names = [one.description for one in found if one.kind == "cpu"]
        inventory = take_inventory(
            found,
            declared,
            cpu=Device(
                CPU, DeviceKind.CPU, self._memory.total_bytes(), description=names[0] if names else "", backend="CPU"
            ),
            environ=self._environ,
            uuids={} if self._nvml is None else self._nvml.uuids,
        )
        with_memory = {id_.casefold() for id_, spec in declared.items() if spec.memory_bytes is not None}
        self._imagined = frozenset(device.id for device in inventory.devices if device.id.casefold() in with_memory)
        self._addresses = inventory.pci_addresses
        self.devices, self.problems = inventory.devices, inventory.problems
        return self.devices

    async def _ask(self, ours: Mapping[str, int]) -> tuple[FoundDevice, ...]:
        try:
            answer = await ask_probe(
                {"ask": "devices"}, environ=self._environ, timeout_s=self._timeout_s, command=self._command
            )
            found = found_devices(answer.get("devices"))
        except (ProbeFailed, ValueError) as error:
            warning = f"llama.cpp could not be asked for its devices, so models run on the CPU alone: {error}"
            if warning != self.warning:
                logger.warning("%s", warning)
            self.warning = warning
            return ()
        if self.warning is not None:
            logger.info("llama.cpp has told its devices after all: %s", ", ".join(one.name for one in found) or "none")
        self._found, self.warning = found, None
        self._last_free = {one.name: one.free_bytes + ours.get(one.name, 0) for one in found}
        if any(one.backend == "CUDA" for one in found):
            self._nvml = await asyncio.to_thread(Nvml.open)
            if self._nvml is None:
                logger.warning("%s", _NO_NVML)
        return found

    def measure(self, ours: Mapping[str, int]) -> dict[str, int]:
        """Return by device id the bytes that others than our workers use. Quick enough for the event loop.

        `ours`: bytes of each device that our workers use and that count as used there. Of main memory these are the
        private ones: pages of mapped files count as free. Of a device that is declared with its memory nothing is used
        by others. A GPU that cannot be asked without opening it is as it was when it was found.
        """
        used = {}
        for device in self.devices:
            mine = ours.get(device.id, 0)
            if device.id in self._imagined:
                used[device.id] = 0
            elif device.kind is DeviceKind.CPU:
                used[device.id] = used_by_others(device.total_bytes, self._memory.free_bytes(), mine)
            elif (free := self._free_bytes(device)) is not None:
                used[device.id] = used_by_others(device.total_bytes, free, mine)
            else:
                used[device.id] = used_by_others(device.total_bytes, self._last_free.get(device.id, 0), 0)
        return used

    def _free_bytes(self, device: Device) -> int | None:
        """Return what is free of a GPU; None if nobody tells. Integrated ones share main memory."""
        if device.kind is DeviceKind.INTEGRATED:
            return min(device.total_bytes, self._memory.free_bytes())
        address = self._addresses.get(device.id)
        if address is None:
            return None
        if self._nvml is not None and (free := self._nvml.free_bytes(address)) is not None:
            return free
        return self._free_by_driver(device, address)

    def _free_by_driver(self, device: Device, address: str) -> int | None:
        """Return what the kernel's driver says is free. Source: the kernel's gpu/amdgpu/driver-misc.rst."""
        domain, _, rest = address.partition(":")
        try:
            path = self._sys_folder / "bus/pci/devices" / f"{int(domain, 16):04x}:{rest}" / "mem_info_vram_used"
            return device.total_bytes - int(path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None


class MachineMemory:
    """Main memory of the machine, or of the container if that has less."""

    def __init__(self, cgroup: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> None:
        self._folders = [(folder, limit) for folder in _folders(cgroup, membership) if (limit := _limit(folder))]

    def total_bytes(self) -> int:
        """Return what there is."""
        return min([int(psutil.virtual_memory().total), *(limit for _, limit in self._folders)])

    def free_bytes(self) -> int:
        """Return what a process could still get without anybody being swapped out; caches of files are free."""
        free = int(psutil.virtual_memory().available)
        for folder, limit in self._folders:
            used = _read_number(folder, _USAGE_FILES)
            with suppress(OSError):
                if used is not None:
                    used -= reclaimable_bytes((folder / "memory.stat").read_text(encoding="ascii"))
            if used is not None:
                free = min(free, limit - max(0, used))
        return max(0, free)


def _folders(cgroup: Path, membership: Path) -> list[Path]:
    """Return the folders of this process's cgroups that account for memory."""
    try:
        text = membership.read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return []
    return [cgroup / folder for folder in cgroup_folders(text)]


def _limit(folder: Path) -> int | None:
    for name in _LIMIT_FILES:
        try:
            return limit_bytes((folder / name).read_text(encoding="ascii"))
        except OSError:
            continue
    return None


def _read_number(folder: Path, names: Sequence[str]) -> int | None:
    for name in names:
        try:
            return int((folder / name).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
    return None
