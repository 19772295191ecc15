"""From llama.cpp's registry, masks and accounts of memory to devices: every kind of machine, without having it."""

from __future__ import annotations

from typing import Any

import pytest

from router.catalog import DeviceSpec
from router.device import CPU, Device, DeviceKind
from router.device_facts import (
    GPU_HEADROOM_BYTES,
    FoundDevice,
    Inventory,
    cgroup_folders,
    default_headroom,
    found_devices,
    limit_bytes,
    pci_key,
    reclaimable_bytes,
    take_inventory,
    used_by_others,
)

GIB = 2**30
MIB = 2**20

PROCESSOR: dict[str, Any] = {
    "name": "CPU",
    "kind": "cpu",
    "description": "Some Processor",
    "backend": "CPU",
    "free_bytes": 20 * GIB,
    "total_bytes": 64 * GIB,
    "device_id": None,
}


def card(name: str, backend: str, total: int, device_id: str | None = None, kind: str = "gpu") -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "description": f"Card of {name}",
        "backend": backend,
        "free_bytes": total - GIB,
        "total_bytes": total,
        "device_id": device_id,
    }


TWO_CUDA = [
    card("CUDA0", "CUDA", 24 * GIB, "0000:01:00.0"),
    card("CUDA1", "CUDA", 12 * GIB, "0000:41:00.0"),
    {**PROCESSOR, "name": "BLAS", "kind": "accelerator", "backend": "BLAS"},
    PROCESSOR,
]
UUIDS = {pci_key("00000000:01:00.0"): "GPU-aaaa", pci_key("00000000:41:00.0"): "GPU-bbbb"}


def inventory(
    raw: list[dict[str, Any]],
    *declared: DeviceSpec,
    environ: dict[str, str] | None = None,
    uuids: dict[str, str] | None = None,
    memory: int = 64 * GIB,
) -> Inventory:
    return take_inventory(
        found_devices(raw),
        {spec.id: spec for spec in declared},
        cpu=Device(CPU, DeviceKind.CPU, memory, backend="CPU"),
        environ=environ or {},
        uuids=uuids or {},
    )


def test_a_machine_without_gpu_has_its_main_memory() -> None:
    found = inventory([PROCESSOR])
    assert [(device.id, device.kind, device.total_bytes) for device in found.devices] == [
        ("CPU", DeviceKind.CPU, 64 * GIB)
    ]
    assert not found.problems


def test_cuda_cards_come_after_the_cpu_in_their_order_with_their_uuids() -> None:
    found = inventory(TWO_CUDA, uuids=UUIDS)
    assert [device.id for device in found.devices] == ["CPU", "CUDA0", "CUDA1"]
    cpu, first, second = found.devices
    assert (first.kind, first.total_bytes, first.backend) == (DeviceKind.GPU, 24 * GIB, "CUDA")
    assert (first.visible_as, second.visible_as) == ("GPU-aaaa", "GPU-bbbb")
    assert (cpu.visible_as, cpu.is_gpu, first.is_gpu) == ("", False, True)
    assert found.pci_addresses == {"CUDA0": pci_key("0000:01:00.0"), "CUDA1": pci_key("0000:41:00.0")}


def test_without_uuids_cuda_cards_are_known_by_their_number() -> None:
    assert [device.visible_as for device in inventory(TWO_CUDA).devices] == ["", "0", "1"]


@pytest.mark.parametrize(("mask", "expected"), [("3,1", ["3", "1"]), ("GPU-x, GPU-y", ["GPU-x", "GPU-y"])])
def test_an_inherited_mask_keeps_its_order_and_its_words(mask: str, expected: list[str]) -> None:
    found = inventory(TWO_CUDA, environ={"CUDA_VISIBLE_DEVICES": mask})
    assert [device.visible_as for device in found.devices[1:]] == expected


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("MIG-1a,MIG-2b", ["MIG-1a", "MIG-2b"]),
        ("GPU-aa,GPU-bb", ["GPU-aa", "GPU-bb"]),
        ("1,0", ["GPU-aaaa", "GPU-bbbb"]),
    ],
)
def test_a_name_in_a_mask_is_never_widened_to_the_whole_card(mask: str, expected: list[str]) -> None:
    """A slice of a card has its card's address, and so would get the UUID of the whole one."""
    found = inventory(TWO_CUDA, environ={"CUDA_VISIBLE_DEVICES": mask}, uuids=UUIDS)
    assert [device.visible_as for device in found.devices[1:]] == expected


def test_masks_of_one_backend_say_nothing_of_another() -> None:
    raw = [card("ROCm0", "ROCm", 16 * GIB, "0000:03:00.0"), card("ROCm1", "ROCm", 16 * GIB, "0000:04:00.0"), PROCESSOR]
    found = inventory(raw, environ={"HIP_VISIBLE_DEVICES": "2,0", "GGML_VK_VISIBLE_DEVICES": "7,8"}, uuids=UUIDS)
    assert [(device.backend, device.visible_as) for device in found.devices[1:]] == [("ROCm", "2"), ("ROCm", "0")]


def test_rocm_cards_have_no_nvidia_uuid_even_at_the_same_address() -> None:
    found = inventory([card("ROCm0", "ROCm", 16 * GIB, "0000:01:00.0")], uuids=UUIDS)
    assert found.devices[1].visible_as == "0"


def test_vulkan_and_integrated_devices_are_told_apart() -> None:
    raw = [
        card("Vulkan0", "Vulkan", 8 * GIB, "0000:01:00.0"),
        card("Vulkan1", "Vulkan", 30 * GIB, "0000:00:02.0", kind="integrated"),
        PROCESSOR,
    ]
    kinds = {device.id: device.kind for device in inventory(raw).devices}
    assert kinds == {"CPU": DeviceKind.CPU, "Vulkan0": DeviceKind.GPU, "Vulkan1": DeviceKind.INTEGRATED}


def test_metal_uses_main_memory() -> None:
    found = inventory([card("MTL0", "MTL", 48 * GIB), PROCESSOR])
    assert (found.devices[1].id, found.devices[1].kind) == ("MTL0", DeviceKind.INTEGRATED)


def test_a_card_that_two_backends_see_is_there_once() -> None:
    raw = [*TWO_CUDA, card("Vulkan0", "Vulkan", 24 * GIB, "0000:01:00.0")]
    assert [device.id for device in inventory(raw).devices] == ["CPU", "CUDA0", "CUDA1"]


def test_cards_without_addresses_are_all_there() -> None:
    raw = [card("SYCL0", "SYCL", 8 * GIB), card("SYCL1", "SYCL", 8 * GIB)]
    assert [device.id for device in inventory(raw).devices] == ["CPU", "SYCL0", "SYCL1"]


def test_devices_that_tell_no_memory_are_left_out() -> None:
    assert [device.id for device in inventory([card("Vulkan0", "Vulkan", 0)]).devices] == ["CPU"]


# --- what is configured --------------------------------------------------------------------------------------


def test_configured_bounds_hold_whatever_case_the_id_is_written_in() -> None:
    found = inventory(
        TWO_CUDA,
        DeviceSpec("cuda1", budget_bytes=4 * GIB, headroom_bytes=1 * GIB, prefer=5),
        DeviceSpec("cpu", budget_bytes=8 * GIB),
    )
    cpu, first, second = found.devices
    assert (second.id, second.budget_bytes, second.headroom_bytes, second.prefer) == ("CUDA1", 4 * GIB, GIB, 5)
    assert (cpu.budget_bytes, cpu.usable_bytes) == (8 * GIB, 8 * GIB)
    assert (first.budget_bytes, first.prefer) == (None, 0)
    assert not any(device.is_declared for device in found.devices)


def test_a_device_that_is_not_there_can_be_declared() -> None:
    found = inventory([PROCESSOR], DeviceSpec("gpu0", memory_bytes=24 * GIB, headroom_bytes=0))
    device = found.devices[1]
    assert (device.id, device.kind, device.total_bytes, device.is_declared) == ("gpu0", DeviceKind.GPU, 24 * GIB, True)
    assert device.usable_bytes == 24 * GIB


def test_declared_memory_wins_over_what_is_found() -> None:
    found = inventory(TWO_CUDA, DeviceSpec("CUDA0", memory_bytes=2 * GIB), DeviceSpec("CPU", memory_bytes=3 * GIB))
    assert [device.total_bytes for device in found.devices] == [3 * GIB, 2 * GIB, 12 * GIB]
    assert not any(device.is_declared for device in found.devices)


def test_bounds_of_an_unknown_device_are_a_problem_that_names_the_known_ones() -> None:
    found = inventory(TWO_CUDA, DeviceSpec("CUDA7", budget_bytes=GIB))
    assert [device.id for device in found.devices] == ["CPU", "CUDA0", "CUDA1"]
    (problem,) = found.problems
    assert problem.where == "devices.CUDA7"
    for word in ("`CUDA7`", "`CPU`", "`CUDA0` (Card of CUDA0)", "`CUDA1`", "`memory`"):
        assert word in problem.message


def test_main_memory_cannot_be_declared_a_second_time() -> None:
    found = inventory([PROCESSOR], DeviceSpec("RAM", memory_bytes=GIB, kind="cpu"))
    assert [device.id for device in found.devices] == ["CPU"]
    assert "`CPU`" in found.problems[0].message


@pytest.mark.parametrize(
    ("kind", "total", "headroom"),
    [
        (DeviceKind.CPU, 16 * GIB, 16 * GIB // 20),
        (DeviceKind.CPU, 256 * GIB, 2 * GIB),
        (DeviceKind.CPU, 2 * GIB, 256 * MIB),
        (DeviceKind.CPU, 500 * MIB, 100 * MIB),
        (DeviceKind.GPU, 24 * GIB, GPU_HEADROOM_BYTES),
        (DeviceKind.GPU, 1000 * MIB, 200 * MIB),
        (DeviceKind.INTEGRATED, 24 * GIB, GPU_HEADROOM_BYTES),
    ],
)
def test_default_headroom_suits_the_size(kind: DeviceKind, total: int, headroom: int) -> None:
    assert default_headroom(Device("x", kind, total)) == headroom


def test_every_device_has_a_headroom() -> None:
    assert all(device.headroom_bytes > 0 for device in inventory(TWO_CUDA, DeviceSpec("CUDA0", prefer=1)).devices)


@pytest.mark.parametrize("raw", [None, {}, [1], [{"name": "CPU"}], [{**PROCESSOR, "more": 1}]])
def test_answers_that_are_none_are_refused(raw: object) -> None:
    with pytest.raises(ValueError, match="device"):
        found_devices(raw)


def test_a_probes_answer_becomes_records() -> None:
    assert found_devices([PROCESSOR])[0] == FoundDevice("CPU", "cpu", "Some Processor", "CPU", 20 * GIB, 64 * GIB, None)


@pytest.mark.parametrize(
    ("one", "other"),
    [("0000:c1:00.0", "00000000:C1:00.0"), ("0001:02:1f.3", "00000001:02:1F.3"), (" 0000:01:00.0 ", "0:01:00.0")],
)
def test_pci_addresses_are_the_same_in_every_spelling(one: str, other: str) -> None:
    assert pci_key(one) == pci_key(other)


@pytest.mark.parametrize("odd", ["", "nonsense", "a:b", "::", "zz:01:00.0"])
def test_odd_addresses_are_no_error(odd: str) -> None:
    assert isinstance(pci_key(odd), str)


# --- accounts of memory --------------------------------------------------------------------------------------

STAT_V1 = """cache 11411456
rss 12926976
inactive_file 266240
active_file 2076672
hierarchical_memory_limit 9223372036854771712
total_cache 916054016
total_inactive_file 391950336
total_active_file 515035136
"""
STAT_V2 = """anon 905003008
file 916054016
shmem 9068544
inactive_file 391950336
active_file 515035136
slab_reclaimable 1000
slab_unreclaimable 5000
"""


def test_only_file_caches_can_be_taken_back() -> None:
    assert reclaimable_bytes(STAT_V1) == 391950336 + 515035136
    assert reclaimable_bytes(STAT_V2) == 391950336 + 515035136 + 1000
    assert reclaimable_bytes("") == 0
    assert reclaimable_bytes("active_file many\nnonsense\ninactive_file 5") == 5


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max\n", None), ("1048576\n", 2**20), ("9223372036854771712\n", None), ("", None), ("-1", None)],
)
def test_limits_of_both_versions_of_cgroups_are_read(text: str, limit: int | None) -> None:
    assert limit_bytes(text) == limit


def test_folders_of_a_service_lead_from_its_own_to_the_top() -> None:
    assert cgroup_folders("0::/system.slice/corral.service\n") == (
        "system.slice/corral.service",
        "system.slice",
        "",
        "memory",
    )


def test_folders_of_the_first_version_are_those_of_the_memory_controller() -> None:
    text = "9:name=systemd:/\n5:cpu,cpuacct:/other\n4:memory:/docker/abc\n0::/\n"
    assert cgroup_folders(text) == ("memory/docker/abc", "memory/docker", "memory", "")


def test_folders_never_lead_out_of_the_hierarchy() -> None:
    assert cgroup_folders("0::/../../etc\nnonsense\n") == ("etc", "", "memory")


@pytest.mark.parametrize(
    ("total", "free", "ours", "others"),
    [(100, 30, 50, 20), (100, 60, 50, 0), (100, 100, 0, 0), (100, -5, 0, 100), (100, 30, -5, 70), (100, 200, 0, 0)],
)
def test_others_use_what_is_neither_free_nor_ours(total: int, free: int, ours: int, others: int) -> None:
    assert used_by_others(total, free, ours) == others
