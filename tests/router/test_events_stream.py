"""`/events` and `/models/sse`: what is, then every change, for as long as somebody listens."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from router.catalog import Catalog
from router.events import ExitReason, WorkerExit
from router.fetch.protocol import FetchProgress
from router.lifecycle import WorkerState
from router.live_streams import MAX_STREAMS, MAX_WAITING_BYTES
from tests.fakes.supervisor import make_resident, make_view
from tests.support.http_side import HttpSide, http_side, make_catalog, make_spec
from tests.support.served import until
from worker.contract import Phase, WorkerStatus

CRASH = WorkerExit(ExitReason.CRASHED, "killed by SIGSEGV", -11)


class Listener:
    """One client that reads events."""

    def __init__(self, reply: aiohttp.ClientResponse) -> None:
        self.reply = reply

    async def next(self) -> dict[str, Any]:
        """Return the next event; its kind, where it has one, as `kind`."""
        fields = {}
        async with asyncio.timeout(10):
            while line := (await self.reply.content.readline()).decode().rstrip("\n"):
                name, _, value = line.partition(": ")
                fields[name] = value
        told: dict[str, Any] = json.loads(fields["data"])
        return told | ({"kind": fields["event"]} if "event" in fields else {})


@asynccontextmanager
async def listening(side: HttpSide, path: str, num_before: int) -> AsyncIterator[Listener]:
    """Listen, with the first events (what is) read already."""
    async with side.client.get(path) as reply:
        assert reply.status == 200
        assert reply.headers["Content-Type"] == "text/event-stream"
        listener = Listener(reply)
        for _ in range(num_before):
            await listener.next()
        yield listener


def given(side: HttpSide, state: WorkerState, status: WorkerStatus | None = None, **more: Any) -> None:
    """The model `smol` is in `state` now, and whoever watches is told."""
    resident = make_resident("smol", state)
    has_worker = state not in (WorkerState.UNLOADED, WorkerState.BACKOFF, WorkerState.FAILED)
    side.supervisor.views["smol"] = make_view("smol", state, residents=(resident,) if has_worker else (), **more)
    side.supervisor.statuses.clear()
    if status is not None:
        side.supervisor.statuses[resident.worker] = status
    side.supervisor.note_change()


async def test_what_is_comes_first() -> None:
    async with http_side() as side, listening(side, "/events", 0) as listener:
        told = [await listener.next() for _ in range(2)]
        assert [(event["kind"], event["model"], event["state"]) for event in told] == [
            ("added", "smol", "unloaded"),
            ("added", "gem", "unloaded"),
        ]


async def test_every_change_of_state_is_one_event() -> None:
    async with http_side() as side, listening(side, "/events", 2) as listener:
        for state in (WorkerState.STARTING, WorkerState.LOADING, WorkerState.READY, WorkerState.UNLOADED):
            given(side, state, WorkerStatus(Phase.LOADING) if state is WorkerState.LOADING else None)
            side.supervisor.note_change()  # nothing has changed: nothing is told
        told = [await listener.next() for _ in range(4)]
        assert [event["state"] for event in told] == ["starting", "loading", "ready", "unloaded"]
        assert {event["model"] for event in told} == {"smol"}


async def test_load_tells_phase_and_fraction() -> None:
    async with http_side() as side, listening(side, "/events", 2) as listener:
        for progress in (0.1, 0.1001, 0.5):
            given(side, WorkerState.LOADING, WorkerStatus(Phase.LOADING, progress=progress))
        given(side, WorkerState.LOADING, WorkerStatus(Phase.WARMING))
        told = [(await listener.next())["progress"] for _ in range(3)]
        assert told == [
            {"phase": "loading", "fraction": 0.1},
            {"phase": "loading", "fraction": 0.5},
            {"phase": "warming", "fraction": None},
        ]


async def test_failure_tells_its_reason() -> None:
    async with http_side() as side, listening(side, "/events", 2) as listener:
        given(side, WorkerState.BACKOFF, last_exit=CRASH)
        event = await listener.next()
        assert (event["state"], event["reason"]) == ("backoff", "killed by SIGSEGV")


async def test_models_that_come_and_go_are_told() -> None:
    async with http_side() as side, listening(side, "/events", 2) as listener:
        side.supervisor.set_catalog(make_catalog(make_spec("gem"), make_spec("new")))
        side.supervisor.note_change()
        told = [await listener.next() for _ in range(2)]
        assert [(event["kind"], event["model"]) for event in told] == [("added", "new"), ("removed", "smol")]


async def test_model_that_becomes_unavailable_is_told() -> None:
    async with http_side() as side, listening(side, "/events", 2) as listener:
        models = side.supervisor.catalog.models
        broken = replace(models["smol"], problem="no such file")
        side.supervisor.set_catalog(Catalog({**models, "smol": broken}))
        side.supervisor.note_change()
        event = await listener.next()
        assert (event["model"], event["state"], event["reason"]) == ("smol", "unavailable", "no such file")


async def test_nothing_watches_the_fleet_while_nobody_listens() -> None:
    async with http_side() as side:
        assert side.supervisor.watchers == []
        async with listening(side, "/events", 2), listening(side, "/models/sse", 2):
            assert len(side.supervisor.watchers) == 1, "one look serves all"
        await until(lambda: not side.supervisor.watchers)


async def test_listener_that_reads_too_slowly_is_cut_off_and_others_are_not() -> None:
    async with http_side() as side, listening(side, "/events", 2) as slow:
        long = WorkerExit(ExitReason.CRASHED, "x" * MAX_WAITING_BYTES, -11)
        for _ in range(2):  # without a pause in which it could read
            given(side, WorkerState.BACKOFF, last_exit=long)
            given(side, WorkerState.UNLOADED)
        assert await asyncio.wait_for(slow.reply.content.read(), 10) == b""
        async with listening(side, "/events", 2) as other:
            given(side, WorkerState.READY)
            assert (await other.next())["state"] == "ready"


async def test_number_of_listeners_is_bounded() -> None:
    async with http_side() as side, contextlib.AsyncExitStack() as stack:
        for _ in range(MAX_STREAMS):
            await stack.enter_async_context(side.client.get("/events"))
        async with side.client.get("/events") as reply:
            assert reply.status == 429
            assert (await reply.json())["error"]["code"] == "too_many_streams"
        async with side.client.get("/admin/logs?follow=1&model=smol") as reply:
            assert reply.status == 200, "logs have places of their own"


async def test_one_key_leaves_places_to_others() -> None:
    async with http_side(keys={"api_keys": "user", "admin_keys": "root"}) as side, contextlib.AsyncExitStack() as stack:
        user, root = {"x-api-key": "user"}, {"x-api-key": "root"}
        for _ in range(MAX_STREAMS // 4):
            await stack.enter_async_context(side.client.get("/events", headers=user))
        assert (await side.client.get("/models/sse", headers=user)).status == 429
        async with side.client.get("/events", headers=root) as reply:
            assert reply.status == 200


@pytest.mark.parametrize("path", ["/events", "/models/sse"])
async def test_keys_for_inference_or_metrics_may_listen(path: str) -> None:
    async with http_side(keys={"api_keys": "user", "metrics_keys": "prom"}) as side:
        assert (await side.client.get(path)).status == 401
        for key in ("user", "prom"):
            async with side.client.get(path, headers={"x-api-key": key}) as reply:
                assert reply.status == 200


# --- as llama-server's router says it -------------------------------------------------------------------------


async def test_load_and_unload_have_llama_servers_words() -> None:
    async with http_side() as side, listening(side, "/models/sse", 0) as listener:
        first = await listener.next()
        assert first == {"model": "smol", "event": "model_status", "data": {"status": "unloaded", "exit_code": 0}}
        await listener.next()
        given(side, WorkerState.LOADING, WorkerStatus(Phase.LOADING, progress=0.25))
        given(side, WorkerState.READY)
        given(side, WorkerState.DRAINING)
        given(side, WorkerState.UNLOADED)
        loading, loaded, unloading, unloaded = [await listener.next() for _ in range(4)]
        assert loading == {
            "model": "smol",
            "event": "status_change",
            "data": {
                "status": "loading",
                "progress": {"stages": ["text_model"], "current": "text_model", "value": 0.25},
            },
        }
        assert loaded["data"] == {"status": "loaded"}
        assert unloading["data"] == {"status": "unloading"}
        assert unloaded["data"] == {"status": "unloaded", "exit_code": 0}


async def test_failed_load_has_an_exit_code_that_is_not_zero() -> None:
    async with http_side() as side, listening(side, "/models/sse", 2) as listener:
        given(side, WorkerState.BACKOFF, last_exit=CRASH)
        data = (await listener.next())["data"]
        assert (data["status"], data["exit_code"], data["reason"]) == ("unloaded", -11, "killed by SIGSEGV")
        given(side, WorkerState.FAILED, last_exit=WorkerExit(ExitReason.SOURCE_FAILED, "no such file"))
        assert (await listener.next())["data"]["exit_code"] == 1


async def test_download_tells_its_progress() -> None:
    async with http_side() as side, listening(side, "/models/sse", 2) as listener:
        side.supervisor.progress["smol"] = FetchProgress("downloading", 10, 100)
        given(side, WorkerState.STARTING)
        assert (await listener.next())["data"] == {"status": "downloading"}
        side.supervisor.progress["smol"] = FetchProgress("downloading", 60, 100)
        given(side, WorkerState.STARTING)
        assert await listener.next() == {
            "model": "smol",
            "event": "download_progress",
            "data": {"progress": {"smol": {"done": 60, "total": 100}}},
        }


async def test_removed_model_is_told() -> None:
    async with http_side() as side, listening(side, "/models/sse", 2) as listener:
        side.supervisor.set_catalog(make_catalog(make_spec("gem")))
        side.supervisor.note_change()
        assert await listener.next() == {"model": "smol", "event": "model_remove"}
