"""The cache folder's manners: where it is, one writer at a time, no full disks."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from router.cache_folder import (
    default_cache_dir,
    exclusive_lock,
    mebibytes,
    read_json,
    require_free_space,
    write_atomically,
)
from router.fetch.protocol import SourceError


def test_the_default_folder_is_the_users_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    assert default_cache_dir({"CORRAL_CACHE": "~/models", "XDG_CACHE_HOME": "/x"}) == Path("/home/u/models")
    assert default_cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/corral")
    monkeypatch.setattr("sys.platform", "linux")
    assert default_cache_dir({}) == Path("/home/u/.cache/corral")
    monkeypatch.setattr("sys.platform", "darwin")
    assert default_cache_dir({}) == Path("/home/u/Library/Caches/corral")


def test_a_lock_has_one_holder_and_tells_who_waits(tmp_path: Path) -> None:
    is_waiting, is_done = threading.Event(), threading.Event()

    def second() -> None:
        with exclusive_lock(tmp_path / "sub" / "lock", is_waiting.set):
            is_done.set()

    thread = threading.Thread(target=second)
    with exclusive_lock(tmp_path / "sub" / "lock", lambda: None):
        thread.start()
        assert is_waiting.wait(10)
        assert not is_done.is_set()
    assert is_done.wait(10)
    thread.join()


def test_whoever_waits_for_a_lock_that_is_removed_gets_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "lock"
    is_waiting, is_done = threading.Event(), threading.Event()

    def second() -> None:
        with exclusive_lock(path, is_waiting.set):
            assert path.exists()
            is_done.set()

    thread = threading.Thread(target=second)
    with exclusive_lock(path, lambda: None):
        thread.start()
        assert is_waiting.wait(10)
        path.unlink()
        path.parent.rmdir()
    assert is_done.wait(10)
    thread.join()


def test_a_fetch_that_does_not_fit_is_refused_with_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 100 * 2**20
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10**9, 10**9 - free, free))
    require_free_space(tmp_path, 36 * 2**20, "m.gguf")
    with pytest.raises(SourceError, match=r"disk space for m.gguf: it needs 101 MiB, .* has 100 MiB free"):
        require_free_space(tmp_path, 37 * 2**20, "m.gguf")


def test_small_and_large_sizes_are_readable() -> None:
    assert mebibytes(12) == "12 bytes"
    assert mebibytes(5 * 2**30) == "5,120 MiB"


def test_a_file_is_replaced_whole_and_nothing_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, "{}")
    write_atomically(path, '{"a": 1}')
    assert read_json(path) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff"])
def test_a_broken_json_file_reads_as_empty(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, encoding="latin-1")
    assert read_json(path) == {}
    assert read_json(tmp_path / "missing") == {}
