"""Workers that die, files that cannot be loaded and models that go: on real processes with the real model."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import pytest

from tests.support.real_server import Api, wait_gone
from tests.support.served import is_running, until


def has_state(api: Api, model: str, state: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return await api.state(model) == state

    return check


async def loaded(api: Api, model: str) -> int:
    """Return the process of the model's worker, which is ready; earlier deaths are forgiven."""
    await api.post("/models/load", {"model": model})
    await until(has_state(api, model, "ready"), within_s=30, what="the load")
    (pid,) = api.server.worker_pids(model)
    return pid


async def last_exit(api: Api, model: str) -> dict[str, object]:
    return dict((await api.get(f"/v1/models/{model}"))["last_exit"])


# --- death ------------------------------------------------------------------------------------------------


async def test_worker_that_crashes_while_idle_is_replaced_by_the_next_request(api: Api) -> None:
    pid = await loaded(api, "fragile")
    starts = await api.metric("corral_worker_starts_total", model="fragile")
    os.kill(pid, signal.SIGSEGV)
    answer = await api.complete("fragile", "One two three", 4)
    assert (answer.status, answer.counts[1]) == (200, 4)
    assert await api.metric("corral_worker_starts_total", model="fragile") == starts + 1
    exit_ = await last_exit(api, "fragile")
    assert (exit_["reason"], "SIGSEGV" in str(exit_["detail"])) == ("crashed", True)
    assert await api.metric("corral_worker_exits_total", model="fragile", reason="crashed") >= 1


@pytest.mark.parametrize("stream", [True, False])
async def test_answer_whose_worker_is_killed_goes_on_with_another_one(stream: bool, api: Api) -> None:
    pid = await loaded(api, "fragile")
    starts = await api.metric("corral_worker_starts_total", model="fragile")
    asked = asyncio.create_task(api.complete("fragile", "One", 64, ignore_eos=True, stream=stream))

    async def generates() -> bool:
        return "GENERATING" in await api.states("fragile")

    await until(generates, within_s=30, what="a growing answer")
    os.kill(pid, signal.SIGKILL)
    answer = await asked
    assert (answer.status, answer.error, answer.counts[1]) == (200, None, 64)
    assert answer.finish_reason == "length"
    assert await api.metric("corral_worker_starts_total", model="fragile") == starts + 1


# --- files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("truncated", "it is truncated"),
        ("text", "it is not a GGUF file"),
        ("incomplete", "error loading model hyperparameters: key not found in model"),  # llama.cpp's own words
    ],
)
async def test_file_that_cannot_be_loaded_fails_with_the_reason_and_harms_no_other(
    api: Api, model: str, reason: str
) -> None:
    for stream in (True, False, True, False, True):
        answer = await api.chat(model, "hi", 1, stream=stream)
        assert answer.status == 503
        assert answer.error is not None
        assert answer.error["code"] == "model_unavailable"
        assert reason in answer.error["message"]
        assert int(answer.headers["Retry-After"]) > 0
    assert await api.metric("corral_worker_starts_total", model=model) <= 1
    assert await api.state(model) == "failed"
    assert (await last_exit(api, model))["reason"] == "bad_model"
    assert (await api.complete("main", "One", 1)).status == 200


# --- unload -----------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_idle_model_is_unloaded_and_its_process_ends(api: Api) -> None:
    await api.complete("cold", "One", 1)
    (pid,) = api.server.worker_pids("cold")
    await until(has_state(api, "cold", "unloaded"), what="the unload")
    assert not is_running(pid)
    assert (await last_exit(api, "cold"))["reason"] == "stopped"
    assert await api.metric("corral_worker_exits_total", model="cold", reason="crashed") == 0
    assert (await api.complete("cold", "One", 1)).status == 200, "and is loaded again when it is needed"


async def test_model_is_not_idle_while_it_answers(api: Api) -> None:
    """`cold` goes after a second without work; this answer takes longer."""
    answer = await api.complete("cold", "One", 120, ignore_eos=True, stream=True)
    assert (answer.is_done, answer.counts[1]) == (True, 120)


async def test_unload_lets_the_answer_end_and_then_the_process(api: Api) -> None:
    pid = await loaded(api, "fragile")
    running = asyncio.create_task(api.complete("fragile", "One", 60, ignore_eos=True, stream=True))

    async def generates() -> bool:
        return "GENERATING" in await api.states("fragile")

    await until(generates, what="a growing answer")
    status, _ = await api.post("/models/unload", {"model": "fragile"})
    assert status == 200
    answer = await running
    assert (answer.is_done, answer.counts[1]) == (True, 60)
    await until(has_state(api, "fragile", "unloaded"), what="the unload")
    wait_gone([pid], within_s=1.0)
    assert await api.slots("fragile") == []


async def test_model_is_loaded_on_demand_without_a_request(api: Api) -> None:
    await api.post("/models/unload", {"model": "fragile"})
    await until(has_state(api, "fragile", "unloaded"), what="the unload")
    requests = await api.metric("corral_requests_total", model="fragile")
    assert is_running(await loaded(api, "fragile"))
    assert await api.metric("corral_requests_total", model="fragile") == requests
