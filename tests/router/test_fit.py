"""What a model needs, set against the room of devices: the verdicts, the largest context, the advice."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from router.catalog import ModelSpec
from router.device import CPU, Device, DeviceKind, Footprint, FootprintSource
from router.fit import Fit, Room, Subject, contexts_to_show, corrected, cpu_room, hints, judge, largest_context
from router.tensor_sums import TensorCounter, TensorSums

GIB = 2**30
MIB = 2**20


def _eight_billion() -> TensorSums:
    counter = TensorCounter()
    counter.add("token_embd.weight", 300 * MIB)
    counter.add("output.weight", 400 * MIB)
    for layer in range(32):
        for role in ("attn_k", "attn_v", "ffn_gate"):
            counter.add(f"blk.{layer}.{role}.weight", 40 * MIB)
    return counter.sums()


@dataclass(frozen=True)
class FakeHeader:
    """Of a model with 32 layers and 8 heads of keys, 128 KiB of cache a token, and 4.4 GiB of weights."""

    architecture: str = "llama"
    trained_context: int | None = 131_072
    metadata: dict[str, int | float | bool | str] = field(
        default_factory=lambda: {
            "llama.block_count": 32,
            "llama.embedding_length": 4096,
            "llama.attention.head_count": 32,
            "llama.attention.head_count_kv": 8,
            "llama.feed_forward_length": 14_336,
        }
    )
    lists: dict[str, tuple[int | float | bool, ...]] = field(default_factory=dict)
    num_vocab: int = 128_256
    tensors: TensorSums = field(default_factory=_eight_billion)


def subject(**options: object) -> Subject:
    spec = replace(ModelSpec("m", "m.gguf", Path("/srv"), slots=1), **options)  # type: ignore[arg-type]
    header = FakeHeader()
    return Subject(spec, Path("/srv/m.gguf"), header, header.tensors)


def room(total_gib: float, *, is_gpu: bool = False, used_gib: float = 0.0) -> Room:
    total = int(total_gib * GIB)
    device = Device("CUDA0" if is_gpu else CPU, DeviceKind.GPU if is_gpu else DeviceKind.CPU, total)
    return Room(device, total - int(used_gib * GIB))


CPU_ROOM = room(64)


def test_one_token_takes_what_all_layers_keep_of_it() -> None:
    assert subject().kv_bytes_per_token() == 128 * 1024
    quantised = subject(engine={"cache_type_k": "q8_0", "cache_type_v": "q8_0"})
    assert quantised.kv_bytes_per_token() == 128 * 1024 * 17 // 32


def test_parts_add_up_to_what_is_needed() -> None:
    parts = subject().parts(8192)
    assert parts.weights + parts.kv + parts.compute + parts.other == subject().needs(8192).cpu_bytes
    assert parts.kv == 8192 * 128 * 1024
    assert parts.weights == FakeHeader().tensors.total_bytes


def test_slots_multiply_the_cache_and_a_pool_bounds_it() -> None:
    assert subject(slots=4).parts(8192).kv == 4 * subject().parts(8192).kv
    assert subject(slots=4, kv_tokens=8192).parts(8192).kv == subject().parts(8192).kv


@pytest.mark.parametrize(
    ("total_gib", "used_gib", "fit"),
    [(16, 0, Fit.NOW), (16, 12, Fit.WHEN_FREE), (4, 0, Fit.NOT)],
)
def test_cpu_holds_a_model_now_later_or_not(total_gib: float, used_gib: float, fit: Fit) -> None:
    place = room(total_gib, used_gib=used_gib)
    verdict = judge(subject().needs(8192), place, place)
    assert verdict.fit is fit
    assert (verdict.missing_bytes > 0) is (fit is Fit.NOT)


def test_gpu_that_is_too_small_for_all_layers_takes_some() -> None:
    verdict = judge(subject().needs(8192), room(4, is_gpu=True), CPU_ROOM)
    assert verdict.fit is Fit.PARTLY
    assert verdict.layers is not None
    assert 0 < verdict.layers < verdict.num_layers == 33


def test_gpu_takes_no_part_of_what_main_memory_cannot_hold_beside() -> None:
    assert judge(subject().needs(8192), room(4, is_gpu=True), room(1)).fit is Fit.NOT


def test_gpu_needs_main_memory_beside() -> None:
    assert judge(subject().needs(8192), room(24, is_gpu=True), CPU_ROOM).fit is Fit.NOW
    assert judge(subject().needs(8192), room(24, is_gpu=True), room(64, used_gib=63.9)).fit is Fit.WHEN_FREE


@pytest.mark.parametrize("is_gpu", [False, True])
def test_largest_context_is_the_last_that_fits(is_gpu: bool) -> None:
    found, place = subject(), room(10, is_gpu=is_gpu)
    cpu = CPU_ROOM if is_gpu else place
    largest = largest_context(found.needs, place, cpu, found.largest_context)
    assert largest is not None
    assert judge(found.needs(largest), place, cpu).fit is Fit.NOW
    assert judge(found.needs(largest + 256), place, cpu).fit is not Fit.NOW


def test_largest_context_is_all_of_it_or_none_at_the_ends() -> None:
    found = subject()
    assert largest_context(found.needs, room(400), room(400), found.largest_context) == 131_072
    assert largest_context(found.needs, room(2), room(2), found.largest_context) is None


def test_hints_let_longer_contexts_fit() -> None:
    found, place = subject(slots=4), room(16)
    present = largest_context(found.needs, place, place, found.largest_context)
    told = hints(found, place, place, present)
    assert [hint.text.partition(":")[0] for hint in told] == ["cache_type_k", "slots", "kv_tokens"]
    assert present is not None
    assert all(hint.context > present for hint in told)


def test_no_hint_where_it_is_taken_already() -> None:
    engine = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    assert hints(subject(engine=engine), room(8), room(8), 4096) == []


@pytest.mark.parametrize(
    ("largest", "wanted", "limit", "expected"),
    [
        (8192, None, None, [2048, 4096, 8192]),
        (6000, None, None, [2048, 4096, 6000]),
        (1024, None, None, [1024]),
        (8192, 3000, None, [2048, 3000, 4096, 8192]),
        (131_072, None, 4096, [2048, 4096]),
    ],
)
def test_contexts_are_doublings_up_to_the_largest(
    largest: int, wanted: int | None, limit: int | None, expected: list[int]
) -> None:
    assert contexts_to_show(largest, wanted, limit) == expected


def test_plans_correct_the_estimate_at_and_between_their_contexts() -> None:
    def estimate(context: int) -> Footprint:
        return Footprint(cpu_bytes=1000 + context, gpu_bytes=context, num_layers=3)

    planned = {
        1000: Footprint(cpu_bytes=2100, gpu_bytes=1000, num_layers=4, source=FootprintSource.PROBE),
        3000: Footprint(cpu_bytes=4300, gpu_bytes=3000, num_layers=4, source=FootprintSource.PROBE),
    }
    needs = corrected(estimate, planned)
    assert [needs(context).cpu_bytes for context in (500, 1000, 2000, 3000, 5000)] == [1600, 2100, 3200, 4300, 6300]
    assert needs(2000).source is FootprintSource.PROBE
    assert corrected(estimate, {})(2000) == estimate(2000)


def test_main_memory_is_found_among_rooms() -> None:
    assert cpu_room([room(8, is_gpu=True), CPU_ROOM]) is CPU_ROOM
