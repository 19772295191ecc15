"""Edits are noticed however files are replaced, and only when they are over."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from router.watcher import PATIENCE_S, POLL_S, REREAD_S, SETTLE_S, Edit, Looker, Sight, Watcher, look

OLD = "models: {a: a.gguf}\n"
NEW = "models: {b: b.gguf}\n"
"""Of the same size."""


def write_in_place(path: Path) -> None:
    path.write_text(NEW)


def rename_over(path: Path) -> None:
    other = path.with_name("other")
    other.write_text(NEW)
    other.replace(path)


def delete_and_create(path: Path) -> None:
    path.unlink()
    path.write_text(NEW)


def write_in_place_with_the_old_times(path: Path) -> None:
    before = path.stat()
    path.write_text(NEW)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap_for_a_link(path: Path) -> None:
    target = path.with_name("target.yaml")
    target.write_text(NEW)
    path.unlink()
    path.symlink_to(target)


EDITS = [write_in_place, rename_over, delete_and_create, write_in_place_with_the_old_times, swap_for_a_link]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_seen_at_the_next_look_even_if_the_size_is_the_same(
    tmp_path: Path, edit: Callable[[Path], None]
) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(OLD)
    looker = Looker()
    before = looker.look([path], 0.0)
    assert looker.look([path], 0.1) == before
    edit(path)
    after = looker.look([path], 0.2)
    assert after != before
    assert after == look([path])


def test_a_link_that_points_elsewhere_is_an_edit(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(OLD)
    (tmp_path / "two.yaml").write_text(NEW)
    path = tmp_path / "models.yaml"
    path.symlink_to("one.yaml")
    looker = Looker()
    before = looker.look([path], 0.0)
    (tmp_path / "next").symlink_to("two.yaml")
    (tmp_path / "next").replace(path)
    assert looker.look([path], 0.1) != before


def test_the_folder_of_a_config_map_that_is_swapped_is_an_edit(tmp_path: Path) -> None:
    for version, text in (("..1", OLD), ("..2", NEW)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "models.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    path = tmp_path / "models.yaml"
    path.symlink_to("..data/models.yaml")
    looker = Looker()
    before = looker.look([path], 0.0)
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").replace(tmp_path / "..data")
    assert looker.look([path], 0.1) != before


def test_a_file_whose_marks_tell_nothing_is_compared_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(OLD)
    looker = Looker(lambda _: (1, 2, 3))  # a file system that keeps no exact times
    before = looker.look([path], 0.0)
    path.write_text(NEW)
    assert looker.look([path], REREAD_S / 2) == before
    assert looker.look([path], REREAD_S) != before


def test_a_file_that_is_only_touched_is_no_edit(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(OLD)
    looker = Looker()
    before = looker.look([path], 0.0)
    os.utime(path)
    assert looker.look([path], 0.1) == before


@pytest.mark.parametrize("name", ["missing.yaml", "folder/missing.yaml", "pipe", "a\0b"])
def test_what_cannot_be_read_has_a_sight_too(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / name
    assert Looker().look([path], 0.0) == look([path])


def test_a_folder_is_its_model_files_and_their_sizes(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"1")
    before = look([tmp_path])
    (tmp_path / "notes.txt").write_text("no model")
    (tmp_path / ".b.gguf").write_bytes(b"a hidden file is none")
    assert look([tmp_path]) == before
    (tmp_path / "b.gguf").write_bytes(b"1")
    grown = look([tmp_path])
    assert grown != before
    (tmp_path / "b.gguf").write_bytes(b"12")
    assert look([tmp_path]) != grown, "it is still being copied"


def test_a_model_file_is_never_read_only_measured(tmp_path: Path) -> None:
    path = tmp_path / "a-00001-of-00002.gguf"
    path.write_bytes(b"1")
    os.utime(path, ns=(1, 1))
    before = look([path])
    path.write_bytes(b"2")
    os.utime(path, ns=(1, 1))
    assert look([path]) == before
    os.utime(path, ns=(1, 2))
    assert look([path]) != before, "a file of the same size has been put in its place"
    path.with_name("a-00002-of-00002.gguf").write_bytes(b"2")
    assert look([path]) != before


# --- when an edit is over ---------------------------------------------------------------------------------


FILE = Path("models.yaml")


def sight(content: str) -> Sight:
    return {FILE: content}


def test_nothing_is_read_while_nothing_changes() -> None:
    edit = Edit()
    assert not any(edit.is_over(sight("a"), sight("a"), now_s) for now_s in range(100))


def test_an_edit_is_over_when_it_has_been_still_for_a_while() -> None:
    edit = Edit()
    looks = [edit.is_over(sight("b"), sight("a"), now_s) for now_s in (0.0, SETTLE_S / 2, SETTLE_S)]
    assert looks == [False, False, True]


def test_a_file_that_is_written_in_two_steps_is_read_once() -> None:
    edit = Edit()
    steps = [(0.0, "half"), (SETTLE_S - 0.1, "whole"), (SETTLE_S + 0.1, "whole"), (2 * SETTLE_S, "whole")]
    assert [edit.is_over(sight(content), sight("old"), now_s) for now_s, content in steps] == [
        False,
        False,
        False,
        True,
    ]


def test_a_file_that_is_gone_for_a_moment_is_not_read() -> None:
    edit = Edit()
    assert not edit.is_over(sight("nothing"), sight("a"), 0.0)
    assert not edit.is_over(sight("a"), sight("a"), SETTLE_S)
    assert not edit.is_over(sight("nothing"), sight("a"), SETTLE_S + 0.1), "it counts from the beginning"


def test_a_file_that_never_rests_is_read_all_the_same() -> None:
    edit = Edit()
    looks = [edit.is_over(sight(str(now_s)), sight("old"), now_s) for now_s in range(int(PATIENCE_S) + 1)]
    assert looks == [False] * int(PATIENCE_S) + [True]


def test_a_new_model_file_is_not_read_while_it_grows() -> None:
    edit = Edit(float("inf"))
    assert not any(edit.is_over(sight(str(now_s)), sight("old"), now_s) for now_s in range(1000))


def test_an_edit_is_noticed_within_two_seconds() -> None:
    assert POLL_S + SETTLE_S <= 2.0


class FakeReader:
    """Reads at once what it is told to."""

    def __init__(self, *files: Path) -> None:
        self.files = files
        self.taken: Sight = look(files)
        self.num_readings = 0

    async def take_edits(self) -> None:
        self.num_readings += 1
        self.taken = look(self.files)


async def test_what_has_been_taken_is_not_taken_again(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(OLD)
    reader = FakeReader(path)
    watcher = Watcher(reader)
    for now_s in range(5):
        await watcher.poll(now_s)
    assert reader.num_readings == 0
    path.write_text(NEW)
    for now_s in range(5, 20):
        await watcher.poll(now_s)
    assert reader.num_readings == 1


async def test_every_file_of_the_configuration_is_watched(tmp_path: Path) -> None:
    catalogue, keys = tmp_path / "models.yaml", tmp_path / "keys"
    catalogue.write_text(OLD)
    reader = FakeReader(catalogue, keys)
    watcher = Watcher(reader)
    keys.write_text("secret\n")
    for now_s in range(4):
        await watcher.poll(now_s)
    assert reader.num_readings == 1


async def test_files_that_have_never_been_taken_are_read_once_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(OLD)
    reader = FakeReader(path)
    reader.taken = {}
    watcher = Watcher(reader)
    for now_s in range(10):
        await watcher.poll(now_s)
    assert reader.num_readings == 1
