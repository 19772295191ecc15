"""Where a model could go: which devices, how many layers, and how many bytes of each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.catalog import ModelSpec
from router.device import Device, DeviceKind, Footprint, FootprintSource, Placement
from router.events import ModelPolicy
from router.placement import candidates, resize

GB = 10**9


def cpu(gigabytes: int = 64, **fields: int) -> Device:
    return Device("CPU", DeviceKind.CPU, gigabytes * GB, **fields)


def gpu(number: int, gigabytes: int, **fields: int) -> Device:
    return Device(f"CUDA{number}", DeviceKind.GPU, gigabytes * GB, **fields)


def needs(
    gigabytes: int,
    *,
    compute: int = 0,
    host: int = 0,
    layers: int = 32,
    source: FootprintSource = FootprintSource.PROBE,
) -> Footprint:
    """A model that needs so much beside its compute buffers, wherever it is."""
    return Footprint(
        cpu_bytes=gigabytes * GB,
        gpu_bytes=gigabytes * GB,
        gpu_compute_bytes=compute * GB,
        host_bytes=host * GB,
        num_layers=layers,
        source=source,
    )


def where(footprint: Footprint | None, *devices: Device, **policy: object) -> list[Placement]:
    return candidates(ModelPolicy("m", **policy), footprint, devices)  # type: ignore[arg-type]


def first(footprint: Footprint | None, *devices: Device, **policy: object) -> Placement:
    """The best placement, which exists."""
    return where(footprint, *devices, **policy)[0]


# --- the CPU alone ----------------------------------------------------------------------------------------


def test_without_a_gpu_a_model_takes_main_memory_for_all_of_it() -> None:
    assert where(needs(10, compute=2, host=1), cpu()) == [Placement({"CPU": 10 * GB}, gpu_layers=0)]


def test_a_model_that_main_memory_cannot_hold_has_no_place() -> None:
    assert where(needs(64), cpu(64)) != []
    assert where(needs(65), cpu(64)) == []


def test_with_zero_gpu_layers_a_model_stays_on_the_cpu_although_there_is_a_gpu() -> None:
    assert where(needs(10), cpu(), gpu(0, 24), gpu_layers=0) == [Placement({"CPU": 10 * GB}, gpu_layers=0)]


def test_a_model_that_asks_for_the_cpu_by_name_gets_it() -> None:
    assert where(needs(10), cpu(), gpu(0, 24), devices=("CPU",)) == [Placement({"CPU": 10 * GB}, gpu_layers=0)]


# --- one GPU before several -------------------------------------------------------------------------------


def test_a_model_that_fits_on_one_gpu_is_not_spread_over_several() -> None:
    options = where(needs(16, compute=1), cpu(), gpu(0, 80), gpu(1, 80))
    assert options[0].gpus == ("CUDA0",)
    assert options[0].tensor_split == ()
    assert [len(option.gpus) for option in options] == [1, 1, 2], "a split is the last thing that is tried"


def test_the_smallest_gpu_that_fits_is_taken_so_that_larger_models_find_room_later() -> None:
    options = where(needs(10, compute=1), cpu(), gpu(0, 24), gpu(1, 12), gpu(2, 8))
    assert [option.gpus for option in options[:2]] == [("CUDA1",), ("CUDA0",)]
    assert all("CUDA2" not in option.gpus or len(option.gpus) > 1 for option in options), "it is too small alone"


def test_a_preferred_gpu_comes_before_a_smaller_one() -> None:
    options = where(needs(8), cpu(), gpu(0, 12), gpu(1, 24, prefer=1))
    assert [option.gpus for option in options[:2]] == [("CUDA1",), ("CUDA0",)]


def test_on_a_gpu_everything_that_lies_there_is_reserved_and_so_is_what_stays_in_main_memory() -> None:
    placement = first(needs(10, compute=2, host=1), cpu(), gpu(0, 24))
    assert placement == Placement({"CUDA0": 12 * GB, "CPU": 1 * GB}, gpus=("CUDA0",), gpu_layers=None)


def test_a_model_whose_share_of_main_memory_does_not_fit_has_no_place_on_a_gpu_either() -> None:
    assert where(needs(10, host=5), cpu(4), gpu(0, 24)) == []


def test_gpus_of_the_same_size_are_taken_in_the_order_of_their_names() -> None:
    assert first(needs(10), cpu(), gpu(1, 24), gpu(0, 24)).gpus == ("CUDA0",)


def test_a_gpu_that_uses_main_memory_counts_as_a_gpu() -> None:
    integrated = Device("Vulkan0", DeviceKind.INTEGRATED, 32 * GB)
    assert first(needs(10), cpu(), integrated).gpus == ("Vulkan0",)


# --- split over several -----------------------------------------------------------------------------------


def test_a_model_that_no_gpu_can_hold_alone_is_split_over_as_few_as_can() -> None:
    options = where(needs(30, compute=1), cpu(), gpu(0, 24), gpu(1, 24), gpu(2, 24))
    assert [option.gpus for option in options] == [("CUDA0", "CUDA1")]
    assert options[0].tensor_split == (0.5, 0.5)
    assert options[0].reserved == {"CUDA0": 16 * GB, "CUDA1": 16 * GB, "CPU": 0}


def test_unequal_cards_get_layers_in_proportion_to_their_room_and_each_its_own_compute_buffer() -> None:
    placement = first(needs(14, compute=1), cpu(), gpu(0, 6), gpu(1, 12))
    assert placement.gpus == ("CUDA1", "CUDA0"), "the one with most room comes first"
    assert placement.tensor_split == (0.6875, 0.3125), "11 to 5: what is left beside the compute buffers"
    assert placement.reserved["CUDA1"] == pytest.approx(14 * GB * 11 / 16 + 1 * GB)
    assert placement.reserved["CUDA0"] == pytest.approx(14 * GB * 5 / 16 + 1 * GB)


def test_compute_buffers_are_needed_on_every_card_so_more_cards_do_not_hold_any_model() -> None:
    cards = [gpu(number, 4) for number in range(4)]
    assert where(needs(12, compute=1), cpu(), *cards) != []
    assert where(needs(13, compute=1), cpu(), *cards) == []


def test_a_split_is_rounded_up_so_that_no_byte_is_promised_twice() -> None:
    odd = replace(needs(0), gpu_bytes=1001, gpu_compute_bytes=1)
    cards = [Device(f"CUDA{number}", DeviceKind.GPU, 350) for number in range(3)]
    (placement,) = where(odd, cpu(), *cards)
    assert [placement.reserved[f"CUDA{number}"] for number in range(3)] == [335, 335, 335]


# --- what the configuration says ---------------------------------------------------------------------------


def test_a_model_goes_to_the_very_gpu_that_its_configuration_names() -> None:
    options = where(needs(10), cpu(), gpu(0, 24), gpu(1, 24), devices=("CUDA1",))
    assert [option.gpus for option in options] == [("CUDA1",)]


def test_a_named_gpu_that_is_too_small_is_refused_although_another_one_would_do() -> None:
    assert where(needs(20), cpu(), gpu(0, 24), gpu(1, 12), devices=("CUDA1",)) == []


def test_a_named_gpu_that_is_not_there_is_refused() -> None:
    assert where(needs(1), cpu(), gpu(0, 24), devices=("CUDA3",)) == []
    assert where(needs(1), cpu(), gpu(0, 24), devices=("CUDA0", "CUDA3")) == []


def test_several_named_gpus_are_all_used_in_the_order_in_which_they_are_named() -> None:
    placement = first(needs(4, compute=1), cpu(), gpu(0, 5), gpu(1, 13), devices=("CUDA0", "CUDA1"))
    assert placement.gpus == ("CUDA0", "CUDA1")
    assert placement.tensor_split == (0.25, 0.75)
    assert placement.reserved == {"CUDA0": 2 * GB, "CUDA1": 4 * GB, "CPU": 0}


def test_a_model_that_must_not_be_split_is_refused_if_no_gpu_holds_it_alone() -> None:
    assert where(needs(30), cpu(), gpu(0, 24), gpu(1, 24), is_split_allowed=False) == []
    assert first(needs(20), cpu(), gpu(0, 24), gpu(1, 24), is_split_allowed=False).gpus == ("CUDA0",)


def test_a_model_that_must_not_be_split_goes_to_one_of_the_gpus_that_are_named() -> None:
    options = where(needs(4), cpu(), gpu(0, 5), gpu(1, 13), devices=("CUDA1", "CUDA0"), is_split_allowed=False)
    assert [option.gpus for option in options] == [("CUDA1",), ("CUDA0",)]


def test_a_model_that_must_not_be_split_is_offloaded_in_part_to_the_largest_gpu() -> None:
    how = {"is_partial_allowed": True, "is_split_allowed": False}
    placement = first(needs(64, layers=64), cpu(), gpu(0, 8), gpu(1, 24), **how)
    assert (placement.gpus, placement.gpu_layers) == (("CUDA1",), 24)


def test_a_number_of_gpu_layers_is_obeyed_and_the_others_take_main_memory() -> None:
    placement = first(needs(32, compute=1, host=2), cpu(), gpu(0, 24), gpu_layers=8)
    assert placement.gpu_layers == 8
    assert placement.reserved == {"CUDA0": 9 * GB, "CPU": pytest.approx(2 * GB + 30 * GB * 24 / 32)}


def test_more_gpu_layers_than_the_model_has_are_all_of_them() -> None:
    placement = first(needs(16, compute=1, layers=24), cpu(), gpu(0, 24), gpu_layers=99)
    assert placement.gpu_layers == 24
    assert placement.reserved == {"CUDA0": 17 * GB, "CPU": 0}


def test_without_permission_no_layer_is_left_on_the_cpu_and_the_model_is_refused() -> None:
    assert where(needs(30), cpu(), gpu(0, 24)) == []
    assert where(needs(30), cpu(), gpu(0, 24), devices=("CUDA0",)) == []


def test_where_it_is_allowed_as_many_layers_as_fit_are_offloaded() -> None:
    placement = first(needs(32, compute=4, host=1), cpu(), gpu(0, 24), is_partial_allowed=True)
    assert placement.gpus == ("CUDA0",)
    assert placement.gpu_layers == 20, "20 GB beside the compute buffer, 1 GB a layer"
    assert placement.reserved["CUDA0"] == 24 * GB
    assert placement.reserved["CPU"] == pytest.approx(1 * GB + 31 * GB * 12 / 32, rel=1e-6)


def test_where_it_is_allowed_the_layers_that_fit_are_spread_over_all_gpus() -> None:
    placement = first(needs(64, layers=64), cpu(), gpu(0, 8), gpu(1, 24), is_partial_allowed=True)
    assert (placement.gpus, placement.gpu_layers) == (("CUDA1", "CUDA0"), 32)
    assert placement.tensor_split == (0.75, 0.25)


def test_a_model_that_fits_as_a_whole_is_not_offloaded_in_part_because_that_is_allowed() -> None:
    placement = first(needs(16), cpu(), gpu(0, 24), is_partial_allowed=True)
    assert placement.gpu_layers is None
    assert placement.reserved == {"CUDA0": 16 * GB, "CPU": 0}


def test_where_it_is_allowed_a_gpu_without_room_for_a_single_layer_leaves_all_to_the_cpu() -> None:
    tiny = where(needs(32, compute=4), cpu(), gpu(0, 4), is_partial_allowed=True)
    assert tiny == [Placement({"CPU": 32 * GB}, gpu_layers=0)]


def test_a_model_that_main_memory_and_gpu_together_cannot_hold_is_refused_even_if_a_part_is_allowed() -> None:
    assert where(needs(60), cpu(16), gpu(0, 24), is_partial_allowed=True) == []


# --- what devices allow -----------------------------------------------------------------------------------


def test_headroom_is_left_free() -> None:
    assert where(needs(18), cpu(), gpu(0, 24, headroom_bytes=6 * GB)) != []
    assert where(needs(19), cpu(), gpu(0, 24, headroom_bytes=6 * GB)) == []


def test_a_budget_bounds_what_models_may_use() -> None:
    assert where(needs(8), cpu(budget_bytes=8 * GB)) != []
    assert where(needs(9), cpu(budget_bytes=8 * GB)) == []


def test_a_budget_beyond_the_device_adds_nothing_to_it() -> None:
    assert where(needs(25), cpu(), gpu(0, 24, budget_bytes=99 * GB)) == []


def test_a_headroom_larger_than_the_device_leaves_nothing_rather_than_less() -> None:
    assert gpu(0, 4, headroom_bytes=6 * GB).usable_bytes == 0


def test_the_same_gpu_with_headroom_may_be_smaller_than_another_one() -> None:
    options = where(needs(8), cpu(), gpu(0, 16), gpu(1, 24, headroom_bytes=12 * GB))
    assert options[0].gpus == ("CUDA1",)


# --- how well the needs are known -------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [(cpu(64),), (cpu(), gpu(0, 64)), (cpu(), gpu(0, 32), gpu(1, 32))])
def test_a_rough_estimate_refuses_nothing_that_might_fit_and_reserves_no_more_than_there_is(
    devices: tuple[Device, ...],
) -> None:
    rough = needs(70, source=FootprintSource.HEADER)
    (placement,) = where(rough, *devices)
    usable = {device.id: device.usable_bytes for device in devices}
    assert all(num_bytes <= usable[id_] for id_, num_bytes in placement.reserved.items())
    assert where(replace(rough, source=FootprintSource.PROBE), *devices) == []


@pytest.mark.parametrize("devices", [(cpu(64),), (cpu(), gpu(0, 64)), (cpu(), gpu(0, 32), gpu(1, 32))])
def test_a_rough_estimate_that_is_far_too_large_is_refused(devices: tuple[Device, ...]) -> None:
    assert where(needs(75, source=FootprintSource.HEADER), *devices) == []


def test_as_long_as_nothing_is_known_of_the_model_nothing_is_reserved() -> None:
    assert where(None, cpu(), gpu(0, 24)) == [Placement()]
    assert where(None, cpu(), gpu(0, 24), devices=("CUDA0",)) == [Placement(gpus=("CUDA0",))]


def test_as_long_as_nothing_is_known_of_devices_nothing_is_reserved() -> None:
    assert where(needs(10)) == [Placement()]
    assert where(needs(10), devices=("CPU",)) == [Placement()]


# --- the same place with other needs ----------------------------------------------------------------------


def resized(to: Footprint | None, before: Placement, *devices: Device) -> Placement:
    return resize(before, ModelPolicy("m"), to, devices)


def test_what_was_measured_replaces_what_was_reserved_even_if_it_does_not_fit() -> None:
    before = first(needs(10), cpu(12))
    assert resized(needs(20), before, cpu(12)) == Placement({"CPU": 20 * GB}, gpu_layers=0)


def test_what_was_measured_changes_no_gpu_and_no_split() -> None:
    devices = (cpu(), gpu(0, 24), gpu(1, 24))
    before = candidates(ModelPolicy("m"), needs(30), devices)[0]
    after = resized(needs(34, compute=2), before, *devices)
    assert (after.gpus, after.tensor_split) == (before.gpus, before.tensor_split)
    assert after.reserved == {"CUDA0": 19 * GB, "CUDA1": 19 * GB, "CPU": 0}


def test_a_model_that_is_offloaded_in_part_keeps_its_layers_when_it_is_measured() -> None:
    devices = (cpu(), gpu(0, 24))
    before = candidates(ModelPolicy("m", is_partial_allowed=True), needs(32, compute=4), devices)[0]
    after = resized(replace(needs(32, compute=4), gpu_bytes=16 * GB), before, *devices)
    assert (before.gpu_layers, after.gpu_layers) == (20, 20)
    assert after.reserved["CUDA0"] == 14 * GB
    assert after.reserved["CPU"] == before.reserved["CPU"]


def test_a_split_that_runs_keeps_its_shares_when_a_card_gets_a_budget() -> None:
    before = candidates(ModelPolicy("m"), needs(30), (cpu(), gpu(0, 24), gpu(1, 24)))[0]
    after = resized(needs(30), before, cpu(), gpu(0, 24, budget_bytes=8 * GB), gpu(1, 24))
    assert after == before


def test_a_model_that_llama_cpp_placed_on_a_gpu_or_not_is_counted_nowhere() -> None:
    assert resized(needs(10), Placement(), cpu(), gpu(0, 24)) == Placement()
    assert resized(needs(10), Placement(), cpu()) == Placement({"CPU": 10 * GB})


def test_gpus_that_were_named_before_the_model_was_known_count_as_used_alike() -> None:
    before = Placement(gpus=("CUDA0", "CUDA1"))
    after = resized(needs(30, compute=1), before, cpu(), gpu(0, 24), gpu(1, 24))
    assert after == replace(before, reserved={"CUDA0": 16 * GB, "CUDA1": 16 * GB, "CPU": 0})


def test_without_devices_there_is_nothing_to_resize() -> None:
    before = Placement({"CPU": 1})
    assert resized(needs(5), before) is before
    assert resized(None, before, cpu()) is before


# --- models that must stay in one piece ---------------------------------------------------------------------


def test_a_model_that_may_not_be_split_gets_one_gpu_or_none() -> None:
    assert len(first(needs(30), gpu(0, 24), gpu(1, 24)).gpus) == 2
    assert where(needs(30), gpu(0, 24), gpu(1, 24), is_split_allowed=False) == []
    placed = where(needs(20), gpu(0, 24), gpu(1, 30), is_split_allowed=False)
    assert [one.gpus for one in placed] == [("CUDA0",), ("CUDA1",)]


def test_of_several_devices_that_it_is_bound_to_any_one_will_do() -> None:
    bound: dict[str, Any] = {"devices": ("CUDA1", "CUDA0"), "is_split_allowed": False}
    assert [one.gpus for one in where(needs(20), gpu(0, 24), gpu(1, 24), **bound)] == [("CUDA1",), ("CUDA0",)]


def test_as_many_layers_as_fit_are_those_of_the_largest_gpu_where_nothing_is_split() -> None:
    (placed,) = where(needs(100), cpu(90), gpu(0, 24), gpu(1, 30), is_split_allowed=False, is_partial_allowed=True)
    assert placed.gpus == ("CUDA1",)
    assert placed.tensor_split == ()


def test_the_file_says_whether_a_model_may_be_split_and_on_which_gpu_it_stays() -> None:
    def policy(**engine: object) -> ModelPolicy:
        return ModelSpec("m", "m.gguf", Path("/"), engine=engine, devices=("CUDA0", "CUDA1")).policy()

    assert policy(split_mode="row", main_gpu=1).is_split_allowed
    assert policy(split_mode="row", main_gpu=1).devices == ("CUDA0", "CUDA1")
    assert not policy(split_mode="none").is_split_allowed
    assert policy(split_mode="none").devices == ("CUDA0", "CUDA1")
    assert policy(split_mode="none", main_gpu=1).devices == ("CUDA1",)
    assert policy(split_mode="none", main_gpu=7).devices == ("CUDA0", "CUDA1")
