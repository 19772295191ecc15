"""What is kept on the disk is shown, and cleaned only as far as somebody says so."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.support.command_line import REFERENCE, fetched, run, work_in

OTHER = "pkg:other==2.0/tiny.gguf"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a download that is used, one that is not, and an old saved prompt."""
    work_in(tmp_path, monkeypatch)
    (tmp_path / "models.yaml").write_text(f"models:\n  chat: {REFERENCE}\n", encoding="utf-8")
    folder = tmp_path / "cache"
    fetched(folder, data=b"x" * 2000)
    fetched(folder, OTHER, data=b"x" * 1000)
    prompt = folder / "prompts" / "chat-0123456789ab" / "a.kv"
    prompt.parent.mkdir(parents=True)
    prompt.write_bytes(b"x" * 300)
    old_s = time.time() - 10 * 86_400
    os.utime(prompt, (old_s, old_s))
    return folder


def kinds() -> list[tuple[str, str]]:
    return [(one["kind"], one["subject"]) for one in json.loads(run("cache", "--json").stdout)["entries"]]


ALL = [("downloads", REFERENCE), ("downloads", OTHER), ("prompts", "chat")]


def test_list_tells_sizes_ages_and_users() -> None:
    for arguments in (("cache",), ("cache", "list")):
        said = run(*arguments).stdout
        assert "chat" in said
        assert "unused" in said
        assert "10 d" in said


def test_json_has_plain_numbers(cache: Path) -> None:
    told = json.loads(run("cache", "list", "--json").stdout)
    assert told["folder"] == str(cache)
    assert told["bytes"] == 3300
    assert [one["models"] for one in told["entries"]] == [["chat"], [], None]


def test_clean_wants_to_know_what() -> None:
    result = run("cache", "clean", "--yes")
    assert result.exit_code == 2
    assert "--kind" in result.stderr
    assert kinds() == ALL


def test_nothing_goes_where_nobody_can_be_asked() -> None:
    result = run("cache", "clean", "--kind", "prompts")
    assert result.exit_code == 0
    assert "nothing was removed" in result.stdout
    assert kinds() == ALL


def test_dry_run_removes_nothing_even_with_yes() -> None:
    run("cache", "clean", "--kind", "downloads", "--dry-run", "--yes")
    assert kinds() == ALL


def test_old_things_go_but_no_download_that_was_not_named() -> None:
    run("cache", "clean", "--older-than", "0s", "--yes")
    assert kinds() == ALL[:2]


def test_age_is_kept() -> None:
    run("cache", "clean", "--kind", "prompts", "--older-than", "11d", "--yes")
    assert kinds() == ALL
    run("cache", "clean", "--kind", "prompts", "--older-than", "1w", "--yes")
    assert kinds() == ALL[:2]


def test_unused_downloads_go_and_used_ones_stay() -> None:
    result = run("cache", "clean", "--unused", "--yes", "--json")
    assert json.loads(result.stdout)["removed_bytes"] == 1000
    assert kinds() == [ALL[0], ALL[2]]


def test_unused_needs_a_configuration() -> None:
    Path("models.yaml").unlink()
    result = run("cache", "clean", "--unused", "--yes")
    assert result.exit_code == 2
    assert kinds()[:2] == ALL[:2]


@pytest.mark.parametrize("age", ["soon", "-3d", "3x"])
def test_wrong_age_is_explained(age: str) -> None:
    result = run("cache", "clean", f"--older-than={age}", "--yes")
    assert result.exit_code == 2
    assert "such as 12h" in result.stderr
