"""What lies in the cache folder is told by kind, and only what Corral has put there is ever taken away."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from router.cache_survey import CacheEntry, CacheKind, InUse, remove, survey
from tests.support.command_line import REFERENCE, fetched

DIGEST = "0123456789ab"


def only(cache: Path, kind: CacheKind) -> CacheEntry:
    (entry,) = [one for one in survey(cache) if one.kind is kind]
    return entry


def prompts_folder(cache: Path) -> Path:
    folder = cache / "prompts" / f"chat-{DIGEST}"
    folder.mkdir(parents=True)
    return folder


def test_empty_or_missing_folder_has_nothing_in_it(tmp_path: Path) -> None:
    assert survey(tmp_path / "none") == []
    assert survey(tmp_path) == []


def test_fetched_model_is_told_with_its_reference_and_size(tmp_path: Path) -> None:
    folder = fetched(tmp_path, data=b"x" * 1000)
    entry = only(tmp_path, CacheKind.DOWNLOADS)
    assert (entry.path, entry.reference, entry.num_bytes) == (folder, REFERENCE, 1000)


def test_every_kind_is_told_in_order(tmp_path: Path) -> None:
    fetched(tmp_path)
    partial = tmp_path / "packages" / f"other==1-{DIGEST}" / ".partial"
    partial.mkdir(parents=True)
    (partial / "0.bytes").write_bytes(b"12345")
    (prompts_folder(tmp_path) / "a.kv").write_bytes(b"123")
    for folder, content in (
        ("calibration", {"subject": {"model_file": "m.gguf"}}),
        ("footprints", {"format": 1, "model": "chat"}),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{'a' * 32}.json").write_text(json.dumps(content), encoding="utf-8")
    entries = survey(tmp_path)
    assert [entry.kind for entry in entries] == list(CacheKind)
    assert [entry.subject for entry in entries] == [REFERENCE, "other==1", "chat", "m.gguf", "chat"]
    assert entries[1].num_bytes == 5


def test_files_of_others_are_not_told(tmp_path: Path) -> None:
    for name in (
        "packages/notes.txt",
        "packages/mine/model.gguf",
        f"prompts/chat-{DIGEST}/readme.txt",
        "footprints/x.json",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine", encoding="utf-8")
    assert survey(tmp_path) == []


def test_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.kv").touch()
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / f"chat-{DIGEST}").symlink_to(elsewhere)
    assert survey(tmp_path) == []


def test_removed_download_leaves_no_folder(tmp_path: Path) -> None:
    folder = fetched(tmp_path)
    remove(only(tmp_path, CacheKind.DOWNLOADS))
    assert not folder.exists()


def test_file_that_somebody_put_beside_a_download_stays(tmp_path: Path) -> None:
    folder = fetched(tmp_path)
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    remove(only(tmp_path, CacheKind.DOWNLOADS))
    assert (folder / "notes.txt").exists()
    assert not (folder / "tiny.gguf").exists()


def test_download_that_another_process_holds_stays(tmp_path: Path) -> None:
    folder = fetched(tmp_path)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InUse):
            remove(only(tmp_path, CacheKind.DOWNLOADS))
    assert (folder / "tiny.gguf").exists()
    remove(only(tmp_path, CacheKind.DOWNLOADS))
    assert not folder.exists()


def test_manifest_cannot_name_files_of_other_folders(tmp_path: Path) -> None:
    folder = fetched(tmp_path)
    manifest = {"reference": REFERENCE, "files": [{"name": "../victim", "size": 1}]}
    (folder / "source.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert survey(tmp_path) == []


def test_removed_remains_leave_the_finished_model(tmp_path: Path) -> None:
    folder = fetched(tmp_path)
    (folder / ".partial").mkdir()
    (folder / ".partial" / "0.bytes").write_bytes(b"123")
    remove(only(tmp_path, CacheKind.UNFINISHED))
    assert not (folder / ".partial").exists()
    assert (folder / "tiny.gguf").exists()


def test_last_prompt_takes_its_folder_along(tmp_path: Path) -> None:
    folder = prompts_folder(tmp_path)
    (folder / "a.kv").write_bytes(b"123")
    (folder / "b.kv").write_bytes(b"1")
    for entry in survey(tmp_path):
        remove(entry)
    assert not folder.exists()


def test_prompt_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    path = prompts_folder(tmp_path) / "a.new"
    path.write_bytes(b"123")
    assert survey(tmp_path) == []
    old_s = time.time() - 3600
    os.utime(path, (old_s, old_s))
    assert only(tmp_path, CacheKind.PROMPTS).path == path


def test_what_is_gone_already_is_no_failure(tmp_path: Path) -> None:
    path = prompts_folder(tmp_path) / "a.kv"
    path.write_bytes(b"123")
    entry = only(tmp_path, CacheKind.PROMPTS)
    path.unlink()
    remove(entry)


def test_what_was_changed_after_it_was_looked_at_stays(tmp_path: Path) -> None:
    folder = fetched(tmp_path)
    prompt = prompts_folder(tmp_path) / "a.kv"
    prompt.write_bytes(b"123")
    (folder / ".partial").mkdir()
    entries = survey(tmp_path)
    later_s = time.time() + 60
    for path in (folder / "source.json", prompt, folder / ".partial"):
        os.utime(path, (later_s, later_s))
    for entry in entries:
        with pytest.raises(InUse, match="in the meantime"):
            remove(entry)
    assert len(survey(tmp_path)) == len(entries) == 3


@pytest.mark.parametrize("kind", ["packages", "prompts", "calibration", "footprints"])
def test_a_folder_of_somebody_else_that_is_linked_is_not_told(tmp_path: Path, kind: str) -> None:
    cache, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    fetched(elsewhere)
    (prompts_folder(elsewhere) / "a.kv").write_bytes(b"123")
    for name in ("calibration", "footprints"):
        (elsewhere / name).mkdir()
        (elsewhere / name / f"{'a' * 24}.json").write_text("{}", encoding="utf-8")
    cache.mkdir()
    (cache / kind).symlink_to(elsewhere / kind)
    assert survey(cache) == []
    assert len(survey(elsewhere)) == 4
