"""Why a GPU is not used follows from its signs and from the build, and each reason comes with what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from router.doctor.findings import Finding, Level
from router.doctor.gpu_signs import find_gpu_signs
from router.doctor.gpus import GpuSigns, Vendor, judge_gpus

NVIDIA = GpuSigns(
    vendors=frozenset({Vendor.NVIDIA}), nvidia_driver="570.1", nvidia_cards=("H200",), tools=frozenset({"nvcc"})
)
AMD = GpuSigns(vendors=frozenset({Vendor.AMD}), has_kfd=True, tools=frozenset({"hipcc"}))
APPLE = GpuSigns(vendors=frozenset({Vendor.APPLE}))


def rebuild(options: str) -> str:
    return f"$ build {options}"


def judged(signs: GpuSigns, *backends: str, seen: tuple[str, ...] = ()) -> Finding:
    (finding,) = judge_gpus(signs, ("CPU", *backends), seen, rebuild)
    return finding


@pytest.mark.parametrize(
    ("signs", "backends", "level", "advice"),
    [
        (NVIDIA, (), Level.WARN, "$ build -DGGML_CUDA=on"),
        (NVIDIA, ("Vulkan",), Level.WARN, "$ build -DGGML_CUDA=on"),
        (
            replace(NVIDIA, tools=frozenset()),
            (),
            Level.WARN,
            "install the CUDA toolkit first: `nvcc` is not on the PATH",
        ),
        (AMD, (), Level.WARN, "$ build -DGGML_HIP=on"),
        (replace(AMD, tools=frozenset()), (), Level.WARN, "install ROCm first: `hipcc` is not on the PATH"),
        (replace(AMD, has_kfd=False), (), Level.WARN, "$ build -DGGML_VULKAN=on"),
        (replace(AMD, has_kfd=False), (), Level.WARN, "$ apt install libvulkan-dev glslc mesa-vulkan-drivers"),
        (AMD, ("ROCm",), Level.FAIL, "$ build -DGGML_VULKAN=on"),
        (APPLE, (), Level.WARN, "$ build -DGGML_METAL=on"),
        (APPLE, ("Metal",), Level.FAIL, "virtual machines have no Metal"),
    ],
)
def test_reason_comes_with_the_command_that_helps(
    signs: GpuSigns, backends: tuple[str, ...], level: Level, advice: str
) -> None:
    finding = judged(signs, *backends)
    assert finding.level is level
    assert advice in finding.advice


def test_card_that_a_cuda_build_does_not_see_is_a_failure_and_the_mask_is_named() -> None:
    finding = judged(replace(NVIDIA, masks=("CUDA_VISIBLE_DEVICES=-1",)), "CUDA")
    assert finding.level is Level.FAIL
    assert "CUDA_VISIBLE_DEVICES=-1" in finding.advice[0]


@pytest.mark.parametrize(("is_container", "words"), [(True, "--gpus all"), (False, "install NVIDIA's driver")])
def test_card_without_a_driver_is_told_by_where_it_is(is_container: bool, words: str) -> None:
    signs = GpuSigns(vendors=frozenset({Vendor.NVIDIA}), is_container=is_container)
    finding = judged(signs, "CUDA")
    assert "driver is not loaded" in finding.text
    assert words in finding.advice[0]


def test_broken_driver_is_told_in_its_own_words() -> None:
    signs = replace(NVIDIA, nvidia_cards=(), nvidia_smi_error="Driver/library version mismatch")
    assert "version mismatch" in judged(signs).text


def test_gpu_that_is_seen_is_fine() -> None:
    assert judged(NVIDIA, "CUDA", seen=("CUDA0",)) == Finding(Level.OK, "llama.cpp sees CUDA0")


def test_nvidia_card_behind_vulkan_could_be_faster() -> None:
    found = judge_gpus(NVIDIA, ("CPU", "Vulkan"), ("Vulkan0",), rebuild)
    assert [finding.level for finding in found] == [Level.OK, Level.WARN]


def test_device_file_that_may_not_be_opened_is_told_even_where_a_gpu_is_seen() -> None:
    signs = replace(NVIDIA, closed_nodes=("/dev/nvidia1",))
    first, *_ = judge_gpus(signs, ("CPU", "CUDA"), ("CUDA0",), rebuild)
    assert "/dev/nvidia1" in first.text
    assert "usermod" in first.advice[0]


def test_machine_without_a_gpu_is_fine_unless_the_build_is_for_one() -> None:
    assert judged(GpuSigns()).level is Level.OK
    assert judged(GpuSigns(), "CUDA").level is Level.WARN
    assert judged(GpuSigns(vendors=frozenset({Vendor.INTEL}))).level is Level.OK


def test_signs_are_read_from_the_file_system(tmp_path: Path) -> None:
    for name, kind, vendor in (("a", "0x030000", "0x10de"), ("b", "0x120000", "0x1002"), ("c", "0x020000", "0x8086")):
        folder = tmp_path / "sys/bus/pci/devices" / name
        folder.mkdir(parents=True)
        (folder / "class").write_text(f"{kind}\n", encoding="ascii")
        (folder / "vendor").write_text(f"{vendor}\n", encoding="ascii")
    driver = tmp_path / "proc/driver/nvidia/version"
    driver.parent.mkdir(parents=True)
    driver.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release\n", encoding="ascii")
    (tmp_path / "dev/dri").mkdir(parents=True)
    for name in ("dev/kfd", "dev/dri/renderD128", ".dockerenv"):
        (tmp_path / name).touch()
    signs = find_gpu_signs({"CUDA_VISIBLE_DEVICES": "1"}, tmp_path)
    assert signs.vendors == {Vendor.NVIDIA, Vendor.AMD}, "a network card of Intel's is no GPU"
    assert signs.nvidia_driver == "570.86.15"
    assert (signs.has_kfd, signs.has_render_node, signs.is_container) == (True, True, True)
    assert signs.masks == ("CUDA_VISIBLE_DEVICES=1",)
    assert signs.closed_nodes == ()


def test_empty_machine_has_no_signs(tmp_path: Path) -> None:
    signs = find_gpu_signs({}, tmp_path)
    assert (signs.has_kfd, signs.has_render_node, signs.nvidia_driver) == (False, False, None)
    assert signs.vendors <= {Vendor.APPLE}


def test_nodes_for_drawing_do_not_matter_where_a_gpu_is_seen() -> None:
    signs = replace(NVIDIA, closed_nodes=("/dev/dri/renderD128",))
    assert [one.level for one in judge_gpus(signs, ("CPU", "CUDA"), ("CUDA0",), rebuild)] == [Level.OK]
    assert (
        "/dev/dri/renderD128"
        in judge_gpus(replace(AMD, closed_nodes=signs.closed_nodes), ("ROCm",), (), rebuild)[0].text
    )
