"""Models are fetched and removed by their references or names, and nothing else is ever removed."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from router.cli.pull import _Lines, suggested_name
from router.fetch.protocol import FetchProgress
from tests.support.command_line import REFERENCE, fetched, run, work_in
from tests.support.gguf_bytes import gguf_bytes

CATALOG = f"""
models:
  tiny:
    model: {REFERENCE}
    aliases: [small]
  file: ./own.gguf
  other:
    url: https://other.example.com/v1
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models.yaml").write_text(CATALOG, encoding="utf-8")
    (tmp_path / "own.gguf").write_bytes(gguf_bytes())
    return work_in(tmp_path, monkeypatch)


# --- pull --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny", "small", REFERENCE])
def test_what_is_here_already_is_not_fetched(folder: Path, name: str) -> None:
    where = fetched(folder / "cache")
    result = run("pull", name)
    assert result.exit_code == 0
    assert "already here" in result.stdout
    assert str(where / "tiny.gguf") in result.stdout


def test_json_tells_where_the_files_are(folder: Path) -> None:
    where = fetched(folder / "cache")
    (entry,) = json.loads(run("pull", "tiny", "--json").stdout)["files"]
    size = (where / "tiny.gguf").stat().st_size
    assert entry == {
        "reference": REFERENCE,
        "model": "tiny",
        "path": str(where / "tiny.gguf"),
        "bytes": size,
        "fetched": False,
    }


def test_file_of_this_machine_needs_no_fetching() -> None:
    result = run("pull", "file")
    assert result.exit_code == 0
    assert "nothing to fetch" in result.stdout


def test_draft_model_and_adapters_come_along(folder: Path) -> None:
    (folder / "models.yaml").write_text(
        f"models:\n  a: {{model: {REFERENCE}, draft_model: ./own.gguf, loras: {{x: ./own.gguf}}}}\n", encoding="utf-8"
    )
    fetched(folder / "cache")
    labels = [line.partition(":")[0] for line in run("pull", "a").stdout.splitlines()]
    assert labels == ["a", "a, draft model"], "the adapter is the same file"


def test_fetch_that_may_not_happen_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_OFFLINE", "1")
    result = run("pull", "hf:owner/repo/file.gguf")
    assert result.exit_code == 1
    assert "offline mode" in result.stderr


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("nobody", 5, "there is no model 'nobody'"),
        ("other", 1, "another server"),
        ("hf:owner", 2, "write hf:OWNER/REPO/FILE.gguf"),
        ("https://example.com/x.gguf", 2, "URLs are not model references"),
        ("missing.gguf", 1, "does not exist"),
    ],
)
def test_wrong_names_are_explained(name: str, code: int, words: str) -> None:
    result = run("pull", name)
    assert result.exit_code == code
    assert words in result.stderr


def test_name_without_a_configuration_says_where_it_was_looked_for(folder: Path) -> None:
    (folder / "models.yaml").unlink()
    result = run("pull", "tiny")
    assert result.exit_code == 5
    assert "there is no models.yaml in this folder" in result.stderr


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Llama-3 8B.Q4_K_M.gguf", "llama-3-8b.q4_k_m"),
        ("big-00001-of-00003.gguf", "big"),
        ("7b.gguf", "model-7b"),
    ],
)
def test_suggested_name_is_plain_enough_for_yaml(file: str, name: str) -> None:
    assert suggested_name(file) == name


def test_lines_of_a_pipe_come_at_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _Lines("m")
    for done in range(0, 101):
        lines.show(FetchProgress("downloading", done, 100))
    lines.show(FetchProgress("verifying", 100, 100))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 12
    assert said[-1].startswith("m: verifying")


# --- rm ----------------------------------------------------------------------------------------------------


def test_nothing_is_removed_unasked(folder: Path) -> None:
    where = fetched(folder / "cache")
    result = run("rm", "tiny")
    assert result.exit_code == 2
    assert "add --yes" in result.stderr
    assert (where / "tiny.gguf").exists()


def test_download_is_removed_with_yes(folder: Path) -> None:
    where = fetched(folder / "cache")
    result = run("rm", "small", "--yes")
    assert result.exit_code == 0
    assert not where.exists()


def test_json_tells_what_was_removed(folder: Path) -> None:
    fetched(folder / "cache", data=b"x" * 500)
    told = json.loads(run("rm", REFERENCE, "--yes", "--json").stdout)
    assert told["removed_bytes"] == 500
    assert told["files"][0]["removed"] is True


def test_files_given_by_path_are_never_removed(folder: Path) -> None:
    for name in ("file", "own.gguf", "./own.gguf"):
        result = run("rm", name, "--yes")
        assert result.exit_code == 1
        assert "not a download" in result.stderr
    assert (folder / "own.gguf").exists()


def test_what_can_be_removed_goes_and_the_rest_is_told(folder: Path) -> None:
    where = fetched(folder / "cache")
    result = run("rm", "tiny", "file", "--yes")
    assert result.exit_code == 1
    assert "not a download" in result.stderr
    assert not where.exists()


def test_model_that_is_not_here_is_told() -> None:
    result = run("rm", "tiny", "--yes")
    assert result.exit_code == 1
    assert "is not in the cache" in result.stderr


def test_download_that_a_fetch_holds_stays(folder: Path) -> None:
    where = fetched(folder / "cache")
    with (where / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = run("rm", "tiny", "--yes")
    assert result.exit_code == 1
    assert "another process is fetching" in result.stderr
    assert (where / "tiny.gguf").exists()


def test_hubs_cache_is_left_to_its_own_program(folder: Path) -> None:
    snapshot = folder / "hub" / "hub" / "models--owner--repo" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "file.gguf").write_bytes(gguf_bytes())
    result = run("rm", "hf:owner/repo/file.gguf", "--yes")
    assert result.exit_code == 1
    assert "hf cache rm model/owner/repo" in result.stderr
    assert (snapshot / "file.gguf").exists()


def test_folder_that_is_called_like_a_model_does_not_hide_it(folder: Path) -> None:
    (folder / "tiny").mkdir()
    fetched(folder / "cache")
    assert run("rm", "tiny", "--yes").exit_code == 0


@pytest.mark.parametrize(
    "word", ["~nobody-at-all/x.gguf", f"pkg:{'+'.join(f'part-{at}-of-a-model' for at in range(20))}/x"]
)
def test_words_that_are_no_names_of_files_are_no_traceback(word: str) -> None:
    result = run("rm", word, "--yes")
    assert result.exit_code == 1
    assert result.stderr.startswith("corral: ")
