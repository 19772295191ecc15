"""Calibration over the real library on tiny models: it runs, beside answers too, and changes none of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.tiny_gguf import TinyModel, write_tiny_gemma, write_tiny_llama
from worker.contract import EngineOptions, LaunchSpec
from worker.engine import calibration
from worker.engine import calibrator as module
from worker.engine.calibration import Calibration, Subject, fill_rows
from worker.engine.calibration_files import read_calibration, subject_of, write_calibration
from worker.engine.calibrator import Calibrator
from worker.engine.engine import Engine
from worker.engine.errors import ForwardAborted
from worker.engine.llama import LlamaBackend
from worker.engine.llama_probe import DEPTH, NUM_STREAMS, Probe
from worker.engine.request import GenerationRequest, Output, SamplingParams
from worker.loading import Loaded, load

OPTIONS = EngineOptions(context=256, slots=2, device="cpu")
OpenProbe = Callable[..., Probe]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def cells_of(probe: Probe) -> list[int]:
    return [probe._context.num_cached(stream) for stream in range(NUM_STREAMS)]


@pytest.mark.parametrize("flash_attn", ["off", "on"])
def test_probe_fills_its_cells_and_times_passes_of_all_sizes(model: TinyModel, flash_attn: str) -> None:
    backend = LlamaBackend.load(str(model.path), OPTIONS)
    probe = backend.probe(flash_attn, 1)
    assert probe.seconds(8) > 0
    assert cells_of(probe) == [0] * NUM_STREAMS
    assert probe.fill(32) > 0
    assert cells_of(probe) == [32] * NUM_STREAMS
    for rows, num_streams in ((8, 8), (4, 4), (1, 1), (32, 1), (256, 1)):
        assert probe.seconds(rows) > 0
        assert cells_of(probe) == [32] * num_streams + [0] * (NUM_STREAMS - num_streams), f"after {rows} rows"
    assert probe.cpu_share > 0
    probe.close()
    backend.close()


def test_all_copies_are_read_by_the_long_prompt(model: TinyModel) -> None:
    """Whoever counts finds as many cells in use as a thousand tokens take."""
    backend = LlamaBackend.load(str(model.path), OPTIONS)
    probe = backend.probe("off", 1)
    probe.fill(32)
    probe.seconds(1)
    context = probe._context
    per_token = context.bytes_per_token
    assert per_token > 0
    from llama_cpp import llama_cpp as lib

    assert lib.llama_state_seq_get_size(context._context, 0) >= DEPTH * per_token
    probe.close()
    backend.close()


@pytest.mark.parametrize("swa_full", [True, False])
def test_models_with_a_sliding_window_can_be_measured(tmp_path: Path, swa_full: bool) -> None:
    path = write_tiny_gemma(tmp_path / "gemma.gguf", sliding_window=16).path
    backend = LlamaBackend.load(str(path), replace(OPTIONS, swa_full=swa_full))
    probe = backend.probe("off", 1)
    probe.seconds(8)
    probe.fill(64)
    for rows in (8, 4, 1, 32, 128, 256):
        assert probe.seconds(rows) > 0
    probe.close()
    backend.close()


def test_passes_are_never_larger_than_configured(model: TinyModel) -> None:
    backend = LlamaBackend.load(str(model.path), replace(OPTIONS, ubatch_size=16))
    probe = backend.probe("off", 1)
    assert fill_rows(16, (8, 0.001)) == 16
    probe.fill(16)
    assert probe.seconds(8) > 0
    probe.close()
    backend.close()


def subject(model: TinyModel) -> Subject:
    return subject_of(str(model.path), OPTIONS, library="l", cpu="c", num_threads=1)


async def test_calibration_beside_answers_is_complete_and_changes_none_of_them(
    model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    monkeypatch.setattr(calibration.Measurements, "is_undisturbed", True)  # other tests may run beside this one
    backend = LlamaBackend.load(str(model.path), OPTIONS)
    engine = Engine(backend, OPTIONS, check_cells=True)
    engine.start()
    first = await answer(engine)
    calibrator = Calibrator(engine, OPTIONS, subject(model), tmp_path, backend.probe)
    running = asyncio.create_task(calibrator.run(backend.context.flash_attn))
    answers = []
    for _ in range(20):
        answers.append(await answer(engine))
        await asyncio.sleep(0.005)
    found = await running
    engine.stop()
    assert found is not None
    assert set(found.times["on"]) == {1, 4, 8, 32, 64, 128, 256}
    assert set(found.times["off"]) == {1, 4, 8, 32, 128}
    assert read_calibration(tmp_path, subject(model)) == found
    assert set(answers) == {first}


async def answer(engine: Engine) -> tuple[int, ...]:
    tokens: list[int] = []
    is_over = asyncio.Event()

    def take(output: Output) -> None:
        tokens.extend(output.tokens)
        if output.finish is not None:
            is_over.set()

    request = GenerationRequest((300, 301, 302), 4, SamplingParams(temperature=0.0, ignore_eos=True))
    engine.submit(replace(request, cache_prompt=False), take)
    async with asyncio.timeout(30):
        await is_over.wait()
    return tuple(tokens)


def test_interrupt_ends_a_measurement(model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = LlamaBackend.load(str(model.path), OPTIONS)
    probe = backend.probe("off", 1)
    context = probe._context
    flag = context._flag

    class TooLate:
        """The flag as it is when the interrupt comes right after the pass has begun."""

        def __setitem__(self, index: int, value: bytes) -> None:
            flag[index] = b"\x01"

    monkeypatch.setattr(context, "_flag", TooLate())
    with pytest.raises(ForwardAborted):
        probe.seconds(8)
    monkeypatch.undo()
    assert probe.seconds(8) > 0
    assert cells_of(probe) == [0] * NUM_STREAMS
    probe.close()
    backend.close()


# --- what loading makes of it -----------------------------------------------------------------------------


def loaded(model: TinyModel, folder: Path | None, **options: object) -> Loaded:
    spec = LaunchSpec(
        "m",
        str(model.path),
        "/s",
        -1,
        replace(OPTIONS, **options),  # type: ignore[arg-type]
        calibration_dir=None if folder is None else str(folder),
    )
    return load(spec, lambda fraction: True)


def test_what_was_found_decides_the_next_load(model: TinyModel, tmp_path: Path) -> None:
    first = loaded(model, tmp_path)
    assert isinstance(first.backend, LlamaBackend)
    assert first.backend.context.flash_attn == "auto"
    assert first.subject is not None
    fast, slow = {4: 0.01, 32: 0.03, 128: 0.1}, {4: 0.02, 32: 0.06, 128: 0.2}
    write_calibration(tmp_path, Calibration(first.subject, {"off": fast, "on": slow}))
    second = loaded(model, tmp_path)
    assert isinstance(second.backend, LlamaBackend)
    assert second.backend.context.flash_attn == "off"
    assert second.subject == first.subject
    third = loaded(model, tmp_path, flash_attn="on")
    assert isinstance(third.backend, LlamaBackend)
    assert third.backend.context.flash_attn == "on", "what is configured holds"
    for one in (first, second, third):
        one.backend.close()


def test_nothing_is_to_be_measured_unless_the_router_says_where_to_keep_it(model: TinyModel) -> None:
    without = loaded(model, None)
    assert without.subject is None
    without.backend.close()
