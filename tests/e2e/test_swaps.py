"""A real `corral serve` with room for one model: whose turn it is, and what those who wait see.

All tests share one server; each has models of its own, and an idle model of an earlier test is simply evicted.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.served import Served, served, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOON_S = 0.3
MODELS: dict[str, dict[str, Any]] = {
    "running": {},
    "patient": {},
    "first": {"fake": {"LOAD_S": 0.4, "LOAD_SILENT": 1}},
    "pressing": {"max_wait_s": 0},
    "steady": {},
    "urgent": {"max_wait_s": SOON_S},
    "one": {},
    "two": {},
    "three": {},
    "broken": {"fake": {"FAIL_EXIT": 66, "FAIL_MESSAGE": "no memory for the cache"}},
    "sound": {},
    "resident": {},
    "asked": {},
    "occupied": {},
    "impatient": {"queue_timeout_s": SOON_S, "max_wait_s": 30},
    "narrow": {"slots": 1, "max_queue": 1, "fake": {"MAX_LEASES": 1}},
    "slow": {"fake": {"LOAD_S": 1}},
    "pinned": {"pin": True, "idle_unload_s": 0.2},
    "kept-out": {},
    "home": {"home": True},
    "guest": {},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """Workers of all these models in turn."""
    async with served(tmp_path_factory.mktemp("swaps"), MODELS, limits={"max_loaded": 1}) as running:
        yield running
        lives = sorted(running.journal("started"), key=lambda entry: entry["at_s"])
        ends = {entry["pid"]: entry["at_s"] for entry in running.journal("exit")}
        for one, following in pairwise(lives):
            assert ends[one["pid"]] <= following["at_s"], f"two workers at once: {one['model']}, {following['model']}"


def of(server: Served, event: str, model: str) -> list[dict[str, Any]]:
    """Return what the workers of one model have told of themselves."""
    return [entry for entry in server.journal(event) if entry["model"] == model]


def at(server: Served, event: str, model: str) -> float:
    """Return when it happened, the last time. Units: seconds of the machine's clock."""
    return float(of(server, event, model)[-1]["at_s"])


async def page(server: Served) -> str:
    async with server.session.get(f"{server.url}/metrics") as reply:
        return await reply.text()


def sample(text: str, name: str, **labels: str) -> float:
    """Return the sum over the series of `name` that have these labels."""
    found = 0.0
    for line in text.splitlines():
        match = re.fullmatch(rf"{name}(?:{{(.*)}})? (\S+)", line)
        if match is not None and all(f'{key}="{value}"' in (match[1] or "") for key, value in labels.items()):
            found += float(match[2])
    return found


async def until_waiting(server: Served, model: str, number: int = 1) -> None:
    async def waits() -> bool:
        return sample(await page(server), "corral_queue_length", model=model) == number

    await until(waits, what=f"{number} waiting for {model}")


async def test_a_request_for_another_model_waits_until_the_running_answer_is_complete(
    server: Served, tmp_path: Path
) -> None:
    stream = await server.chat("running", stream=True, tokens=6, hold_after=3, hold=str(tmp_path / "go"))
    await stream.content.readuntil(b'"w2 "')
    other = asyncio.create_task(server.chat("patient"))
    await until_waiting(server, "patient")
    told = await server.get("/health?model=patient")
    assert "'running' is busy, 1 request is running" in told["waiting_for"]
    (tmp_path / "go").touch()
    assert (await stream.content.read()).endswith(b"data: [DONE]\n\n")
    assert (await other).status == 200
    assert at(server, "done", "running") < at(server, "started", "patient")
    assert of(server, "aborted", "running") == []


async def test_a_model_that_loads_is_no_victim_and_serves_whom_it_was_loaded_for(server: Served) -> None:
    """The worker neither reports nor reads while it loads, and the other request allows nobody any time."""
    first = asyncio.create_task(server.chat("first"))
    await until(lambda: bool(of(server, "started", "first")), what="the load")
    pressing = asyncio.create_task(server.chat("pressing"))
    assert (await first).status == 200
    assert (await pressing).status == 200
    assert len(of(server, "started", "first")) == 1
    assert at(server, "request", "first") < at(server, "started", "pressing")


@pytest.mark.slow
async def test_steady_traffic_keeps_another_model_out_no_longer_than_it_allows(server: Served) -> None:
    statuses: list[int] = []
    is_over = asyncio.Event()

    async def ask() -> None:
        async with await server.chat("steady", tokens=4, delay_s=0.03) as reply:
            await reply.read()
            statuses.append(reply.status)

    async def load() -> None:
        async with asyncio.TaskGroup() as group:
            while not is_over.is_set():
                group.create_task(ask())
                await asyncio.sleep(1 / 20)

    await ask()
    loading = asyncio.create_task(load())
    await until(lambda: len(statuses) > 1, what="the traffic")
    urgent = asyncio.create_task(server.chat("urgent"))
    await until_waiting(server, "urgent")
    oldest = sample(await page(server), "corral_queue_oldest_seconds", model="urgent")
    health = await server.get("/health")
    assert (await asyncio.wait_for(urgent, SOON_S + 8)).status == 200
    is_over.set()
    await loading
    assert 0 < oldest < SOON_S + 8
    assert health["oldest_wait"]["model"] == "urgent"
    assert health["oldest_wait_s"] is not None
    assert set(statuses) == {200}, "nobody was cut off or refused"
    assert of(server, "aborted", "steady") == []
    assert len(of(server, "started", "urgent")) == 1


async def test_two_models_that_want_the_same_place_at_the_same_instant_both_get_it(server: Served) -> None:
    names = ["one", "two", "three"]
    for turn in range(3):
        warm, *others = names[turn:] + names[:turn]
        assert (await server.chat(warm)).status == 200
        replies = await asyncio.wait_for(asyncio.gather(*(server.chat(name) for name in others)), 15)
        assert [reply.status for reply in replies] == [200, 200]
    assert (await server.get("/health"))["queue_length"] == 0


async def test_a_model_that_cannot_load_gives_its_place_to_the_next_one(server: Served) -> None:
    broken, sound = await asyncio.gather(server.chat("broken"), server.chat("sound"))
    assert (broken.status, sound.status) == (503, 200)
    assert "no memory for the cache" in await broken.text()


async def test_a_request_is_answered_by_the_model_that_it_names_or_by_nobody(server: Served) -> None:
    assert (await (await server.chat("resident")).json())["model"] == "resident"
    unknown = await server.chat("doesnotexist")
    assert (unknown.status, (await unknown.json())["error"]["code"]) == (404, "model_not_found")
    assert at(server, "started", "resident") == max(entry["at_s"] for entry in server.journal("started"))
    assert (await (await server.chat("asked")).json())["model"] == "asked"
    assert [entry["body"]["model"] for entry in of(server, "request", "resident")] == ["resident"]


async def test_who_waits_longer_than_its_model_allows_is_told_what_for_and_when_to_come_back(
    server: Served, tmp_path: Path
) -> None:
    running = asyncio.create_task(server.chat("occupied", hold=str(tmp_path / "go")))
    await until(lambda: bool(of(server, "generating", "occupied")), what="the answer")
    refused = await server.chat("impatient")
    (tmp_path / "go").touch()
    error = (await refused.json())["error"]
    assert (refused.status, error["code"]) == (503, "queue_timeout")
    assert f"waited {SOON_S:g} s (queue_timeout_s)" in error["message"]
    assert "'occupied' is busy" in error["message"]
    assert int(refused.headers["Retry-After"]) >= 1
    assert (await running).status == 200
    assert of(server, "started", "impatient") == []


async def test_a_full_line_refuses_the_next_one_and_says_when_to_come_back(server: Served, tmp_path: Path) -> None:
    running = asyncio.create_task(server.chat("narrow", hold=str(tmp_path / "go")))
    await until(lambda: bool(of(server, "generating", "narrow")), what="the answer")
    waiting = asyncio.create_task(server.chat("narrow"))
    await until_waiting(server, "narrow")
    refused = await server.chat("narrow")
    error = (await refused.json())["error"]
    assert (refused.status, error["code"]) == (429, "queue_full")
    assert "max_queue" in error["message"]
    assert int(refused.headers["Retry-After"]) >= 1
    (tmp_path / "go").touch()
    assert [(await one).status for one in (running, waiting)] == [200, 200]


async def test_a_client_that_leaves_during_a_load_is_recorded_as_gone_and_not_as_served(server: Served) -> None:
    _, writer = await server.raw_chat("slow", stream=False)
    await until(lambda: bool(of(server, "started", "slow")), what="the load")
    writer.close()

    def told() -> list[dict[str, Any]]:
        return [line for line in server.lines if line.get("message") == "request" and line.get("model") == "slow"]

    await until(lambda: bool(told()), what="the log line")
    assert (told()[0]["outcome"], told()[0]["status"]) == ("client_gone", 499)
    counted = await page(server)
    assert sample(counted, "corral_requests_total", model="slow", outcome="client_gone") == 1
    assert sample(counted, "corral_requests_total", model="slow", outcome="ok") == 0
    assert of(server, "request", "slow") == []


async def test_a_pinned_model_is_never_unloaded_and_named_to_those_it_keeps_out(server: Served) -> None:
    assert (await server.chat("pinned")).status == 200
    await asyncio.sleep(0.5)  # more than twice its idle time
    refused = await server.chat("kept-out")
    assert refused.status == 503
    assert "pinned models ('pinned') leave no room" in (await refused.json())["error"]["message"]
    assert (await server.chat("pinned")).status == 200
    assert len(of(server, "started", "pinned")) == 1
    await _unload(server, "pinned")  # which a pin does not forbid
    assert (await server.chat("kept-out")).status == 200


async def test_the_home_model_comes_back_when_the_last_other_one_is_unloaded(server: Served) -> None:
    assert (await server.chat("home")).status == 200
    assert (await server.chat("guest")).status == 200
    before = len(of(server, "ready", "home"))
    await _unload(server, "guest")
    await until(lambda: len(of(server, "ready", "home")) == before + 1, what="its return, without any request")
    assert at(server, "term", "guest") < at(server, "started", "home")


async def _unload(server: Served, model: str) -> None:
    async with server.session.post(f"{server.url}/models/unload", json={"model": model}) as reply:
        assert reply.status == 200

    async def is_gone() -> bool:
        return bool((await server.get(f"/v1/models/{model}"))["state"] == "unloaded")

    await until(is_gone, what=f"the unload of {model}")
