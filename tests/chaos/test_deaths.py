"""Workers that die in every way there is, in the middle of answers of every kind: no client notices."""

from __future__ import annotations

import signal

import pytest

from tests.chaos.arena import Arena
from tests.chaos.storm import rounds, storm
from tests.chaos.table import Table
from tests.support.real_server import api_of

pytestmark = pytest.mark.chaos


async def test_worker_that_is_killed_costs_no_request(field: Arena, table: Table) -> None:
    async with storm(field, table, "kill -9") as it:
        for _ in range(rounds(10, 2)):
            await it.strike(lambda: it.signal(signal.SIGKILL))


async def test_worker_for_embeddings_that_is_killed_costs_no_request(field: Arena, table: Table) -> None:
    async with storm(field, table, "kill -9, embeddings", kinds=["embedding", "whole"]) as it:
        for _ in range(rounds(6, 2)):
            await it.strike(lambda: it.signal(signal.SIGKILL, "embed"), model="embed")


@pytest.mark.parametrize(
    ("what", "fault", "told"),
    [
        ("segv", "SIGSEGV in a pass", "SIGSEGV"),
        ("abort", "abort() in a pass", "SIGABRT"),
        ("memory", "memory used up (rlimit)", ""),
    ],
)
async def test_worker_that_dies_in_a_pass_costs_no_request(
    field: Arena, table: Table, what: str, fault: str, told: str
) -> None:
    async with storm(field, table, fault) as it:
        for _ in range(rounds(6, 2)):
            await it.strike(lambda: it.order("decode", what))
    async with api_of(field.server) as api:
        last_exit = (await api.get("/v1/models/text"))["last_exit"]
    assert last_exit["reason"] == "crashed"
    assert told in last_exit["detail"]
