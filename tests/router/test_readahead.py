"""Files come into the page cache before a worker reads them, unless that would help nobody or harm others."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from router import readahead
from router.devices import MachineMemory
from router.readahead import ReadAhead, cached_share

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no other system has these calls")

MIB = 2**20


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What was asked of the kernel: file, offset, length. Every file looks as if nothing of it were cached."""
    calls: list[tuple[str, int, int]] = []

    def advise(fd: int, offset: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        calls.append((Path(os.readlink(f"/proc/self/fd/{fd}")).name, offset, length))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    monkeypatch.setattr(readahead, "cached_share", lambda fd: 0.0)
    return calls


def file(folder: Path, name: str, size: int = MIB) -> Path:
    path = folder / name
    path.write_bytes(os.urandom(size))
    return path


async def read(*paths: Path, available: Callable[[], int] = lambda: 2**40) -> None:
    ahead = ReadAhead(available)
    ahead.start(paths)
    await asyncio.wait_for(ahead.wait(), 10)


async def test_every_byte_of_every_file_is_asked_for_in_order(
    tmp_path: Path, asked: list[tuple[str, int, int]]
) -> None:
    await read(file(tmp_path, "a", 300_000), file(tmp_path, "b", 10))
    chunk = readahead._CHUNK_BYTES
    assert asked == [("a", 0, chunk), ("a", chunk, chunk), ("a", 2 * chunk, chunk), ("b", 0, chunk)]


async def test_what_does_not_fit_into_memory_is_left_alone(tmp_path: Path, asked: list[tuple[str, int, int]]) -> None:
    both = file(tmp_path, "a"), file(tmp_path, "b")
    await read(*both, available=lambda: 2 * MIB - 1)
    assert asked == []
    await read(*both, available=lambda: 2 * MIB)
    assert {name for name, _, _ in asked} == {"a", "b"}


async def test_files_that_are_cached_are_not_read_again(
    tmp_path: Path, asked: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readahead, "cached_share", cached_share)
    await read(file(tmp_path, "a"))  # it has just been written
    assert asked == []


async def test_a_missing_file_is_the_workers_business(tmp_path: Path, asked: list[tuple[str, int, int]]) -> None:
    await read(tmp_path / "gone", file(tmp_path, "a", 10))
    assert [name for name, _, _ in asked] == ["a"]


async def test_reading_stops_when_the_start_is_over(
    tmp_path: Path, asked: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = ReadAhead(lambda: 2**40)
    note = os.posix_fadvise

    def cancel_after_two(fd: int, offset: int, length: int, advice: int) -> None:
        note(fd, offset, length, advice)
        if len(asked) == 2:
            ahead.cancel()

    monkeypatch.setattr(os, "posix_fadvise", cancel_after_two)
    ahead.start([file(tmp_path, "a"), file(tmp_path, "b")])
    await asyncio.wait_for(ahead.wait(), 10)
    assert len(asked) == 2


async def test_a_cold_file_becomes_warm_by_itself(tmp_path: Path) -> None:
    path = file(tmp_path, "a", 4 * MIB)
    with path.open("rb") as opened:
        fd = opened.fileno()
        os.fsync(fd)
        deadline_s = time.monotonic() + 1.5
        while cached_share(fd) > 0.1:  # pages that the kernel has just written stay for a moment
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if time.monotonic() > deadline_s:
                break  # this file system keeps its files in memory: there is nothing to bring in, and no harm either
            await asyncio.sleep(0.01)
        await read(path)
        deadline_s = time.monotonic() + 10
        while cached_share(fd) < 1.0:  # the kernel reads in the background
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.005)


async def test_without_another_word_what_the_container_has_free_is_the_bound(
    tmp_path: Path, asked: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = MIB - 1
    monkeypatch.setattr(MachineMemory, "free_bytes", lambda self: free)
    for expected in (0, 1):
        ahead = ReadAhead()
        ahead.start([file(tmp_path, "a")])
        await asyncio.wait_for(ahead.wait(), 10)
        assert bool(asked) == bool(expected)
        free = MIB


async def test_slow_disks_take_no_threads_that_others_need(
    tmp_path: Path, asked: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many starts read, the loop's own threads are free."""
    go_on = threading.Event()
    names = []

    def slow(fd: int, *rest: int) -> None:
        names.append(threading.current_thread().name)
        go_on.wait(10)

    monkeypatch.setattr(os, "posix_fadvise", slow)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    starts = [ReadAhead(lambda: 2**40) for _ in range(4)]
    try:
        for ahead in starts:
            ahead.start([file(tmp_path, str(id(ahead)), 10)])
        assert await asyncio.wait_for(asyncio.to_thread(lambda: 7), 5) == 7
    finally:
        go_on.set()
    for ahead in starts:
        await asyncio.wait_for(ahead.wait(), 10)
    assert len(names) == 4
    assert all(name.startswith("readahead") for name in names)
