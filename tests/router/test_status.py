"""Status lines become snapshots, however they arrive and whatever else is between them."""

from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.status import MAX_LINE_BYTES, StatusLines, StatusLink, has_moved
from worker.contract import Histogram, Phase, SlotReport, SlotState, WorkerStatus

LOADING = WorkerStatus(Phase.LOADING, progress=0.5)
READY = WorkerStatus(
    Phase.READY,
    step=3,
    slots=(SlotReport(0, SlotState.GENERATING, request_id="r"),),
    histograms={"batch_rows": Histogram((1.0, 2.0), (1, 2, 3), 9.0)},
)


@given(st.lists(st.integers(1, 40), max_size=60))
def test_snapshots_do_not_depend_on_how_the_bytes_are_cut(sizes: list[int]) -> None:
    data = LOADING.to_line() + READY.to_line()
    lines = StatusLines()
    found = []
    for size in sizes:
        found += lines.feed(data[:size])
        data = data[size:]
    found += lines.feed(data)
    assert found == [LOADING, READY]
    assert lines.num_garbage == 0


@pytest.mark.parametrize(
    "junk",
    [
        b"llama_model_loader: loaded\n",
        b"{}\n",
        b"[1]\n",
        b'{"phase": "dancing"}\n',
        b"\xff\xfe\n",
        b"\n",
        b'{"phase": "ready", "slots": 3, "counters": {}, "histograms": {}, "facts": null}\n',
        b"x" * (MAX_LINE_BYTES + 1) + b"\n",
        b"y" * (3 * MAX_LINE_BYTES) + b"\n",
    ],
)
def test_junk_costs_a_count_and_no_snapshot(junk: bytes) -> None:
    lines = StatusLines()
    assert lines.feed(LOADING.to_line() + junk + READY.to_line()) == [LOADING, READY]
    assert lines.num_garbage == 1


def test_a_line_without_an_end_takes_bounded_memory() -> None:
    lines = StatusLines()
    for _ in range(100):
        assert lines.feed(b"x" * 100_000) == []
    assert len(lines._partial) <= MAX_LINE_BYTES
    assert lines.num_garbage == 1
    assert lines.feed(b"\n" + READY.to_line()) == [READY]


async def test_link_keeps_the_last_snapshot_and_the_reason_of_a_failure() -> None:
    seen: list[WorkerStatus] = []
    read, write = os.pipe()
    link = await StatusLink.open(read, seen.append)
    failed = WorkerStatus(Phase.FAILED, error="no such tensor")
    os.write(write, LOADING.to_line() + failed.to_line() + b"junk\n")
    os.close(write)
    await asyncio.wait_for(link.wait_closed(), 5)
    assert seen == [LOADING, failed]
    assert (link.last, link.error) == (failed, "no such tensor")


async def test_link_can_be_closed_while_somebody_holds_the_other_end() -> None:
    read, write = os.pipe()
    link = await StatusLink.open(read, lambda _: None)
    link.close()
    await asyncio.wait_for(link.wait_closed(), 5)
    os.close(write)


def test_only_a_new_phase_or_progress_counts_as_a_sign_of_life() -> None:
    assert has_moved(None, LOADING)
    assert not has_moved(LOADING, WorkerStatus(Phase.LOADING, progress=0.5, at_s=99.0))
    assert has_moved(LOADING, WorkerStatus(Phase.LOADING, progress=0.6))
    assert has_moved(LOADING, WorkerStatus(Phase.WARMING))
