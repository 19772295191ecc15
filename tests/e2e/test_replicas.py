"""A real `corral serve` with several stub workers of one model: who gets which request, and how both are shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.support.served import Served, served, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = "word " * 200
"""Beginnings of a few tokens are not worth a choice."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    twins = {"replicas": 2}
    models = {"talks": dict(twins), "keyed": twins | {"preload": True}, "fragile": twins | {"preload": True}}
    # A stub that is told to die would be told so again, on the other worker.
    async with served(tmp_path_factory.mktemp("replicas"), models, limits={"max_resumes": 0}) as running:
        yield running


def of(server: Served, event: str, model: str) -> list[dict[str, Any]]:
    return [entry for entry in server.journal(event) if entry["model"] == model]


async def ask(server: Served, model: str, turns: Iterable[str], **fake: Any) -> aiohttp.ClientResponse:
    """Send a conversation whose messages are from its user and the model in turn."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
    body = {"model": model, "messages": messages, "fake": fake}
    async with server.session.post(f"{server.url}/v1/chat/completions", json=body) as reply:
        await reply.read()
        return reply


def pid_of(server: Served, last_words: str) -> int:
    """Return the worker that got the conversation that ends with these words."""
    (pid,) = [
        entry["pid"] for entry in server.journal("request") if entry["body"]["messages"][-1]["content"] == last_words
    ]
    return int(pid)


async def test_conversations_stay_with_the_worker_that_knows_them_and_both_are_shown(
    server: Served, tmp_path: Path
) -> None:
    red, blue = f"red {LONG}", f"blue {LONG}"
    first = asyncio.create_task(ask(server, "talks", [red], hold=str(tmp_path / "go")))
    await until(lambda: bool(of(server, "generating", "talks")), what="the first answer")
    second = asyncio.create_task(ask(server, "talks", [blue], hold=str(tmp_path / "go")))
    await until(lambda: len(of(server, "ready", "talks")) == 2, what="the second worker")
    await until(lambda: len(of(server, "request", "talks")) == 2, what="the second request")
    # The second one may have been given a place on the first worker before there was another.
    third = asyncio.create_task(ask(server, "talks", [f"green {LONG}"], hold=str(tmp_path / "go")))
    await until(lambda: len(of(server, "request", "talks")) == 3, what="the third request")
    assert len({entry["pid"] for entry in of(server, "request", "talks")}) == 2, "the least loaded one serves"

    slots = await server.get("/slots?model=talks")
    assert {slot["replica"] for slot in slots} == {0, 1}
    assert len(slots) == 4
    workers = (await server.get("/v1/models/talks"))["workers"]
    assert [one["replica"] for one in workers] == [0, 1]
    assert sum(one["running_requests"] for one in workers) == 3
    (tmp_path / "go").touch()
    assert [(await one).status for one in (first, second, third)] == [200] * 3

    for number in range(4):
        for colour, history in (("red", red), ("blue", blue), ("green", f"green {LONG}")):
            reply = await ask(server, "talks", [history, "w0", f"{colour} {number}"])
            assert reply.status == 200
            assert pid_of(server, f"{colour} {number}") == pid_of(server, history)

    async with server.session.get(f"{server.url}/metrics") as reply:
        page = await reply.text()
    assert 'corral_worker_starts_total{model="talks"} 2.0' in page


async def test_a_key_of_the_conversation_decides_whatever_it_holds(server: Served) -> None:
    await until(lambda: len(of(server, "ready", "keyed")) == 2, what="both workers")

    async def pid_for(key: str, text: str) -> int:
        body = {"model": "keyed", "messages": [{"role": "user", "content": text}], "prompt_cache_key": key}
        async with server.session.post(f"{server.url}/v1/chat/completions", json=body) as reply:
            assert reply.status == 200
            await reply.read()
        return pid_of(server, text)

    pids = {key: await pid_for(key, f"{key} begins") for key in ("x", "y", "z")}
    for key, pid in pids.items():
        assert {await pid_for(key, f"{key} {number}") for number in range(3)} == {pid}


async def test_the_crash_of_one_worker_disturbs_no_answer_of_the_other(server: Served, tmp_path: Path) -> None:
    await until(lambda: len(of(server, "ready", "fragile")) == 2, what="both workers")
    running = asyncio.create_task(ask(server, "fragile", ["one"], tokens=9, hold_after=4, hold=str(tmp_path / "go")))
    await until(lambda: bool(of(server, "generating", "fragile")), what="the answer")
    fatal = await ask(server, "fragile", ["two"], die_after=2)
    assert fatal.status == 503
    assert pid_of(server, "one") != pid_of(server, "two")
    (tmp_path / "go").touch()
    assert (await running).status == 200
    assert (await ask(server, "fragile", ["three"])).status == 200
