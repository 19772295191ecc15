"""What is driven on servers that hold several models: what their router adds, swaps, idle memory, long catalogues.

Raises RuntimeError when the server does not do what the scenario needs; must not know what a figure has to reach.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import time
from collections.abc import Callable, Sequence

import aiohttp
import psutil

from bench.bare_load import bare_load_s
from bench.client import Answer, Client
from bench.figures import Figure, Kind
from bench.fleet_servers import FIRST, SECOND
from bench.raw_http import Asked, Kept, at_once_s
from bench.scenarios import COMPLETED, Scenario
from bench.servers import Running
from router.cores import count_cores

ADDED = "added to a one-token request, p50"
ADDED_P99 = "added to a one-token request, p99"
ADDED_STREAM = "added to a one-token stream, p50"
AT_ONCE = "added, 64 at once, p50"
AT_ONCE_P99 = "added, 64 at once, p99"
DIRECT = "one-token request at the worker, p50"
LOADS = "loads"
LONGEST = "longest wait for a first token"
ALL = "all answered after"
MEMORY = "PSS of the idle router"
LIST = "GET /v1/models, p50"
RELOAD = "reload of the catalogue, p50"

NUM_REQUESTS = 40
TURNS_WITHIN_S = 15.0
SETTLE_S = 2.0
"""Between two swaps: a spare process is ready again, whatever was freed is free."""
_MODELS = {FIRST: "SmolLM2", SECOND: "Gemma 3"}


def first_token(name: str) -> str:
    """Return the name of the figure of a swap to this model."""
    return f"first token of {_MODELS[name]}, swapped in"


def of_bare(name: str) -> str:
    """Return the name of that figure as a ratio."""
    return f"first token of {_MODELS[name]}, of a bare llama.cpp load"


def overhead(num_pairs: int = 300, streams: int = 64, num_each: int = 4) -> Scenario:
    """One-token requests through the router and directly at the worker, by turns, alone and many at once."""

    async def run(server: Running) -> list[Figure]:
        return await asyncio.to_thread(_measure_overhead, server, num_pairs, streams, num_each)

    return run


def _measure_overhead(server: Running, num_pairs: int, streams: int, num_each: int) -> list[Figure]:
    through, direct = ("127.0.0.1", server.port), worker_address(server)
    figures = []
    for is_stream, name in ((False, ADDED), (True, ADDED_STREAM)):
        routed, straight = _by_turns(through, direct, num_pairs, is_stream=is_stream)
        figures.append(_added(name, routed, straight, 0.5))
        if not is_stream:
            figures.append(_added(ADDED_P99, routed, straight, 0.99))
            figures.append(Figure(DIRECT, 1e3 * quantile(straight, 0.5), "ms", is_more_better=False))
    body = _one_token(is_stream=True)
    routed, straight = [], []
    for _ in range(2):
        routed += at_once_s(Asked.of(through, body, is_kept=False), streams, num_each)
        straight += at_once_s(Asked.of(direct, body, is_kept=False), streams, num_each)
    return [*figures, _added(AT_ONCE, routed, straight, 0.5), _added(AT_ONCE_P99, routed, straight, 0.99)]


def _by_turns(
    through: tuple[str, int], direct: tuple[str, int] | str, num_pairs: int, *, is_stream: bool
) -> tuple[list[float], list[float]]:
    """Return the seconds of requests through the router and of those directly at the worker."""
    body = _one_token(is_stream=is_stream)
    ways = [Kept(Asked.of(address, body, is_kept=True)) for address in (through, direct)]
    taken: list[list[float]] = [[], []]
    gc.disable()
    end_s = time.monotonic() + TURNS_WITHIN_S
    try:
        for turn in range(-20, num_pairs):  # the first ones warm up
            if time.monotonic() > end_s and len(taken[1]) >= num_pairs // 10:
                break
            for way, seconds in zip(ways, taken, strict=True):
                took_s = way.ask_s()
                if turn >= 0:
                    seconds.append(took_s)
    finally:
        gc.enable()
        for way in ways:
            way.close()
    return taken[0], taken[1]


def _one_token(*, is_stream: bool) -> dict[str, object]:
    return {"model": FIRST, "prompt": "Hello", "max_tokens": 1, "temperature": 0, "stream": is_stream}


def _added(name: str, routed: Sequence[float], straight: Sequence[float], share: float) -> Figure:
    return Figure(name, 1e3 * (quantile(routed, share) - quantile(straight, share)), "ms", is_more_better=False)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def worker_address(server: Running) -> tuple[str, int] | str:
    """Return where the only worker listens. Raises: RuntimeError when there is not exactly one."""
    found: set[tuple[str, int] | str] = set()
    for child in psutil.Process(server.pid).children(recursive=True):
        if server.kind is Kind.OURS:
            found |= {str(one.laddr) for one in child.net_connections("unix") if str(one.laddr).endswith(".sock")}
        else:
            listening = (one for one in child.net_connections("inet") if one.status == psutil.CONN_LISTEN)
            found |= {("127.0.0.1", one.laddr.port) for one in listening}
    if len(found) != 1:
        raise RuntimeError(f"one worker was expected, and these addresses were found: {found}")
    return found.pop()


def swapping(num_rounds: int = 3) -> Scenario:
    """A is loaded and there is room for one: the first token of B, then that of A, and so on, and bare loads."""

    async def run(server: Running) -> list[Figure]:
        taken: dict[str, list[float]] = {SECOND: [], FIRST: []}
        for _ in range(num_rounds):
            for name, seconds in taken.items():
                await asyncio.sleep(SETTLE_S)
                seconds.append((await _ask(server, name, 2)).first_s)
        figures = [
            Figure(first_token(name), statistics.median(seconds), "s", is_more_better=False)
            for name, seconds in taken.items()
        ]
        return figures + (await _bare_figures(server, taken) if server.kind is Kind.OURS else [])

    return run


async def _bare_figures(server: Running, taken: dict[str, list[float]]) -> list[Figure]:
    figures = []
    for name, seconds in taken.items():
        bare = [await bare_load_s(server.files[name], 2048, 4, count_cores(), dict(os.environ)) for _ in range(3)]
        bare_s = statistics.median(bare)
        figures.append(Figure(f"bare llama.cpp load of {_MODELS[name]}", bare_s, "s", is_more_better=False))
        figures.append(Figure(of_bare(name), statistics.median(seconds) / bare_s, "x", is_more_better=False))
    return figures


def alternating(gap_s: float = 0.05) -> Scenario:
    """Forty requests to two models by turns, room for one."""

    async def run(server: Running) -> list[Figure]:
        loads = _Loads(server)
        await loads.begin()
        watching = asyncio.create_task(loads.watch())
        begun_s = time.monotonic()
        tasks = []
        for i in range(NUM_REQUESTS):
            tasks.append(asyncio.create_task(_try(server, (FIRST, SECOND)[i % 2], 8)))
            await asyncio.sleep(gap_s)
        answers = await asyncio.gather(*tasks)
        seconds = time.monotonic() - begun_s
        watching.cancel()
        done = [answer for answer in answers if answer.error is None and answer.num_generated == 8]
        return [
            Figure(COMPLETED, len(done), f"of {NUM_REQUESTS}", is_more_better=True),
            Figure(LOADS, await loads.number(), "", is_more_better=False),
            Figure(LONGEST, max(answer.first_s for answer in answers), "s", is_more_better=False),
            Figure(ALL, seconds, "s", is_more_better=False),
        ]

    return run


class _Loads:
    """Counts the workers that are started: ours tells, the peer has no other children."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._router = psutil.Process(server.pid)
        self._pids = self._children()
        self._num_before = len(self._pids)
        self._starts_before = 0.0

    async def begin(self) -> None:
        """Count from now on."""
        self._starts_before = await self._starts()

    async def watch(self) -> None:
        """See every child of the peer's router, until cancelled."""
        while self._server.kind is not Kind.OURS:
            self._pids |= await asyncio.to_thread(self._children)
            await asyncio.sleep(0.03)

    async def number(self) -> float:
        """Return how many there were."""
        if self._server.kind is Kind.OURS:
            return await self._starts() - self._starts_before
        return len(self._pids) - self._num_before

    async def _starts(self) -> float:
        if self._server.kind is not Kind.OURS:
            return 0.0
        lines = (await self._server.client.text("/metrics")).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("corral_worker_starts_total{"))

    def _children(self) -> set[int]:
        return {child.pid for child in self._router.children()}


async def _ask(server: Running, name: str, max_tokens: int) -> Answer:
    """Return the streamed answer of one model. Raises: RuntimeError when it failed."""
    answer = await _try(server, name, max_tokens)
    if answer.error is not None:
        raise RuntimeError(f"a request to {name} failed: {answer.error}")
    return answer


async def _try(server: Running, name: str, max_tokens: int) -> Answer:
    client = Client(f"http://127.0.0.1:{server.port}", name)
    try:
        return await client.complete("Hello", max_tokens)
    finally:
        await client.close()


def idle_router(settle_s: float = 5.0) -> Scenario:
    """The router's own memory when nothing is loaded and nobody asks."""

    async def run(server: Running) -> list[Figure]:
        async with aiohttp.ClientSession() as session:
            await _get_s(session, server, "/v1/models")
        await asyncio.sleep(settle_s)
        memory = psutil.Process(server.pid).memory_full_info()
        return [Figure(MEMORY, memory.pss / 1e6, "MB", is_more_better=False)]

    return run


def long_catalogue() -> Scenario:
    """Memory, listing and reload of a router with a thousand models."""

    async def run(server: Running) -> list[Figure]:
        figures = await idle_router()(server)
        async with aiohttp.ClientSession() as session:
            listed = [await _get_s(session, server, "/v1/models") for _ in range(20)]
            figures.append(Figure(LIST, 1e3 * quantile(listed, 0.5), "ms", is_more_better=False))
            reloads = [await _reload_s(session, server) for _ in range(5)]
        return [*figures, Figure(RELOAD, 1e3 * quantile(reloads, 0.5), "ms", is_more_better=False)]

    return run


async def _reload_s(session: aiohttp.ClientSession, server: Running) -> float:
    if server.kind is not Kind.OURS:
        return await _get_s(session, server, "/models?reload=1")
    assert server.catalogue is not None
    text = server.catalogue.read_text(encoding="utf-8")
    server.catalogue.write_text(f"{text}# edited\n", encoding="utf-8")
    return await _timed(lambda: session.post(f"http://127.0.0.1:{server.port}/admin/reload"))


async def _get_s(session: aiohttp.ClientSession, server: Running, path: str) -> float:
    return await _timed(lambda: session.get(f"http://127.0.0.1:{server.port}{path}"))


async def _timed(ask: Callable[[], aiohttp.client._RequestContextManager]) -> float:
    begun_s = time.perf_counter()
    async with ask() as response:
        text = await response.text()
    if response.status != 200:
        raise RuntimeError(f"HTTP {response.status}: {text[:200]}")
    return time.perf_counter() - begun_s
