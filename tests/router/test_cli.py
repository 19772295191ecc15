"""The command line says what is wrong, all of it, and what to do next."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from router.cli import main
from tests.support.gguf_bytes import gguf_bytes

GOOD = "models:\n  tiny:\n    model: ./tiny.gguf\n    aliases: [gpt, mini]\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder with one model file, without settings, and leave logging alone."""
    for name in os.environ:
        if name.startswith("CORRAL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CORRAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("router.logs.set_up_logging", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.gguf").write_bytes(gguf_bytes())
    return tmp_path


def corral(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_version_is_the_distributions() -> None:
    result = corral("--version")
    assert result.exit_code == 0
    assert result.output.startswith("corral 0.")


def test_help_and_version_load_nothing_heavy() -> None:
    code = (
        "import sys, router.cli; "
        "print([m for m in ('aiohttp', 'pydantic', 'yaml', 'llama_cpp', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_router_never_loads_llama_cpp() -> None:
    code = "import sys, router.serve; print('llama_cpp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("command", ["serve", "check"])
def test_missing_file_is_answered_with_the_three_forms(folder: Path, command: str) -> None:
    (folder / "tiny.gguf").unlink()
    result = corral(command)
    assert result.exit_code == 1
    for form in ("models.yaml", "model.gguf", "FOLDER"):
        assert f"corral {command} {form}" in result.stderr


@pytest.mark.parametrize("command", ["serve", "check"])
def test_folder_of_model_files_without_a_catalogue_is_pointed_out(command: str) -> None:
    result = corral(command)
    assert result.exit_code == 1
    assert result.stderr.endswith(f"corral {command} .\n")


def test_check_lists_the_models_of_a_good_file_in_columns_and_counts_them(folder: Path) -> None:
    parts = "pkg:odd-part1==0.9+odd-part2==0.9+odd-part3==0.9/*.bin"
    (folder / "models.yaml").write_text(f"{GOOD}  much-longer: {{model: '{parts}', slots: 1, context: 512}}\n")
    result = corral("check")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        "tiny         llama, 0 MB                   2048 tokens a request, 4 slots  ./tiny.gguf"
        "                   also called gpt, mini",
        "much-longer  fetched at the first request  512 tokens a request, 1 slot    pkg:odd-part1==0.9 (+2 more)",
        "2 models, no problems",
    ]


def test_check_tells_large_files_in_gigabytes(folder: Path) -> None:
    os.truncate(folder / "tiny.gguf", 4_500_000_000)  # takes no room on the disk
    assert corral("check", "tiny.gguf").stdout.startswith("tiny  llama, 4.5 GB")


def test_commands_are_listed_with_short_texts() -> None:
    text = corral("--help").output
    assert "Serve models over HTTP." in text
    assert "..." not in text.partition("Commands:")[2]


def test_check_takes_a_model_file_or_a_folder_of_them(folder: Path) -> None:
    for form in ("tiny.gguf", str(folder)):
        result = corral("check", form)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.startswith("tiny  llama, 0 MB")
        assert result.stdout.endswith("\n1 model, no problems\n")


def test_check_reads_the_file_from_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_FILE", str(folder / "tiny.gguf"))
    result = corral("check")
    assert result.exit_code == 0
    assert "warning" not in result.stderr


def test_check_prints_every_problem_with_its_place(folder: Path) -> None:
    (folder / "bad.yaml").write_text("models:\n  tiny:\n    model: ./tiny.gguf\n    slots: 0\n    contxt: 5\n")
    result = corral("check", "bad.yaml")
    assert result.exit_code == 1
    first, second, count = result.stderr.splitlines()
    assert first.startswith("bad.yaml:4:12: models.tiny.slots: ")
    assert second.startswith("bad.yaml:5:5: ")
    assert "context" in second
    assert count == "2 problems"


def test_check_finds_missing_and_broken_files_and_keys_at_once(folder: Path) -> None:
    (folder / "cut.gguf").write_bytes(gguf_bytes()[:40])
    (folder / "models.yaml").write_text(
        "models:\n  cut: {model: ./cut.gguf}\n  gone: {model: ./gone.gguf}\nkeys:\n  team: {env: TEAM_KEY_UNSET}\n"
    )
    result = corral("check")
    assert result.exit_code == 1
    for words in ("models.gone.model", "gone.gguf does not exist", "models.cut.model", "truncated", "TEAM_KEY_UNSET"):
        assert words in result.stderr
    assert "3 problems" in result.stderr


def test_check_tells_the_line_of_every_file_program_and_key_that_cannot_be_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAR_KEY", raising=False)
    (folder / "cut.gguf").write_bytes(gguf_bytes()[:40])
    (folder / "plain.sh").write_text("#!/bin/sh\n")
    (folder / "models.yaml").write_text(
        "models:\n"
        "  a:\n"
        "    model: ./tiny.gguf\n"
        "    loras: {good: ./gone.gguf}\n"
        "  b:\n"
        "    model: ./cut.gguf\n"
        "  c:\n"
        "    model: ./tiny.gguf\n"
        "    draft_model: ./cut.gguf\n"
        "    loras:\n"
        "      x:\n"
        "        model: ./tiny.gguf\n"
        "    hooks:\n"
        "      before_load: ./plain.sh\n"
        "  d: {url: 'https://host/v1', url_key_env: FAR_KEY}\n"
        "  e: {model: ./tiny.gguf, hooks: {before_load: no-such-program, after_load: [sh, x], after_unload: ./no}}\n"
        "keys:\n"
        "  one: {env: KEY_ONE_UNSET}\n"
        "  two: {file: ./gone.key}\n"
    )
    result = corral("check")
    assert result.exit_code == 1
    *lines, count = result.stderr.splitlines()
    told = [(line.split(": ")[0], line.split(": ")[1]) for line in lines]
    assert told == [
        ("models.yaml:4:19", "models.a.loras.good"),
        ("models.yaml:6:12", "models.b.model"),
        ("models.yaml:9:18", "models.c.draft_model"),
        ("models.yaml:12:16", "models.c.loras.x.model"),
        ("models.yaml:14:7", "models.c.hooks.before_load"),
        ("models.yaml:15:44", "models.d.url_key_env"),
        ("models.yaml:16:34", "models.e.hooks.before_load"),
        ("models.yaml:16:34", "models.e.hooks.after_unload"),
        ("models.yaml:18:3", "keys.one"),
        ("models.yaml:19:3", "keys.two"),
    ]
    assert count == "10 problems"
    assert "chmod +x" in result.stderr
    assert "no program `no-such-program`" in result.stderr
    assert "FAR_KEY is not set" in result.stderr


def test_check_reports_a_reference_that_is_none_instead_of_failing_on_it(folder: Path) -> None:
    (folder / "models.yaml").write_text("models:\n  tiny: {model: ./tiny.gguf, draft_model: 'pkg:x'}\n")
    result = corral("check")
    assert result.exit_code == 1
    assert result.stderr.startswith("models.yaml:2:43: models.tiny.draft_model: 'pkg:x': the file is missing")


def test_check_lists_models_of_other_servers_and_those_with_several_workers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_FAR_KEY", "secret")
    (folder / "models.yaml").write_text(
        "models:\n  twins: {model: ./tiny.gguf, replicas: 2}\n"
        "  far: {url: 'https://host', url_model: big, url_key_env: CORRAL_FAR_KEY, context: 4096, aliases: ['*']}\n"
        "  plain: {url: 'http://host:1/v1'}\n"
    )
    result = corral("check")
    assert result.exit_code == 0, result.stderr
    assert [line.split("  ") for line in result.stdout.splitlines()] == [
        line.split("  ")
        for line in (
            "twins  llama, 0 MB        2048 tokens a request, 4 slots in each of 2 workers  ./tiny.gguf",
            "far    on another server  4096 tokens a request                                big at https://host/v1"
            "     also called *",
            "plain  on another server                                                       plain at http://host:1/v1",
            "3 models, no problems",
        )
    ]
    assert "warning" not in result.stderr, "the variable is used"


def test_check_offline_counts_models_that_must_be_fetched(folder: Path) -> None:
    (folder / "models.yaml").write_text("models:\n  far: {model: 'hf:owner/repo/file.gguf'}\n")
    assert "fetched at the first request" in corral("check").stdout
    result = corral("check", "--offline")
    assert result.exit_code == 1
    assert "models.far.model" in result.stderr


def test_serve_prints_every_problem_of_its_file(folder: Path) -> None:
    (folder / "models.yaml").write_text("models:\n  a: {slots: 0, model: ./tiny.gguf}\n  b: {slots: 0, model: x}\n")
    result = corral("serve")
    assert result.exit_code == 1
    assert "models.a.slots" in result.stderr
    assert "models.b.slots" in result.stderr
    assert result.stderr.endswith("\n2 problems\n")


def test_serve_on_a_port_in_use_says_so(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = corral("serve", "tiny.gguf", "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 1
    assert "is in use by another program" in result.stderr


@pytest.mark.parametrize(
    ("typed", "words"),
    [("pss", "did you mean ps?"), ("ls", "did you mean ps?"), ("zzzzz", "`corral --help` lists them all")],
)
def test_a_command_that_there_is_not_is_answered_with_the_nearest(folder: Path, typed: str, words: str) -> None:
    result = corral(typed)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1"])
def test_serve_refuses_other_addresses_without_keys(host: str) -> None:
    result = corral("serve", "tiny.gguf", "--host", host, "--port", "0")
    assert result.exit_code == 1
    assert "CORRAL_API_KEYS" in result.stderr
    assert "CORRAL_ALLOW_UNAUTHENTICATED" in result.stderr


def test_serve_with_an_unreadable_key_file_does_not_start_without_keys() -> None:
    result = corral("serve", "tiny.gguf", "--port", "0", "--api-key-file", "nowhere")
    assert result.exit_code == 1
    assert "--api-key-file or CORRAL_API_KEY_FILE: cannot read the keys in nowhere: No such file" in result.stderr


def test_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_PING_INTERVAL_S", "soon")
    monkeypatch.setenv("CORRAL_PORT", "abc")
    result = corral("serve", "tiny.gguf")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "corral: CORRAL_PORT: must be a whole number",
        "corral: CORRAL_PING_INTERVAL_S: must be a number",
    ]


def test_misspelt_variable_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_APIKEYS", "x")
    result = corral("check", "tiny.gguf")
    assert result.exit_code == 0
    assert "did you mean CORRAL_API_KEYS?" in result.stderr
