"""Workers that ignore SIGTERM and have children of their own, which do too: nobody is left."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.chaos.storm import rounds
from tests.chaos.table import Row, Table
from tests.support.served import Served, is_running, served, until

pytestmark = pytest.mark.chaos

STUBBORN = {"IGNORE_TERM": 1, "GRANDCHILD": 1}


def grandchildren(server: Served) -> list[int]:
    return [entry["child"] for entry in server.journal("grandchild")]


async def test_stubborn_worker_that_is_unloaded_is_killed_with_its_children(tmp_path: Path, table: Table) -> None:
    await _end_again_and_again(tmp_path, table, "ignores SIGTERM, has children", is_killed=False)


async def test_children_of_a_worker_that_is_killed_are_killed_too(tmp_path: Path, table: Table) -> None:
    await _end_again_and_again(tmp_path, table, "kill -9, has children", is_killed=True)


async def _end_again_and_again(folder: Path, table: Table, fault: str, *, is_killed: bool) -> None:
    loop = asyncio.get_running_loop()
    row = Row(fault, 0, 0, 0)
    table.add(row)
    async with served(folder, {"small": {"fake": STUBBORN}, "other": {}}) as server:
        assert (await server.chat("small")).status == 200
        for _ in range(rounds(3, 1)):
            beside = [asyncio.create_task(server.chat("other", tokens=20, delay_s=0.05)) for _ in range(2)]
            await asyncio.sleep(0.2)
            (pid,) = [start["pid"] for start in server.journal("started")[-2:] if start["model"] == "small"][-1:]
            row.injected, row.in_flight = row.injected + 1, row.in_flight + len(beside)
            start_s = loop.time()
            if is_killed:
                os.kill(pid, signal.SIGKILL)
            else:
                await server.session.post(f"{server.url}/models/unload", json={"model": "small"})
            row.lost += (await server.chat("small")).status != 200
            row.recovery_s.append(loop.time() - start_s)
            row.lost += sum(reply.status != 200 for reply in await asyncio.gather(*beside))
            left = [pid, *grandchildren(server)[:-1]]
            await until(lambda left=left: not any(map(is_running, left)), within_s=20, what="the end of all of them")
            assert len(grandchildren(server)) == row.injected + 1
    assert row.lost == 0
    assert not any(map(is_running, grandchildren(server))), "nor when the server stops"
