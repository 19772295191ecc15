"""A real `corral serve` over stub workers that hang, crash or cannot load: what fails, and what comes back."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.served import Served, is_running, served, until

HANG_S = 1.0
"""Long enough for a stub that reports ten times a second, on a machine that is busy with other tests."""


def watched(**fake: Any) -> dict[str, Any]:
    """Return a model that is judged after `HANG_S`; its stub reports often."""
    return {"hang_timeout_s": HANG_S, "fake": {"HEARTBEAT_S": 0.1} | fake}


async def entry(server: Served, model: str) -> dict[str, Any]:
    found: dict[str, Any] = await server.get(f"/v1/models/{model}")
    return found


@pytest.mark.slow
async def test_engine_that_hangs_is_killed_its_requests_fail_and_the_next_one_gets_a_new_worker(tmp_path: Path) -> None:
    """The stub's event loop reports and answers on; only its engine makes no pass. It does not obey TERM either."""
    async with served(tmp_path, {"small": watched(IGNORE_TERM=1)}, limits={"max_resumes": 0}) as server:
        assert (await server.chat("small")).status == 200
        (pid,) = server.worker_pids()
        whole = asyncio.create_task(server.chat("small", hold=str(tmp_path / "never")))
        stream = await server.chat("small", stream=True, tokens=9, hold_after=2, hold=str(tmp_path / "never"))
        reply = await asyncio.wait_for(whole, 20)
        error = (await reply.json())["error"]
        assert (reply.status, error["code"]) == (503, "worker_died")
        assert "completed no pass" in error["message"]
        text = (await asyncio.wait_for(stream.content.read(), 20)).decode()
        assert "w1 " in text
        assert "completed no pass" in text
        assert "[DONE]" not in text
        await until(lambda: not is_running(pid), what="the end of the worker")
        assert (await server.chat("small")).status == 200
        assert len(server.journal("started")) == 2
        last_exit = (await entry(server, "small"))["last_exit"]
        assert (last_exit["reason"], last_exit["signal"]) == ("hung", "SIGKILL")
        page = await (await server.session.get(f"{server.url}/metrics")).text()
        assert 'corral_worker_exits_total{model="small",reason="hung"} 1.0' in page


@pytest.mark.slow
async def test_stopped_worker_is_killed_and_replaced(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": watched()}) as server:
        assert (await server.chat("small")).status == 200
        (pid,) = server.worker_pids()
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: not is_running(pid), within_s=20, what="the end of the stopped worker")
        assert (await server.chat("small")).status == 200
        assert "has not reported" in (await entry(server, "small"))["last_exit"]["detail"]


@pytest.mark.slow
async def test_worker_that_works_for_longer_than_the_limit_is_left_alone(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": watched()}) as server:
        reply = await server.chat("small", tokens=60, delay_s=0.05)
        assert reply.status == 200
        assert len(server.journal("started")) == 1


@pytest.mark.slow
async def test_worker_that_loads_for_longer_than_the_limit_is_left_alone(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": watched(LOAD_S=2 * HANG_S, LOAD_SILENT=1)}) as server:
        assert (await server.chat("small")).status == 200
        assert len(server.journal("started")) == 1


async def test_crash_of_an_idle_worker_is_noticed_at_once_and_unnoticed_by_the_next_request(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": {}}) as server:
        assert (await server.chat("small")).status == 200
        (pid,) = server.worker_pids()
        os.kill(pid, signal.SIGSEGV)

        async def is_noticed() -> bool:
            return (await entry(server, "small"))["state"] == "unloaded"

        await until(is_noticed, what="the notice of the crash, without any request")
        last_exit = (await entry(server, "small"))["last_exit"]
        assert (last_exit["reason"], last_exit["code"], last_exit["signal"]) == ("crashed", -11, "SIGSEGV")
        assert (await server.chat("small")).status == 200
        assert len(server.journal("started")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("fake", [{"CRASH_ON_LOAD": "SIGSEGV"}, {"FAIL_EXIT": 66, "FAIL_MESSAGE": "no memory for KV"}])
async def test_model_that_cannot_load_costs_few_starts_however_often_it_is_asked(
    tmp_path: Path, fake: dict[str, Any]
) -> None:
    async with served(tmp_path, {"small": {"fake": fake}, "other": {}}) as server:
        for number in range(30):
            reply = await server.chat("small")
            error = (await reply.json())["error"]
            assert (reply.status, error["code"]) == (503, "model_unavailable")
            assert fake.get("FAIL_MESSAGE", "SIGSEGV") in error["message"]
            if number:  # the first one waited for the load
                assert int(reply.headers["Retry-After"]) >= 1
            await asyncio.sleep(0.05)
        assert (await server.chat("other")).status == 200
        starts = [start for start in server.journal("started") if start["model"] == "small"]
        assert 1 <= len(starts) <= 3, "thirty requests in some two seconds, with pauses of 1, 2, 4 … seconds"


async def test_truncated_file_is_refused_with_its_reason_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    async with served(tmp_path, {"cut": {"model": "./cut.gguf"}, "other": {}}) as server:
        for _ in range(10):
            reply = await server.chat("cut")
            assert reply.status == 503
            assert "truncated" in (await reply.json())["error"]["message"]
            assert reply.headers["x-should-retry"] == "false"
        assert (await server.chat("other")).status == 200
        assert {start["model"] for start in server.journal("started")} == {"other"}


async def test_listing_tells_never_used_unloaded_crashed_and_bad_apart(tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    models = {"new": {}, "idle": {"idle_unload_s": 0.2}, "crashed": {}, "bad": {"model": "./cut.gguf"}}
    async with served(tmp_path, models) as server:
        for model in ("idle", "crashed", "bad"):
            await server.chat(model)
        (crashed,) = [start["pid"] for start in server.journal("started") if start["model"] == "crashed"]
        os.kill(crashed, signal.SIGSEGV)

        async def are_gone() -> bool:
            return not server.worker_pids() and (await server.get("/health"))["loaded"] == 0

        await until(are_gone, what="the end of all workers")
        told = {model: await entry(server, model) for model in models}
        states = {model: (one["state"], one.get("last_exit", {}).get("reason")) for model, one in told.items()}
        assert states == {
            "new": ("unloaded", None),
            "idle": ("unloaded", "stopped"),
            "crashed": ("unloaded", "crashed"),
            "bad": ("failed", "bad_model"),
        }


async def test_last_lines_of_a_dead_worker_can_be_read(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": {"fake": {"STDERR": "llama: what a pity", "FAIL_EXIT": 65}}}) as server:
        assert (await server.chat("small")).status == 503
        assert "llama: what a pity" in await _text(server, "/admin/logs?model=small")
        assert "small: failed" in await _text(server, "/admin/logs")


async def test_events_tell_a_load_and_an_unload_as_they_happen(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": {"fake": {"LOAD_S": 0.3}}}) as server:
        stream = await server.session.get(f"{server.url}/events")
        await server.chat("small")
        await server.session.post(f"{server.url}/models/unload", json={"model": "small"})
        states: list[str] = []
        async with asyncio.timeout(20):
            while states.count("unloaded") < 2:
                line = (await stream.content.readline()).decode()
                if '"state":"' in line:
                    states.append(line.split('"state":"')[1].partition('"')[0])
        shown = [state for index, state in enumerate(states) if index == 0 or states[index - 1] != state]
        assert [state for state in shown if state != "draining"] == [
            *("unloaded", "starting", "loading", "ready", "stopping", "unloaded")
        ]


async def test_server_with_open_streams_stops_at_once(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": {}}) as server:
        streams = [await server.session.get(server.url + path) for path in ("/events", "/admin/logs?follow=true")]
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(server.process.wait(), 10) == 0
        for stream in streams:
            stream.close()


async def _text(server: Served, path: str) -> str:
    async with server.session.get(server.url + path) as reply:
        assert reply.status == 200, await reply.text()
        return await reply.text()
