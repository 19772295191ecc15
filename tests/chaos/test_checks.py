"""The checks of this suite can fail: each is shown what it is there to find."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from tests.chaos.aftermath import check_aftermath, standing
from tests.chaos.arena import Arena, arena
from tests.chaos.orders import is_waiting
from tests.chaos.storm import storm
from tests.chaos.table import Row, Table
from tests.chaos.traffic import Traffic
from tests.support.real_server import api_of
from tests.support.served import until

pytestmark = pytest.mark.chaos

SOON_S = 1.5


@pytest.fixture
async def traffic(field: Arena) -> Traffic:
    found = Traffic(field.url, seed=1)
    await found.learn()
    return found


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """A server that does not let answers go on elsewhere."""
    with arena(tmp_path_factory.mktemp("fragile"), limits={"max_resumes": 0}) as found:
        yield found


async def test_lost_request_is_seen_and_counted(fragile: Arena) -> None:
    table = Table()
    with pytest.raises(AssertionError, match=r"\d+ lost"):
        async with storm(fragile, table, "kill -9") as it:
            await it.strike(lambda: it.signal(signal.SIGKILL))
    (row,) = table.rows
    assert row.lost > 0


async def test_answer_that_is_not_the_expected_one_is_lost(field: Arena, traffic: Traffic) -> None:
    traffic._expected = {name: text + "?" for name, text in traffic._expected.items()}
    traffic.start()
    await until(lambda: bool(traffic.lost), what="a lost answer")
    await traffic.stop()
    await traffic.close()


async def test_orphan_is_found(field: Arena, traffic: Traffic) -> None:
    before = await standing(field)
    await traffic.close()
    env = os.environ | {"CHAOS_ORDERS": str(field.orders())}
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    orphan = await asyncio.create_subprocess_exec(*sleeping, env=env)
    try:
        with pytest.raises(AssertionError, match=f"process {orphan.pid} is an orphan"):
            await check_aftermath(field, before, within_s=SOON_S)
    finally:
        orphan.kill()
        await orphan.wait()


async def test_held_slot_and_lease_are_found(field: Arena, traffic: Traffic) -> None:
    before = await standing(field)
    async with api_of(field.server) as api:
        running = asyncio.create_task(api.complete("text", "hello", 400, ignore_eos=True))

        async def is_running() -> bool:
            return "GENERATING" in await api.states("text")

        await until(is_running, what="an answer")
        with pytest.raises(AssertionError, match="slot 0 of text is GENERATING; 1 leases of text are held"):
            await check_aftermath(field, before, within_s=0.1)
        await running
    await traffic.close()


async def test_leaked_descriptors_of_the_router_are_found(field: Arena, traffic: Traffic) -> None:
    before = await standing(field)
    await traffic.close()
    parts = urlsplit(field.url)
    with ExitStack() as opened:
        for _ in range(30):
            opened.enter_context(socket.create_connection((parts.hostname, parts.port)))
        with pytest.raises(AssertionError, match=r"the router has .* descriptors instead of"):
            await check_aftermath(field, before, within_s=SOON_S)


@pytest.mark.parametrize(
    ("order", "found"),
    [
        ("zombie", "is a zombie"),
        ("files", "the worker of text has .* descriptors instead of"),
        ("leak", "the worker of text has .* MiB instead of"),
    ],
)
async def test_what_a_worker_leaves_behind_is_found(field: Arena, traffic: Traffic, order: str, found: str) -> None:
    before = await standing(field)
    field.order("decode", order)
    await traffic.probe()
    assert not is_waiting(field.orders(), "decode")
    with pytest.raises(AssertionError, match=found):
        await check_aftermath(field, before, within_s=SOON_S)
    (pid,) = field.server.worker_pids("text")
    os.kill(pid, signal.SIGKILL)
    await traffic.probe()
    await traffic.close()


def test_table_tells_how_often_how_much_and_how_long() -> None:
    table = Table()
    assert table.lines() == []
    table.add(Row("kill -9", 3, 12, 0, [0.5, 9.0, 0.25]))
    table.add(Row("none", 0, 0, 1))
    assert table.lines() == [
        "fault    injected  in flight  lost  p50 s  p99 s",
        "kill -9         3         12     0   0.50   9.00",
        "none            0          0     1      -      -",
    ]
