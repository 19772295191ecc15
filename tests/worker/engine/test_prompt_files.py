"""A prompt comes back from the disk exactly as it was written, or not at all; and the disk does not fill up."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from worker.contract import EngineOptions, LoraFile
from worker.engine.batch import TokenArray
from worker.engine.prompt_files import MAX_AGE_S, MAX_FILES, PromptFolder, folder_of, remove_all
from worker.engine.prompt_format import CHUNK_BYTES, IRRELEVANT, Bytes, subject_of

SUBJECT = "model a"
FOREVER_S = float("inf")
KV = np.arange(5000, dtype=np.uint64).view(np.uint8)[:4999]


def tokens_of(*tokens: int) -> TokenArray:
    return np.array(tokens, dtype=np.int32)


def opened(root: Path, *, subject: str = SUBJECT, max_bytes: int = 10**9, model: str = "m") -> PromptFolder:
    return PromptFolder.open(root, model, subject, max_bytes)


def written(
    root: Path, *tokens: int, salt: str = "", kv: Bytes = KV, used_at: float | None = None, max_bytes: int = 10**9
) -> int:
    folder = opened(root, max_bytes=max_bytes)
    folder.prepare()
    at = time.time() if used_at is None else used_at
    return folder.write(tokens_of(*tokens), salt, kv, used_at=at, until_s=FOREVER_S)


def found(root: Path, **changes: Any) -> list[tuple[list[int], str]]:
    return [(file.tokens.tolist(), file.salt) for file in opened(root, **changes).files]


def the_file(root: Path, model: str = "m") -> Path:
    (path,) = folder_of(root, model).iterdir()
    return path


@pytest.mark.parametrize("num_bytes", [1, 4999, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_what_was_written_is_read_in_another_life(tmp_path: Path, num_bytes: int) -> None:
    kv = np.random.default_rng(1).integers(0, 256, num_bytes, dtype=np.uint8)
    assert written(tmp_path, 5, 6, 7, salt="tenant", kv=kv) == the_file(tmp_path).stat().st_size
    folder = opened(tmp_path)
    (file,) = folder.files
    assert (file.tokens.tolist(), file.salt, file.kv_bytes) == ([5, 6, 7], "tenant", num_bytes)
    data = folder.read(file)
    assert data is not None
    assert np.array_equal(data, kv)
    assert the_file(tmp_path).exists()


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder_of(tmp_path / "prompts", "m").mkdir(parents=True, mode=0o777)
        written(tmp_path / "prompts", 1, 2)
    finally:
        os.umask(before)
    path = the_file(tmp_path / "prompts")
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent, path.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]


def test_a_changed_byte_anywhere_is_noticed_and_the_file_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kv = KV[:300]
    written(tmp_path, 1, 2, 3, salt="x", kv=kv)
    whole = the_file(tmp_path).read_bytes()
    path = the_file(tmp_path)
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        path.chmod(0o600)
        folder = opened(tmp_path)
        assert [folder.read(file) for file in folder.files] in ([], [None]), f"byte {position} of {len(whole)}"
        assert not path.exists(), f"byte {position} of {len(whole)}"
        assert folder.files == []
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == len(whole), "one line for each"


@pytest.mark.parametrize("kept", [0, 5, 20, 100, -300, -5, -1])
def test_a_truncated_file_is_not_known_and_goes(tmp_path: Path, kept: int) -> None:
    written(tmp_path, 1, 2, 3)
    path = the_file(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    path.chmod(0o600)
    assert found(tmp_path) == []
    assert not path.exists()


def test_a_file_that_grew_is_not_known(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 3)
    with the_file(tmp_path).open("ab") as file:
        file.write(b"more")
    assert found(tmp_path) == []


def test_a_file_that_is_cut_after_it_was_found_is_not_believed(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 3)
    folder = opened(tmp_path)
    os.truncate(the_file(tmp_path), 1000)
    assert folder.read(folder.files[0]) is None
    assert folder.files == []


def test_a_file_that_was_replaced_after_it_was_found_is_not_believed(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 3)
    folder = opened(tmp_path)
    (file,) = folder.files
    written(tmp_path, 1, 2, 4)
    other = next(path for path in folder.path.iterdir() if path != file.path)
    os.replace(other, file.path)
    assert folder.read(file) is None


def test_a_file_that_has_gone_is_a_miss(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 3)
    folder = opened(tmp_path)
    the_file(tmp_path).unlink()
    assert folder.read(folder.files[0]) is None


def test_files_of_another_subject_are_never_offered_and_go(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 3)
    assert found(tmp_path, subject="model b") == []
    assert list(folder_of(tmp_path, "m").iterdir()) == []


def test_files_of_another_model_stay_where_they_are(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 3)
    assert found(tmp_path, model="other", subject="model b") == []
    assert found(tmp_path) == [([1, 2, 3], "")]


@pytest.mark.parametrize("model", ["org/smol:latest", "..", "über", "a" * 300, ".hidden", "m\n"])
def test_the_folder_of_any_name_is_one_folder_inside_the_root(tmp_path: Path, model: str) -> None:
    assert folder_of(tmp_path, model).parent == tmp_path
    assert folder_of(tmp_path, model) != folder_of(tmp_path, model + "_")
    folder_of(tmp_path, model).mkdir()


def test_a_link_or_another_users_file_is_not_followed(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 3)
    path = the_file(tmp_path)
    path.rename(tmp_path / "elsewhere.kv")
    path.symlink_to(tmp_path / "elsewhere.kv")
    assert found(tmp_path) == []
    assert not path.is_symlink()
    assert (tmp_path / "elsewhere.kv").exists()
    (tmp_path / "elsewhere.kv").rename(path)
    path.chmod(0o666)
    assert found(tmp_path) == [], "others could have written it"


def test_a_pipe_in_the_folder_does_not_stop_anybody(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 3)
    os.mkfifo(the_file(tmp_path).with_name("pipe.kv"))
    assert found(tmp_path) == [([1, 2, 3], "")]


def test_files_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 3)
    note = folder_of(tmp_path, "m") / "notes.txt"
    note.write_text("mine")
    opened(tmp_path, subject="model b")
    remove_all(tmp_path, "m")
    assert note.read_text() == "mine"


# --- limits -------------------------------------------------------------------------------------------------


def test_the_limit_holds_and_the_prompt_used_last_stays(tmp_path: Path) -> None:
    size = written(tmp_path, 1, 1, used_at=1000.0 + time.time() - 3600)
    limit = 2 * size + 10
    now_at = time.time()
    for index in range(2, 6):
        assert written(tmp_path, index, index, used_at=now_at + index, max_bytes=limit) == size
        assert sum(path.stat().st_size for path in folder_of(tmp_path, "m").iterdir()) <= limit
    assert found(tmp_path, max_bytes=limit) == [([5, 5], ""), ([4, 4], "")]


def test_an_older_prompt_does_not_drive_out_one_that_was_used_later(tmp_path: Path) -> None:
    now_at = time.time()
    size = written(tmp_path, 1, 1, used_at=now_at)
    assert written(tmp_path, 2, 2, used_at=now_at - 100, max_bytes=size + 10) == 0
    assert found(tmp_path) == [([1, 1], "")]


def test_a_lower_limit_removes_what_was_used_longest_ago(tmp_path: Path) -> None:
    now_at = time.time()
    for index in range(4):
        size = written(tmp_path, index, 9, used_at=now_at + index)
    assert found(tmp_path, max_bytes=2 * size) == [([3, 9], ""), ([2, 9], "")]
    assert len(list(folder_of(tmp_path, "m").iterdir())) == 2


def test_no_more_files_are_known_than_prompts_can_be_compared_with(tmp_path: Path) -> None:
    for index in range(MAX_FILES + 3):
        written(tmp_path, index, 9, kv=KV[:10], used_at=time.time() + index)
    assert len(opened(tmp_path).files) == MAX_FILES
    assert len(list(folder_of(tmp_path, "m").iterdir())) == MAX_FILES


def test_what_nobody_has_used_for_a_week_goes_also_of_models_that_are_not_there_any_more(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, used_at=time.time() - MAX_AGE_S - 60)
    old = the_file(tmp_path)
    assert found(tmp_path, model="other") == []
    assert not old.exists()


def test_what_a_new_prompt_begins_with_needs_no_file(tmp_path: Path) -> None:
    written(tmp_path, 1, 2)
    written(tmp_path, 1, 2, salt="tenant")
    written(tmp_path, 1, 3)
    written(tmp_path, 1, 2, 3)
    assert sorted(found(tmp_path)) == [([1, 2], "tenant"), ([1, 2, 3], ""), ([1, 3], "")]


def test_time_that_runs_out_leaves_nothing_behind(tmp_path: Path) -> None:
    clock = itertools.count()
    folder = PromptFolder(folder_of(tmp_path, "m"), SUBJECT, 10**9, clock=lambda: float(next(clock)))
    folder.prepare()
    kv = np.zeros(3 * CHUNK_BYTES, dtype=np.uint8)
    assert folder.write(tokens_of(1, 2), "", kv, used_at=time.time(), until_s=1.5) == 0
    assert list(folder.path.iterdir()) == []


def test_what_a_killed_worker_left_unfinished_goes_but_not_what_is_being_written(tmp_path: Path) -> None:
    folder_of(tmp_path, "m").mkdir()
    old, new = folder_of(tmp_path, "m") / "a.1.new", folder_of(tmp_path, "m") / "b.2.new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 3600,) * 2)
    assert found(tmp_path) == []
    assert (old.exists(), new.exists()) == (False, True)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(OSError, match="No space"):
        written(tmp_path, 1, 2)
    assert list(folder_of(tmp_path, "m").iterdir()) == []


def test_a_model_that_keeps_nothing_any_more_leaves_no_trace(tmp_path: Path) -> None:
    written(tmp_path, 1, 2)
    remove_all(tmp_path, "m")
    assert list(tmp_path.iterdir()) == []
    remove_all(tmp_path, "m")


def test_a_folder_that_cannot_be_read_is_a_folder_without_prompts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "prompts").write_text("a file")
    assert PromptFolder.open(tmp_path / "prompts", "m", SUBJECT, 10**9).files == []
    assert "cannot be read" in caplog.text


# --- what must be equal -------------------------------------------------------------------------------------


def subject(path: Path, options: EngineOptions | None = None, **changes: str) -> str:
    given = {"flash_attn": "auto", "library": "1"} | changes
    return subject_of(str(path), options or EngineOptions(context=512), **given)


def other_value(value: object) -> object:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case None:
            return 1
        case tuple():
            return (1.0,)
    raise AssertionError(value)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"weights")
    return path


@pytest.mark.parametrize("name", [one.name for one in dataclasses.fields(EngineOptions)])
def test_any_option_that_may_change_cells_makes_another_subject(model: Path, name: str) -> None:
    if name == "loras":
        return
    options = EngineOptions(context=512)
    changed = dataclasses.replace(options, **{name: other_value(getattr(options, name))})
    assert (subject(model, changed) == subject(model, options)) is (name in IRRELEVANT)


def test_cache_types_rope_window_and_size_are_not_among_those_that_do_not_matter() -> None:
    matter = {"cache_type_k", "cache_type_v", "swa_full", "rope_scale", "rope_freq_base", "context", "slots"}
    assert not matter & IRRELEVANT
    assert {one.name for one in dataclasses.fields(EngineOptions)} >= IRRELEVANT


def test_another_library_or_attention_makes_another_subject(model: Path) -> None:
    assert len({subject(model), subject(model, library="2"), subject(model, flash_attn="off")}) == 3


def test_a_file_that_was_exchanged_makes_another_subject(model: Path) -> None:
    before = subject(model)
    os.utime(model, ns=(1, 1))
    later = subject(model)
    model.write_bytes(b"longer weights")
    os.utime(model, ns=(1, 1))
    assert len({before, later, subject(model)}) == 3


def test_every_part_of_a_split_model_counts(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    for part in parts:
        part.write_bytes(b"x")
    before = subject(parts[0])
    os.utime(parts[1], ns=(1, 1))
    assert subject(parts[0]) != before
    parts[1].unlink()
    with pytest.raises(FileNotFoundError):
        subject(parts[0])


def test_adapters_count_by_file_and_place_not_by_name(tmp_path: Path, model: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode())
    one, two = (LoraFile(name, str(tmp_path / name)) for name in ("a", "b"))

    def having(*loras: LoraFile) -> str:
        return subject(model, EngineOptions(context=512, loras=loras))

    assert len({having(), having(one), having(two), having(one, two), having(two, one)}) == 5
    assert having(dataclasses.replace(one, name="c")) == having(one)
