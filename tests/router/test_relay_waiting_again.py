"""What an answer that has lost its worker waits for, and what it does not: places, pauses, operators, its own limit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from router.errors import ModelUnavailable
from router.events import ExitReason, WorkerExit
from router.lifecycle import WorkerState
from tests.fakes.supervisor import EVENTS, Received, Sender, make_resident, make_view
from tests.router.test_relay_resuming import dying, step, stream_of
from tests.support.http_side import http_side, make_catalog
from worker.contract import Header


def impatient(request_timeout_s: float) -> Any:
    catalog = make_catalog()
    smol = replace(catalog.models["smol"], request_timeout_s=request_timeout_s)
    return replace(catalog, models={**catalog.models, "smol": smol})


async def test_a_refusal_that_no_waiting_ends_is_told_at_once() -> None:
    async with http_side() as side:
        dead = dying(1)

        async def work(received: Received, sender: Sender) -> None:
            side.supervisor.refusal = ModelUnavailable("Model 'smol' was unloaded by request.")
            await dead(received, sender)

        *shown, last = await asyncio.wait_for(stream_of(side, work), 10)
        assert shown == [0]
        assert (last["error"]["code"], last["error"]["message"]) == (
            "model_unavailable",
            "Model 'smol' was unloaded by request.",
        )
        assert len(side.worker.received) == 1


async def test_the_answers_own_limit_ends_the_wait_for_another_worker() -> None:
    async with http_side(impatient(0.3)) as side:
        dead = dying(1)

        async def work(received: Received, sender: Sender) -> None:
            side.supervisor.gate = asyncio.Event()
            await dead(received, sender)

        *_, last = await asyncio.wait_for(stream_of(side, work), 10)
        assert last["error"]["code"] == "request_timeout"
        assert len(side.worker.received) == 1


async def test_the_answers_own_limit_ends_the_wait_for_the_end_of_a_pause() -> None:
    async with http_side(impatient(0.3)) as side:
        dead = dying(1)

        async def work(received: Received, sender: Sender) -> None:
            side.supervisor.refusal = ModelUnavailable("it pauses", retry_after_s=30.0)
            await dead(received, sender)

        *_, last = await asyncio.wait_for(stream_of(side, work), 10)
        assert last["error"]["code"] == "request_timeout"


async def test_a_worker_that_is_being_stopped_is_waited_for_until_it_is_known_why() -> None:
    """On a GPU its memory is waited for, too, before its end is told."""
    async with http_side() as side:
        dead = dying(1)

        async def tell_late() -> None:
            await asyncio.sleep(1.3)
            exit_ = WorkerExit(ExitReason.STOPPED, "unloaded by request", 0)
            side.supervisor.views["smol"] = make_view("smol", last_exit=exit_)

        async def work(received: Received, sender: Sender) -> None:
            stopping = make_resident("smol", WorkerState.STOPPING)
            side.supervisor.views["smol"] = replace(make_view("smol"), residents=(stopping,))
            telling.append(asyncio.create_task(tell_late()))
            await dead(received, sender)

        telling: list[asyncio.Task[None]] = []
        *_, last = await stream_of(side, work)
        assert "unloaded by request" in last["error"]["message"]
        assert len(side.worker.received) == 1


async def test_the_time_of_a_load_is_that_of_the_first_one() -> None:
    """Ollama's replies tell it, and that of a break is no part of the answer's time."""
    async with http_side() as side:

        async def work(received: Received, sender: Sender) -> None:
            sender.headers[Header.CONTENT_TYPE], sender.headers[Header.RESUME] = EVENTS, "m1"
            if len(side.worker.received) == 1:
                side.supervisor.load_s = 50.0
                await sender.raw(step(0))
                sender.cut()
                return
            await sender.end()

        side.supervisor.load_s = 3.0
        side.worker.script = work
        body = {"model": "smol", "messages": [{"role": "user", "content": "hi"}]}
        await (await side.client.post("/api/chat", json=body)).read()
        assert [one.headers[Header.LOAD_MS] for one in side.worker.received] == ["3000", "3000"]
