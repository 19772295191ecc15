"""`GET /admin/logs`: the last lines of workers and of the router, and new ones as they come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from router.auth import ALL_SCOPES, Grant, KeyRing
from router.events import WorkerId
from router.log_tail import LogTail
from router.logs import TextFormatter
from router.recent_log import MAX_LINES, RecentLog
from router.services import SERVICES
from tests.support.http_side import HttpSide, http_side, make_catalog, make_spec

FIRST, SECOND = WorkerId("smol", 0, 1), WorkerId("smol", 1, 1)


def given_log(side: HttpSide, worker: WorkerId, *lines: str) -> LogTail:
    log = LogTail()
    log.feed("".join(f"{line}\n" for line in lines).encode())
    side.supervisor.worker_logs.setdefault(worker.model, []).append((worker, log))
    return log


async def text_of(side: HttpSide, path: str) -> str:
    reply = await side.client.get(path)
    assert reply.status == 200, await reply.text()
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
    return await reply.text()


@pytest.fixture
def own_log() -> Iterator[RecentLog]:
    """The router's log, as the program sets it up."""
    handler = RecentLog()
    handler.setFormatter(TextFormatter(has_colour=False))
    root = logging.getLogger()
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)


async def test_last_lines_of_a_worker_are_found_by_any_name_of_its_model() -> None:
    async with http_side() as side:
        given_log(side, FIRST, "loading", "llama: no such tensor")
        for name in ("smol", "gpt"):
            assert await text_of(side, f"/admin/logs?model={name}") == "loading\nllama: no such tensor\n"


async def test_number_of_lines_can_be_chosen() -> None:
    async with http_side() as side:
        given_log(side, FIRST, *map(str, range(10)))
        assert await text_of(side, "/admin/logs?model=smol&lines=2") == "8\n9\n"
        assert await text_of(side, "/admin/logs?model=smol&lines=0") == ""
        assert (await text_of(side, "/admin/logs?model=smol&lines=100")).count("\n") == 10


async def test_model_that_never_had_a_worker_has_no_lines() -> None:
    async with http_side() as side:
        assert await text_of(side, "/admin/logs?model=gem") == ""


async def test_lines_of_several_replicas_carry_their_number() -> None:
    async with http_side(make_catalog(make_spec("smol", replicas=2))) as side:
        given_log(side, FIRST, "a")
        given_log(side, SECOND, "b")
        assert await text_of(side, "/admin/logs?model=smol") == "[0] a\n[1] b\n"


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("model=nobody", 404, "no model named"),
        ("model=smol&lines=many", 400, "`lines` must be a number"),
        ("model=smol&lines=-1", 400, "`lines` must be a number"),
        ("model=smol&lines=10001", 400, "`lines` must be a number"),
        ("model=smol&follow=perhaps", 400, "`follow` must be true or false"),
        ("modle=smol", 400, "`modle` is not an option"),
        ("", 404, "keeps no log lines of its own"),
    ],
)
async def test_wrong_questions_are_told_what_is_wrong(query: str, status: int, words: str) -> None:
    async with http_side() as side:
        reply = await side.client.get(f"/admin/logs?{query}")
        assert reply.status == status
        assert words in (await reply.json())["error"]["message"]


async def test_only_a_key_of_scope_admin_reads_logs() -> None:
    async with http_side(keys={"api_keys": "user", "admin_keys": "root", "metrics_keys": "prom"}) as side:
        for key, status in (("user", 403), ("prom", 403), ("root", 200)):
            reply = await side.client.get("/admin/logs?model=smol", headers={"x-api-key": key})
            assert reply.status == status


async def test_follower_whose_key_is_taken_away_gets_no_more_lines() -> None:
    async with http_side(keys={"admin_keys": "root"}) as side:
        log = given_log(side, FIRST, "old")
        url = "/admin/logs?model=smol&follow=true"
        async with side.client.get(url, headers={"x-api-key": "root"}) as reply:
            assert await asyncio.wait_for(reply.content.readline(), 10) == b"old\n"
            assert side.client.app is not None
            side.client.app[SERVICES].keys.adopt(KeyRing([(b"", Grant("new", ALL_SCOPES))]))
            log.feed(b"secret\n")
            assert await asyncio.wait_for(reply.content.read(), 10) == b""


async def test_follower_gets_what_was_and_then_every_new_line() -> None:
    async with http_side() as side:
        log = given_log(side, FIRST, "old")
        async with side.client.get("/admin/logs?model=smol&follow=true") as reply:
            assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
            assert await asyncio.wait_for(reply.content.readline(), 10) == b"old\n"
            log.feed(b"new\nhal")
            assert await asyncio.wait_for(reply.content.readline(), 10) == b"new\n"
            log.feed(b"f\n")
            assert await asyncio.wait_for(reply.content.readline(), 10) == b"half\n"


async def test_follower_goes_on_with_the_next_worker_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.admin_logs._LOOK_EVERY_S", 0.01)
    async with http_side() as side:
        given_log(side, FIRST, "I die")
        async with side.client.get("/admin/logs?model=smol&follow=1") as reply:
            assert await asyncio.wait_for(reply.content.readline(), 10) == b"I die\n"
            side.supervisor.worker_logs.clear()
            given_log(side, WorkerId("smol", 0, 2), "I live")
            assert await asyncio.wait_for(reply.content.readline(), 10) == b"I live\n"


async def test_log_forgets_a_follower_that_has_left() -> None:
    async with http_side() as side:
        log = given_log(side, FIRST, "old")
        reply = await side.client.get("/admin/logs?model=smol&follow=true")
        await reply.content.readline()
        assert log._listeners
        reply.close()
        async with asyncio.timeout(10):
            while log._listeners:
                log.feed(b"more\n")
                await asyncio.sleep(0.01)


async def test_lines_of_the_router_itself_need_no_model(own_log: RecentLog) -> None:
    async with http_side() as side:
        logging.getLogger("router.test").warning("something\nforged", extra={"model": "smol"})
        (line,) = [line for line in (await text_of(side, "/admin/logs")).splitlines() if "something" in line]
        assert "WARNING" in line
        assert line.endswith("something\\nforged model=smol")


async def test_new_lines_of_the_router_come_from_any_thread(own_log: RecentLog) -> None:
    async with http_side() as side, side.client.get("/admin/logs?follow=true&lines=0") as reply:
        await asyncio.to_thread(logging.getLogger("router.test").warning, "from a thread")
        assert b"from a thread" in await asyncio.wait_for(reply.content.readline(), 10)


def test_own_log_is_bounded(own_log: RecentLog) -> None:
    for number in range(MAX_LINES + 10):
        logging.getLogger("router.test").warning("line %d", number)
    kept = own_log.lines.lines()
    assert len(kept) == MAX_LINES
    assert kept[-1].endswith(f"line {MAX_LINES + 9}")
