"""`corral fit` and `corral devices` on this machine, with llama.cpp asked for its devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router.cli.devices import FoundDevices
from router.device import Device, DeviceKind
from tests.support.command_line import run, work_in
from tests.support.tiny_gguf import write_tiny_llama

GIB = 2**30


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_tiny_llama(tmp_path / "tiny.gguf")
    (tmp_path / "models.yaml").write_text(
        "models:\n  tiny: {model: ./tiny.gguf, context: 64, slots: 2, aliases: [small]}\n  lost: ./none.gguf\n"
        "  far: {url: 'https://example.com/v1'}\n  later: pkg:nobody-has-this/x.gguf\n",
        encoding="utf-8",
    )
    return work_in(tmp_path, monkeypatch)


def test_fit_tells_needs_and_the_largest_context() -> None:
    result = run("fit", "tiny")
    assert result.exit_code == 0
    assert "in the cache" in result.stdout
    assert "64*" in result.stdout, "the context that it is served with"
    assert "it fits with all of its context" in result.stdout
    assert "estimated" in result.stdout


def test_json_has_every_context_with_its_parts() -> None:
    told = json.loads(run("fit", "small", "--json", "--slots", "1", "--gpu-memory", "24GiB").stdout)
    assert (told["served_context"], told["slots"], told["source"]) == (64, 1, "header")
    for row in told["contexts"]:
        assert row["weights_bytes"] + row["kv_bytes"] + row["compute_bytes"] + row["other_bytes"] == row["cpu_bytes"]
        assert set(row["devices"]) >= {"CPU", "a GPU of 24GiB"}


def test_file_and_options_are_taken() -> None:
    told = json.loads(run("fit", "tiny.gguf", "--json", "--cache-type-k", "q8_0", "--context", "128").stdout)
    assert (told["cache_type_k"], told["slots"], told["served_context"]) == ("q8_0", 4, 512)
    assert {128, 512} <= {row["context"] for row in told["contexts"]}, "the asked one is looked at too"


def test_probe_has_llama_cpp_plan_it() -> None:
    told = json.loads(run("fit", "tiny", "--probe", "--json").stdout)
    assert told["source"] == "probe"
    estimate = json.loads(run("fit", "tiny", "--json").stdout)
    for planned, guessed in zip(told["contexts"], estimate["contexts"], strict=True):
        assert planned["cpu_bytes"] == pytest.approx(guessed["cpu_bytes"], rel=0.3)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nobody",), 5, "there is no model"),
        (("lost",), 1, "does not exist"),
        (("far",), 1, "another server"),
        (("later",), 1, "corral pull"),
        (("models.yaml",), 1, "models.yaml"),
        (("tiny", "--device", "CUDA7"), 2, "there is no device CUDA7"),
        (("tiny", "--gpu-memory", "much"), 2, "such as 24GiB"),
        (("tiny", "--slots", "0"), 2, "--slots"),
    ],
)
def test_what_cannot_be_told_is_explained(arguments: tuple[str, ...], code: int, words: str) -> None:
    result = run("fit", *arguments)
    assert result.exit_code == code
    assert words in result.stderr


def test_devices_are_told_with_their_memory() -> None:
    told = json.loads(run("devices", "--json").stdout)
    cpu = told["devices"][0]
    assert (cpu["id"], cpu["kind"]) == ("CPU", "cpu")
    assert 0 < cpu["room_bytes"] <= cpu["usable_bytes"] < cpu["total_bytes"]
    assert "CPU" in run("devices").stdout


def test_bounds_of_the_configuration_count(folder: Path) -> None:
    text = "devices: {cpu: {budget: 1GiB}, CUDA9: {budget: 1GiB}}\nmodels: {tiny: ./tiny.gguf}\n"
    (folder / "models.yaml").write_text(text, encoding="utf-8")
    result = run("devices", "--json")
    told = json.loads(result.stdout)
    assert told["devices"][0]["budget_bytes"] == GIB
    assert result.exit_code == 1
    assert "there is no device `CUDA9`" in told["problems"][0]


def test_room_is_what_others_the_headroom_and_the_budget_leave() -> None:
    device = Device("CUDA0", DeviceKind.GPU, 10 * GIB, headroom_bytes=GIB)
    found = FoundDevices((device,), {"CUDA0": 3 * GIB})
    assert (found.free_bytes(device), found.room_bytes(device)) == (7 * GIB, 6 * GIB)
    bounded = Device("CUDA0", DeviceKind.GPU, 10 * GIB, headroom_bytes=GIB, budget_bytes=2 * GIB)
    assert found.room_bytes(bounded) == 2 * GIB
    assert FoundDevices((device,), {"CUDA0": 12 * GIB}).room_bytes(device) == 0
