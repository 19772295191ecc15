"""The real SmolLM2 behind a real `corral serve`: many clients at once, and clients that leave."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import ALIASES
from tests.support.models import smollm2_path
from tests.support.real_server import Api, RealServer, api_of, real_server, wait_gone
from tests.support.served import until
from worker.engine.admission import LEADER_MARGIN

STATUS_PERIOD_S = 1.2
"""Figures of a worker are at most a second old."""
FREED_WITHIN_S = 6.0
"""One pass of a busy machine, and the status line that tells of it."""

FAMILIES = """
    requests request_seconds queue_wait_seconds time_to_first_token_seconds inter_token_seconds prompt_tokens
    generated_tokens prefill_seconds generation_seconds forward forward_seconds batch_rows slots kv_cells queue_length
    queue_oldest_seconds worker_state worker_starts worker_exits load_seconds worker_memory_bytes build_info
"""


def random_tokens(count: int, seed: int) -> list[int]:
    """Return ids of ordinary tokens; another seed shares no prefix."""
    chance = random.Random(seed)
    return [chance.randrange(1000, 40_000) for _ in range(count)]


# --- clients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["main", *ALIASES])
async def test_openai_client_gets_the_same_answer_streamed_and_whole_by_name_and_by_alias(
    real: RealServer, name: str
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{real.url}/v1", api_key="none", max_retries=0) as client:
        asked: dict[str, Any] = {
            "model": name,
            "messages": [{"role": "user", "content": "Hello there"}],
            "max_completion_tokens": 12,
            "temperature": 0,
            "extra_body": {"reproducible": True},  # what is cached may change the last digits otherwise
        }
        whole = await client.chat.completions.create(**asked)
        stream = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        models = {model.id for model in (await client.models.list()).data}
    assert whole.model == "main"
    assert (whole.choices[0].message.content or "").startswith("Hello")
    pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert len([piece for piece in pieces if piece]) > 3, "a stream comes in pieces"
    assert (chunks[-1].usage, whole.usage) != (None, None)
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens  # type: ignore[union-attr]
    assert {"main", *ALIASES} <= models


# --- many at once -----------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_thirty_first_requests_by_three_names_start_one_process(api: Api) -> None:
    before = await api.metric("corral_worker_starts_total", model="cold")
    names = ["cold", "cool", "org/cold:latest"] * 10
    answers = await asyncio.gather(*(api.complete(name, "One two", 1) for name in names))
    assert [answer.status for answer in answers] == [200] * 30
    assert {answer.body["model"] for answer in answers} == {"cold"}
    assert await api.metric("corral_worker_starts_total", model="cold") == before + 1


@pytest.mark.slow
async def test_eight_streams_on_four_slots_all_finish_and_several_generate_at_once(api: Api) -> None:
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, (await api.states("main")).count("GENERATING"))
            await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch())
    for _ in range(5):  # a fast machine may be through before anybody has looked
        asked = [api.chat("main", f"Write about number {i}", 24, stream=True, ignore_eos=True) for i in range(8)]
        answers = await asyncio.gather(*asked)
        ends = [(answer.status, answer.is_done, answer.finish_reason) for answer in answers]
        assert ends == [(200, True, "length")] * 8
        assert [answer.counts[1] for answer in answers] == [24] * 8
        if most >= 3:
            break
    watching.cancel()
    assert most >= 3


@pytest.mark.slow
async def test_eight_requests_of_32_tokens_on_eight_slots_share_their_passes(api: Api) -> None:
    await api.complete("wide", "Warm", 1)
    await api.reported("wide")
    generated = await api.metric("corral_generated_tokens_total", model="wide")
    passes = await api.metric("corral_forward_total", model="wide")
    prompts = [random_tokens(12, seed) for seed in range(8)]
    answers = await asyncio.gather(*(api.complete("wide", prompt, 32, ignore_eos=True) for prompt in prompts))
    assert [answer.counts for answer in answers] == [(12, 32)] * 8

    async def are_counted() -> bool:
        return await api.metric("corral_generated_tokens_total", model="wide") == generated + 8 * 32

    await until(are_counted, what="256 tokens in the counters")
    assert await api.metric("corral_forward_total", model="wide") - passes <= 50


@pytest.mark.parametrize("turn", [0, 1])
async def test_no_answer_has_another_conversations_secret_word(api: Api, turn: int) -> None:
    words = ["apple", "silver", "window", "tiger", "garden", "rocket", "pencil", "castle", "violin", "bottle"]
    words = words[turn:] + words[:turn]
    prompts = {word: f"My secret word is {word}. " * 3 + "My secret word is" for word in words[:8]}
    answers = await asyncio.gather(*(api.complete("wide", prompt, 12) for prompt in prompts.values()))
    for word, answer in zip(prompts, answers, strict=True):
        assert word in answer.text
        assert [other for other in words if other in answer.text] == [word]


async def test_long_prompt_stops_neither_running_answers_nor_the_routes_that_watch(api: Api) -> None:
    await api.complete("main", "Warm", 1)
    url, body = f"{api.server.url}/v1/completions", {"model": "main", "max_tokens": 1000, "ignore_eos": True}
    longest_gap_s = slowest_look_s = 0.0
    async with api.session.post(url, json=body | {"prompt": random_tokens(8, seed=400), "stream": True}) as stream:
        await stream.content.readuntil(b"\n\n")
        start_s = before_s = time.monotonic()
        asked = asyncio.create_task(api.complete("main", random_tokens(600, seed=401), 1))
        while not asked.done():
            await stream.content.readuntil(b"\n\n")
            longest_gap_s = max(longest_gap_s, time.monotonic() - before_s)
            before_s = time.monotonic()
            await api.slots("main")
            slowest_look_s = max(slowest_look_s, time.monotonic() - before_s)
        assert (await asked).counts == (600, 1)
    assert longest_gap_s < (time.monotonic() - start_s) / 2, "the running answer went on meanwhile"
    assert slowest_look_s < 1.0, "what is shown does not wait for a pass"


@pytest.mark.slow
async def test_common_beginning_of_simultaneous_requests_is_computed_once(api: Api) -> None:
    await api.complete("main", "Warm", 1)
    await api.reported("main")
    computed = await api.metric("corral_prompt_tokens_total", model="main", source="computed")
    common = random_tokens(200, seed=500)
    asked = [api.complete("main", [*common, *random_tokens(5, seed=501 + i)], 2) for i in range(4)]
    assert [answer.status for answer in await asyncio.gather(*asked)] == [200] * 4
    await api.reported("main")
    computed = await api.metric("corral_prompt_tokens_total", model="main", source="computed") - computed
    # Nobody waits for the last few tokens that somebody else computes.
    assert computed <= 200 + 4 * (5 + LEADER_MARGIN)


# --- clients that leave -----------------------------------------------------------------------------------


class Leaver:
    """A raw connection whose client goes away, and what must be true soon after."""

    def __init__(self, api: Api, model: str) -> None:
        self.api = api
        self.model = model

    async def ask(self, prompt: list[int], max_tokens: int, *, stream: bool) -> asyncio.StreamWriter:
        self.num_gone = await self.api.metric("corral_requests_total", model=self.model, outcome="client_gone")
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "stream": stream, "ignore_eos": True}
        _, writer = await self.api.raw("/v1/completions", body)
        return writer

    async def leaves(self, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        await until(self._is_counted, within_s=FREED_WITHIN_S, what="the client counted as gone")

    async def _is_counted(self) -> bool:
        gone = await self.api.metric("corral_requests_total", model=self.model, outcome="client_gone")
        return gone == self.num_gone + 1

    def has_state(self, state: str) -> Callable[[], Awaitable[bool]]:
        async def check() -> bool:
            return state in await self.api.states(self.model)

        return check

    async def is_idle(self) -> bool:
        return await self.api.is_idle(self.model)


@pytest.mark.parametrize("stream", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_client_that_leaves_while_its_answer_grows_frees_its_slot(api: Api, stream: bool) -> None:
    leaver = Leaver(api, "fragile")
    await api.complete("fragile", "Warm", 1)
    writer = await leaver.ask(random_tokens(8, seed=100 + stream), 900, stream=stream)
    await until(leaver.has_state("GENERATING"), what="a growing answer")
    await leaver.leaves(writer)
    await until(leaver.is_idle, within_s=FREED_WITHIN_S, what="a free slot")
    await api.reported("fragile")
    generated = await api.metric("corral_generated_tokens_total", model="fragile")
    await asyncio.sleep(STATUS_PERIOD_S)
    assert await api.metric("corral_generated_tokens_total", model="fragile") == generated, "nobody reads these tokens"


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_leaves_while_its_prompt_is_read_frees_its_slot(api: Api, stream: bool) -> None:
    leaver = Leaver(api, "main")
    await api.complete("main", "Warm", 1)
    await api.reported("main")
    computed = await api.metric("corral_prompt_tokens_total", model="main", source="computed")
    writer = await leaver.ask(random_tokens(1900, seed=200 + stream), 4, stream=stream)
    await until(leaver.has_state("PROCESSING_PROMPT"), what="a prompt that is read")
    await leaver.leaves(writer)
    await until(leaver.is_idle, within_s=FREED_WITHIN_S, what="a free slot")
    await api.reported("main")
    assert await api.metric("corral_prompt_tokens_total", model="main", source="computed") - computed < 1800


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("num_before", "where"), [(1, "worker"), (3, "router")])
async def test_client_that_leaves_the_queue_frees_its_place(
    api: Api, num_before: int, where: str, stream: bool
) -> None:
    """`narrow` has one slot, and its worker holds two more requests; others wait in the router."""
    running = [
        asyncio.create_task(api.complete("narrow", random_tokens(8, seed), 60, ignore_eos=True))
        for seed in range(num_before)
    ]
    await until(Leaver(api, "narrow").has_state("GENERATING"), within_s=30, what="a full slot")
    leaver = Leaver(api, "narrow")
    writer = await leaver.ask(random_tokens(8, seed=300), 200, stream=stream)
    if where == "router":

        async def is_queued() -> bool:
            return bool((await api.get("/health"))["queue_length"] == 1)

        await until(is_queued, what="a request in the queue")
    await leaver.leaves(writer)
    finished, *others = running
    for task in others:
        task.cancel()
    assert (await finished).counts == (8, 60), "those before it are not disturbed"
    await until(leaver.is_idle, within_s=FREED_WITHIN_S, what="free places")


@pytest.mark.slow
async def test_storm_of_clients_that_leave_leaves_every_place_free(api: Api) -> None:
    for number in range(40):
        body = {"model": "main", "prompt": random_tokens(40, number), "max_tokens": 50, "stream": number % 2 == 0}
        _, writer = await api.raw("/v1/completions", body)
        await asyncio.sleep(number % 8 * 0.02)
        writer.transport.abort()

    async def is_idle() -> bool:
        return await api.is_idle("main")

    await until(is_idle, within_s=20, what="idle slots")
    answers = await asyncio.gather(*(api.complete("main", random_tokens(8, seed), 2) for seed in range(6)))
    assert [answer.status for answer in answers] == [200] * 6


@pytest.mark.slow
async def test_killed_router_leaves_no_worker(tmp_path: Path) -> None:
    model = {"model": str(smollm2_path()), "context": 256, "slots": 1}
    with real_server(tmp_path, {"idle": model, "busy": model}) as server:
        async with api_of(server) as api:
            await asyncio.gather(api.complete("idle", "One", 1), api.complete("busy", "One", 1))
            _, writer = await api.raw(
                "/v1/completions", {"model": "busy", "prompt": "One", "max_tokens": 250, "ignore_eos": True}
            )
            await until(Leaver(api, "busy").has_state("GENERATING"), what="a growing answer")
            pids = server.worker_pids()
            assert len(pids) == 2
            server.process.kill()
            await asyncio.to_thread(wait_gone, pids, 5.0)
            writer.close()


# --- what is shown ----------------------------------------------------------------------------------------


async def test_metrics_have_every_family_of_the_router_and_of_its_workers(api: Api) -> None:
    for model in ("main", "wide"):
        await api.complete(model, "Warm", 1)
    families = await api.families()
    shown = {name.removesuffix("_total") for name in families}
    assert {f"corral_{name}" for name in FAMILIES.split()} <= shown
    assert await api.metric("corral_worker_state", model="main", state="ready") == 1
    assert await api.metric("corral_worker_memory_bytes", model="main", kind="weights") > 50e6
    assert await api.metric("corral_kv_cells", model="main", kind="total") == 4 * 2048
    for name in ("slots", "kv_cells", "worker_state"):
        assert len({sample.labels["model"] for sample in families[f"corral_{name}"].samples}) > 1
