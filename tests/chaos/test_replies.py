"""Workers whose replies are no replies: nobody but their own process is to suffer from it."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from tests.chaos.arena import Arena, arena
from tests.chaos.storm import rounds, storm
from tests.chaos.table import Table

pytestmark = pytest.mark.chaos

LIMIT_S = 6.0


@pytest.mark.parametrize(
    ("order", "fault"),
    [
        ("garbage", "a reply of garbage"),
        ("head", "a reply with a head of 10 MB"),
        ("half", "a reply of half a chunk"),
        ("frames", "a reply without frames"),
    ],
)
async def test_reply_that_makes_no_sense_costs_no_request(field: Arena, table: Table, order: str, fault: str) -> None:
    async with storm(field, table, fault) as it:
        for _ in range(rounds(5, 2)):
            await it.strike(lambda: it.order("reply", order))


async def test_reply_that_never_comes_ends_with_the_time_that_is_allowed_and_harms_no_other(
    tmp_path_factory: pytest.TempPathFactory, table: Table
) -> None:
    """That one answer cannot be told from a long one: it is an error, in time, and not counted as lost."""

    async def ask(url: str) -> tuple[int, str]:
        body = {"model": "embed", "input": "hello"}
        async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/embeddings", json=body) as reply:
            return reply.status, (await reply.json())["error"]["message"]

    models = {"embed": {"request_timeout_s": LIMIT_S}}
    with arena(tmp_path_factory.mktemp("endless"), models=models) as field:
        kinds = ["stream", "whole", "pair"]  # none that could take the order
        async with storm(field, table, "a reply that never comes", kinds=kinds) as it:
            for _ in range(rounds(3, 1)):
                field.order("reply", "endless", "embed")
                asked = asyncio.create_task(ask(field.url))
                await it.strike(lambda: asyncio.sleep(0))
                status, message = await asyncio.wait_for(asked, 10 * LIMIT_S)
                assert (status, "request_timeout_s" in message) == (503, True), message
