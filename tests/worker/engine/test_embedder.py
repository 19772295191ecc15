"""Texts of concurrent requests on their way through passes: shared, in turn, and dropped when nobody waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from worker.engine.embedder import MIN_ROWS, Embedder
from worker.engine.errors import BackendFailed, EngineStopped, OutOfMemory
from worker.engine.pooling import Piece, Pooling, PoolingShape

SHAPE = PoolingShape(
    pooling=Pooling.MEAN, size=2, max_document=100, max_rows=128, usual_rows=32, max_documents=8, is_divisible=False
)


@dataclass
class FakePasses:
    """Pools a text to its first token and its length, and keeps the rows of every pass."""

    shape: PoolingShape = SHAPE
    passes: list[list[int]] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    starts: list[tuple[int, bool]] = field(default_factory=list)
    row_s: float = 0.0
    is_open: bool = False

    def open(self) -> None:
        self.is_open = True

    def forward(self, pieces: Sequence[Piece], *, is_last: bool = True) -> np.ndarray:
        assert self.is_open
        assert sum(len(piece.tokens) for piece in pieces) <= self.shape.max_rows
        self.passes.append([len(piece.tokens) for piece in pieces])
        self.starts += [(piece.start, is_last) for piece in pieces]
        if self.failures:
            raise self.failures.pop(0)
        return np.array([[piece.tokens[0], piece.start + len(piece.tokens)] for piece in pieces], dtype=np.float32)


class FakeErrands:
    """Runs each errand when the test lets it, or by itself in the next round of the loop."""

    def __init__(self, *, by_hand: bool = False) -> None:
        self.is_generating = False
        self.is_stopped = False
        self.waiting: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self.counted: list[int] = []
        self._by_hand = by_hand

    def observe_pooled(self, num_rows: int, seconds: float) -> None:
        assert seconds >= 0
        self.counted.append(num_rows)

    def call(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        if self.is_stopped:
            raise EngineStopped("the engine takes no more requests")
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((work, future))
        if not self._by_hand:
            asyncio.get_running_loop().call_soon(self.run_one)
        return future

    def run_one(self) -> None:
        work, future = self.waiting.pop(0)
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - as the engine does
            future.set_exception(error)
        else:
            future.set_result(result)


def texts(*lengths: int, first: int = 0) -> list[list[int]]:
    """Return texts of these lengths that begin with their own number."""
    return [[first + index] * length for index, length in enumerate(lengths)]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_results_come_in_the_order_of_the_texts() -> None:
    errands, passes = FakeErrands(), FakePasses()
    lengths = (5, 30, 1, 17, 30, 9, 100, 2)
    rows = await Embedder(errands, passes).embed(texts(*lengths))
    assert sum(errands.counted) == sum(lengths)
    assert [(int(row[0]), int(row[1])) for row in rows] == list(enumerate(lengths))
    assert all(sum(rows) <= SHAPE.usual_rows or len(rows) == 1 for rows in passes.passes)
    assert len(passes.passes) < len(lengths)


async def test_there_is_work_as_long_as_somebody_waits() -> None:
    errands = FakeErrands(by_hand=True)
    embedder = Embedder(errands, FakePasses())
    assert not embedder.has_work
    asking = asyncio.create_task(embedder.embed(texts(3)))
    await settle()
    assert embedder.has_work
    errands.run_one()
    await asking
    assert not embedder.has_work


async def test_no_texts_need_no_pass() -> None:
    passes = FakePasses()
    assert await Embedder(FakeErrands(), passes).embed([]) == []
    assert passes.passes == []


@pytest.mark.parametrize("length", [0, 101])
async def test_text_that_does_not_fit_is_refused_with_its_index_before_anything_is_computed(length: int) -> None:
    passes = FakePasses()
    with pytest.raises(ValueError, match=f"text 1 has {length} tokens"):
        await Embedder(FakeErrands(), passes).embed([[1], [1] * length])
    assert passes.passes == []


async def test_texts_that_come_while_a_pass_runs_share_the_next_one() -> None:
    errands, passes = FakeErrands(by_hand=True), FakePasses()
    embedder = Embedder(errands, passes)
    tasks = [asyncio.create_task(embedder.embed(texts(4, first=10 * number))) for number in range(6)]
    await settle()
    errands.run_one()
    late = asyncio.create_task(embedder.embed(texts(3, first=99)))
    await settle()
    while errands.waiting:
        errands.run_one()
        await settle()
    assert passes.passes == [[4] * 6, [3]], "all that were there when it began, then the late one"
    assert [int((await task)[0][0]) for task in (*tasks, late)] == [0, 10, 20, 30, 40, 50, 99]


async def test_small_request_is_served_in_the_middle_of_a_large_one() -> None:
    errands, passes = FakeErrands(by_hand=True), FakePasses()
    embedder = Embedder(errands, passes)
    large = asyncio.create_task(embedder.embed(texts(*[30] * 20)))
    await settle()
    small = asyncio.create_task(embedder.embed(texts(2)))
    num_passes = 0
    while not small.done():
        errands.run_one()
        num_passes += 1
        await settle()
    assert num_passes <= 3
    assert not large.done()
    large.cancel()
    while errands.waiting:
        errands.run_one()
        await settle()


async def test_texts_of_a_request_that_was_cancelled_get_no_pass() -> None:
    errands, passes = FakeErrands(by_hand=True), FakePasses()
    embedder = Embedder(errands, passes)
    leaving = asyncio.create_task(embedder.embed(texts(*[30] * 10)))
    await settle()
    staying = asyncio.create_task(embedder.embed(texts(5, first=7)))
    await settle()
    leaving.cancel()
    await settle()
    while errands.waiting:
        errands.run_one()
        await settle()
    assert passes.passes == [[30], [5]]
    assert int((await staying)[0][0]) == 7
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_failed_pass_fails_the_requests_in_it_and_no_other() -> None:
    errands, passes = FakeErrands(by_hand=True), FakePasses(failures=[BackendFailed(-3)])
    embedder = Embedder(errands, passes)
    first = asyncio.create_task(embedder.embed(texts(*[30] * 5)))
    await settle()
    second = asyncio.create_task(embedder.embed(texts(8, first=3)))
    await settle()
    while errands.waiting:
        errands.run_one()
        await settle()
    with pytest.raises(BackendFailed):
        await first
    assert passes.passes == [[30], [8]], "its other texts are not computed in vain"
    assert int((await second)[0][0]) == 3
    assert len(await asyncio.gather(embedder.embed(texts(1)), _run_all(errands))) == 2


async def _run_all(errands: FakeErrands) -> None:
    await settle()
    while errands.waiting:
        errands.run_one()
        await settle()


async def test_backend_that_only_fails_ends_the_worker() -> None:
    failures: list[BaseException] = []
    passes = FakePasses(failures=[BackendFailed(-3), BackendFailed(-3), OutOfMemory("no room")])
    embedder = Embedder(FakeErrands(), passes, on_failure=failures.append)

    async def fail(with_: type[Exception]) -> None:
        with pytest.raises(with_):
            await embedder.embed(texts(1))

    for expected in (BackendFailed, BackendFailed, OutOfMemory):
        await fail(expected)
    await embedder.embed(texts(1))
    assert failures == [], "two failures, and then one worked again"
    passes.failures = [BackendFailed(-3) for _ in range(3)]
    for _ in range(3):
        await fail(BackendFailed)
    assert len(failures) == 1


async def test_stopped_engine_is_told_to_whoever_waits() -> None:
    errands = FakeErrands()
    errands.is_stopped = True
    with pytest.raises(EngineStopped):
        await Embedder(errands, FakePasses()).embed(texts(1))


async def test_long_text_of_a_divisible_model_takes_several_passes() -> None:
    passes = FakePasses(replace(SHAPE, is_divisible=True, max_rows=32))
    (row,) = await Embedder(FakeErrands(), passes).embed([[9] * 100])
    assert passes.passes == [[32], [32], [32], [4]]
    assert passes.starts == [(0, False), (32, False), (64, False), (96, True)]
    assert int(row[1]) == 100


async def test_passes_beside_running_answers_are_short() -> None:
    errands, passes = FakeErrands(), FakePasses(replace(SHAPE, usual_rows=128))
    errands.is_generating = True
    embedder = Embedder(errands, passes, target_gap_ms=20)  # and a row is guessed to take 5 ms
    await embedder.embed(texts(*[2] * 40))
    assert sum(passes.passes[0]) == MIN_ROWS


async def test_pace_is_learnt_from_passes() -> None:
    errands, passes = FakeErrands(), FakePasses(replace(SHAPE, usual_rows=128, max_documents=64))
    embedder = Embedder(errands, passes, target_gap_ms=100)
    for _ in range(30):  # these take no time at all
        await embedder.embed(texts(50))
    errands.is_generating = True
    passes.passes.clear()
    await embedder.embed(texts(*[2] * 64))
    assert sum(passes.passes[0]) == 128


async def test_long_text_goes_no_further_once_its_client_has_left() -> None:
    errands, passes = FakeErrands(by_hand=True), FakePasses(replace(SHAPE, is_divisible=True, max_rows=32))
    embedder = Embedder(errands, passes)
    leaving = asyncio.create_task(embedder.embed([[9] * 100]))
    await settle()
    staying = asyncio.create_task(embedder.embed(texts(5, first=7)))
    await settle()
    leaving.cancel()
    while errands.waiting:
        errands.run_one()
        await settle()
    assert passes.passes == [[32], [5]]
    assert int((await staying)[0][0]) == 7
    with pytest.raises(asyncio.CancelledError):
        await leaving
