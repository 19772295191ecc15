"""Workers killed in the middle of answers, and clients that do not notice: real processes, a predictable model."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.engine_worker import KILLS, engine_worker_command
from tests.support.real_server import Api, RealServer, api_of, real_server
from tests.support.served import until

pytestmark = pytest.mark.slow

MODELS = {"fake": {"model": "./fake.gguf", "slots": 64, "context": 256, "env": {"FAKE_PASS_S": "0.01"}}}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@contextmanager
def fake_server(folder: Path, **top: Any) -> Iterator[RealServer]:
    from tests.support.gguf_bytes import gguf_bytes

    (folder / "fake.gguf").write_bytes(gguf_bytes())
    env = {"CORRAL_WORKER_COMMAND": json.dumps(engine_worker_command())}
    with real_server(folder, MODELS, env=env, **top) as server:
        yield server


def bodies(num: int) -> list[dict[str, Any]]:
    """Return requests of many kinds, each the only one of its prompt."""
    chosen = random.Random(1)
    made = []
    for number in range(num):
        prompt = "".join(chosen.choices(LETTERS, k=8)) + str(number)
        body: dict[str, Any] = {
            "model": "fake",
            "prompt": prompt,
            "max_tokens": 60,
            "ignore_eos": True,
            "temperature": 0,
            "cache_prompt": False,
        }
        match number % 5:
            case 1:
                body |= {"n": 2}
            case 2:
                body |= {"temperature": 1.0, "seed": number}
            case 3:
                body |= {"logprobs": 2}
            case 4:
                body |= {"temperature": 1.0, "mirostat": 2, "seed": number}
        made.append(body)
    return made


async def told(api: Api, body: dict[str, Any], *, stream: bool) -> Any:
    """Return everything of an answer that may not depend on whether a worker was lost."""
    sent = body | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})
    async with api.session.post(api.server.url + "/v1/completions", json=sent) as reply:
        assert reply.status == 200, await reply.text()
        if not stream:
            whole = await reply.json()
            choices = [(one["text"], one["finish_reason"], one["logprobs"]) for one in whole["choices"]]
            return choices, whole["usage"]
        lines = (await reply.text()).split("\n\n")
        payloads = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert payloads[-1] == "[DONE]", payloads[-1]
    chunks = [json.loads(payload) for payload in payloads[:-1]]
    assert len({chunk["id"] for chunk in chunks}) == 1
    texts: dict[int, list[Any]] = {}
    for chunk in chunks:
        for one in chunk["choices"]:
            text, finishes, logprobs = texts.setdefault(one["index"], ["", [], []])
            texts[one["index"]] = [
                text + one["text"],
                finishes + ([one["finish_reason"]] if one["finish_reason"] else []),
                logprobs + ((one["logprobs"] or {}).get("token_logprobs", [])),
            ]
    (usage,) = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    return texts, usage


@pytest.mark.parametrize("stream", [True, False])
async def test_a_hundred_answers_whose_worker_is_killed_are_those_of_an_undisturbed_run(
    stream: bool, tmp_path: Path
) -> None:
    with fake_server(tmp_path) as server:
        async with api_of(server) as api:
            sent = bodies(100)
            undisturbed = await asyncio.gather(*(told(api, body, stream=stream) for body in sent))

            killed: list[int] = []

            async def all_run() -> bool:
                is_new = len(pids := server.worker_pids()) == 1 and pids[0] not in killed
                return is_new and (await api.states("fake")).count("GENERATING") == 64

            running = [asyncio.create_task(told(api, body, stream=stream)) for body in sent]
            for _ in range(2):
                await until(all_run, within_s=30, what="as many growing answers as there are slots")
                killed += server.worker_pids()
                os.kill(killed[-1], signal.SIGKILL)
            disturbed = await asyncio.gather(*running)
            assert disturbed == undisturbed
            assert await api.metric("corral_resumed_requests_total", outcome="ok") >= 64
            assert await api.metric("corral_requests_total", outcome="ok") == 200


async def test_a_request_that_kills_its_workers_takes_nobody_with_it(tmp_path: Path) -> None:
    with fake_server(tmp_path) as server:
        async with api_of(server) as api:
            sent = bodies(10)
            undisturbed = await asyncio.gather(*(told(api, body, stream=True) for body in sent))
            running = [asyncio.create_task(told(api, body, stream=True)) for body in sent]

            async def some_run() -> bool:
                return "GENERATING" in await api.states("fake")

            await until(some_run, within_s=30, what="a growing answer")
            poison = {"model": "fake", "prompt": KILLS, "max_tokens": 4, "stream": True}
            async with api.session.post(api.server.url + "/v1/completions", json=poison) as reply:
                assert "worker_died" in await reply.text()
            assert await asyncio.gather(*running) == undisturbed
