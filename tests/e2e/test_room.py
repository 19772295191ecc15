"""A real `corral serve` with declared devices: where models go, who makes room, who is refused.

The models are real files of llama.cpp's, so what they need is what it plans for them; the workers are stubs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.served import Served, served, until
from tests.support.tiny_gguf import write_tiny_llama

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEVICES = {
    "A": {"memory": "1500MB", "kind": "gpu", "headroom": 0},
    "B": {"memory": "900MB", "kind": "gpu", "headroom": 0},
}
SMALL = {"context": 4096, "slots": 1}
"""Some 500 MB of a GPU, most of which llama.cpp takes there for any model."""
MEDIUM = {"context": 65536, "slots": 8}
"""Some 1.1 GB of a GPU."""
HUGE = {"context": 131072, "slots": 16}
"""Some 3 GB of a GPU."""
MODELS: dict[str, dict[str, Any]] = {
    "small": SMALL,
    "second": SMALL,
    "medium": MEDIUM | {"max_wait_s": 30},
    "huge": HUGE,
    "on-b": MEDIUM | {"device": "B"},
    "on-nothing": SMALL | {"device": "CUDA7"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder: Path = tmp_path_factory.mktemp("room")
    write_tiny_llama(folder / "tiny.gguf", trained_context=131072)
    models = {name: {"model": "./tiny.gguf"} | options for name, options in MODELS.items()}
    env = {"CUDA_VISIBLE_DEVICES": "1,0", "XDG_CACHE_HOME": str(folder / "cache")}
    async with served(folder, models, devices=DEVICES, env=env) as running:
        yield running


async def reserved(server: Served) -> dict[str, float]:
    """Return the bytes of the declared devices that are set apart for workers."""
    async with server.session.get(f"{server.url}/metrics") as reply:
        lines = (await reply.text()).splitlines()
    start = 'corral_device_memory_bytes{device="'
    found = {line.removeprefix(start)[0]: float(line.split()[1]) for line in lines if 'kind="reserved"' in line}
    return {device: found[device] for device in DEVICES}


def started(server: Served, model: str) -> list[dict[str, Any]]:
    return [entry for entry in server.journal("started") if entry["model"] == model]


async def error_of(server: Served, model: str) -> tuple[int, str, str]:
    reply = await server.chat(model)
    error = (await reply.json())["error"]
    return reply.status, error["code"], error["message"]


async def test_models_go_where_they_fit_and_an_idle_one_makes_room(server: Served, tmp_path: Path) -> None:
    busy = await server.chat("small", stream=True, tokens=4, hold_after=2, hold=str(tmp_path / "go"))
    assert started(server, "small")[0]["spec"]["engine"]["device"] == "B", "the smallest one that holds it"
    assert (await server.chat("second")).status == 200
    assert started(server, "second")[0]["spec"]["engine"]["device"] == "A", "what is on B leaves too little there"
    assert all(size > 0 for size in (await reserved(server)).values())

    assert (await server.chat("medium")).status == 200
    assert started(server, "medium")[0]["spec"]["engine"]["device"] == "A"
    assert (await server.get("/v1/models/second"))["state"] == "unloaded", "it was idle, and in the way"
    assert (await server.get("/v1/models/medium"))["devices"] == ["A"]
    assert (await reserved(server))["A"] > 1e9

    (tmp_path / "go").touch()
    assert (await busy.content.read()).endswith(b"data: [DONE]\n\n")
    assert len(started(server, "small")) == 1, "it was not in the way"


async def test_a_busy_model_is_waited_for_until_its_answer_is_complete(server: Served, tmp_path: Path) -> None:
    busy = await server.chat("medium", stream=True, tokens=4, hold_after=2, hold=str(tmp_path / "go"))
    await busy.content.readuntil(b'"w1 "')
    keeps_b = await server.chat("small", stream=True, tokens=4, hold_after=2, hold=str(tmp_path / "go"))
    await keeps_b.content.readuntil(b'"w1 "')
    before = len(started(server, "second"))
    waiting = asyncio.create_task(server.chat("second"))

    async def waits() -> bool:
        awaited = (await server.get("/health?model=second")).get("waiting_for") or ""
        return "memory: it needs" in awaited and "is busy, 1 request is running" in awaited

    await until(waits, what="the wait for memory, in words")
    assert len(started(server, "second")) == before
    (tmp_path / "go").touch()
    assert (await waiting).status == 200
    for stream in (busy, keeps_b):
        assert (await stream.content.read()).endswith(b"data: [DONE]\n\n")


async def test_a_model_that_can_never_fit_is_refused_with_what_it_needs_and_what_there_is(server: Served) -> None:
    status, code, message = await error_of(server, "huge")
    assert (status, code) == (507, "model_too_large")
    assert "GB of GPU memory" in message
    assert "A has 1.5 GB for models" in message
    assert "B has 900 MB for models" in message
    assert started(server, "huge") == []


async def test_a_device_that_is_asked_for_is_never_replaced_by_another_one(server: Served) -> None:
    """Device A would do."""
    status, code, message = await error_of(server, "on-b")
    assert (status, code) == (507, "model_too_large")
    assert "B has 900 MB for models" in message
    assert "A has" not in message
    status, code, message = await error_of(server, "on-nothing")
    assert (status, code) == (507, "model_too_large")
    assert "`device` CUDA7 is not there; there is CPU, A, B" in message


async def test_a_mask_of_visible_gpus_reaches_workers_in_its_order(server: Served) -> None:
    assert (await server.chat("small")).status == 200
    assert {start["env"].get("CUDA_VISIBLE_DEVICES") for start in server.journal("started")} == {"1,0"}


async def test_an_order_to_load_a_model_that_can_never_fit_is_refused_with_the_numbers(server: Served) -> None:
    async with server.session.post(f"{server.url}/models/load", json={"model": "huge"}) as reply:
        assert reply.status == 507
        assert "A has 1.5 GB for models" in (await reply.json())["error"]["message"]
