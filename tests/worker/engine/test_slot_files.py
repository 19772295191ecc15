"""What a client saves under a name is found again by that client alone, whole or not at all, within its room."""

from __future__ import annotations

import errno
import os
import resource
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from worker.engine import private_files, prompt_files
from worker.engine.batch import TokenArray
from worker.engine.occupants import Client
from worker.engine.prompt_files import MAX_AGE_S, PromptFolder, remove_all
from worker.engine.prompt_format import Bytes, Foreign, Unusable
from worker.engine.slot_files import MAX_FILES_EACH, NoRoomOnDisk, SlotFolder

KV = np.arange(5000, dtype=np.uint64).view(np.uint8)[:4999]
ME = Client("key a")
FOREVER_S = float("inf")
EARLIER = time.time() - 3600


def tokens_of(*tokens: int) -> TokenArray:
    return np.array(tokens, dtype=np.int32)


def folder_in(root: Path, *, subject: str = "model", max_bytes: int = 10**9) -> SlotFolder:
    return SlotFolder.beside(PromptFolder.open(root, "m", subject, max_bytes))


def saved(root: Path, name: str = "x", *, client: Client = ME, kv: Bytes = KV, **folder: Any) -> Path:
    """Return the file."""
    made = folder_in(root, **folder)
    made.write(client, name, tokens_of(1, 2, 3), client.salt, kv)
    return made._path_of(client, name)


def names(root: Path, client: Client = ME) -> list[str]:
    """Return which of the names a to e are saved."""
    folder = folder_in(root)
    return [name for name in "abcde" if folder._path_of(client, name).exists()]


def test_what_is_saved_comes_back_in_another_life(tmp_path: Path) -> None:
    num_bytes = folder_in(tmp_path).write(ME, "x.bin", tokens_of(5, 6), "((0, 1.0),)salt", KV)
    head, kv = folder_in(tmp_path).read(ME, "x.bin")
    assert (head.tokens.tolist(), head.salt, head.num_bytes) == ([5, 6], "((0, 1.0),)salt", num_bytes)
    assert np.array_equal(kv, KV)


def test_a_name_is_found_by_the_client_that_has_saved_it_alone(tmp_path: Path) -> None:
    me = Client("key a", "salt")
    saved(tmp_path, client=me)
    for other in (Client(), Client("key a"), Client("key b", "salt"), Client("key a", "other"), Client("", "salt")):
        with pytest.raises(FileNotFoundError):
            folder_in(tmp_path).read(other, "x")
        saved(tmp_path, client=other, kv=KV[:100])
    assert len(folder_in(tmp_path).read(me, "x")[1]) == len(KV), "nobody else has written over it"


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "/etc/passwd", "..", ".", "a/b", "a\\b", "x.kv", "\0", "\n", "nul", " ", "é" * 200, "\ud800"],
)
def test_no_name_leads_out_of_the_folder_or_shows_in_it(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path, name)
    assert path.parent.parent == tmp_path
    assert path.name.replace("-", "").removesuffix(".slot").isalnum()
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == [path]
    assert folder_in(tmp_path).read(ME, name)[0].tokens.tolist() == [1, 2, 3]


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = saved(tmp_path / "prompts")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent, path.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]


def test_a_changed_byte_anywhere_is_noticed_and_the_file_goes(tmp_path: Path) -> None:
    whole = saved(tmp_path, kv=KV[:200]).read_bytes()
    for position in range(0, len(whole), 7):
        path = saved(tmp_path, kv=KV[:200])
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(Unusable):
            folder_in(tmp_path).read(ME, "x")
        assert not path.exists()


@pytest.mark.parametrize("num_bytes", [0, 10, 300, -1])
def test_a_file_that_is_cut_off_is_refused_and_goes(tmp_path: Path, num_bytes: int) -> None:
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(Unusable):
        folder_in(tmp_path).read(ME, "x")
    assert not path.exists()


def test_a_file_of_another_model_or_configuration_is_refused_and_stays(tmp_path: Path) -> None:
    saved(tmp_path, subject="another")
    with pytest.raises(Foreign):
        folder_in(tmp_path).read(ME, "x")
    assert len(folder_in(tmp_path, subject="another").read(ME, "x")[1]) == len(KV), "it is of use again"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    path = saved(tmp_path / "here")
    path.rename(tmp_path / "there")
    path.symlink_to(tmp_path / "there")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        folder_in(tmp_path / "here").read(ME, "x")
    assert (tmp_path / "there").exists()
    assert not path.is_symlink()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_could_have_written_is_refused(tmp_path: Path, mode: int) -> None:
    path = saved(tmp_path)
    path.chmod(mode)
    with pytest.raises(Unusable, match="own"):
        folder_in(tmp_path).read(ME, "x")


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path)
    folder = folder_in(tmp_path)
    monkeypatch.setattr(private_files.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(Unusable, match="own"):
        folder.read(ME, "x")


def test_something_that_is_no_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Unusable):
        folder_in(tmp_path).read(ME, "x")


def test_the_same_name_is_written_over(tmp_path: Path) -> None:
    saved(tmp_path)
    saved(tmp_path, kv=KV[:7])
    assert len(folder_in(tmp_path).read(ME, "x")[1]) == 7
    assert len(list(tmp_path.rglob("*.slot"))) == 1


def test_ones_own_files_give_way_to_a_new_one_the_longest_unused_first(tmp_path: Path) -> None:
    size = saved(tmp_path, "a").stat().st_size
    limit = 2 * (3 * size + 10)
    for number, name in enumerate("bc"):
        saved(tmp_path, name, max_bytes=limit)
        os.utime(folder_in(tmp_path)._path_of(ME, name), (EARLIER + number,) * 2)
    os.utime(folder_in(tmp_path)._path_of(ME, "a"), (EARLIER + 9,) * 2)
    saved(tmp_path, "d", max_bytes=limit)
    assert names(tmp_path) == ["a", "c", "d"]
    folder_in(tmp_path).read(ME, "c")
    os.utime(folder_in(tmp_path)._path_of(ME, "d"))
    saved(tmp_path, "e", max_bytes=limit)
    assert names(tmp_path) == ["c", "d", "e"], "what was read counts as used"


OTHER = Client("key b")


def test_files_of_others_who_have_less_never_give_way(tmp_path: Path) -> None:
    size = saved(tmp_path, "a", client=OTHER).stat().st_size
    saved(tmp_path, "a", max_bytes=2 * (2 * size))
    with pytest.raises(NoRoomOnDisk, match="the rest is of others, who have less"):
        saved(tmp_path, "b", kv=np.tile(KV, 2), max_bytes=2 * (2 * size))
    assert (names(tmp_path), names(tmp_path, OTHER)) == (["a"], ["a"]), "and nothing has gone for nothing"


def test_a_file_beyond_the_whole_room_is_refused_and_nothing_goes(tmp_path: Path) -> None:
    saved(tmp_path, "a", client=OTHER)
    saved(tmp_path, "a")
    with pytest.raises(NoRoomOnDisk, match="prompt_cache_disk_bytes"):
        saved(tmp_path, "b", max_bytes=4000)
    assert (names(tmp_path), names(tmp_path, OTHER)) == (["a"], ["a"])


def test_whoever_fills_the_room_makes_place_for_somebody_who_comes_later(tmp_path: Path) -> None:
    size = saved(tmp_path, "a", client=OTHER).stat().st_size
    limit = 2 * 4 * size
    for number, name in enumerate("bcd"):
        saved(tmp_path, name, client=OTHER, max_bytes=limit)
        os.utime(folder_in(tmp_path)._path_of(OTHER, name), (EARLIER + number,) * 2)
    for name in "ab":
        saved(tmp_path, name, max_bytes=limit)
    assert (names(tmp_path), names(tmp_path, OTHER)) == (["a", "b"], ["a", "d"]), "the longest unused first"
    saved(tmp_path, "c", max_bytes=limit)
    assert (names(tmp_path), names(tmp_path, OTHER)) == (["b", "c"], ["a", "d"]), "no further than to equal shares"


def test_one_owner_has_so_many_files_at_most(tmp_path: Path) -> None:
    for number in range(MAX_FILES_EACH + 3):
        path = saved(tmp_path, f"{number}", kv=KV[:10])
        os.utime(path, (EARLIER + number,) * 2)
    assert len(list(tmp_path.rglob("*.slot"))) == MAX_FILES_EACH
    assert not folder_in(tmp_path)._path_of(ME, "2").exists()


def test_prompts_that_are_kept_by_themselves_give_way_and_what_is_saved_does_not(tmp_path: Path) -> None:
    prompts = PromptFolder.open(tmp_path, "m", "model", 10**9)
    prompts.prepare()
    for number in range(4):
        prompts.write(tokens_of(number), "", KV, used_at=time.time() - 99 + number, until_s=FOREVER_S)
    size = max(path.stat().st_size for path in tmp_path.rglob("*.kv"))
    limit = 4 * size + 100
    saved(tmp_path, "a", max_bytes=limit)
    left = PromptFolder.open(tmp_path, "m", "model", limit)
    assert [file.tokens.tolist() for file in left.files] == [[3], [2], [1]]
    left.prepare()
    left.write(tokens_of(9), "", KV, used_at=time.time(), until_s=FOREVER_S)
    total = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert total <= limit
    assert names(tmp_path) == ["a"]


def test_a_folder_that_is_opened_forgets_prompts_beyond_its_limit_and_nothing_that_was_saved(tmp_path: Path) -> None:
    path = saved(tmp_path, "a")
    prompts = PromptFolder.open(tmp_path, "m", "model", 10**9)
    prompts.prepare()
    prompts.write(tokens_of(1), "", KV, used_at=time.time(), until_s=FOREVER_S)
    assert PromptFolder.open(tmp_path, "m", "model", path.stat().st_size + 100).files == []
    assert names(tmp_path) == ["a"]


def test_what_nobody_has_used_for_long_goes(tmp_path: Path) -> None:
    path = saved(tmp_path)
    os.utime(path, (time.time() - MAX_AGE_S - 60,) * 2)
    PromptFolder.open(tmp_path, "another", "model", 10**9)
    assert not path.exists()


def test_a_model_that_keeps_nothing_any_more_has_nothing_on_the_disk(tmp_path: Path) -> None:
    path = saved(tmp_path)
    remove_all(tmp_path, "m")
    assert not path.parent.exists()


# --- a disk that refuses ------------------------------------------------------------------------------------


def test_a_full_disk_leaves_no_half_of_a_file_and_what_had_the_name(tmp_path: Path) -> None:
    path = saved(tmp_path, kv=KV[:100])
    large = np.zeros(2**20, dtype=np.uint8)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))  # Python ignores the signal: writing fails in the middle
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            saved(tmp_path, kv=large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == [path]
    assert len(folder_in(tmp_path).read(ME, "x")[1]) == 100


def test_a_full_disk_at_an_unload_is_one_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.worker.engine.test_prompt_store import LONG, bench_on, ended

    bench = bench_on(tmp_path, host_tokens=1000)
    for start in range(3):
        ended(bench, [50 + start, *LONG])

    def no_room(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(private_files.os, "replace", no_room)
    bench.core.save_prompts(FOREVER_S)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert os.strerror(errno.ENOSPC) in caplog.text
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == []
    monkeypatch.undo()
    bench.core.save_prompts(FOREVER_S)
    assert len(list(tmp_path.rglob("*.kv"))) == 3, "nothing is broken: the next time they are written"


def test_a_folder_without_rights_at_an_unload_is_one_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.worker.engine.test_prompt_store import LONG, bench_on, ended

    bench = bench_on(tmp_path)
    ended(bench, LONG)

    def read_only(*_: object, **__: object) -> None:
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(prompt_files, "make_private_folder", read_only)
    bench.core.save_prompts(FOREVER_S)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert os.strerror(errno.EROFS) in caplog.text
