"""Clients that leave, five hundred times, at every moment there is: nobody else notices, and nothing is left."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.chaos.aftermath import check_aftermath, standing
from tests.chaos.arena import Arena, arena
from tests.chaos.rude import Rude, head, request, visit
from tests.chaos.storm import dice, rounds, storm
from tests.chaos.table import Row, Table
from tests.support.real_server import api_of
from tests.support.served import until

pytestmark = pytest.mark.chaos

AT_ONCE = 20
LONG = 300
"""Tokens of an answer that is cut: to make it takes seconds, so that those that are not stopped pile up."""
ENV = {"CORRAL_DETACHED_STREAM_S": "0.5", "CORRAL_KEPT_STREAM_S": "0.5"}
"""Answers that outlive their clients do so for a short time."""
OTHERS = ("stream", "whole", "chat", "schema", "pair", "stop", "messages")


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with arena(tmp_path_factory.mktemp("cancels"), env=ENV) as found:
        yield found


class Leaver:
    """A client that asks for something and leaves at one of the moments."""

    def __init__(self, url: str, chance: random.Random) -> None:
        self._url, self._chance = url, chance
        self.moments: dict[str, Callable[[Rude], Awaitable[None]]] = {
            "in the head": self._in_head,
            "in the body": self._in_body,
            "while it waits": self._waiting,
            "at the first token": self._at_first_token,
            "in the stream": self._in_stream,
            "at the end": self._at_end,
        }

    async def leave_at(self, moment: str) -> None:
        """It has come, asked and gone."""
        client = await visit(self._url)
        try:
            await self.moments[moment](client)
        finally:
            client.leave(is_reset=self._chance.random() < 0.5)

    def ask(self, **fields: Any) -> bytes:
        """Return a request: streamed or whole, in one of three a reply that would be kept."""
        body = {"model": "text", "prompt": f"tell {self._chance.randrange(9)}", "max_tokens": LONG, "ignore_eos": True}
        kept = {"X-Corral-Conversation": self._chance.choice(["new", f"{self._chance.randrange(10**30):030}"])}
        is_stream = {"stream": self._chance.random() < 0.5}
        return request(body | is_stream | fields, kept if self._chance.random() < 0.33 else None)

    async def _in_head(self, client: Rude) -> None:
        data = self.ask()
        await client.send(data[: self._chance.randrange(data.index(b"\r\n\r\n"))])

    async def _in_body(self, client: Rude) -> None:
        data = self.ask()
        begins = data.index(b"\r\n\r\n") + 4
        await client.send(data[: self._chance.randrange(begins, len(data))])
        await asyncio.sleep(self._chance.uniform(0, 0.05))

    async def _waiting(self, client: Rude) -> None:
        await client.send(self.ask())
        await asyncio.sleep(self._chance.uniform(0, 0.2))

    async def _at_first_token(self, client: Rude) -> None:
        await client.send(self.ask(stream=True))
        await self._read(client, b"data: ")

    async def _in_stream(self, client: Rude) -> None:
        await client.send(self.ask(stream=True))
        await self._read(client, b"data: ")
        for _ in range(self._chance.randrange(20)):
            await client.read()

    async def _at_end(self, client: Rude) -> None:
        is_stream = self._chance.random() < 0.5
        await client.send(self.ask(stream=is_stream, max_tokens=4))
        await self._read(client, b"[DONE]" if is_stream else b'"text"')

    async def _read(self, client: Rude, mark: bytes) -> None:
        """Read until it has come. A client that waits for long behind others leaves, too."""
        with suppress(TimeoutError):
            await client.read_until(mark, within_s=self._chance.uniform(1, 4))


async def test_clients_that_leave_at_any_moment_cost_no_other_request_and_leave_nothing(
    field: Arena, table: Table
) -> None:
    left: Counter[str] = Counter()
    leaver = Leaver(field.url, dice)

    async def leave_many() -> None:
        moments = dice.choices(list(leaver.moments), k=AT_ONCE)
        await asyncio.gather(*(leaver.leave_at(moment) for moment in moments))
        left.update(moments)
        it.row.injected += AT_ONCE - 1

    async with api_of(field.server) as api:
        gone_before = await api.metric("corral_requests_total", outcome="client_gone")
        async with storm(field, table, f"clients leave, {AT_ONCE} at once", num_clients=4, kinds=OTHERS) as it:
            for _ in range(rounds(20, 4)):
                await it.strike(leave_many)
        assert set(left) == set(leaver.moments), left
        gone = await api.metric("corral_requests_total", outcome="client_gone") - gone_before
        assert gone >= left["in the stream"] / 2, f"{gone} were noticed of {left}"
    await _check_nothing_kept(field)


async def test_clients_that_leave_while_a_model_loads_do_not_end_the_load(field: Arena, table: Table) -> None:
    """One of five in each round stays, and every third time nobody does."""
    row = Row("clients leave during the load, 5 at once", 0, 0, 0)
    table.add(row)
    leaver = Leaver(field.url, dice)
    before = await standing(field)
    loop = asyncio.get_running_loop()
    async with api_of(field.server) as api:
        for number in range(rounds(20, 2)):
            await api.post("/models/unload", {"model": "text"})
            await until(lambda: not field.server.worker_pids("text"), within_s=30, what="the unload")
            start_s = loop.time()
            clients = [await visit(field.url) for _ in range(5)]
            await asyncio.gather(*(client.send(leaver.ask()) for client in clients))
            is_alone = number % 3 == 1
            staying = None if is_alone else asyncio.create_task(api.complete("text", "hello", 2))
            for client in clients:
                await asyncio.sleep(dice.uniform(0, 0.2))
                client.leave(is_reset=dice.random() < 0.5)
            row.injected, row.in_flight = row.injected + len(clients), row.in_flight + (not is_alone)
            if staying is not None:
                row.lost += (await staying).status != 200
            assert (await api.complete("text", "hello", 2)).status == 200
            row.recovery_s.append(loop.time() - start_s)
    assert row.lost == 0
    await check_aftermath(field, before)
    await _check_nothing_kept(field)


async def _check_nothing_kept(field: Arena) -> None:
    """Neither replies nor bodies are, and the log has no error."""
    async with api_of(field.server) as api:

        async def is_clean() -> bool:
            kept = await api.metric("corral_kept_streams")
            return kept + await api.metric("corral_request_body_bytes") == 0

        await until(is_clean, within_s=10, what="the end of what is kept")
    assert [line for line in field.server.lines if line.get("level") == "error"] == []


async def test_request_that_is_cut_in_its_head_was_none(field: Arena) -> None:
    """The counting itself: what has no whole head is no request, what has one is."""
    async with api_of(field.server) as api:
        before = await api.metric("corral_requests_total")
        for data in (head(10)[:-2], head(10)):
            client = await visit(field.url)
            await client.send(data)
            await asyncio.sleep(0.1)
            client.leave()

        async def is_counted() -> bool:
            return await api.metric("corral_requests_total") == before + 1

        await until(is_counted, what="the count of one request")
