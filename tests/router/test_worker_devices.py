"""A worker sees the GPUs of its placement and no others, is told what to load where, and is checked afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from router.device import Device, DeviceKind, Placement
from router.launch import worker_environment
from router.worker_devices import device_options, device_variables, find_mismatch, name_inside, status_outside
from worker.contract import ModelFacts, Phase, WorkerStatus

GIB = 2**30
CPU = Device("CPU", DeviceKind.CPU, 64 * GIB, backend="CPU")
CUDA = [
    Device(f"CUDA{i}", DeviceKind.GPU, 24 * GIB, backend="CUDA", visible_as=f"GPU-{uuid}")
    for i, uuid in enumerate(("aaaa", "bbbb", "cccc"))
]
DECLARED = Device("big", DeviceKind.GPU, 80 * GIB, is_declared=True)
FACTS = ModelFacts(
    context=1, slots=1, kv_cells=1, trained_context=1, num_params=1, size_bytes=1, num_vocab=1, description="",
    has_chat_template=False, device="cpu", gpu_layers=0, total_layers=25,
)  # fmt: skip


def machine(*devices: Device) -> dict[str, Device]:
    return {device.id: device for device in (CPU, *devices)}


def on(*gpus: str, **more: Any) -> Placement:
    return Placement(reserved=dict.fromkeys(gpus or ("CPU",), GIB), gpus=gpus, **more)


# --- what it sees -----------------------------------------------------------------------------------------


def test_a_worker_sees_the_gpus_of_its_placement_by_uuid_and_in_its_order() -> None:
    variables = device_variables(on("CUDA2", "CUDA0"), machine(*CUDA))
    assert variables == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "GPU-cccc,GPU-aaaa"}


def test_a_mask_that_the_router_itself_was_given_is_narrowed_and_never_widened() -> None:
    inherited = {"CUDA_VISIBLE_DEVICES": "GPU-cccc,GPU-bbbb", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    seen = machine(replace(CUDA[0], visible_as="GPU-cccc"), replace(CUDA[1], visible_as="GPU-bbbb"))
    env = worker_environment(inherited, {}, on("CUDA0"), seen)
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("GPU-cccc", "PCI_BUS_ID")


def test_without_any_decision_a_worker_sees_what_the_router_sees() -> None:
    env = worker_environment({"CUDA_VISIBLE_DEVICES": "1,0"}, {}, Placement(), machine(*CUDA))
    assert env["CUDA_VISIBLE_DEVICES"] == "1,0"


def test_the_models_own_env_has_the_last_word() -> None:
    env = worker_environment({}, {"CUDA_VISIBLE_DEVICES": "7"}, on("CUDA0"), machine(*CUDA))
    assert env["CUDA_VISIBLE_DEVICES"] == "7"


@pytest.mark.parametrize(
    ("backend", "names", "variables"),
    [
        ("ROCm", ("1", "0"), {"HIP_VISIBLE_DEVICES": "1,0"}),
        (
            "ROCm",
            ("GPU-1a", "GPU-2b"),
            {"ROCR_VISIBLE_DEVICES": "GPU-1a,GPU-2b", "HIP_VISIBLE_DEVICES": "0,1"},
        ),
        ("Vulkan", ("1", "0"), {"GGML_VK_VISIBLE_DEVICES": "1,0"}),
        ("SYCL", ("1", "0"), {"ONEAPI_DEVICE_SELECTOR": "level_zero:1,0"}),
        ("Metal", ("x", "y"), {}),
        ("CUDA", ("", "GPU-b"), {}),
    ],
)
def test_each_backend_has_its_own_variable(backend: str, names: tuple[str, ...], variables: dict[str, str]) -> None:
    gpus = [Device(f"D{i}", DeviceKind.GPU, GIB, backend=backend, visible_as=name) for i, name in enumerate(names)]
    assert device_variables(on("D0", "D1"), machine(*gpus)) == variables


def test_a_worker_on_the_cpu_sees_no_gpu_so_that_it_opens_no_context_there() -> None:
    vulkan = Device("Vulkan0", DeviceKind.GPU, GIB, backend="Vulkan", visible_as="0")
    rocm = Device("ROCm0", DeviceKind.GPU, GIB, backend="ROCm", visible_as="0")
    env = worker_environment({"CUDA_VISIBLE_DEVICES": "0"}, {}, on(), machine(*CUDA, vulkan, rocm))
    assert (env["CUDA_VISIBLE_DEVICES"], env["GGML_VK_VISIBLE_DEVICES"], env["HIP_VISIBLE_DEVICES"]) == ("-1", "", "-1")


@pytest.mark.parametrize("placement", [on(), Placement()])
def test_where_no_gpu_could_be_found_workers_keep_off_those_that_may_be_there(placement: Placement) -> None:
    """As when llama.cpp could not be asked: nobody counts what a GPU holds that is not known."""
    hidden = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1", "GGML_VK_VISIBLE_DEVICES": ""}
    for devices in (machine(), machine(DECLARED)):
        assert device_variables(placement, devices) == hidden
        assert device_options((), {}, placement, devices) == {"device": "cpu", "tensor_split": ()}
    assert device_variables(Placement(), {}) == {}, "nothing is known of this machine, not even its processor"


def test_numbers_of_cards_keep_the_order_in_which_they_were_counted() -> None:
    seen = machine(replace(CUDA[0], visible_as="1"))
    env = worker_environment({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, {}, on("CUDA0"), seen)
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("1", "FASTEST_FIRST")
    assert worker_environment({}, {}, on("CUDA0"), seen)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_gpus_of_another_backend_are_hidden_from_a_worker_on_a_gpu() -> None:
    vulkan = Device("Vulkan0", DeviceKind.GPU, GIB, backend="Vulkan", visible_as="0")
    variables = device_variables(on("CUDA1"), machine(*CUDA, vulkan))
    assert (variables["CUDA_VISIBLE_DEVICES"], variables["GGML_VK_VISIBLE_DEVICES"]) == ("GPU-bbbb", "")


def test_declared_devices_set_no_variable() -> None:
    assert device_variables(on("big"), machine(DECLARED)) == {}


# --- what it loads where ----------------------------------------------------------------------------------


def test_the_one_gpu_that_it_sees_is_the_first_to_the_worker() -> None:
    assert device_options((), {}, on("CUDA2", gpu_layers=12), machine(*CUDA)) == {
        "device": "CUDA0", "tensor_split": (), "gpu_layers": 12,
    }  # fmt: skip


def test_several_gpus_share_the_layers_as_the_placement_says() -> None:
    placement = on("CUDA2", "CUDA0", tensor_split=(3.0, 1.0))
    options = device_options((), {"tensor_split": (1.0, 1.0)}, placement, machine(*CUDA))
    assert options == {"device": None, "tensor_split": (3.0, 1.0)}


def test_the_users_own_split_over_devices_of_his_choice_is_obeyed() -> None:
    placement = on("CUDA0", "CUDA1", tensor_split=(3.0, 1.0))
    own = {"tensor_split": (1.0, 2.0)}
    assert device_options(("CUDA0", "CUDA1"), own, placement, machine(*CUDA))["tensor_split"] == (1.0, 2.0)
    assert device_options(("CUDA0",), own, on("CUDA0"), machine(*CUDA))["tensor_split"] == ()


def test_a_main_gpu_that_the_worker_does_not_see_is_the_first_one_instead() -> None:
    assert device_options((), {"main_gpu": 1}, on("CUDA1"), machine(*CUDA))["main_gpu"] == 0
    assert "main_gpu" not in device_options((), {"main_gpu": 1}, on("CUDA1", "CUDA2"), machine(*CUDA))


def test_a_placement_on_the_cpu_keeps_layers_off_gpus() -> None:
    assert device_options((), {}, on(), machine(*CUDA))["device"] == "cpu"
    assert device_options(("CPU",), {}, Placement(), {})["device"] == "cpu"
    assert device_options((), {"gpu_layers": 3}, Placement(), machine(*CUDA)) == {}


def test_devices_without_a_variable_keep_their_names() -> None:
    metal = Device("MTL0", DeviceKind.INTEGRATED, GIB, backend="Metal")
    assert device_options((), {}, on("MTL0"), machine(metal))["device"] == "MTL0"
    assert device_options((), {}, on("big"), machine(DECLARED))["device"] == "big"
    several = device_options((), {}, on("big", "CUDA0"), machine(DECLARED, *CUDA))
    assert several["device"] == "big,CUDA0"
    assert device_options(("CUDA1",), {}, Placement(gpus=("CUDA1",)), {})["device"] == "CUDA1"
    assert name_inside("CUDA11", 1, machine(replace(CUDA[0], id="CUDA11"))) == "CUDA1"


# --- what it tells ----------------------------------------------------------------------------------------


def told(device: str, **device_bytes: int) -> WorkerStatus:
    facts = replace(FACTS, device=device, gpu_layers=25)
    return WorkerStatus(Phase.READY, facts=facts, device_bytes={name: {"kv": n} for name, n in device_bytes.items()})


def test_a_worker_s_names_of_gpus_become_those_outside_of_it() -> None:
    swapped = status_outside(told("CUDA0, CUDA1", CPU=1, CUDA0=2, CUDA1=3), on("CUDA2", "CUDA0"), machine(*CUDA))
    assert swapped.facts is not None
    assert swapped.facts.device == "CUDA2, CUDA0"
    assert swapped.device_bytes == {"CPU": {"kv": 1}, "CUDA2": {"kv": 2}, "CUDA0": {"kv": 3}}
    early = WorkerStatus(Phase.LOADING, progress=0.5)
    assert status_outside(early, on("CUDA1"), machine(*CUDA)) == early


def test_each_backend_counts_its_own_gpus() -> None:
    vulkan = Device("Vulkan3", DeviceKind.GPU, GIB, backend="Vulkan", visible_as="3")
    status = status_outside(told("CUDA0, Vulkan0", CUDA0=2, Vulkan0=3), on("CUDA1", "Vulkan3"), machine(*CUDA, vulkan))
    assert status.device_bytes == {"CUDA1": {"kv": 2}, "Vulkan3": {"kv": 3}}


@pytest.mark.parametrize(
    ("placement", "status"),
    [
        (on(), told("cpu", CPU=1)),
        (on("CUDA1"), told("CPU", CPU=1)),
        (on("CUDA1"), told("CUDA0, CUDA1", CUDA0=2, CUDA1=3)),
        (on(), told("CUDA0", CUDA0=2)),
        (Placement(), told("CUDA1", CUDA1=2)),
    ],
)
def test_what_a_worker_tells_of_devices_that_it_should_not_see_stays_as_it_is(
    placement: Placement, status: WorkerStatus
) -> None:
    assert status_outside(status, placement, machine(*CUDA)) == status


# --- whether it obeyed ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("placement", "device", "gpu_layers"),
    [
        (on("CUDA1"), "CUDA1", 25),
        (on("CUDA2", "CUDA0"), "CUDA2, CUDA0", 25),
        (on("CUDA1", gpu_layers=10), "CUDA1", 10),
        (on("CUDA1", gpu_layers=99), "CUDA1", 25),
        (on(), "cpu", 0),
        (Placement(), "CUDA1", 25),
        (on("big"), "big", 25),
    ],
)
def test_a_worker_that_runs_where_it_was_placed_is_in_order(placement: Placement, device: str, gpu_layers: int) -> None:
    facts = replace(FACTS, device=device, gpu_layers=gpu_layers)
    assert find_mismatch(placement, facts) is None


@pytest.mark.parametrize(
    ("placement", "device", "gpu_layers", "words"),
    [
        (on("CUDA1"), "cpu", 0, "it was placed on CUDA1 and runs on the CPU"),
        (on("CUDA1"), "CUDA0, CUDA1", 25, "it was placed on CUDA1 and runs on CUDA0, CUDA1"),
        (on("CUDA1", "CUDA2"), "CUDA1", 25, "it was placed on CUDA1, CUDA2 and runs on CUDA1"),
        (on(), "CUDA0", 25, "it was placed on the CPU and runs on CUDA0"),
        (on("CUDA1", gpu_layers=20), "CUDA1", 9, "20 of its 25 layers were to be offloaded, and 9 are"),
    ],
)
def test_a_worker_that_runs_elsewhere_is_told_of(
    placement: Placement, device: str, gpu_layers: int, words: str
) -> None:
    facts = replace(FACTS, device=device, gpu_layers=gpu_layers)
    assert words in (find_mismatch(placement, facts) or "")
