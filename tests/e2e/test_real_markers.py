"""Many conversations with secret code words on a real model whose workers check their cells: nobody hears another's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.models import smollm2_path
from tests.support.real_server import Answer, Api, RealServer, api_of, real_server
from tests.support.served import until
from tests.support.tiny_gguf import write_tiny_llama

pytestmark = pytest.mark.slow

NUM_TALKS = 24
SYSTEM = (
    "Below is a log of the operator's desk. Every visitor has a code word that nobody else may learn, "
    "and the operator repeats it to its owner as often as it is asked for.\n"
)
SCHEMA = {"type": "object", "properties": {"word": {"type": "string", "maxLength": 20}}, "required": ["word"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder: Path = tmp_path_factory.mktemp("markers")
    write_tiny_llama(folder / "other.gguf")
    models = {
        "talks": {
            "model": str(smollm2_path()),
            "slots": 4,
            "context": 512,
            "kv_tokens": 700,
            "device": "cpu",
            "threads": 2,
            "idle_unload_s": 0,
            "prompt_cache_disk_bytes": "200MiB",
        },
        "other": {"model": "./other.gguf", "context": 64, "slots": 1, "device": "cpu"},
    }
    env = {"CORRAL_CHECK_CELLS": "1", "CORRAL_CACHE": str(folder / "cache")}
    with real_server(folder, models, env=env, limits={"max_loaded": 1}) as server:
        yield server


@pytest.fixture
async def api(server: RealServer) -> AsyncIterator[Api]:
    async with api_of(server) as client:
        yield client


def word_of(number: int) -> str:
    chance = random.Random(number)
    return "".join(chance.choice("BDFGKLMNPRTVZ") + chance.choice("AEIOU") for _ in range(3)) + f"{number:02d}"


WORDS = [word_of(number) for number in range(NUM_TALKS)]


def prompt_of(number: int) -> str:
    word = WORDS[number]
    return f"{SYSTEM}The code word is {word}. I repeat: the code word is {word}. Once more: the code word is"


def check(number: int, answer: Answer) -> bool:
    """Assert that no code word but its own is in an answer; return whether its own is."""
    assert answer.status == 200, answer.body
    said = answer.text.upper()
    others = [word for other, word in enumerate(WORDS) if other != number and word in said]
    assert not others, f"conversation {number} hears {others}: {answer.text!r}"
    return WORDS[number] in said


async def test_nobody_hears_the_code_word_of_another_conversation(server: RealServer, api: Api) -> None:
    pids: set[int] = set()
    heard: list[bool] = []

    async def talk(number: int) -> None:
        kind, prompt = number % 8, prompt_of(number)
        if kind == 1:
            status, _ = await api.post("/v1/completions", {"model": "talks", "prompt": prompt, "temperature": "hot"})
            assert status == 400
        elif kind == 2:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.3 + number / 8):
                    await api.complete("talks", prompt, 64, ignore_eos=True)
        elif kind == 3:
            fields = {"json_schema": SCHEMA}
            check(number, await api.complete("talks", prompt, 24, **fields))
        else:
            first = await api.complete("talks", prompt, 10)
            heard.append(check(number, first))
            longer = f"{prompt}{first.text}\nAgain, the code word is"
            heard.append(check(number, await api.complete("talks", longer, 10)))

    assert (await api.complete("talks", SYSTEM, 1)).status == 200
    pids |= set(server.worker_pids("talks"))
    await asyncio.gather(*(talk(number) for number in range(NUM_TALKS)))
    assert sum(heard) > len(heard) // 2, "the model must really say code words"
    assert set(server.worker_pids("talks")) == pids, "no check has ended the worker"


async def test_prompts_that_come_back_from_the_disk_are_their_own(server: RealServer, api: Api) -> None:
    for number in (0, 4, 5):
        await api.complete("talks", prompt_of(number), 4)

    async def is_unloaded() -> bool:
        return await api.state("talks") == "unloaded"

    assert (await api.complete("other", "hello", 1)).status == 200
    await until(is_unloaded, within_s=30, what="talks to be unloaded")
    answers = await asyncio.gather(*(api.complete("talks", prompt_of(number), 10) for number in (0, 4, 5)))
    heard = [check(number, answer) for number, answer in zip((0, 4, 5), answers, strict=True)]
    assert any(heard)
    assert any(answer.usage["prompt_tokens_details"]["cached_tokens"] > 40 for answer in answers)


async def test_reproducible_answers_among_others_are_those_of_a_lone_request(api: Api) -> None:
    numbers = (6, 12, 14)
    alone = {number: await api.complete("talks", prompt_of(number), 12, reproducible=True) for number in numbers}
    others = [api.complete("talks", prompt_of(number), 12) for number in range(16, 22)]
    wanted = [api.complete("talks", prompt_of(number), 12, reproducible=True) for number in numbers]
    beside = await asyncio.gather(*wanted, *others)
    for number, answer in zip(numbers, beside[: len(numbers)], strict=True):
        assert answer.text == alone[number].text
        check(number, answer)
