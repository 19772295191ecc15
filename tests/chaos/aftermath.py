"""What must be as before when a storm is over: requests, processes, descriptors, slots, leases, memory.

Owns these checks. Must not end anything itself: what is left behind is the finding.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import psutil

from tests.chaos.arena import Arena
from tests.support.real_server import Api, api_of

CALM_WITHIN_S = 30.0
"""Connections close and workers are reaped a moment after the last answer."""
MORE_FILES = 8
"""Connections that are kept between router and workers, and the ones of this check itself."""
MORE_RSS = 0.25
MORE_RSS_BYTES = 48 * 2**20
"""Memory that an allocator keeps after its first busy time."""


@dataclass(frozen=True)
class Standing:
    """How a server stands when nothing happens."""

    router_files: int
    router_rss: int
    worker_files: dict[str, int]
    """By model."""
    worker_rss: dict[str, int]


async def standing(arena: Arena) -> Standing:
    """Return how the server stands, once it has become calm."""
    async with api_of(arena.server) as api:
        await _until_calm(arena, api, None)
        return await _look(arena, api)


async def check_aftermath(arena: Arena, before: Standing, *, within_s: float = CALM_WITHIN_S) -> None:
    """The server stands as it stood `before`, soon. Raises: AssertionError with everything that does not."""
    async with api_of(arena.server) as api:
        await _until_calm(arena, api, before, within_s=within_s)


async def _until_calm(arena: Arena, api: Api, before: Standing | None, *, within_s: float = CALM_WITHIN_S) -> None:
    deadline_s = time.monotonic() + within_s
    while problems := await _problems(arena, api, before):
        assert time.monotonic() < deadline_s, f"{within_s:g} s after the storm: {'; '.join(problems)}"
        await asyncio.sleep(0.1)


async def _problems(arena: Arena, api: Api, before: Standing | None) -> list[str]:
    """Return everything that is not as it should be."""
    problems = await _held(api)
    problems += _left_processes(arena)
    if before is not None and not problems:
        problems += _grown(before, await _look(arena, api))
    return problems


async def _held(api: Api) -> list[str]:
    """Return which slots, leases and places in the queue are held although nobody asks for anything."""
    status: dict[str, Any] = await api.get("/status")
    problems = [
        f"slot {slot['id']} of {slot['model']} is {slot['state']}"
        for slot in await api.get("/slots")
        if slot["is_processing"]
    ]
    for model in status["models"]:
        if model["running_requests"]:
            problems.append(f"{model['running_requests']} leases of {model['id']} are held")
        if model["queue_length"]:
            problems.append(f"{model['queue_length']} requests wait for {model['id']}")
        if model["state"] in {"starting", "loading", "stopping", "draining"}:
            problems.append(f"{model['id']} is {model['state']}")
    if queued := await api.metric("corral_queue_length"):
        problems.append(f"the metrics count {queued:g} requests in the queue")
    return problems


def _left_processes(arena: Arena) -> list[str]:
    """Return the zombies below the router, and the processes of this arena that are nobody's children."""
    below = psutil.Process(arena.router_pid).children(recursive=True)
    problems = []
    for child in below:
        try:
            if child.status() == psutil.STATUS_ZOMBIE:
                problems.append(f"process {child.pid} is a zombie")
        except psutil.NoSuchProcess:
            continue
    known = {child.pid for child in below}
    problems += [f"process {pid} is an orphan" for pid in processes_of(arena) if pid not in known]
    per_model = {model: len(arena.server.worker_pids(model)) for model in ("text", "embed")}
    problems += [f"{count} workers of {model} run" for model, count in per_model.items() if count > 1]
    return problems


def processes_of(arena: Arena) -> list[int]:
    """Return all processes that have the environment of the arena's workers."""
    mark = str(arena.folder / "orders")
    found = []
    for process in psutil.process_iter():
        try:
            orders = process.environ().get("CHAOS_ORDERS", "")
        except psutil.Error:
            continue
        if orders.startswith(mark):
            found.append(process.pid)
    return found


async def _look(arena: Arena, api: Api) -> Standing:
    router = psutil.Process(arena.router_pid)
    workers = {
        model: psutil.Process(pid) for model in ("text", "embed") for pid in arena.server.worker_pids(model)[-1:]
    }
    return Standing(
        router_files=router.num_fds(),
        router_rss=router.memory_info().rss,
        worker_files={model: worker.num_fds() for model, worker in workers.items()},
        worker_rss={model: worker.memory_info().rss for model, worker in workers.items()},
    )


def _grown(before: Standing, now: Standing) -> list[str]:
    """Return what there is more of than before."""
    problems = []
    if now.router_files > before.router_files + MORE_FILES:
        problems.append(f"the router has {now.router_files} descriptors instead of {before.router_files}")
    if now.router_rss > before.router_rss * (1 + MORE_RSS) + MORE_RSS_BYTES:
        problems.append(f"the router has {now.router_rss / 2**20:.0f} MiB instead of {before.router_rss / 2**20:.0f}")
    for model, files in now.worker_files.items():
        if files > before.worker_files.get(model, files) + MORE_FILES:
            problems.append(f"the worker of {model} has {files} descriptors instead of {before.worker_files[model]}")
    for model, rss in now.worker_rss.items():
        if rss > before.worker_rss.get(model, rss) * (1 + MORE_RSS) + MORE_RSS_BYTES:
            was = before.worker_rss[model]
            problems.append(f"the worker of {model} has {rss / 2**20:.0f} MiB instead of {was / 2**20:.0f}")
    return problems
