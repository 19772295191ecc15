"""What is driven: each scenario sends its requests to one running server and returns figures.

Raises RuntimeError when the server does not do what the scenario needs; must not know what a figure has to reach.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bench.client import Answer, tokens_per_second
from bench.figures import Figure, Kind
from bench.floor import Floor, distinct_tokens
from bench.models import token_ids
from bench.servers import Running
from bench.texts import copying_prompt, words

Scenario = Callable[[Running], Awaitable[list[Figure]]]

CHANCE = {"temperature": 1.0, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": 1}
"""Usual sampling. Greedy answers of models this small turn in circles, which speculation would profit from."""
NO_TOP_K = {"temperature": 0.8, "top_k": 0, "top_p": 0.95, "min_p": 0.0, "seed": 1}

TIME = "all answered after"
BOUND = "time, of what the distinct tokens need"
COMPUTED = "prompt tokens computed"
PLAIN_COUNT = COMPUTED, f"{COMPUTED}, of the floor"
BRANCH_COUNT = f"{COMPUTED}, with a branch", f"{COMPUTED} of the floor, with a branch"
LOADED = "PSS after load"
WORKED = "PSS after the requests"
SPEED = "generation"
GAP = "largest gap of the streams"
FIRST = "first token of the long prompt"
COMPLETED = "completed"
OF_SEQUENTIAL = "time, of one after the other"
FREED_PREFILL = "freed after a cancel in prefill"
FREED_GENERATION = "freed after a cancel in generation"
OUR_COMPUTED = 'corral_prompt_tokens_total{model="m",replica="0",source="computed"}'
OUTSIDE = "share of a step outside the forward pass"


def steady(streams: int, max_tokens: int, start: int = 0) -> Scenario:
    """Generation alone: every stream so many tokens after a short prompt of its own."""

    async def run(server: Running) -> list[Figure]:
        prompts = [words(8, start + i) for i in range(streams)]
        return [_speed(await server.client.together(prompts, max_tokens, **CHANCE))]

    return run


def common_prefix(requests: int = 24, prefix: int = 700, *, is_whole: bool = True) -> Scenario:
    """So many requests at once with one system prompt and tails of their own; the whole row also looks at memory."""

    async def run(server: Running) -> list[Figure]:
        before, computed_before = server.pss_bytes(), await _computed_before(server)
        prompts = [f"{words(prefix, 1)}\n{words(37, 100 + i)}" for i in range(requests)]
        started_s = time.monotonic()
        answers = _unbroken(await server.client.together(prompts, 16))
        seconds = time.monotonic() - started_s
        figures = [Figure(TIME, seconds, "s", is_more_better=False)]
        if not is_whole:
            return figures
        if any(answer.num_prompt for answer in answers):  # not every server tells
            computed = await _computed(server, answers, computed_before)
            figures.append(Figure(COMPUTED, computed, "tokens", is_more_better=False))
        figures += [
            Figure(LOADED, before / 1e6, "MB", is_more_better=False),
            Figure(WORKED, server.pss_bytes() / 1e6, "MB", is_more_better=False),
        ]
        if server.kind is Kind.OURS:
            num_prompt = distinct_tokens([token_ids(server.model_path, prompt) for prompt in prompts])
            bound_s = await _bound_s(server, num_prompt, sum(answer.num_generated for answer in answers))
            figures.append(Figure(BOUND, seconds / bound_s, "x", is_more_better=False))
        return figures

    return run


async def _bound_s(server: Running, num_prompt: int, num_generated: int) -> float:
    """Return what so many tokens take at the speeds of prefill alone and of eight streams, measured now."""
    alone = await server.client.complete(words(700, 3), 1)
    streams = await server.client.together([words(8, 900 + i) for i in range(8)], 32)
    return num_prompt * alone.first_s / alone.num_prompt + num_generated / tokens_per_second(streams)


def long_prompt(num_words: int = 2500, streams: int = 4) -> Scenario:
    """A long prompt arrives beside running streams, which are given up once it has answered."""

    async def run(server: Running) -> list[Figure]:
        answers = [Answer() for _ in range(streams)]
        tasks = [
            asyncio.create_task(server.client.complete(words(8, i), 1500, into=answer, **CHANCE))
            for i, answer in enumerate(answers)
        ]
        try:
            await _until(lambda: all(len(answer.arrivals_s) >= 16 for answer in answers), tasks)
            long = _unbroken([await server.client.complete(words(num_words, 9), 4)])[0]
            await asyncio.sleep(0.3)
            if any(task.done() for task in tasks):
                raise RuntimeError("a stream ended before the long prompt had answered")
        finally:
            await _give_up(tasks)
        window = (long.started_s - 0.2, long.started_s + long.first_s + 0.2)
        gap = max(answer.largest_gap_s(*window) for answer in answers)
        return [
            Figure(GAP, gap, "s", is_more_better=False),
            Figure(FIRST, long.first_s, "s", is_more_better=False),
        ]

    return run


def conversations(count: int = 8, system_words: int = 500) -> Scenario:
    """So many conversations of four turns with one system prompt; then each goes back to its second turn and on."""

    async def run(server: Running) -> list[Figure]:
        floor, before = Floor(), await _computed_before(server)
        everything: list[Answer] = []
        system = words(system_words, 2)
        histories = [f"{system}\nConversation {i}: {words(12, 200 + i)}\n" for i in range(count)]
        second = histories
        figures = []
        for turn in range(5):
            answers = _unbroken(await server.client.together(histories, 16))
            everything += answers
            _count(server, floor, histories, answers)
            if turn == 1:
                second = histories
            if turn >= 3:
                computed, names = await _computed(server, everything, before), (PLAIN_COUNT, BRANCH_COUNT)[turn - 3]
                figures += [
                    Figure(names[0], computed, "tokens", is_more_better=False),
                    Figure(names[1], computed / floor.num_tokens, "x", is_more_better=False),
                ]
            bases = second if turn == 3 else [f"{h}{a.text}" for h, a in zip(histories, answers, strict=True)]
            histories = [f"{base}\n{words(12, 300 + 10 * turn + i)}\n" for i, base in enumerate(bases)]
        return figures

    return run


def _count(server: Running, floor: Floor, prompts: Sequence[str], answers: Sequence[Answer]) -> None:
    """Add one round of requests, which run together, to the floor."""
    tokens = [token_ids(server.model_path, prompt) for prompt in prompts]
    for prompt in tokens:
        floor.add_prompt(prompt)
    for text, prompt, answer in zip(prompts, tokens, answers, strict=True):
        whole = token_ids(server.model_path, text + answer.text)
        floor.add_answer(prompt, whole[len(prompt) :])


def too_much_for_the_cache(prompt_words: int = 230, max_tokens: int = 320) -> Scenario:
    """Four requests that together need more KV cells than there are, at once and then one after the other."""

    async def run(server: Running) -> list[Figure]:
        started_s = time.monotonic()
        answers = await server.client.together([words(prompt_words, 400 + i) for i in range(4)], max_tokens)
        seconds = time.monotonic() - started_s
        done = sum(answer.error is None and answer.num_generated == max_tokens for answer in answers)
        figures = [Figure(COMPLETED, done, "of 4", is_more_better=True)]
        if server.kind is Kind.OURS:
            started_s = time.monotonic()
            for i in range(4):
                _unbroken([await server.client.complete(words(prompt_words, 410 + i), max_tokens)])
            figures.append(Figure(OF_SEQUENTIAL, seconds / (time.monotonic() - started_s), "x", is_more_better=False))
        return figures

    return run


def sampling_without_top_k(streams: int, max_tokens: int) -> Scenario:
    """Streams whose sampler has to look at the whole vocabulary."""

    async def run(server: Running) -> list[Figure]:
        prompts = [words(8, 500 + i) for i in range(streams)]
        return [_speed(await server.client.together(prompts, max_tokens, **NO_TOP_K))]

    return run


def copying(max_tokens: int = 192) -> Scenario:
    """One stream that copies from its prompt, greedily."""

    async def run(server: Running) -> list[Figure]:
        return [_speed([await server.client.complete(copying_prompt(), max_tokens)])]

    return run


def not_copying(max_tokens: int = 192) -> Scenario:
    """One stream of chance, in which there is nothing to guess."""

    async def run(server: Running) -> list[Figure]:
        fields: dict[str, Any] = CHANCE | {"temperature": 1.3, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        return [_speed([await server.client.complete(words(64, 700), max_tokens, **fields)])]

    return run


async def cancelling(server: Running) -> list[Figure]:
    """The only slot is taken; its client leaves, and the next one's first token is awaited."""
    usual, generation = [], []
    for i in range(9):  # in turn, because the difference is that of a single token
        usual.append(await _tiny_s(server, 800 + i))
        generation.append(await _after_cancel_s(server, words(8, 830 + i), 8, 850 + i))
    prefill_s = await _after_cancel_s(server, words(2500, 810), 0, 820)
    usual_s, generation_s = statistics.median(usual), statistics.median(generation)
    return [
        Figure(FREED_PREFILL, max(0.0, prefill_s - usual_s), "s", is_more_better=False),
        Figure(FREED_GENERATION, max(0.0, generation_s - usual_s), "s", is_more_better=False),
    ]


async def _after_cancel_s(server: Running, prompt: str, num_pieces: int, seed: int) -> float:
    """Return the time to the next client's first token, when this one leaves after so many pieces.

    0 = in its prefill.
    """
    answer = Answer()
    task = asyncio.create_task(server.client.complete(prompt, 1000, into=answer))
    if num_pieces:
        await _until(lambda: len(answer.arrivals_s) >= num_pieces, [task])
    else:
        await asyncio.sleep(0.3)
        if answer.arrivals_s:
            raise RuntimeError("the long prompt was computed before it could be cancelled")
    leaving = asyncio.create_task(_give_up([task]))
    seconds = await _tiny_s(server, seed)
    await leaving
    return seconds


async def _tiny_s(server: Running, seed: int) -> float:
    return _unbroken([await server.client.complete(words(4, seed), 2)])[0].first_s


async def outside_the_pass(server: Running) -> list[Figure]:
    """How much of the engine's time eight streams spend around the forward passes."""
    before = await server.counters()
    answers = _unbroken(await server.client.together([words(8, i) for i in range(8)], 128, **CHANCE))
    after = await server.counters()
    step, forward, passes = (
        after[name] - before.get(name, 0.0)
        for name in (
            'corral_step_seconds_total{model="m",replica="0"}',
            'corral_forward_seconds_total{model="m",replica="0"}',
            'corral_forward_total{model="m",replica="0"}',
        )
    )
    return [
        Figure(OUTSIDE, 100 * (step - forward) / step, "%", is_more_better=False),
        Figure("time of a step", 1e3 * step / passes, "ms", is_more_better=False),
        _speed(answers),
    ]


# --- pieces of scenarios ----------------------------------------------------------------------------------


def _speed(answers: Sequence[Answer]) -> Figure:
    return Figure(SPEED, tokens_per_second(answers), "tok/s", is_more_better=True)


def _unbroken(answers: Sequence[Answer]) -> Sequence[Answer]:
    """Return the answers. Raises: RuntimeError when one of them failed."""
    errors = [answer.error or "it ended early" for answer in answers if answer.error or answer.finish_reason == "stop"]
    if errors:
        raise RuntimeError(f"{len(errors)} of {len(answers)} requests failed: {errors[0]}")
    return answers


async def _computed_before(server: Running) -> float:
    return (await server.counters()).get(OUR_COMPUTED, 0.0) if server.kind is Kind.OURS else 0.0


async def _computed(server: Running, answers: Sequence[Answer], before: float) -> float:
    """Return how many prompt tokens were computed: ours by the engine's count, others by what they tell.

    The engine's own count has in it what was computed twice, after making room for others.
    """
    if server.kind is Kind.OURS:
        return (await server.counters())[OUR_COMPUTED] - before
    return sum(answer.num_prompt - answer.num_cached for answer in answers)


async def _until(is_true: Callable[[], bool], tasks: Sequence[asyncio.Task[Answer]]) -> None:
    """Wait for the condition. Raises: RuntimeError when a stream ends first."""
    while not is_true():
        if any(task.done() for task in tasks):
            raise RuntimeError("a stream ended too early")
        await asyncio.sleep(0.002)


async def _give_up(tasks: Sequence[asyncio.Task[Answer]]) -> None:
    """Close the connections of running requests."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
