"""What a process prints reaches the log and the tail, but never more of it than the router can bear."""

from __future__ import annotations

import asyncio
import logging
import os
import time

import pytest

from router import output_reader
from router.log_tail import LogTail
from router.output_reader import OutputReader

NUM_LOGGED = OutputReader.max_per_s


class CountingTail(LogTail):
    """Counts the lines that were looked at one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.num_fed = 0

    def feed(self, data: bytes) -> list[str]:
        lines = super().feed(data)
        self.num_fed += len(lines)
        return lines


def numbered(start: int, end: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(start, end))


async def test_a_flood_is_cut_to_what_a_person_reads_and_its_end_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "router.worker_output")
    tail = CountingTail()
    reader = OutputReader("m", tail)
    reader.data_received(numbered(0, 30_000))
    assert caplog.messages == [f"m: line {number}" for number in range(NUM_LOGGED)], "a second has its lines"
    assert tail.num_fed < 1000, "nothing is done for each of the others"
    assert tail.lines()[-2:] == ["line 29998", "line 29999"]
    assert any("lines left out: they came too fast" in line for line in tail.lines())
    reader.connection_lost(None)
    assert caplog.messages[NUM_LOGGED:] == [f"m: {30_000 - NUM_LOGGED} lines left out: they came too fast"]


async def test_lines_are_logged_again_in_the_next_second_and_the_gap_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("DEBUG", "router.worker_output")
    now = [0.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
    reader = OutputReader("m", LogTail())
    reader.data_received(numbered(0, NUM_LOGGED + 3))
    now[0] = 1.5
    reader.data_received(b"calm again\n")
    assert caplog.messages[NUM_LOGGED:] == ["m: 3 lines left out: they came too fast", "m: calm again"]


async def test_a_line_that_is_cut_in_two_by_a_flood_stays_one_line() -> None:
    tail = LogTail()
    reader = OutputReader("m", tail)
    reader.data_received(b"the begin")
    reader.data_received(b"ning\n" + numbered(0, 20_000) + b"the e")
    reader.data_received(b"nd\n")
    assert tail.lines()[-2:] == ["line 19999", "the end"]
    assert "the begin" not in tail.text().replace("the beginning", "")


async def test_what_is_not_logged_anyway_is_not_missed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "router.worker_output")
    reader = OutputReader("m", LogTail())
    reader.data_received(numbered(0, 30_000))
    reader.data_received(b"2026-01-01 00:00:00,000 ERROR m: no memory for what test_output_reader wants\n")
    reader.connection_lost(None)
    assert caplog.messages == ["m: no memory for what test_output_reader wants"]


async def test_a_process_that_prints_without_end_waits_for_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_reader, "_PAUSE_S", 0.2)
    monkeypatch.setattr(logging.getLogger("router.worker_output"), "disabled", True)
    read_fd, write_fd = os.pipe()
    tail = CountingTail()
    reader = await OutputReader.open(read_fd, "m", tail)
    os.set_blocking(write_fd, False)
    started_s, num_bytes = time.monotonic(), 0
    while time.monotonic() - started_s < 0.5:
        try:
            num_bytes += os.write(write_fd, b"y\n" * 1000)
        except BlockingIOError:
            await asyncio.sleep(0)
    assert num_bytes < 1_000_000, "a few pipes full; without pauses it is hundreds of them"
    os.close(write_fd)
    await asyncio.wait_for(reader.wait_closed(), 10)
    assert tail.lines()[-1] == "y"
