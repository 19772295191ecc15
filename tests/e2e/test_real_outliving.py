"""A real model's worker is killed at a random token of its answers, and every answer is complete and valid."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.e2e.test_real_structured import HOT, PERSON, TOOL
from tests.support.models import smollm2_path
from tests.support.real_server import Api, api_of, real_server
from tests.support.served import until

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
SAID = {"messages": [{"role": "user", "content": "Count from one to thirty in words."}], "model": "main"}
STORY = SAID | {"max_tokens": 64, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
ASKED: dict[str, dict[str, Any]] = {
    "greedy": STORY | {"ignore_eos": True},
    "two choices": STORY | {"n": 2, "temperature": 1.0, "seed": 5, "ignore_eos": True},
    "schema": STORY | HOT | {"response_format": SCHEMA, "max_tokens": 100, "seed": 6},
    "tools": STORY | HOT | {"tools": [TOOL], "tool_choice": "required", "max_tokens": 100, "seed": 7},
    "stop string": STORY | {"stop": ["twenty-nine", "29"]},
    "log-probabilities": STORY | {"ignore_eos": True, "logprobs": True, "top_logprobs": 1},
}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    file = {"model": str(smollm2_path()), "idle_unload_s": 0, "device": "cpu", "slots": 8, "context": 512}
    with real_server(tmp_path, {"main": file}) as server:
        async with api_of(server) as client:
            yield client


class Heard:
    """A streamed chat while it comes."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.num_chunks = 0
        self.chunks: list[dict[str, Any]] = []
        self.is_done = False

    async def listen(self, api: Api) -> None:
        async with api.session.post(api.server.url + CHAT, json=self.body) as reply:
            assert reply.status == 200, await reply.text()
            async for line in reply.content:
                payload = line.decode().removeprefix("data: ").strip()
                if not line.startswith(b"data: "):
                    continue
                self.is_done = payload == "[DONE]"
                if not self.is_done:
                    self.chunks.append(json.loads(payload))
                    self.num_chunks += 1

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [one for chunk in self.chunks for one in chunk["choices"]]

    def text(self, index: int = 0) -> str:
        return "".join(one["delta"].get("content") or "" for one in self.choices if one["index"] == index)

    def finish(self, index: int = 0) -> str:
        (reason,) = [one["finish_reason"] for one in self.choices if one["index"] == index and one["finish_reason"]]
        return str(reason)

    @property
    def arguments(self) -> str:
        calls = [call for one in self.choices for call in one["delta"].get("tool_calls") or ()]
        assert {call["index"] for call in calls} == {0}, "one call was asked for"
        return "".join(call["function"].get("arguments") or "" for call in calls)

    @property
    def usage(self) -> dict[str, Any]:
        (usage,) = [chunk["usage"] for chunk in self.chunks if chunk.get("usage")]
        return dict(usage)


async def heard_all(api: Api, num_kills: int, chosen: random.Random) -> dict[str, Heard]:
    """Return all answers, in which the worker was killed so often."""
    heard = {name: Heard(body) for name, body in ASKED.items()}
    listening = [asyncio.create_task(one.listen(api)) for one in heard.values()]
    for _ in range(num_kills):
        goal = sum(one.num_chunks for one in heard.values()) + chosen.randint(12, 60)
        await until(
            lambda goal=goal: sum(one.num_chunks for one in heard.values()) >= goal,  # type: ignore[misc]
            within_s=60,
            what="more of the answers",
        )
        for pid in api.server.worker_pids("main"):
            os.kill(pid, signal.SIGKILL)
    await asyncio.gather(*listening)
    return heard


async def test_answers_of_a_killed_worker_are_complete_and_valid(api: Api) -> None:
    whole = await heard_all(api, 0, random.Random(1))
    heard = await heard_all(api, 2, random.Random(1))
    for name, one in heard.items():
        assert one.is_done, f"{name}: {one.chunks[-1]}"
        assert len({chunk["id"] for chunk in one.chunks}) == 1
    greedy = heard["greedy"]
    assert greedy.usage["completion_tokens"] == whole["greedy"].usage["completion_tokens"] == 64
    for index in (0, 1):
        assert heard["two choices"].finish(index) == "length"
        assert heard["two choices"].text(index)
    assert heard["two choices"].usage["completion_tokens"] == 128
    assert heard["two choices"].text(0) != heard["two choices"].text(1)
    if heard["schema"].finish() == "stop":
        jsonschema.validate(json.loads(heard["schema"].text()), PERSON)
    if heard["tools"].finish() == "tool_calls":
        jsonschema.validate(json.loads(heard["tools"].arguments), PERSON)
    assert "twenty-nine" not in heard["stop string"].text()
    told = [
        entry for one in heard["log-probabilities"].choices for entry in (one["logprobs"] or {}).get("content") or ()
    ]
    assert len(told) == 64
    assert "".join(entry["token"] for entry in told).strip() == heard["log-probabilities"].text().strip()
    assert await api.metric("corral_resumed_requests_total", outcome="ok") >= len(ASKED) - 2


async def test_an_answer_alone_goes_on_with_the_same_words_as_without_a_kill(api: Api) -> None:
    """One request on the same passes: what differs is that its beginning is computed in one pass instead of many."""
    body = {"model": "main", "prompt": "One, two, three,", "max_tokens": 48, "temperature": 0, "cache_prompt": False}
    undisturbed = await api.complete("main", "One, two, three,", 48, cache_prompt=False, reproducible=True)
    sent = asyncio.create_task(
        api.complete("main", body["prompt"], 48, cache_prompt=False, reproducible=True, stream=True)
    )

    async def grows() -> bool:
        return await api.metric("corral_generated_tokens_total", model="main") >= 60

    await until(grows, within_s=60, what="a growing answer")
    for pid in api.server.worker_pids("main"):
        os.kill(pid, signal.SIGKILL)
    answer = await sent
    assert answer.is_done
    assert answer.text == undisturbed.text
