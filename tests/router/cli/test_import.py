"""`corral import` recognises what it is given, writes a models.yaml, and never overwrites or runs anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from router.cli.import_ import kind_of
from tests.support.command_line import run, work_in
from tests.support.gguf_bytes import gguf_bytes

SWAP = "models:\n  a:\n    cmd: llama-server -m ./a.gguf -c 4096 --mmproj x.gguf\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config.yaml").write_text(SWAP, encoding="utf-8")
    (tmp_path / "a.gguf").write_bytes(gguf_bytes())
    return work_in(tmp_path, monkeypatch)


def test_result_passes_the_check(folder: Path) -> None:
    result = run("import", "config.yaml", "-o", "models.yaml")
    assert result.exit_code == 0
    assert "corral check models.yaml" in result.stdout
    assert run("check").exit_code == 0


def test_catalogue_is_on_stdout_and_notes_are_beside_it() -> None:
    result = run("import", "config.yaml")
    assert result.stdout.startswith("# Made from llama-swap's configuration")
    assert "image input" in result.stdout
    assert "corral: a: --mmproj" in result.stderr


def test_json_has_text_models_and_notes() -> None:
    told = json.loads(run("import", "config.yaml", "--json").stdout)
    assert told["models"] == ["a"]
    assert [note["model"] for note in told["notes"]] == [None, "a"]
    assert told["problems"] == []
    assert told["text"].startswith("# Made from")


def test_file_that_is_there_is_not_replaced_without_force(folder: Path) -> None:
    (folder / "models.yaml").write_text("mine", encoding="utf-8")
    result = run("import", "config.yaml", "-o", "models.yaml")
    assert result.exit_code == 1
    assert (folder / "models.yaml").read_text(encoding="utf-8") == "mine"
    assert run("import", "config.yaml", "-o", "models.yaml", "--force").exit_code == 0
    assert (folder / "models.yaml").read_text(encoding="utf-8") != "mine"


def test_command_line_is_taken_as_it_is() -> None:
    result = run("import", "--command", "./llama-server -m models/Big-7B.gguf \\\n -c 4096 -np 2")
    assert result.exit_code == 0
    assert "  big-7b:" in result.stdout
    assert "context: 2048" in result.stdout


def test_nothing_in_a_command_is_run(folder: Path) -> None:
    mark = folder / "ran"
    text = f"models:\n  a:\n    cmd: touch {mark}; llama-server -m $(touch {mark}) `touch {mark}`\n"
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    run("import", "config.yaml")
    run("import", "--command", f"llama-server -m $(touch {mark})")
    assert not mark.exists()


def test_file_of_which_nothing_remains_is_a_failure(folder: Path) -> None:
    (folder / "config.yaml").write_text("models: {a: {cmd: vllm serve x}}", encoding="utf-8")
    result = run("import", "config.yaml", "-o", "models.yaml")
    assert result.exit_code == 1
    assert "`vllm`" in result.stderr
    assert not (folder / "models.yaml").exists()


@pytest.mark.parametrize("arguments", [(), ("config.yaml", "--command", "llama-server -m x")])
def test_either_a_file_or_a_command_is_wanted(arguments: tuple[str, ...]) -> None:
    assert run("import", *arguments).exit_code == 2


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("config.yaml", "", "llama-swap"),
        ("presets.ini", "", "llama-server"),
        ("Modelfile", "", "ollama"),
        ("x.txt", "# my model\nFROM ./a.gguf\n", "ollama"),
        ("x.txt", "[model]\nc = 3\n", "llama-server"),
        ("x.txt", "from openai import OpenAI\n", None),
    ],
)
def test_kind_of_a_file_is_recognised(name: str, text: str, kind: str | None) -> None:
    assert kind_of(name, text) == kind


def test_file_that_looks_like_nothing_is_refused(folder: Path) -> None:
    (folder / "x.txt").write_text("hello", encoding="utf-8")
    result = run("import", "x.txt")
    assert result.exit_code == 1
    assert "--kind" in result.stderr


def test_file_that_cannot_be_written_is_told() -> None:
    result = run("import", "config.yaml", "-o", "no/such/folder/models.yaml")
    assert result.exit_code == 1
    assert "no/such/folder/models.yaml cannot be written" in result.stderr


def test_endless_file_is_not_read_to_its_end() -> None:
    result = run("import", "/dev/zero", "--kind", "ollama")
    assert result.exit_code == 1
    assert "larger than a megabyte" in result.stderr


def test_rule_that_the_check_would_refuse_is_told_at_once() -> None:
    result = run("import", "--command", "llama-server -m a.gguf --temp -7")
    assert result.exit_code == 0
    assert "to be corrected by hand" in result.stderr
    assert "temperature" in result.stderr


def test_what_a_terminal_would_obey_is_written_in_escapes(folder: Path) -> None:
    names = {"x\u202ey": "x-y", "z\x9b31m": "z-31m", "ü": "ü"}
    swap = {"models": {name: {"cmd": f"llama-server -m ./{name}.gguf"} for name in names} | {"\u202eno": {"cmd": "x"}}}
    (folder / "config.yaml").write_text(json.dumps(swap), encoding="utf-8")
    result = run("import", "config.yaml")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.replace("\n", "").isprintable()
    assert "./ü.gguf" in result.stdout
    assert yaml.safe_load(result.stdout)["models"] == {
        name: {"model": f"./{given}.gguf"} for given, name in names.items()
    }
    assert json.loads(run("import", "config.yaml", "--json").stdout)["text"] == result.stdout


def test_a_models_yaml_is_told_to_be_one_already(folder: Path) -> None:
    (folder / "models.yaml").write_text("models: {a: ./a.gguf, b: {model: ./b.gguf}}\n", encoding="utf-8")
    result = run("import", "models.yaml")
    assert result.exit_code == 1
    assert "it is a models.yaml of Corral's already" in result.stderr


def test_broken_yaml_is_told_with_its_place_on_one_line(folder: Path) -> None:
    (folder / "config.yaml").write_text("models:\n  a: {cmd: [\n", encoding="utf-8")
    (line,) = run("import", "config.yaml").stderr.splitlines()
    assert "it is no valid YAML (line 3, column 1): " in line
    assert "<unicode string>" not in line


def test_image_input_is_said_to_be_missing_in_plain_words() -> None:
    result = run("import", "--command", "llama-server -m a.gguf --mmproj p.gguf")
    assert "--mmproj p.gguf: image input is not available in this release yet" in result.stderr
    assert "not a key" not in result.stderr
