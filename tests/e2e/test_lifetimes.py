"""A real `corral serve` over stub workers that are idle, busy, slow to load or late: how long they stay.

All tests share one server; each has models of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import pytest_asyncio

from tests.support.served import Served, is_running, served, until

IDLE_S = 0.6
BUSY_S = 1.5
"""Longer than the idle time, but for one that counts it from the start of a request."""
BRIEF: dict[str, Any] = {"idle_unload_s": IDLE_S}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    models: dict[str, dict[str, Any]] = {
        "whole": dict(BRIEF),
        "streamed": dict(BRIEF),
        "silent": dict(BRIEF),
        "again": {"idle_unload_s": 1.0},
        "late": {"load_timeout_s": 3, "fake": {"LOAD_HANG": 1, "UNTIL_INCARNATION": 1}},
        "steady": {"fake": {"LOAD_S": BUSY_S}},
        "endless": {"request_timeout_s": 0.5},
        "cold": {},
        "often": {},
    }
    async with served(tmp_path_factory.mktemp("lifetimes"), models) as running:
        yield running


def of(server: Served, event: str, model: str) -> list[dict[str, Any]]:
    return [entry for entry in server.journal(event) if entry["model"] == model]


async def state(server: Served, model: str) -> str:
    return str((await server.get(f"/v1/models/{model}"))["state"])


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.slow
async def test_idle_time_begins_when_the_last_answer_is_complete(server: Served) -> None:
    """A whole answer, a streamed one and a prompt that is read in silence: all take longer than the idle time."""
    pieces: dict[str, Any] = {"tokens": 10, "delay_s": BUSY_S / 9}
    requests = {
        "whole": server.chat("whole", **pieces),
        "streamed": server.chat("streamed", stream=True, **pieces),
        "silent": server.chat("silent", prefill_s=BUSY_S),
    }
    replies = await asyncio.gather(*requests.values())
    bodies = [await reply.text() for reply in replies]
    assert [reply.status for reply in replies] == [200] * 3
    assert bodies[1].endswith("data: [DONE]\n\n")
    await until(lambda: all(of(server, "term", model) for model in requests), what="three unloads")
    for model in requests:
        idle_s = of(server, "term", model)[0]["at_s"] - of(server, "done", model)[0]["at_s"]
        assert idle_s > IDLE_S - 0.1, model
        assert of(server, "aborted", model) == []


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_every_request_starts_the_idle_time_anew(server: Served) -> None:
    for _ in range(4):
        assert (await server.chat("again")).status == 200
        await asyncio.sleep(0.4)
    assert len(of(server, "started", "again")) == 1
    await until(lambda: bool(of(server, "term", "again")), what="the unload")


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_a_load_without_progress_is_given_up_by_name_and_tried_again_for_a_later_request(server: Served) -> None:
    refused = await server.chat("late")
    message = (await refused.json())["error"]["message"]
    assert refused.status == 503
    assert "load_timeout_s" in message
    assert "3 s" in message
    paused = await server.chat("late")
    assert paused.status == 503
    assert len(of(server, "started", "late")) == 1
    await asyncio.sleep(int(paused.headers["Retry-After"]))
    assert (await server.chat("late")).status == 200
    assert len(of(server, "started", "late")) == 2


@pytest.mark.asyncio(loop_scope="module")
async def test_a_load_shows_how_far_it_is(server: Served) -> None:
    asked = asyncio.create_task(server.chat("steady"))
    seen: list[tuple[str, float]] = []
    words: list[str] = []
    while not asked.done():
        entry = await server.get("/v1/models/steady")
        if entry["state"] == "loading" and (progress := entry["progress"])["fraction"]:
            seen.append((progress["phase"], progress["fraction"]))
            words.append((await server.get("/health?model=steady")).get("waiting_for") or "")
        await asyncio.sleep(0.05)
    assert (await asked).status == 200
    fractions = [fraction for _, fraction in seen]
    assert {phase for phase, _ in seen} == {"loading"}
    assert fractions == sorted(fractions)
    assert fractions[0] < 0.5 < fractions[-1]
    assert any(text.startswith("its load: ") for text in words)
    assert "progress" not in await server.get("/v1/models/steady")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_without_end_is_cut_off_and_frees_its_place(server: Served, stream: bool) -> None:
    before = len(of(server, "aborted", "endless"))
    reply = await server.chat("endless", stream=stream, tokens=10**6, delay_s=0.02)
    text = await reply.text()
    assert reply.status == (200 if stream else 503)
    assert "request_timeout" in text
    assert "[DONE]" not in text
    await until(lambda: len(of(server, "aborted", "endless")) == before + 1, what="the abort")
    assert (await server.chat("endless")).status == 200
    assert len(of(server, "started", "endless")) == 1


@pytest.mark.asyncio(loop_scope="module")
async def test_looking_at_a_model_neither_loads_it_nor_keeps_it_loaded(server: Served) -> None:
    paths = ["/", "/health", "/health?model=cold", "/slots?model=cold", "/slots", "/metrics", "/models", "/v1/models"]
    paths += ["/v1/models/cold", "/props?model=cold", "/admin/logs?model=cold"]
    for path in paths:
        async with server.session.get(server.url + path) as reply:
            assert reply.status in (200, 501), path
    assert of(server, "started", "cold") == []
    assert await state(server, "cold") == "unloaded"
    assert (await server.chat("whole")).status == 200
    ended_s = asyncio.get_running_loop().time()
    while await state(server, "whole") == "ready":
        assert asyncio.get_running_loop().time() < ended_s + IDLE_S + 5, "kept loaded by those who look"
        await server.get("/slots?model=whole")


@pytest.mark.asyncio(loop_scope="module")
async def test_every_load_is_a_process_of_its_own_and_leaves_nothing_in_the_router(server: Served) -> None:
    router = psutil.Process(server.process.pid)

    async def load_and_unload() -> None:
        assert (await server.chat("often")).status == 200
        await server.session.post(f"{server.url}/models/unload", json={"model": "often"})

        async def is_gone() -> bool:
            return await state(server, "often") == "unloaded"

        await until(is_gone, what="the unload")
        assert not is_running(of(server, "started", "often")[-1]["pid"])

    for _ in range(2):
        await load_and_unload()
    before = router.num_fds(), router.memory_info().rss
    for _ in range(6):
        await load_and_unload()
    assert len({start["pid"] for start in of(server, "started", "often")}) == 8
    await until(lambda: router.num_fds() <= before[0], what="the end of all pipes and sockets")
    assert router.memory_info().rss < before[1] + 4 * 2**20


@pytest.mark.slow
async def test_a_server_that_was_killed_under_open_streams_is_back_at_its_port_at_once(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": {}}) as first:
        stream = await first.chat("small", stream=True, tokens=10_000, delay_s=0.01)
        await stream.content.readuntil(b'"w1 "')
        port = urlsplit(first.url).port
        assert port is not None
        os.kill(first.process.pid, signal.SIGKILL)
        await first.process.wait()
        async with served(tmp_path, {"small": {}}, port=port) as second:
            assert second.url == first.url
            assert (await second.chat("small")).status == 200
        stream.close()
