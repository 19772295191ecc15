"""Background tasks: one that is asked for again and again runs once more, not once for each asking."""

from __future__ import annotations

import asyncio

from router.own_thread import in_own_thread
from router.tasks import AgainOnce


async def test_a_storm_is_one_run_and_one_more() -> None:
    begun, go = [], asyncio.Event()

    async def work() -> None:
        begun.append(None)
        await go.wait()

    again = AgainOnce(work, "work")
    for _ in range(300):
        again.ask()
        await asyncio.sleep(0)
    assert len(begun) == 1
    go.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(begun) == 2
    again.ask()
    await asyncio.sleep(0)
    assert len(begun) == 3, "what is asked for after the end runs"
    await again.close()


async def test_one_that_fails_may_be_asked_for_again() -> None:
    begun = []

    async def work() -> None:
        begun.append(None)
        raise ValueError("no")

    again = AgainOnce(work, "work")
    for _ in range(2):
        again.ask()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(begun) == 2


async def test_what_fails_in_its_own_thread_fails_where_it_is_waited_for() -> None:
    assert await in_own_thread(lambda: 5, "five") == 5
    try:
        await in_own_thread(lambda: 1 // 0, "fault")
    except ZeroDivisionError:
        return
    raise AssertionError("the error is lost")
