"""Two real models with memory for one: what swaps cost, whom they keep waiting, and that they cut nobody off."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psutil
import pytest

from tests.support.models import gemma3_path, smollm2_path
from tests.support.real_server import Api, RealServer, api_of, real_server
from tests.support.served import is_running, until

pytestmark = pytest.mark.models

NUM_REQUESTS = 40
NUM_CLIENTS = 4
MAX_WAIT_S = 2.0
BUDGET_BYTES = 600_000_000
"""More than either model needs and less than both together: some 260 and 480 MB."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """`smol` and `gem` share the memory; `gem-now` is `gem` for a request that waits for nobody."""
    folder = tmp_path_factory.mktemp("swaps")
    shape = {"context": 512, "slots": 4, "threads": 2, "device": "cpu", "idle_unload_s": 0}
    models = {
        "smol": shape | {"model": str(smollm2_path())},
        "gem": shape | {"model": str(gemma3_path())},
        "gem-now": shape | {"model": str(gemma3_path()), "max_wait_s": 0},
    }
    env = {"XDG_CACHE_HOME": str(folder / "cache")}
    top = {"devices": {"CPU": {"budget": BUDGET_BYTES}}, "limits": {"max_wait_s": MAX_WAIT_S}}
    with real_server(folder, models, env=env, **top) as server:
        yield server


@pytest.fixture
async def api(served: RealServer) -> AsyncIterator[Api]:
    """A client of that server."""
    async with api_of(served) as client:
        yield client


def workers(server: RealServer) -> list[psutil.Process]:
    """Return the processes that hold a model or will: children of the router that are neither questions nor spares."""
    found = []
    for child in psutil.Process(server.process.pid).children():
        try:
            words = child.cmdline()
        except psutil.NoSuchProcess:
            continue
        if "worker" in words and is_running(child.pid):
            found.append(child)
    return found


class MemoryWatch:
    """Looks at the workers many times a second until it is told to stop."""

    def __init__(self, server: RealServer) -> None:
        self.server = server
        self.most_workers = 0
        self.most_bytes = 0
        self.num_looks = 0

    async def run(self) -> None:
        while True:
            alive = workers(self.server)
            sizes = []
            for one in alive:
                try:
                    sizes.append(one.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue
            self.num_looks += 1
            self.most_workers = max(self.most_workers, len(sizes))
            self.most_bytes = max(self.most_bytes, sum(sizes))
            await asyncio.sleep(0.02)


async def needed_bytes(api: Api, model: str) -> int:
    """Return what the model needs, once that has been found out."""
    entry: dict[str, Any] = {}

    async def is_known() -> bool:
        entry.update(await api.get(f"/v1/models/{model}"))
        return "memory" in entry

    await until(is_known, within_s=60, what=f"the size of {model}")
    return int(entry["memory"]["needed_bytes"])


def load_times(server: RealServer) -> list[float]:
    found = (re.fullmatch(r"\S+: ready in ([\d.]+) s", str(line["message"])) for line in server.lines)
    return [float(match[1]) for match in found if match]


async def test_alternating_requests_lose_nothing_cost_few_loads_and_wait_as_configured(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    needs = [await needed_bytes(api, name) for name in ("smol", "gem")]
    assert max(needs) < BUDGET_BYTES < sum(needs), "room for one"
    requests = iter([("smol", "gem")[number % 2] for number in range(NUM_REQUESTS)])
    answered: list[str] = []

    async def client() -> None:
        for model in requests:
            answer = await api.complete(model, "Once upon a time", 8, ignore_eos=True)
            assert answer.status == 200, answer.body
            assert answer.counts[1] == 8
            answered.append(answer.body["model"])

    watch = MemoryWatch(api.server)
    watching = asyncio.create_task(watch.run())
    await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))
    watching.cancel()
    loads_s = load_times(api.server)
    starts = await api.metric("corral_worker_starts_total")
    lines = [line for line in api.server.lines if line["message"] == "request"]
    longest_s = max(line["queue_s"] for line in lines)
    answer_s = max(line["total_s"] - line["queue_s"] - line["load_s"] for line in lines)
    # The other model is loaded for those who wait for it, answers them, and is waited for no longer than is configured.
    bound_s = max(loads_s) + 2 * answer_s + MAX_WAIT_S + 3
    with capsys.disabled():
        print(  # noqa: T201 - the figures are wanted even when all is well
            f"\n{NUM_REQUESTS} requests, {starts:.0f} loads of at most {max(loads_s):.1f} s, answers of at most "
            f"{answer_s:.1f} s; longest wait for the other model {longest_s:.1f} s (bound {bound_s:.1f} s), whole "
            f"request {max(line['total_s'] for line in lines):.1f} s; workers never had more than "
            f"{watch.most_bytes / 1e6:.0f} MB"
        )
    assert sorted(answered) == ["gem"] * (NUM_REQUESTS // 2) + ["smol"] * (NUM_REQUESTS // 2)
    assert len(lines) == NUM_REQUESTS
    assert starts == len(loads_s), "no load failed"
    assert 2 <= starts <= NUM_REQUESTS / 2, "requests for the model that is there are served together"
    assert longest_s < bound_s
    assert watch.num_looks > 50
    assert watch.most_workers == 1
    assert watch.most_bytes < max(needs)


async def test_a_long_answer_outlives_a_request_that_waits_for_nobody(api: Api) -> None:
    await needed_bytes(api, "gem-now")
    await api.complete("smol", "Warm up", 1)
    running = asyncio.create_task(api.complete("smol", "Once upon a time", 64, ignore_eos=True, stream=True))

    while not any(slot["generated"] for slot in await api.slots("smol")):
        assert not running.done(), "too fast for this test"
        await asyncio.sleep(0.005)
    other = asyncio.create_task(api.complete("gem-now", "Once upon a time", 4, ignore_eos=True))
    answer = await running
    assert answer.is_done
    assert (answer.finish_reason, answer.counts[1]) == ("length", 64)
    second = await other
    assert second.status == 200, second.body
    # By the server's log: on a busy machine this process may see both answers at once.
    told = [line for line in api.server.lines if line["message"].startswith("gem-now: loading")]
    answered = [line for line in api.server.lines if line.get("completion_tokens") == 64]
    assert told[-1]["time"] >= answered[-1]["time"][:-3], "it waits for the answer's end"
    assert await api.state("smol") == "unloaded"
