"""Commands that tell of this installation and of the configuration, without a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.shell_completion import BashComplete

from router.cli import main
from router.cli.doctor import summary
from router.doctor.findings import Level
from tests.support.command_line import run, work_in
from tests.support.gguf_bytes import gguf_bytes

CATALOG = """
defaults: {idle_unload_s: 60}
models:
  tiny:
    model: ./tiny.gguf
    aliases: {small: {}, exact: {request: {force: {temperature: 0}}}}
    slots: 2
    gpu_layers: auto
    flash_attn: "off"
    draft_model: ./tiny.gguf
  far: {url: "https://example.com/v1", url_model: theirs}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models.yaml").write_text(CATALOG, encoding="utf-8")
    (tmp_path / "tiny.gguf").write_bytes(gguf_bytes())
    monkeypatch.setenv("COLUMNS", "100")
    return work_in(tmp_path, monkeypatch)


# --- config ------------------------------------------------------------------------------------------------


def test_schema_is_printed_and_written(folder: Path) -> None:
    printed = run("config", "schema").stdout
    assert json.loads(printed)["$schema"].startswith("https://json-schema.org/")
    result = run("config", "schema", "-o", "s.json")
    assert "$schema=./s.json" in result.stdout
    assert (folder / "s.json").read_text(encoding="utf-8") == printed


def test_shown_configuration_has_every_option_and_is_one_itself(folder: Path) -> None:
    shown = run("config", "show").stdout
    tiny = yaml.safe_load(shown)["models"]["tiny"]
    assert (tiny["slots"], tiny["idle_unload_s"], tiny["context"], tiny["gpu_layers"]) == (2, 60, "auto", "auto")
    assert tiny["batch_size"] == 512
    (folder / "shown.yaml").write_text(shown, encoding="utf-8")
    again = run("config", "show", "shown.yaml").stdout
    assert yaml.safe_load(again) == yaml.safe_load(shown)
    assert "# without a value: loras, kv_tokens" in shown, "every option has a place"


def test_values_that_somebody_has_set_are_marked() -> None:
    marked = {line.split(":")[0].strip() for line in run("config", "show").stdout.splitlines() if line.endswith("# *")}
    assert marked == {
        *("model", "aliases", "idle_unload_s", "slots", "gpu_layers", "flash_attn", "draft_model"),
        *("url", "url_model"),
    }


def test_a_value_that_is_set_to_what_is_usual_is_marked_too(folder: Path) -> None:
    text = "models: {tiny: {model: ./tiny.gguf, slots: 4, no_mmap: false}}\n"
    (folder / "models.yaml").write_text(text, encoding="utf-8")
    marked = {line.split(":")[0].strip() for line in run("config", "show").stdout.splitlines() if line.endswith("# *")}
    assert marked == {"model", "slots", "mmap"}


def test_one_model_is_shown_by_its_alias() -> None:
    told = json.loads(run("config", "show", "--model", "exact", "--json").stdout)
    assert list(told["models"]) == ["tiny"]
    assert told["models"]["tiny"]["aliases"]["exact"] == {"request": {"force": {"temperature": 0}}}
    assert run("config", "show", "--model", "nobody").exit_code == 5


def test_broken_configuration_is_told_with_its_lines(folder: Path) -> None:
    (folder / "models.yaml").write_text("models: {a: {modl: x}}\n", encoding="utf-8")
    result = run("config", "show")
    assert result.exit_code == 1
    assert "models.yaml:1:" in result.stderr


# --- check -------------------------------------------------------------------------------------------------


def test_check_tells_models_as_json() -> None:
    told = json.loads(run("check", "--json").stdout)
    assert told["ok"] is True
    assert [model["name"] for model in told["models"]] == ["tiny", "far"]
    assert told["models"][0]["context"] == 2048
    assert told["models"][1]["path"] is None


def test_check_tells_problems_as_json_with_their_lines(folder: Path) -> None:
    (folder / "models.yaml").write_text("models:\n  a: ./none.gguf\n", encoding="utf-8")
    result = run("check", "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 1
    assert told["ok"] is False
    assert [(one["where"], one["line"]) for one in told["problems"]] == [("models.a", 2)]


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ("defaults: {temperature: hot}", 'request.defaults.temperature: no route takes "hot"'),
        ("force: {top_k: many}", "request.force.top_k"),
        ("force: {max_tokens: -4}", "request.force.max_tokens"),
        ("defaults: {temprature: 1}", "did you mean `temperature`?"),
    ],
)
def test_rule_that_no_route_would_take_is_a_problem(folder: Path, rules: str, words: str) -> None:
    text = f"models:\n  a:\n    model: ./tiny.gguf\n    request: {{{rules}}}\n"
    (folder / "models.yaml").write_text(text, encoding="utf-8")
    result = run("check")
    assert result.exit_code == 1
    assert "models.yaml:4:14" in result.stderr
    assert words in result.stderr


def test_rules_that_some_route_takes_are_none(folder: Path) -> None:
    rules = (
        "{temperature: 0.5, top_k: -1, stop: [a], seed: 3, max_output_tokens: 5, num_predict: 4, think: false,"
        " response_format: {type: json_object}, thinking: {type: disabled}, logit_bias: {'5': -1}, my_own: 1}"
    )
    text = f"models:\n  a:\n    model: ./tiny.gguf\n    request: {{defaults: {rules}}}\n"
    text += "  b: {url: 'https://example.com/v1', request: {force: {temperature: theirs}}}\n"
    (folder / "models.yaml").write_text(text, encoding="utf-8")
    assert run("check").stderr == ""


def test_rule_of_an_alias_is_told_at_its_place(folder: Path) -> None:
    text = "models:\n  a:\n    model: ./tiny.gguf\n    aliases: {b: {request: {force: {seed: x}}}}\n"
    (folder / "models.yaml").write_text(text, encoding="utf-8")
    assert "aliases.b.request.force.seed" in run("check").stderr


# --- version, completion -----------------------------------------------------------------------------------


def test_version_tells_what_answers_depend_on() -> None:
    told = json.loads(run("version", "--json").stdout)
    assert told["corral"].startswith("0.")
    assert told["libraries"]["llama-cpp-python"]
    assert "llama-cpp-python" in run("version").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_calls_back(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert f"_CORRAL_COMPLETE={shell}_complete" in result.stdout


def completed(words: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a shell offers for the last of `words`."""
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    shell = BashComplete(main, {}, "corral", "_CORRAL_COMPLETE")
    return [item.value for item in shell.get_completions(*shell.get_completion_args())]


def test_names_of_models_are_completed_from_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed("corral fit s", monkeypatch) == ["small"]
    assert completed("corral rm tiny ", monkeypatch) == ["small", "exact", "far"]
    assert completed("corral p", monkeypatch) == ["ps", "pin", "pull"]


def test_completion_is_silent_whatever_is_wrong(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "models.yaml").write_text("models: [", encoding="utf-8")
    assert completed("corral fit s", monkeypatch) == ["s"], "which leaves it to the shell, as a file"


# --- doctor ------------------------------------------------------------------------------------------------


def test_doctor_looks_at_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_PORT", "0")
    result = run("doctor", "--json")
    told = json.loads(result.stdout)
    assert [one for one in told["findings"] if one["level"] == "fail"] == []
    assert (told["ok"], result.exit_code) == (True, 0)
    areas = list(dict.fromkeys(one["area"] for one in told["findings"]))
    assert areas == ["installation", "llama.cpp", "GPUs", "machine", "address", "configuration"]


def test_doctor_fails_where_models_cannot_be_served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_PORT", "many")
    (folder / "models.yaml").write_text("models: {a: {modl: x}}\n", encoding="utf-8")
    result = run("doctor")
    assert result.exit_code == 1
    assert "FAIL  CORRAL_PORT=many is no port" in result.stdout
    assert "put these right" in result.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ([Level.OK], "everything is as it should be"),
        ([Level.WARN], "1 warning; models can be served"),
        ([Level.FAIL, Level.WARN, Level.FAIL], "2 problems, 1 warning; put these right, and look again"),
    ],
)
def test_last_line_sums_up(levels: list[Level], words: str) -> None:
    assert summary(levels) == words


def test_doctor_imports_nothing_that_could_be_broken() -> None:
    names = ("aiohttp", "pydantic", "yaml", "psutil", "httpx", "rich", "jsonschema")
    code = f"import sys, router.cli.doctor; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "[]"
