"""What is measured: each scenario drives one running server and returns figures.

Every figure says in `UNITS` what it is and whether more or less is better.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.servers import Running

WORDS = tuple(
    """
river stone window garden letter silver morning market castle thunder paper candle bridge forest music winter
harbour pencil mirror orange engine valley story feather copper village shadow island button crystal
""".split()  # noqa: SIM905 - a list of quoted words is harder to read
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number."""

    name: str
    value: float
    unit: str
    is_more_better: bool


@dataclass(frozen=True, slots=True)
class Scenario:
    """A row of the table: what the servers must be able to do, and how it is driven."""

    name: str
    slots: int
    context: int
    run: Callable[[Running], Awaitable[list[Figure]]]
    kv_tokens: int | None = None


def words(count: int, seed: int) -> str:
    """Return so many words of text that differ by seed."""
    generator = random.Random(seed)
    return " ".join(generator.choice(WORDS) for _ in range(count))


def steady(streams: int) -> Callable[[Running], Awaitable[list[Figure]]]:
    """Generation alone: every stream 128 tokens after a short prompt of its own."""

    async def run(server: Running) -> list[Figure]:
        answers = await server.client.together([words(8, i) for i in range(streams)], 128)
        begin = max(answer.arrivals_s[0] for answer in answers)
        end = min(answer.ended_s for answer in answers)
        tokens = sum(sum(begin < at <= end for at in answer.arrivals_s) for answer in answers)
        return [Figure("generation", tokens / (end - begin), "tok/s", is_more_better=True)]

    return run


async def common_prefix(server: Running) -> list[Figure]:
    """24 requests at once with one system prompt of about 700 tokens and tails of their own."""
    system = words(700, 1)
    started_s = time.monotonic()
    answers = await server.client.together([f"{system}\n{words(37, 100 + i)}" for i in range(24)], 16)
    failed = [answer.error for answer in answers if answer.error]
    computed = sum(answer.num_prompt - answer.num_cached for answer in answers)
    return [
        Figure("all answered after", time.monotonic() - started_s, "s", is_more_better=False),
        Figure("prompt tokens computed", computed, "tokens", is_more_better=False),
        Figure("failed", len(failed), "requests", is_more_better=False),
    ]


async def long_prompt_beside(server: Running) -> list[Figure]:
    """A prompt of about 2,500 tokens arrives beside four running streams."""
    streams = [asyncio.create_task(server.client.complete(words(8, i), 400)) for i in range(4)]
    await asyncio.sleep(2.0)
    long = await server.client.complete(words(2500, 9), 4)
    answers = await asyncio.gather(*streams)
    window = (long.started_s - 0.2, long.started_s + long.first_s + 0.2)
    gap = max(answer.largest_gap_s(*window) for answer in answers)
    return [
        Figure("largest gap of the streams", gap, "s", is_more_better=False),
        Figure("first token of the long prompt", long.first_s, "s", is_more_better=False),
    ]


async def conversations(server: Running) -> list[Figure]:
    """Eight conversations of four turns with one system prompt over four slots."""
    system = words(500, 2)
    histories = [f"{system}\nConversation {i}: {words(12, 200 + i)}\n" for i in range(8)]
    computed = 0
    for turn in range(4):
        answers = await server.client.together(histories, 16)
        computed += sum(answer.num_prompt - answer.num_cached for answer in answers)
        histories = [
            f"{history}{answer.text}\n{words(12, 300 + 10 * turn + i)}\n"
            for i, (history, answer) in enumerate(zip(histories, answers, strict=True))
        ]
    return [Figure("prompt tokens computed", computed, "tokens", is_more_better=False)]


async def too_much_for_the_cache(server: Running) -> list[Figure]:
    """Requests that together need more KV cells than there are."""
    started_s = time.monotonic()
    answers = await server.client.together([words(230, 400 + i) for i in range(4)], 400)
    done = sum(answer.error is None and answer.num_generated == 400 for answer in answers)
    return [
        Figure("completed", done, "of 4", is_more_better=True),
        Figure("after", time.monotonic() - started_s, "s", is_more_better=False),
    ]


async def sampling_without_top_k(server: Running) -> list[Figure]:
    """Eight streams whose sampler has to look at the whole vocabulary."""
    fields = {"temperature": 0.8, "top_k": 0, "top_p": 0.95, "min_p": 0.0, "seed": 1}
    answers = await server.client.together([words(8, 500 + i) for i in range(8)], 64, **fields)
    begin = max(answer.arrivals_s[0] for answer in answers)
    end = min(answer.ended_s for answer in answers)
    tokens = sum(sum(begin < at <= end for at in answer.arrivals_s) for answer in answers)
    return [Figure("generation", tokens / (end - begin), "tok/s", is_more_better=True)]


async def memory(server: Running) -> list[Figure]:
    """Proportional memory after the load and after work."""
    before = server.pss_bytes()
    await common_prefix(server)
    return [
        Figure("PSS after load", before / 1e6, "MB", is_more_better=False),
        Figure("PSS after 24 requests", server.pss_bytes() / 1e6, "MB", is_more_better=False),
    ]


SCENARIOS = (
    *(Scenario(f"steady generation, {n} streams", n, 2048, steady(n)) for n in (1, 4, 8, 16)),
    Scenario("24 requests with a common prefix, 8 slots", 8, 2048, common_prefix),
    Scenario("long prompt beside 4 streams", 5, 4096, long_prompt_beside),
    Scenario("8 conversations of 4 turns, 4 slots", 4, 2048, conversations),
    Scenario("more than the KV cache holds", 4, 2048, too_much_for_the_cache, kv_tokens=2048),
    Scenario("sampling without top-k, 8 streams", 8, 2048, sampling_without_top_k),
    Scenario("memory, 8 slots of 2048", 8, 2048, memory),
)
