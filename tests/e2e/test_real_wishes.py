"""What a request may wish beside its sampling, through a real server: a slot, a least length, progress, timings."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from tests.support.models import smollm2_path
from tests.support.real_server import Api
from tests.support.served import until
from worker.contract import EngineOptions
from worker.engine.llama import LlamaBackend

NUM_CLIENTS = 20


def random_tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(100, 40_000), k=count)


def cached(answer: Any) -> int:
    return int(answer.usage["prompt_tokens_details"]["cached_tokens"])


@pytest.fixture(scope="module")
def end_token() -> int:
    backend = LlamaBackend.load(str(smollm2_path()), EngineOptions(context=64, slots=1))
    eos = backend.vocabulary.eos
    backend.close()
    assert eos is not None
    return eos


async def chunks_of(api: Api, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the chunks of a stream."""
    async with api.session.post(api.server.url + path, json=body | {"stream": True}) as reply:
        assert reply.status == 200
        lines = (await reply.text()).split("\n")
    payloads = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert payloads.pop() == "[DONE]"
    return [json.loads(payload) for payload in payloads]


async def test_request_for_an_empty_slot_reuses_what_another_slot_has_computed(api: Api) -> None:
    prompt = random_tokens(60, 71)
    answers = [await api.complete("main", prompt, 4, id_slot=slot) for slot in (0, 0, 1, 3)]
    assert [cached(answer) for answer in answers] == [0, 59, 59, 59]


async def test_slot_that_is_busy_keeps_nobody_waiting(api: Api) -> None:
    answers = await asyncio.gather(*(api.complete("main", random_tokens(20, n), 16, id_slot=2) for n in range(4)))
    assert [answer.status for answer in answers] == [200] * 4


@pytest.mark.parametrize("id_slot", [4, -2])
async def test_slot_that_is_not_there_is_refused(api: Api, id_slot: int) -> None:
    refused = await api.complete("main", "One", 2, id_slot=id_slot)
    assert (refused.status, refused.error and refused.error["param"]) == (400, "id_slot")


@pytest.mark.parametrize("more", [{}, {"reproducible": True}, {"mirostat": 2, "temperature": 1}, {"stop": ["e", "a"]}])
async def test_answer_is_as_long_as_was_asked_for_at_least(api: Api, end_token: int, more: dict[str, Any]) -> None:
    asked = {"logit_bias": {str(end_token): 100}, "seed": 4} | more
    assert (await api.complete("main", "The sea", 40, **asked)).counts[1] == 0 or "stop" in more
    answer = await api.complete("main", "The sea", 40, min_tokens=12, **asked)
    assert (answer.counts[1], answer.finish_reason) == (12, "stop")


async def test_stream_tells_how_far_the_prompt_is_and_timings_with_each_piece(api: Api) -> None:
    prompt = random_tokens(300, 72)
    wanted = {"return_progress": True, "timings_per_token": True}
    body = {"model": "main", "prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True} | wanted
    chunks = await chunks_of(api, "/v1/completions", body)
    told = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert [(one["total"], one["cache"]) for one in told] == [(300, 0)] * len(told)
    processed = [one["processed"] for one in told]
    assert processed == sorted(set(processed))
    assert processed[-1] == 300
    assert [one["time_ms"] for one in told] == sorted(one["time_ms"] for one in told)
    pieces = [chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0]["text"]]
    assert pieces
    counts = [chunk["timings"]["predicted_n"] for chunk in pieces]
    assert counts == sorted(counts)
    chat = {"model": "main", "messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 4} | wanted
    chunks = await chunks_of(api, "/v1/chat/completions", chat)
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert progress[-1]["processed"] == progress[-1]["total"]
    assert all(
        "timings" in chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0]["delta"].get("content")
    )


@pytest.mark.parametrize("stream", [True, False])
async def test_answer_whose_time_is_up_ends_with_the_line_it_has(api: Api, stream: bool) -> None:
    lines = {"logit_bias": [["\n", 100]], "ignore_eos": True, "stream": stream}
    cut = await api.complete("main", "One", 48, t_max_predict_ms=1, **lines)
    assert cut.finish_reason == "length"
    assert 1 <= cut.counts[1] < 48
    assert "\n" in cut.text
    whole = await api.complete("main", "One", 8, t_max_predict_ms=60_000, **lines)
    assert whole.counts[1] == 8


@pytest.mark.slow
async def test_clients_of_every_kind_that_come_and_go_disturb_nobody_who_stays(api: Api) -> None:
    """Twenty on two slots: every third leaves in the middle, half of the others stream."""
    chance = random.Random(5)

    async def leave(number: int) -> None:
        body = {"model": "fragile", "prompt": random_tokens(30, number), "max_tokens": 60, "stream": number % 2 == 0}
        _, writer = await api.raw("/v1/completions", body)
        await asyncio.sleep(chance.random() * 0.5)
        writer.transport.abort()

    async def stay(number: int) -> tuple[int, tuple[int, int], str]:
        answer = await api.complete("fragile", random_tokens(10, number), 8, stream=number % 2 == 0, ignore_eos=True)
        return answer.status, answer.counts, answer.text

    staying = [number for number in range(NUM_CLIENTS) if number % 3]
    told, _ = await asyncio.gather(
        asyncio.gather(*(stay(number) for number in staying)),
        asyncio.gather(*(leave(number) for number in range(0, NUM_CLIENTS, 3))),
    )
    assert [one[:2] for one in told] == [(200, (10, 8))] * len(staying)

    async def is_idle() -> bool:
        return await api.is_idle("fragile")

    await until(is_idle, within_s=20, what="idle slots")
