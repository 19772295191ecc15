"""The process that answers one question, with tiny real models: its plans are what workers then allocate."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.tiny_bert import write_tiny_bert
from tests.support.tiny_gguf import write_not_gguf, write_tiny_gemma, write_tiny_llama
from worker.contract import EngineOptions
from worker.engine import llama_memory
from worker.engine.llama import load_backend
from worker.engine.llama_memory import BufferBytes, by_device, private_bytes
from worker.engine.llama_model import LlamaModel
from worker.engine.llama_plan import plan

OPTIONS = EngineOptions(context=256, slots=2, device="cpu")
WITHIN_S = 60.0


def ask(question: object) -> dict[str, Any]:
    line = question if isinstance(question, bytes) else json.dumps(question).encode() + b"\n"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "worker.probe"], input=line, capture_output=True, timeout=WITHIN_S, check=True
    )
    assert done.stdout.count(b"\n") == 1, "one line"
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


def test_devices_are_told_with_their_memory() -> None:
    devices = ask({"ask": "devices"})["devices"]
    (cpu,) = [device for device in devices if device["kind"] == "cpu"]
    assert (cpu["name"], cpu["backend"]) == ("CPU", "CPU")
    assert cpu["description"]
    assert 0 < cpu["free_bytes"] <= cpu["total_bytes"]


@pytest.mark.parametrize("write", [write_tiny_llama, write_tiny_gemma, write_tiny_bert])
def test_a_plan_is_what_a_load_allocates(write: Callable[[Path], Any], tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path)
    question = {"ask": "footprint", "model_path": str(path), "engine": dataclasses.asdict(OPTIONS)}
    planned = ask(question)["cpu"]
    backend = load_backend(str(path), OPTIONS)
    try:
        assert planned["is_exact"]
        assert planned["device_bytes"] == backend.device_bytes
        assert planned["num_layers"] == backend.facts.total_layers
        assert planned["device_bytes"]["CPU"]["weights"] > 0
    finally:
        backend.close()


def test_a_plan_can_have_a_draft_model(tmp_path: Path) -> None:
    path = str(tmp_path / "m.gguf")
    write_tiny_llama(path)
    question = {"ask": "footprint", "model_path": path, "engine": {"context": 256}, "draft_model_path": path}
    answer = ask(question)["cpu"]
    assert answer["draft"]["device_bytes"]["CPU"]["weights"] == answer["device_bytes"]["CPU"]["weights"]


def test_what_cannot_be_planned_is_an_answer_too(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_not_gguf(path)
    for question, word in [
        (
            {"ask": "footprint", "model_path": str(path), "engine": {"context": 256}},
            "llama.cpp could not read the file",
        ),
        ({"ask": "footprint", "model_path": str(path), "engine": {"context": 256, "more": 1}}, "more"),
        ({"ask": "footprint", "model_path": str(path), "engine": 5}, "engine"),
        ({"ask": "footprint"}, "engine"),
        ({"ask": "weather"}, "weather"),
        ([], "object"),
        (b"nonsense\n", "Expecting value"),
        (b"", "Expecting value"),
    ]:
        assert word in ask(question)["error"], question


def test_a_gpu_that_is_not_there_is_an_answer_too(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_tiny_llama(path)
    question = {"ask": "footprint", "model_path": str(path), "engine": {"context": 256}, "gpu": "CUDA9"}
    assert "'CUDA9' is not there" in ask(question)["error"]


# --- within one process ------------------------------------------------------------------------------------


def test_contexts_count_from_their_first_moment_to_their_last(tmp_path: Path) -> None:
    path = str(tmp_path / "m.gguf")
    write_tiny_llama(path)
    backend = load_backend(path, OPTIONS)
    try:
        alone = backend.device_bytes["CPU"]
        lone = backend.lone(32)
        both = backend.device_bytes["CPU"]
        assert both["weights"] == alone["weights"]
        assert both["kv"] > alone["kv"]
        assert both["compute"] > alone["compute"]
        backend.pooled.open()
        assert backend.device_bytes["CPU"]["kv"] > both["kv"]
        lone.close()
        backend.pooled.close()
        assert backend.device_bytes["CPU"] == alone
        assert 0 < backend.private_bytes == alone["kv"] + alone["compute"]
    finally:
        backend.close()


def test_a_library_that_does_not_tell_is_read_by_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "m.gguf")
    write_tiny_llama(path)
    exact = plan(path, OPTIONS)
    monkeypatch.setattr(llama_memory, "_breakdown_function", lambda: None)
    read = plan(path, OPTIONS)
    assert not read.is_exact
    for kind, num_bytes in exact.device_bytes["CPU"].items():
        # Lines of the log have two decimals of MiB.
        assert read.device_bytes["CPU"][kind] == pytest.approx(num_bytes, rel=0.05, abs=10_500), kind
    backend = load_backend(path, OPTIONS)
    try:
        assert backend.device_bytes == {}
        assert backend.facts.device == "cpu"
        assert backend.private_bytes == 0
    finally:
        backend.close()


MAPPED = BufferBytes("CPU_Mapped", "CPU", weights=100)
REPACKED = BufferBytes("CPU_REPACK", "CPU", weights=30)
MAIN = BufferBytes("CPU", "CPU", kv=7, compute=5)
CARD = BufferBytes("CUDA0", "CUDA0", weights=900, kv=70, compute=50)
PINNED = BufferBytes("CUDA_Host", "CPU", compute=2)


def test_pages_that_were_only_read_to_be_repacked_are_not_needed() -> None:
    assert by_device([(MAPPED, REPACKED, MAIN)], is_mapped=True)["CPU"] == {"weights": 100, "kv": 7, "compute": 5}
    assert by_device([(REPACKED, MAIN)], is_mapped=False)["CPU"]["weights"] == 30
    assert private_bytes([(MAPPED, REPACKED, MAIN)]) == 42


def test_bytes_are_told_by_device_and_weights_once() -> None:
    found = by_device([(MAPPED, CARD, PINNED), (MAPPED, CARD, MAIN)], is_mapped=True)
    assert found == {
        "CPU": {"weights": 100, "kv": 7, "compute": 7},
        "CUDA0": {"weights": 900, "kv": 140, "compute": 100},
    }


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ({"CPU": {"weights": 9, "kv": 9}}, "cpu"),
        ({"CPU": {"weights": 9, "kv": 9}, "CUDA0": {"weights": 0, "kv": 0}}, "cpu"),
        (
            {"CUDA10": {"weights": 1, "kv": 0}, "CPU": {"weights": 1, "kv": 0}, "CUDA2": {"weights": 0, "kv": 1}},
            "CUDA2, CUDA10",
        ),
        ({}, "what was chosen"),
    ],
)
def test_a_model_is_where_its_weights_and_cells_are(found: dict[str, dict[str, int]], named: str) -> None:
    model = SimpleNamespace(device_bytes=found, choice=SimpleNamespace(label="what was chosen"))
    assert LlamaModel.used_devices.fget(model) == named  # type: ignore[attr-defined]
