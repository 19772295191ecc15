"""One fault again and again while clients of every kind ask, then calm, then the check that nothing was left behind.

Owns the course of a storm. A fault is a function that does it once.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.aftermath import check_aftermath, standing
from tests.chaos.arena import Arena
from tests.chaos.orders import is_waiting
from tests.chaos.table import Row, Table
from tests.chaos.traffic import ALL_KINDS, Traffic
from tests.support.real_server import api_of

IS_SHORT = os.environ.get("CHAOS") == "short"
SEED = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
TAKEN_WITHIN_S = 60.0
dice = random.Random(SEED)
Inject = Callable[[], Awaitable[object]]


def in_full_only(test: Any) -> Any:
    """The short form leaves the test out."""
    test.is_in_full_only = True
    return test


def rounds(in_full: int, in_short: int) -> int:
    """Return how often something is done in this run."""
    return in_short if IS_SHORT else in_full


@dataclass
class Storm:
    """What is being counted while it lasts."""

    arena: Arena
    traffic: Traffic
    row: Row
    faults: list[str] = field(default_factory=list)

    async def order(self, kind: str, order: str, model: str = "text") -> None:
        """The model's worker has begun to carry out an order of `faulty_worker`."""
        self.arena.order(kind, order, model)
        async with asyncio.timeout(TAKEN_WITHIN_S):
            while is_waiting(self.arena.orders(model), kind):  # noqa: ASYNC110 - another process takes it
                await asyncio.sleep(0.005)

    async def signal(self, number: int, model: str = "text") -> int:
        """The model's worker, as soon as it has one, has got this signal; return its process."""
        async with asyncio.timeout(TAKEN_WITHIN_S):
            while not (pid := self.arena.signal(number, model)):  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.05)
        return pid

    async def strike(self, inject: Inject, *, model: str = "text") -> None:
        """The fault is injected once, at a random moment in the middle of answers; it is known how long it was felt.

        `model`: the one whose next request shows that.
        """
        await asyncio.sleep(dice.uniform(0.0, 0.3))
        await self.traffic.until_ripe()
        self.traffic.note_fault()
        self.row.injected += 1
        self.row.in_flight += self.traffic.in_flight
        start_s = time.monotonic()
        await inject()
        await self.traffic.probe(model)
        self.row.recovery_s.append(time.monotonic() - start_s)


@asynccontextmanager
async def storm(
    arena: Arena, table: Table, fault: str, *, num_clients: int = 6, kinds: Collection[str] = ALL_KINDS
) -> AsyncIterator[Storm]:
    """Clients ask inside the block, where faults are injected; after it nothing is lost and nothing left behind."""
    traffic = Traffic(arena.url, seed=dice.randrange(2**31), num_clients=num_clients, kinds=kinds)
    row = Row(fault, 0, 0, 0)
    try:
        async with api_of(arena.server) as api:  # crashes of earlier storms are forgiven: each begins without a pause
            for model in ("text", "embed"):
                await api.post("/models/load", {"model": model})
        await traffic.learn()
        before = await standing(arena)
        traffic.start()
        try:
            yield Storm(arena, traffic, row)
        finally:
            await traffic.stop()
            row.lost = len(traffic.lost)
            table.add(row)
        assert not traffic.lost, f"{len(traffic.lost)} lost, {sum(traffic.num_done.values())} whole: {traffic.lost[:5]}"
        await traffic.probe()
        await check_aftermath(arena, before)
        assert not traffic.lost, f"after the storm: {traffic.lost}"
    finally:
        await traffic.close()
