"""Arithmetic on headers: weights by their place, cells by layer, windows, states, and numbers that make no sense."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from router.device import Footprint, FootprintSource
from router.footprint import GPU_CONTEXT_BYTES, footprint_of, output_bytes, process_bytes
from router.footprint_parts import Knowledge, OnCpu, OnGpu, planned_on_cpu, planned_on_gpu, with_measured
from router.tensor_sums import TensorCounter, TensorSums
from worker.contract import EngineOptions, ModelFacts, Phase, WorkerStatus

MIB = 2**20
FACTS = ModelFacts(
    context=1024,
    slots=1,
    kv_cells=1024,
    trained_context=1024,
    num_params=1,
    size_bytes=1,
    num_vocab=1000,
    description="",
    has_chat_template=False,
    device="cpu",
    gpu_layers=0,
    total_layers=5,
)


def sums(*tensors: tuple[str, int]) -> TensorSums:
    counter = TensorCounter()
    for name, num_bytes in tensors:
        counter.add(name, num_bytes)
    return counter.sums()


def layers(count: int, *roles: str) -> list[tuple[str, int]]:
    return [(f"blk.{layer}.{role}.weight", 1000) for layer in range(count) for role in roles]


@dataclass(frozen=True)
class FakeHeader:
    """A header of four layers of 64 values in 4 heads, of which 2 have keys."""

    architecture: str = "llama"
    trained_context: int | None = 1024
    metadata: dict[str, int | float | bool | str] = field(default_factory=dict)
    lists: dict[str, tuple[int | float | bool, ...]] = field(default_factory=dict)
    num_vocab: int = 1000
    tensors: TensorSums = field(
        default_factory=lambda: sums(("token_embd.weight", 500), *layers(4, "attn_k", "attn_v"))
    )


def header(architecture: str = "llama", /, tensors: TensorSums | None = None, **more: object) -> FakeHeader:
    said = {
        "block_count": 4,
        "embedding_length": 64,
        "feed_forward_length": 128,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
    } | {key.replace("__", "."): value for key, value in more.items()}
    metadata = {f"{architecture}.{key}": value for key, value in said.items() if not isinstance(value, tuple)}
    lists = {f"{architecture}.{key}": value for key, value in said.items() if isinstance(value, tuple)}
    made = FakeHeader(architecture, metadata=metadata, lists=lists)  # type: ignore[arg-type]
    return made if tensors is None else FakeHeader(architecture, metadata=metadata, lists=lists, tensors=tensors)  # type: ignore[arg-type]


def options(**given: object) -> EngineOptions:
    return EngineOptions(**({"context": 1024, "slots": 1, "draft_max": 0} | given))  # type: ignore[arg-type]


def cells(given: FakeHeader, **chosen: object) -> int:
    """Return what keys and values take: all of a footprint that stays on the CPU only because it is told to."""
    with_cells = footprint_of(given, options(no_kv_offload=True, **chosen)).host_bytes
    return with_cells - footprint_of(given, options(**chosen)).host_bytes


ONE_CELL = 4 * 2 * (2 * 16) * 2
"""Four layers, keys and values, two heads of 16 values, two bytes each."""


def test_weights_are_told_apart_by_the_names_of_tensors() -> None:
    found = sums(
        ("token_embd.weight", 100),
        ("output.weight", 30),
        ("output_norm.weight", 1),
        ("blk.0.attn_q.weight", 5),
        ("blk.0.ffn_gate.weight", 2),
        ("blk.11.ffn_down_exps.weight", 7),
        ("blk.x.odd", 1),
    )
    assert (found.input_bytes, found.output_bytes, found.layer_bytes) == (100, 32, {0: 7, 11: 7})
    assert found.total_bytes == 146
    assert (found.has_output, found.is_gated) == (True, True)


def test_layers_are_told_apart_by_what_they_keep() -> None:
    found = sums(
        ("blk.0.attn_k.weight", 1),
        ("blk.1.ssm_conv1d.weight", 1),
        ("blk.1.attn_qkv.weight", 1),
        ("blk.2.attn_qkv.weight", 1),
        ("blk.3.attn_kv_a_mqa.weight", 1),
        ("blk.4.attn_k_norm.weight", 1),
    )
    assert found.attention_layers == {0, 2, 3}
    assert found.recurrent_layers == {1}


def test_parts_of_a_split_model_add_up() -> None:
    one = sums(("token_embd.weight", 100), ("blk.0.attn_k.weight", 5), ("blk.1.ffn_gate.weight", 1))
    two = sums(("blk.1.attn_k.weight", 6), ("output.weight", 50))
    assert one + two == sums(
        ("token_embd.weight", 100),
        ("blk.0.attn_k.weight", 5),
        ("blk.1.ffn_gate.weight", 1),
        ("blk.1.attn_k.weight", 6),
        ("output.weight", 50),
    )


def test_cells_grow_with_slots_and_context_in_steps_of_256() -> None:
    assert cells(header()) == 1024 * ONE_CELL
    assert cells(header(), slots=3) == 3 * 1024 * ONE_CELL
    assert cells(header(), kv_tokens=1100) == 1280 * ONE_CELL


def test_cells_are_smaller_in_smaller_types() -> None:
    assert cells(header(), cache_type_k="q8_0", cache_type_v="q8_0") == 1024 * ONE_CELL * 34 // 64


def test_heads_of_each_layer_count_for_themselves() -> None:
    mixed = header(attention__head_count_kv=(2, 4, 2, 4))
    assert cells(mixed) == 1024 * ONE_CELL * 6 // 4


def test_windows_count_only_where_full_caches_are_not_kept() -> None:
    gemma = header("gemma3", attention__sliding_window=32, block_count=4)
    assert cells(gemma) == 1024 * ONE_CELL
    # All four layers see a window: 32 cells for each of two sequences and 64 rows are 128, in steps of 256.
    assert cells(gemma, swa_full=False, batch_size=64) == 256 * ONE_CELL
    odd = header("other", attention__sliding_window=32, attention__sliding_window_pattern=(True, False, True, False))
    assert cells(odd, swa_full=False, batch_size=64) == (256 + 1024) * ONE_CELL // 2


def test_layers_that_use_the_cells_of_others_have_none() -> None:
    assert cells(header("gemma3n", attention__shared_kv_layers=3)) == 1024 * ONE_CELL // 4


def test_latent_attention_keeps_one_row() -> None:
    latent = header(
        "deepseek2",
        attention__head_count_kv=1,
        attention__key_length=576,
        attention__value_length=512,
        attention__key_length_mla=192,
        tensors=sums(*layers(4, "attn_kv_a_mqa")),
    )
    assert cells(latent) == 1024 * 4 * 576 * 2


def test_recurrent_layers_have_a_state_for_each_sequence_whatever_the_context() -> None:
    given = {"ssm__inner_size": 128, "ssm__state_size": 16, "ssm__conv_kernel": 4, "ssm__group_count": 1}
    mamba = header("mamba2", tensors=sums(*layers(4, "ssm_conv1d")), **given)
    state = 4 * (3 * (128 + 2 * 16) + 16 * 128)
    assert cells(mamba, slots=2) == cells(mamba, slots=2, context=4096) == 4 * 3 * state
    hybrid = header("jamba", tensors=sums(*layers(2, "ssm_conv1d"), ("blk.3.attn_k.weight", 1)), **given)
    assert cells(hybrid) == 2 * 2 * state + 1024 * ONE_CELL // 4


def test_encoders_keep_nothing_and_need_rows_for_their_longest_text() -> None:
    bert = header("bert", attention__causal=False)
    assert cells(bert) == 0
    assert output_bytes(bert, options(context=512)) == 4 * 512 * 64
    assert output_bytes(bert, options(context=100_000)) == 4 * 1024 * 64


def test_whole_attention_scores_need_far_more_than_fused_ones() -> None:
    fused, whole = (footprint_of(header(), options(flash_attn=one)).cpu_bytes for one in ("on", "off"))
    assert whole - fused > 4 * 512 * 1024 * 3


def test_embeddings_stay_on_the_cpu_unless_they_are_the_output_too() -> None:
    apart = sums(("token_embd.weight", 500), ("output.weight", 700), *layers(4, "attn_k"))
    tied = sums(("token_embd.weight", 500), *layers(4, "attn_k"))
    base = options(no_kv_offload=True)
    assert footprint_of(header(tensors=apart), base).gpu_bytes == 700 + 4000
    assert footprint_of(header(tensors=tied), base).gpu_bytes == 500 + 4000
    assert footprint_of(header(), base).num_layers == 5
    assert footprint_of(header(), base).gpu_compute_bytes > GPU_CONTEXT_BYTES


def test_drafts_and_adapters_are_added() -> None:
    alone = footprint_of(header(), options())
    with_draft = footprint_of(header(), options(), draft=header())
    assert with_draft.cpu_bytes - alone.cpu_bytes > header().tensors.total_bytes + 1024 * ONE_CELL
    assert footprint_of(header(), options(), lora_bytes=77).cpu_bytes - alone.cpu_bytes == 77


@pytest.mark.parametrize("number", [0, -5, 2**62, True, "many", 1.5])
@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention__head_count", "feed_forward_length"])
def test_numbers_without_sense_are_no_error(key: str, number: object) -> None:
    found = footprint_of(header(**{key: number}), options())
    assert found.cpu_bytes > header().tensors.total_bytes


def test_a_header_that_says_nothing_still_has_its_weights() -> None:
    found = footprint_of(FakeHeader(), options())
    assert found.cpu_bytes >= FakeHeader().tensors.total_bytes + process_bytes(1000)


# --- what is believed ----------------------------------------------------------------------------------------

PLAN = {
    "device_bytes": {"CPU": {"weights": 100, "kv": 20, "compute": 3}},
    "output_bytes": 7,
    "num_layers": 5,
    "num_vocab": 1000,
    "is_exact": True,
}
GPU_PLAN = {
    **PLAN,
    "device_bytes": {
        "CPU": {"weights": 10, "kv": 0, "compute": 2},
        "CUDA0": {"weights": 90, "kv": 20, "compute": 30},
        "CUDA1": {"weights": 5, "kv": 1, "compute": 40},
    },
}
PROCESS = process_bytes(1000)


def test_a_plan_is_buffers_results_and_the_process() -> None:
    assert planned_on_cpu(PLAN, lora_bytes=1) == OnCpu(123 + 7 + 1 + PROCESS, 5)
    assert planned_on_gpu(GPU_PLAN, lora_bytes=0) == OnGpu(116, 40 + GPU_CONTEXT_BYTES, 12 + 7 + PROCESS, 5)


def test_a_plan_that_does_not_tell_what_lies_where_says_nothing_of_gpus() -> None:
    """All of it would count as main memory, and none of it as a GPU's."""
    rough = {**PLAN, "is_exact": False}
    assert planned_on_gpu(rough, lora_bytes=0) is None
    assert planned_on_gpu({**GPU_PLAN, "draft": rough}, lora_bytes=0) is None
    assert planned_on_cpu(rough, lora_bytes=1) == planned_on_cpu(PLAN, lora_bytes=1)


def test_a_plan_with_a_draft_model_counts_the_process_once() -> None:
    both = planned_on_cpu({**PLAN, "draft": PLAN}, lora_bytes=0)
    assert both.cpu_bytes == 2 * (123 + 7) + process_bytes(2000)


@pytest.mark.parametrize("answer", [None, {}, {"device_bytes": 3}, {**PLAN, "draft": 5}, {**PLAN, "num_layers": "x"}])
def test_answers_that_are_no_plans_are_refused(answer: object) -> None:
    with pytest.raises(ValueError, match="plan"):
        planned_on_cpu(answer, lora_bytes=0)


def status(device_bytes: dict[str, dict[str, int]], facts: ModelFacts | None = FACTS, **memory: int) -> WorkerStatus:
    return WorkerStatus(
        Phase.READY,
        facts=facts,
        device_bytes=device_bytes,
        memory_bytes=memory,
        load_seconds={"import": 0.25, "read": 1.0},
    )


def test_measured_comes_before_planned_and_planned_before_estimated() -> None:
    estimate = Footprint(900, gpu_bytes=800, gpu_compute_bytes=70, host_bytes=60, num_layers=4)
    known = Knowledge(estimate)
    assert known.footprint == estimate
    known = Knowledge(estimate, planned_cpu=OnCpu(500, 5))
    assert known.footprint == Footprint(500, 800, 70, 60, 5, FootprintSource.PROBE)
    known = with_measured(known, status({"CPU": {"weights": 300, "kv": 10, "compute": 1}}, process=2**40), 5)
    assert known.footprint == Footprint(316 + 2**40, 800, 70, 60, 5, FootprintSource.MEASURED)
    assert known.load_s == 1.25
    assert Knowledge().footprint is None


def test_a_process_that_has_not_touched_its_buffers_yet_does_not_count_as_small() -> None:
    known = with_measured(Knowledge(), status({"CPU": {"weights": 300}}, process=1), 0)
    assert known.measured_cpu == OnCpu(300 + PROCESS, 5)


def test_a_load_on_a_gpu_says_nothing_of_one_on_the_cpu() -> None:
    facts = ModelFacts(**{name: getattr(FACTS, name) for name in FACTS.__slots__} | {"gpu_layers": 5})
    known = with_measured(Knowledge(Footprint(900)), status(GPU_PLAN["device_bytes"], facts), 7)  # type: ignore[arg-type]
    assert known.measured_cpu is None
    assert known.measured_gpu == OnGpu(116, 40 + GPU_CONTEXT_BYTES, 12 + 7 + PROCESS, 5)
    assert known.footprint is not None
    assert (known.footprint.cpu_bytes, known.footprint.gpu_bytes) == (900, 116)


def test_a_partly_offloaded_load_is_believed_in_its_time_only() -> None:
    facts = ModelFacts(**{name: getattr(FACTS, name) for name in FACTS.__slots__} | {"gpu_layers": 2})
    known = with_measured(Knowledge(Footprint(900)), status(GPU_PLAN["device_bytes"], facts), 7)  # type: ignore[arg-type]
    assert known == Knowledge(Footprint(900), load_s=1.25)


def test_a_worker_that_cannot_tell_changes_nothing_but_the_time() -> None:
    for told in (status({}), status({"CPU": {"weights": 1}}, facts=None)):
        assert with_measured(Knowledge(Footprint(900)), told, 0) == Knowledge(Footprint(900), load_s=1.25)


def test_knowledge_survives_being_written_down_but_for_the_estimate() -> None:
    known = Knowledge(Footprint(1), OnCpu(2, 3), OnGpu(4, 5, 6, 7), OnCpu(8), OnGpu(9, 10, 11), 1.5)
    again = Knowledge.from_plain(known.to_plain())
    assert again == Knowledge(None, OnCpu(2, 3), OnGpu(4, 5, 6, 7), OnCpu(8), OnGpu(9, 10, 11), 1.5)


@pytest.mark.parametrize(
    "change",
    [
        {"load_s": "soon"},
        {"planned_cpu": 5},
        {"planned_cpu": {"cpu_bytes": -1, "num_layers": 0}},
        {"planned_cpu": {"cpu_bytes": True, "num_layers": 0}},
        {"measured_gpu": {"gpu_bytes": 1}},
    ],
)
def test_odd_records_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Knowledge.from_plain(Knowledge(planned_cpu=OnCpu(1)).to_plain() | change)
