"""The signs of GPUs on this machine: drivers, device files, controllers on the bus, compilers.

Owns looking at them, without opening a GPU. Must not judge: `gpus.py` does.

Source: the kernel's sysfs-bus-pci for classes and vendors; /proc/driver/nvidia/version of NVIDIA's driver; amdgpu's
/dev/kfd.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from router.doctor.gpus import GpuSigns, Vendor

_VENDORS: Final[Mapping[str, Vendor]] = {"0x10de": Vendor.NVIDIA, "0x1002": Vendor.AMD, "0x8086": Vendor.INTEL}
_DISPLAY_CLASSES: Final = ("0x03", "0x12")
"""Display controllers, and processing accelerators such as NVIDIA's and AMD's compute cards."""
_MASKS: Final = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GGML_VK_VISIBLE_DEVICES",
)
_TOOLS: Final = ("nvcc", "hipcc", "glslc")
_SMI_S: Final = 3.0
_DRIVER = re.compile(r"Kernel Module(?: for \S+)?\s+(\d[\d.]*)")


def find_gpu_signs(environ: Mapping[str, str], root: Path = Path("/")) -> GpuSigns:
    """Return what there is to see. `root`: of the file system, for tests."""
    cards, smi_error = _nvidia_smi()
    return GpuSigns(
        vendors=frozenset(_vendors(root)),
        nvidia_driver=_nvidia_driver(root),
        nvidia_cards=cards,
        nvidia_smi_error=smi_error,
        closed_nodes=tuple(str(path) for path in _nodes(root) if not os.access(path, os.R_OK | os.W_OK)),
        has_kfd=(root / "dev/kfd").exists(),
        has_render_node=any((root / "dev/dri").glob("renderD*")),
        has_vulkan_loader=ctypes.util.find_library("vulkan") is not None,
        tools=frozenset(name for name in _TOOLS if _has_tool(name)),
        is_container=any((root / name).exists() for name in (".dockerenv", "run/.containerenv")),
        masks=tuple(f"{name}={environ[name]}" for name in _MASKS if name in environ),
    )


def _vendors(root: Path) -> Iterator[Vendor]:
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        yield Vendor.APPLE
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        with contextlib.suppress(OSError):
            if not (folder / "class").read_text(encoding="ascii").startswith(_DISPLAY_CLASSES):
                continue
            vendor = _VENDORS.get((folder / "vendor").read_text(encoding="ascii").strip())
            if vendor is not None:
                yield vendor


def _nvidia_driver(root: Path) -> str | None:
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "of WSL" if (root / "dev/dxg").exists() and shutil.which("nvidia-smi") else None
    match = _DRIVER.search(text)
    return match[1] if match else "unknown"


def _nvidia_smi() -> tuple[tuple[str, ...], str | None]:
    """Return the cards' names, and why nvidia-smi failed if it is there and did."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return (), None
    words = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, timeout=_SMI_S, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return (), f"nothing within {_SMI_S:.0f} s"
    except OSError as error:
        return (), error.strerror
    lines = [line.strip() for line in done.stdout.decode("utf-8", "replace").splitlines() if line.strip()]
    if done.returncode != 0:
        return (), lines[0] if lines else f"nothing (status {done.returncode})"
    return tuple(lines), None


def _nodes(root: Path) -> Iterator[Path]:
    """Yield the device files that computing on a GPU opens."""
    yield from sorted((root / "dev").glob("nvidia[0-9]*"))
    yield from (path for path in (root / "dev/nvidiactl", root / "dev/nvidia-uvm", root / "dev/kfd") if path.exists())
    yield from sorted((root / "dev/dri").glob("renderD*"))


def _has_tool(name: str) -> bool:
    return shutil.which(name) is not None or (name == "nvcc" and Path("/usr/local/cuda/bin/nvcc").exists())
