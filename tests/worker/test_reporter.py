"""The status link: whole lines, never a wait, and a line soon after what people watch has changed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from worker import reporter
from worker.contract import EngineCounters, Phase, SlotReport, SlotState, WorkerStatus
from worker.reporter import Reporter, StatusLink

READY = WorkerStatus(phase=Phase.READY)


class Pipe:
    """Both ends of a status pipe."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self.link = StatusLink(self.write_fd)

    def read(self) -> bytes:
        data = b""
        while True:
            try:
                more = os.read(self.read_fd, 65536)
            except BlockingIOError:
                return data
            if not more:
                return data
            data += more

    def lines(self) -> list[WorkerStatus]:
        return [WorkerStatus.from_line(line) for line in self.read().splitlines()]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    for fd in (pipe.read_fd, pipe.write_fd):
        try:
            os.close(fd)
        except OSError:
            continue


def test_a_status_is_one_line(pipe: Pipe) -> None:
    pipe.link.send(READY)
    assert pipe.lines() == [READY]


def test_children_of_the_worker_do_not_inherit_the_link(pipe: Pipe) -> None:
    assert not os.get_inheritable(pipe.write_fd)


def test_a_descriptor_that_is_not_open_is_an_error() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        StatusLink(987)


def test_a_router_that_reads_nothing_never_blocks_and_then_finds_only_whole_lines(pipe: Pipe) -> None:
    big = replace(READY, error="x" * 10_000)
    for step in range(100):
        pipe.link.send(replace(big, step=step))
    data = pipe.read()
    assert len(data) < 200_000
    pipe.link.send(replace(big, step=100))
    pipe.link.send(replace(big, step=101))
    statuses = [WorkerStatus.from_line(line) for line in (data + pipe.read()).splitlines()]
    steps = [status.step for status in statuses]
    assert steps == sorted(steps)
    assert steps[-2:] == [100, 101]


def test_the_last_words_wait_for_a_router_that_reads_late(pipe: Pipe) -> None:
    big = replace(READY, error="x" * 60_000)
    pipe.link.send(big)
    pipe.link.send(big)
    pipe.link.send_last(replace(READY, phase=Phase.FAILED), patience_s=0.0)
    pipe.read()
    pipe.link.send_last(replace(READY, phase=Phase.FAILED), patience_s=5.0)
    assert WorkerStatus.from_line(pipe.read().splitlines()[-1]).phase is Phase.FAILED


def test_a_link_with_a_high_descriptor_carries_the_last_words(pipe: Pipe) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    high_fd = fcntl.fcntl(pipe.write_fd, fcntl.F_DUPFD, 2000)
    try:
        StatusLink(high_fd).send_last(replace(READY, error="x" * 100))
        assert pipe.lines()[0].error == "x" * 100
    finally:
        os.close(high_fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_router_that_is_gone_does_no_harm(pipe: Pipe) -> None:
    os.close(pipe.read_fd)
    pipe.link.send(READY)
    pipe.link.send_last(READY)


class Worker:
    """What is reported on."""

    def __init__(self) -> None:
        self.current = replace(READY, slots=(SlotReport(0, SlotState.IDLE),))
        self.num_snapshots = 0

    def status(self) -> WorkerStatus:
        self.num_snapshots += 1
        return self.current

    def set(self, state: SlotState) -> None:
        self.current = replace(self.current, slots=(SlotReport(0, state),))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "MIN_GAP_S", 0.0)
    monkeypatch.setattr(reporter, "PERIOD_S", 0.0)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("quick")
async def test_a_changed_slot_is_reported_soon(pipe: Pipe) -> None:
    worker = Worker()
    lines = Reporter(pipe.link, worker.status)
    lines.send()
    worker.set(SlotState.GENERATING)
    lines.nudge()
    await settle()
    assert [status.slots[0].state for status in pipe.lines()] == [SlotState.IDLE, SlotState.GENERATING]


@pytest.mark.usefixtures("quick")
async def test_numbers_that_only_grow_wait_for_the_next_regular_line(pipe: Pipe) -> None:
    worker = Worker()
    lines = Reporter(pipe.link, worker.status)
    lines.send()
    worker.current = replace(worker.current, counters=EngineCounters(forwards=5))
    lines.nudge()
    await settle()
    assert len(pipe.lines()) == 1


@pytest.mark.usefixtures("quick")
async def test_many_nudges_take_one_snapshot(pipe: Pipe) -> None:
    worker = Worker()
    lines = Reporter(pipe.link, worker.status)
    for _ in range(100):
        lines.nudge()
    await settle()
    assert worker.num_snapshots == 1


@pytest.mark.usefixtures("quick")
async def test_a_line_goes_out_regularly_without_any_change(pipe: Pipe) -> None:
    lines = Reporter(pipe.link, Worker().status)
    regular = asyncio.create_task(lines.run())
    await settle()
    regular.cancel()
    assert len(pipe.lines()) >= 2


def test_memory_is_read_in_bytes() -> None:
    from worker.memory import read_pss, read_rss

    assert read_rss() > 10 * 2**20
    pss = read_pss()
    if sys.platform == "linux":
        assert pss is not None
        assert 2**20 < pss <= 2 * read_rss()
    else:
        assert pss is None
