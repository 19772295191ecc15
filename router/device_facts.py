"""From what a machine says of itself to devices: llama.cpp's registry, masks of visible devices, memory accounts.

Owns the reading of those texts and lists, and the defaults of devices. Must not ask the system: `devices.py` does.

Source: ggml-backend.h for the registry; the CUDA programming guide, HIP's documentation and ggml-vulkan.cpp for the
variables of visible devices; the kernel's admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst for accounts of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from router.catalog import DeviceSpec
from router.catalog_problems import Problem
from router.device import CPU, Device, DeviceKind

GPU_HEADROOM_BYTES: Final = 512 * 2**20
_CPU_HEADROOM = (256 * 2**20, 2 * 2**30)

_KINDS: Final[Mapping[str, DeviceKind]] = {"gpu": DeviceKind.GPU, "integrated": DeviceKind.INTEGRATED}

_MASKS: Final[Mapping[str, tuple[str, ...]]] = {
    "CUDA": ("CUDA_VISIBLE_DEVICES",),
    "ROCm": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "Vulkan": ("GGML_VK_VISIBLE_DEVICES",),
}
"""By backend: the variables that say which devices a process sees, the one that wins first."""

_UNIFIED = ("MTL", "Metal")
"""Backends whose devices use main memory though their registry calls them GPUs."""

_RECLAIMABLE_V2 = ("active_file", "inactive_file", "slab_reclaimable")
_RECLAIMABLE_V1 = ("total_active_file", "total_inactive_file")


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """One device of llama.cpp's registry, as the probe has seen it."""

    name: str
    kind: str
    """`cpu`, `gpu`, `integrated`, `accelerator` or `other`."""
    description: str = ""
    backend: str = ""
    free_bytes: int = 0
    total_bytes: int = 0
    device_id: str | None = None
    """Its PCI address, where the backend tells it."""


def found_devices(raw: object) -> tuple[FoundDevice, ...]:
    """Return the probe's answer as records. Raises: ValueError when it is not one."""
    if not isinstance(raw, list):
        raise ValueError("a list of devices is expected")
    try:
        return tuple(FoundDevice(**one) for one in raw)
    except TypeError as error:
        raise ValueError(f"not a device: {error}") from None


@dataclass(frozen=True, slots=True)
class Inventory:
    """The devices that there are, and what is wrong with the configured ones."""

    devices: tuple[Device, ...]
    problems: tuple[Problem, ...] = ()
    pci_addresses: Mapping[str, str] = field(default_factory=dict)
    """By device id, of those found that have one."""


def take_inventory(
    found: Iterable[FoundDevice],
    declared: Mapping[str, DeviceSpec],
    *,
    cpu: Device,
    environ: Mapping[str, str],
    uuids: Mapping[str, str],
) -> Inventory:
    """Return all devices: the CPU first, then those found in llama.cpp's order, then those declared only.

    `cpu`: the machine with its memory; `uuids`: of NVIDIA cards, by `pci_key`.
    """
    gpus = list(_gpus(found, environ, uuids))
    by_id = {device.id.casefold(): device for device in (cpu, *(device for device, _ in gpus))}
    specs: dict[str, DeviceSpec] = {}
    problems = []
    for id_, spec in declared.items():
        key = id_.casefold()
        if key not in by_id and spec.memory_bytes is None:
            problems.append(Problem(f"devices.{id_}", _no_such_device(id_, by_id.values())))
        elif key not in by_id and spec.kind == DeviceKind.CPU:
            problems.append(Problem(f"devices.{id_}", f"main memory is the device `{CPU}`: give it its `memory` there"))
        else:
            specs[key] = spec
            by_id.setdefault(key, Device(id_, DeviceKind.GPU, 0, description="declared", is_declared=True))
    devices = tuple(_configured(device, specs.get(key)) for key, device in by_id.items())
    addresses = {device.id: address for device, address in gpus if address is not None}
    return Inventory(devices, tuple(problems), addresses)


def _gpus(
    found: Iterable[FoundDevice], environ: Mapping[str, str], uuids: Mapping[str, str]
) -> Iterable[tuple[Device, str | None]]:
    """Yield GPUs with their PCI addresses; a card that two backends see is there once, as the first one's."""
    seen = set()
    for one in found:
        if one.kind not in _KINDS or one.total_bytes <= 0:
            continue
        address = None if one.device_id is None else pci_key(one.device_id)
        if address is not None and address in seen:
            continue
        seen.add(address)
        kind = DeviceKind.INTEGRATED if one.backend in _UNIFIED else _KINDS[one.kind]
        device = Device(
            one.name,
            kind,
            one.total_bytes,
            description=one.description,
            backend=one.backend,
            visible_as=_visible_as(one, environ, uuids.get(address or "")),
        )
        yield device, address


def _configured(device: Device, spec: DeviceSpec | None) -> Device:
    """Return the device with what is configured of it, and defaults for the rest."""
    if spec is None:
        return replace(device, headroom_bytes=default_headroom(device))
    if spec.memory_bytes is not None:
        device = replace(device, total_bytes=spec.memory_bytes)
    headroom = default_headroom(device) if spec.headroom_bytes is None else spec.headroom_bytes
    return replace(device, headroom_bytes=headroom, budget_bytes=spec.budget_bytes, prefer=spec.prefer)


def default_headroom(device: Device) -> int:
    """Return what is kept free of a device unless it is configured; never more than a fifth of it."""
    least, most = _CPU_HEADROOM
    wanted = GPU_HEADROOM_BYTES if device.is_gpu else min(max(device.total_bytes // 20, least), most)
    return min(wanted, device.total_bytes // 5)


def _no_such_device(id_: str, there: Iterable[Device]) -> str:
    names = ", ".join(
        f"`{device.id}` ({device.description})" if device.description else f"`{device.id}`" for device in there
    )
    return f"there is no device `{id_}`; there are: {names}. To declare one that is not there, give its `memory`"


# --- which devices a process sees --------------------------------------------------------------------------


def inherited_mask(backend: str, environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the entries of the backend's variable of visible devices; None = all devices are visible."""
    for name in _MASKS.get(backend, ()):
        if environ.get(name):
            return tuple(entry.strip() for entry in environ[name].split(",") if entry.strip())
    return None


def _visible_as(one: FoundDevice, environ: Mapping[str, str], uuid: str | None) -> str:
    """Return what the backend's variable calls the device: a name in an inherited mask, its UUID, or its number.

    Devices are numbered in the mask's order, so that the mask's entry number n is the device number n.
    """
    digits = one.name[len(one.name.rstrip("0123456789")) :]
    mask = inherited_mask(one.backend, environ)
    entry = mask[int(digits)] if mask is not None and digits and int(digits) < len(mask) else None
    if entry is not None and not entry.isdecimal():
        return entry  # a part of a card, maybe, whose whole the UUID would show
    if uuid is not None and one.backend == "CUDA":
        return uuid
    return digits if entry is None else entry


def pci_key(address: str) -> str:
    """Return a PCI address in one form, whoever wrote it: NVML writes longer domains and capital letters."""
    domain, _, rest = address.strip().lower().rpartition(":")
    domain, _, bus = domain.rpartition(":")
    return f"{int(domain or '0', 16):x}:{bus}:{rest}" if _is_hex(domain or "0") else address.strip().lower()


def _is_hex(text: str) -> bool:
    return all(digit in "0123456789abcdef" for digit in text)


# --- accounts of memory ------------------------------------------------------------------------------------


def cgroup_folders(membership: str) -> tuple[str, ...]:
    """Return the folders below /sys/fs/cgroup that may hold this process's account of memory, the closest first.

    `membership`: the text of /proc/self/cgroup. Inside a container the paths in it may not exist: then the top folder
    is the container's own.
    """
    folders = []
    for line in membership.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            base = ""
        elif "memory" in controllers.split(","):
            base = "memory/"
        else:
            continue
        steps = [step for step in path.split("/") if step and step != ".."]
        folders += [base + "/".join(steps[:length]) for length in range(len(steps), -1, -1)]
    return tuple(dict.fromkeys(folder.rstrip("/") for folder in (*folders, "", "memory")))


def limit_bytes(text: str) -> int | None:
    """Return the limit of a cgroup's file; None = there is none."""
    try:
        limit = int(text)
    except ValueError:  # "max"
        return None
    return limit if 0 < limit < 2**60 else None  # version 1 writes a huge number for "none"


def reclaimable_bytes(memory_stat: str) -> int:
    """Return how much of a cgroup's memory the kernel can take back at once: the cache of files."""
    values: dict[str, int] = {}
    for line in memory_stat.splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdecimal():
            values[name] = int(value)
    names = _RECLAIMABLE_V1 if _RECLAIMABLE_V1[0] in values else _RECLAIMABLE_V2
    return sum(values.get(name, 0) for name in names)


def used_by_others(total_bytes: int, free_bytes: int, ours_bytes: int) -> int:
    """Return what is neither free nor ours."""
    return max(0, total_bytes - max(0, free_bytes) - max(0, ours_bytes))
