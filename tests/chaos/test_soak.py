"""Mixed traffic for a long time, while a worker is killed every ten seconds: no client notices.

`CHAOS_SOAK_S` is how long: 1200 in `make chaos`, 20 in the short form, 300 otherwise.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from tests.chaos.arena import Arena
from tests.chaos.storm import Storm, dice, rounds, storm
from tests.chaos.table import Table

pytestmark = pytest.mark.chaos

SOAK_S = float(os.environ.get("CHAOS_SOAK_S") or 0) or rounds(300, 20)
KILL_EVERY_S = 10.0
TELL_EVERY_S = 60.0


async def test_clients_do_not_notice_that_a_worker_is_killed_every_ten_seconds(
    field: Arena, table: Table, pytestconfig: pytest.Config
) -> None:
    reporter = pytestconfig.pluginmanager.getplugin("terminalreporter")
    assert reporter is not None
    start_s = told_s = time.monotonic()
    async with storm(field, table, f"soak, {SOAK_S:g} s: kill -9 every 10 s") as it:
        while (now_s := time.monotonic()) - start_s < SOAK_S:
            model = dice.choice(["text", "text", "embed"])
            await it.strike(lambda model=model: kill(it, model), model=model)
            if it.traffic.lost:
                break
            if now_s - told_s >= TELL_EVERY_S:
                told_s = now_s
                num_done = sum(it.traffic.num_done.values())
                reporter.write_line(f"soak: {now_s - start_s:.0f} s, {it.row.injected} kills, {num_done} whole answers")
            await asyncio.sleep(max(0.0, now_s + KILL_EVERY_S - time.monotonic()))
    assert it.row.injected >= SOAK_S / KILL_EVERY_S / 4
    assert len(it.traffic.num_done) >= 8, "every kind of request was among them"


async def kill(it: Storm, model: str) -> None:
    """The model's worker is killed, whatever it does, if there is one just now."""
    it.arena.signal(signal.SIGKILL, model)
