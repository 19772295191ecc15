"""Whether the GPUs of this machine are used, and if not, why: from the signs of them and from llama.cpp's build.

Owns the reasoning and the commands that help. Pure: `gpu_signs.py` looks at the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from router.doctor.findings import Finding, fail, ok, warn

Rebuild = Callable[[str], str]
"""The command that builds llama.cpp with options for CMake."""


class Vendor(StrEnum):
    """Who made a GPU."""

    NVIDIA = "NVIDIA"
    AMD = "AMD"
    INTEL = "Intel"
    APPLE = "Apple"


@dataclass(frozen=True, slots=True)
class GpuSigns:
    """What a machine tells of its GPUs without opening one."""

    vendors: frozenset[Vendor] = frozenset()
    """Of the display and compute controllers that are built in."""
    nvidia_driver: str | None = None
    """Version of the kernel's driver; None = it is not loaded."""
    nvidia_cards: tuple[str, ...] = ()
    """As nvidia-smi names them."""
    nvidia_smi_error: str | None = None
    """Why nvidia-smi failed, if it is there and did."""
    closed_nodes: tuple[str, ...] = ()
    """Device files that this user may not open."""
    has_kfd: bool = False
    """AMD's compute driver is loaded."""
    has_render_node: bool = False
    has_vulkan_loader: bool = False
    tools: frozenset[str] = frozenset()
    """Compilers that builds for GPUs need, of those that are on the PATH: nvcc, hipcc, glslc."""
    is_container: bool = False
    masks: tuple[str, ...] = ()
    """Variables of the environment that hide devices, as NAME=VALUE."""

    @property
    def has_nvidia(self) -> bool:
        """There is a card of NVIDIA's, by whatever sign."""
        return bool(self.nvidia_cards) or self.nvidia_driver is not None or Vendor.NVIDIA in self.vendors


_CUDA = "-DGGML_CUDA=on"
_HIP = "-DGGML_HIP=on"
_VULKAN = "-DGGML_VULKAN=on"
_METAL = "-DGGML_METAL=on"


def judge_gpus(signs: GpuSigns, backends: Sequence[str], seen: Sequence[str], rebuild: Rebuild) -> list[Finding]:
    """Return what there is to say of GPUs. `seen`: those that llama.cpp lists, `backends`: what its build has."""
    findings = [*_closed(signs, is_seen=bool(seen))]
    if seen:
        findings.append(ok(f"llama.cpp sees {', '.join(seen)}"))
        if signs.has_nvidia and "CUDA" not in backends and "Vulkan" in backends:
            findings.append(warn("an NVIDIA card is used through Vulkan; CUDA is faster:", rebuild(_CUDA)))
        return findings
    built = frozenset(backends)
    found: list[Finding] = []
    if signs.has_nvidia:
        found += _nvidia(signs, built, rebuild)
    if Vendor.APPLE in signs.vendors:
        found += _apple(built, rebuild)
    if Vendor.AMD in signs.vendors or signs.has_kfd:
        found += _amd(signs, built, rebuild)
    if Vendor.INTEL in signs.vendors and not found:
        found += _intel(signs, built, rebuild)
    if not found:
        gpu_backends = sorted(built - {"CPU", "BLAS", "RPC"})
        if gpu_backends:
            found.append(
                warn(
                    f"the build has {', '.join(gpu_backends)}, but no GPU is seen; models run on the CPU",
                    *_hidden(signs),
                )
            )
        else:
            found.append(ok("no GPU is there; models run on the CPU"))
    return findings + found


def _closed(signs: GpuSigns, *, is_seen: bool) -> Iterator[Finding]:
    # A GPU that is seen does without the nodes for drawing: CUDA opens none of them.
    closed = [node for node in signs.closed_nodes if not (is_seen and node.startswith("/dev/dri/"))]
    if closed:
        names = ", ".join(closed)
        yield warn(
            f"this user may not open {names}, so that GPU cannot be used",
            "$ sudo usermod -aG video,render $USER",
            "then log in anew; a service needs SupplementaryGroups=video render, a container the device and its group",
        )


def _nvidia(signs: GpuSigns, built: frozenset[str], rebuild: Rebuild) -> Iterator[Finding]:
    cards = ", ".join(signs.nvidia_cards) or "an NVIDIA card"
    if signs.nvidia_driver is None and not signs.nvidia_cards:
        where = (
            "the container was not given it: run it with `--gpus all` (the NVIDIA Container Toolkit must be installed)"
            if signs.is_container
            else "install NVIDIA's driver (on Debian and Ubuntu: the package nvidia-driver) and restart the machine"
        )
        yield warn("there is an NVIDIA card, but its driver is not loaded; models run on the CPU", where)
        return
    if signs.nvidia_smi_error is not None:
        yield warn(
            f"the NVIDIA driver does not work: nvidia-smi says {signs.nvidia_smi_error}",
            "after an update of the driver the machine has to be restarted",
        )
        return
    if "CUDA" in built:
        yield fail(
            f"{cards} is there and llama.cpp was built for CUDA, but does not see it",
            *_hidden(signs),
            "the driver may be older than the CUDA release that llama.cpp was built with: `nvidia-smi` shows the "
            "newest one that it can run",
        )
        return
    if "Vulkan" in built:
        yield warn(f"{cards} is there, but the Vulkan build does not see it; for CUDA:", rebuild(_CUDA))
        return
    toolkit = () if "nvcc" in signs.tools else ("install the CUDA toolkit first: `nvcc` is not on the PATH",)
    yield warn(
        f"{cards} is there, but llama.cpp was built without CUDA; models run on the CPU", *toolkit, rebuild(_CUDA)
    )


def _amd(signs: GpuSigns, built: frozenset[str], rebuild: Rebuild) -> Iterator[Finding]:
    if "ROCm" in built or "HIP" in built:
        yield fail(
            "an AMD GPU is there and llama.cpp was built for ROCm, but does not see it",
            *_hidden(signs),
            *(
                ()
                if signs.has_kfd
                else ("/dev/kfd is missing: load the kernel module amdgpu, or give it to the container",)
            ),
            "a GPU that ROCm does not support may work with HSA_OVERRIDE_GFX_VERSION, or with Vulkan:",
            rebuild(_VULKAN),
        )
        return
    if "Vulkan" in built:
        yield warn("an AMD GPU is there, but the Vulkan build does not see it", "$ vulkaninfo --summary")
        return
    if signs.has_kfd:
        first = () if "hipcc" in signs.tools else ("install ROCm first: `hipcc` is not on the PATH",)
        yield warn(
            "an AMD GPU is there, but llama.cpp was built without ROCm; models run on the CPU", *first, rebuild(_HIP)
        )
        return
    yield warn(
        "an AMD GPU is there, but llama.cpp was built without Vulkan; models run on the CPU",
        *_vulkan_first(signs),
        rebuild(_VULKAN),
    )


def _intel(signs: GpuSigns, built: frozenset[str], rebuild: Rebuild) -> Iterator[Finding]:
    if built & {"Vulkan", "SYCL"}:
        yield warn("an Intel GPU is there, but llama.cpp's build does not see it", "$ vulkaninfo --summary")
        return
    yield ok("an Intel GPU is there, which the build does not use: integrated ones are rarely faster than the CPU")


def _apple(built: frozenset[str], rebuild: Rebuild) -> Iterator[Finding]:
    if built & {"Metal", "MTL"}:
        yield fail("llama.cpp was built for Metal, but does not see the GPU", "virtual machines have no Metal")
        return
    yield warn("llama.cpp was built without Metal; models run on the CPU", "$ xcode-select --install", rebuild(_METAL))


def _vulkan_first(signs: GpuSigns) -> tuple[str, ...]:
    missing = [] if signs.has_vulkan_loader else ["libvulkan-dev"]
    missing += [] if "glslc" in signs.tools else ["glslc"]
    return (f"$ apt install {' '.join(missing)} mesa-vulkan-drivers",) if missing else ()


def _hidden(signs: GpuSigns) -> tuple[str, ...]:
    return tuple(f"{mask} in the environment may hide it" for mask in signs.masks)
