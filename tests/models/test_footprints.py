"""What models need, told before a load by llama.cpp's plan and by arithmetic, against what real workers then take."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from router.catalog import ModelSpec
from router.device import Footprint, FootprintSource
from router.events import WorkerId
from router.footprint import footprint_of, output_bytes, process_bytes
from router.footprints import Footprints
from router.gguf_header import GgufHeader, read_gguf_header
from router.launch import build_launch_spec, worker_command, worker_environment
from router.model_headers import ModelHeaders
from router.process import WorkerProcess
from router.sources import ModelStore, default_cache_dir
from tests.support.minilm import minilm_path
from tests.support.models import gemma3_path, qwen_coder_path, smollm2_path
from worker.contract import EngineOptions, Phase, WorkerStatus

pytestmark = pytest.mark.models

MODELS: dict[str, Callable[[], Path]] = {
    "SmolLM2-135M": smollm2_path,
    "gemma-3-270m": gemma3_path,
    "Qwen2.5-Coder-0.5B": qwen_coder_path,
    "all-MiniLM-L6-v2": minilm_path,
}

VARIANTS: tuple[dict[str, object], ...] = (
    {},
    {"context": 1024, "slots": 2},
    {"context": 2048, "slots": 8, "kv_tokens": 6000},
    {"batch_size": 128},
    {"flash_attn": "off"},
    {"flash_attn": "on", "cache_type_k": "q8_0", "cache_type_v": "q4_0"},
    {"swa_full": False},
    {"slots": 1, "draft_max": 0},
)

WITHIN_S = 120.0
MIB = 2**20


def spec_of(path: Path, **options: object) -> ModelSpec:
    engine = {"device": "cpu"} | {k: v for k, v in options.items() if k not in ("context", "slots", "kv_tokens")}
    sizes = {"context": 4096} | {k: v for k, v in options.items() if k in ("context", "slots", "kv_tokens")}
    return ModelSpec("m", str(path), path.parent, engine=engine, **sizes)  # type: ignore[arg-type]


async def planned(spec: ModelSpec, folder: Path | None = None) -> Footprint:
    """Return what llama.cpp plans for the model."""
    store = ModelStore(default_cache_dir())
    footprints = Footprints(folder, store, ModelHeaders(store), lambda *_: None)
    await footprints.survey([spec])
    await footprints.close()
    footprint = footprints.of(spec)
    assert footprint is not None
    assert footprint.source is FootprintSource.PROBE
    return footprint


def options_of(spec: ModelSpec, path: Path, header: GgufHeader, socket_path: Path = Path()) -> EngineOptions:
    return build_launch_spec(
        spec,
        WorkerId("m", 0, 1),
        model_path=path,
        socket_path=socket_path,
        trained_context=header.trained_context,
        num_threads=2,
    ).engine


async def loaded(spec: ModelSpec, path: Path, header: GgufHeader, folder: Path) -> WorkerStatus:
    """Return what a real worker says of itself when it has just become ready."""
    launch = build_launch_spec(
        spec,
        WorkerId("m", 0, 1),
        model_path=path,
        socket_path=folder / "s",
        trained_context=header.trained_context,
        num_threads=2,
    )
    ready = asyncio.get_running_loop().create_future()

    def on_status(status: WorkerStatus) -> None:
        if status.phase is Phase.READY and not ready.done():
            ready.set_result(status)

    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    process = await WorkerProcess.spawn(
        worker_command(), launch, env=worker_environment(environ, {}), cwd=folder, on_status=on_status
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            status: WorkerStatus = await ready
    finally:
        await process.stop(5.0)
    return status


@pytest.mark.parametrize("mmap", [True, False], ids=["mapped", "read"])
@pytest.mark.parametrize("name", MODELS)
async def test_plan_and_arithmetic_agree_with_what_a_real_load_takes(
    name: str, mmap: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a file that is read, llama.cpp's breakdown is compared as it is; of a mapped one, less the repacked pages."""
    path = MODELS[name]()
    spec, header = spec_of(path, mmap=mmap), read_gguf_header(path)
    plan = await planned(spec, tmp_path / "kept")
    status = await loaded(spec, path, header, tmp_path)

    assert status.facts is not None
    assert status.facts.device == "cpu"
    assert set(status.device_bytes) == {"CPU"}
    real = sum(status.device_bytes["CPU"].values())
    options = options_of(spec, path, header)
    beside = output_bytes(header, options) + process_bytes(header.num_vocab)
    estimate = footprint_of(header, options).cpu_bytes
    process = status.memory_bytes["process"]
    with capsys.disabled():
        print(  # noqa: T201 - the figures are wanted even when all is well
            f"\n{name}{'' if mmap else ' without mmap'}: llama.cpp {real / MIB:.1f} MiB after the load, "
            f"plan {(plan.cpu_bytes - beside) / MIB:.1f}, "
            f"arithmetic {(estimate - beside) / MIB:.1f}; private memory beside that {process / MIB:.1f} MiB "
            f"({process_bytes(header.num_vocab) / MIB:.1f} assumed for {header.num_vocab} tokens), "
            f"resident {status.memory_bytes['rss'] / MIB:.1f}, loaded in {sum(status.load_seconds.values()):.2f} s"
        )
    assert plan.cpu_bytes - beside == pytest.approx(real, rel=0.03)
    assert estimate - beside == pytest.approx(real, rel=0.15)
    assert process < process_bytes(header.num_vocab) + 16 * MIB


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("options", VARIANTS, ids=str)
async def test_arithmetic_follows_the_options_as_the_plan_does(
    name: str, options: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    path = MODELS[name]()
    spec, header = spec_of(path, **options), read_gguf_header(path)
    plan = await planned(spec)
    engine = options_of(spec, path, header)
    beside = output_bytes(header, engine) + process_bytes(header.num_vocab)
    estimate = footprint_of(header, engine)
    with capsys.disabled():
        off = (estimate.cpu_bytes - beside) / (plan.cpu_bytes - beside) - 1
        print(f"\n{name} {options}: plan {(plan.cpu_bytes - beside) / MIB:.1f} MiB, arithmetic {off:+.2%}")  # noqa: T201
    assert estimate.cpu_bytes - beside == pytest.approx(plan.cpu_bytes - beside, rel=0.15)
    assert estimate.num_layers == plan.num_layers


async def test_plan_of_a_draft_model_is_part_of_the_plan(tmp_path: Path) -> None:
    path = smollm2_path()
    alone = spec_of(path)
    both = dataclasses.replace(alone, draft_source=str(path))
    one, two = await planned(alone), await planned(both)
    weights = read_gguf_header(path).tensors.total_bytes
    assert two.cpu_bytes - one.cpu_bytes > weights * 4  # its cells take more than its weights
    header = read_gguf_header(path)
    estimate = footprint_of(header, options_of(both, path, header), draft=header)
    assert estimate.cpu_bytes == pytest.approx(two.cpu_bytes, rel=0.15)


async def test_what_a_worker_has_taken_is_believed_after_a_restart(tmp_path: Path) -> None:
    path = smollm2_path()
    spec, header = spec_of(path, context=1024, slots=2), read_gguf_header(path)
    store = ModelStore(default_cache_dir())
    first = Footprints(tmp_path / "kept", store, ModelHeaders(store), lambda *_: None)
    await first.size(spec, path)
    status = await loaded(spec, path, header, tmp_path)
    learnt = first.learn(spec, path, status)
    await first.close()
    assert learnt is not None
    assert learnt.source is FootprintSource.MEASURED

    second = Footprints(
        tmp_path / "kept", store, ModelHeaders(store), lambda *_: None, command=[sys.executable, "-c", ""]
    )
    await second.survey([spec])
    assert second.of(spec) == learnt
    assert second.load_s(spec) == pytest.approx(sum(status.load_seconds.values()))
