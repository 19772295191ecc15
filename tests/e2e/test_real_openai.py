"""OpenAI's client on the real SmolLM2: streamed and whole answers are the same, down to echo, seed and usage."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from typing import Any

import openai
import pytest

from tests.support.real_server import Api, RealServer

ALONE = {"cache_prompt": False}
"""Equal requests are computed equally."""


def client_of(real: RealServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{real.url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("usage", [True, False])
async def test_chat_says_the_same_streamed_and_whole_and_tells_usage_only_when_asked(
    real: RealServer, usage: bool
) -> None:
    asked: dict[str, Any] = {
        "model": "narrow",
        "messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}],
        "max_completion_tokens": 12,
        "seed": 11,
        "n": 2,
        "extra_body": ALONE,
    }
    texts: dict[int, str] = defaultdict(str)
    reasons: dict[int, list[str]] = defaultdict(list)
    usages = []
    async with client_of(real) as client:
        whole = await client.chat.completions.create(**asked)
        options = {"include_usage": True} if usage else None
        async for chunk in await client.chat.completions.create(**asked, stream=True, stream_options=options):
            usages.append(chunk.usage)
            assert (chunk.choices == []) is (chunk.usage is not None)
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                reasons[choice.index] += [choice.finish_reason] if choice.finish_reason else []
    assert {choice.index: choice.message.content for choice in whole.choices} == texts
    assert {choice.index: [choice.finish_reason] for choice in whole.choices} == reasons
    assert whole.usage is not None
    assert [one.total_tokens for one in usages if one is not None] == ([whole.usage.total_tokens] if usage else [])
    assert usages[-1] is not None or not usage
    assert whole.model_extra is not None
    assert whole.model_extra["seed"] == 11


async def test_completions_echo_their_prompts_in_order_streamed_and_whole(real: RealServer) -> None:
    prompts = [f"Number {number}:" for number in range(5)]  # on one slot
    asked: dict[str, Any] = {"model": "narrow", "prompt": prompts, "max_tokens": 3, "temperature": 0, "echo": True}
    asked["extra_body"] = ALONE
    texts: dict[int, str] = defaultdict(str)
    async with client_of(real) as client:
        whole = await client.completions.create(**asked)
        async for chunk in await client.completions.create(**asked, stream=True):
            for choice in chunk.choices:
                if choice.index not in texts:
                    assert choice.text == prompts[choice.index]
                texts[choice.index] += choice.text
    assert [choice.index for choice in whole.choices] == list(range(5))
    assert {choice.index: choice.text for choice in whole.choices} == texts
    assert all(len(choice.text) > len(prompts[choice.index]) for choice in whole.choices)


async def test_seed_that_is_told_gives_the_same_answer_again(api: Api) -> None:
    body = {"model": "narrow", "prompt": "The best thing about", "max_tokens": 12, "temperature": 1.5} | ALONE
    _, first = await api.post("/v1/completions", body)
    _, again = await api.post("/v1/completions", body | {"seed": first["seed"]})
    assert first["choices"][0]["text"] == again["choices"][0]["text"]
    assert again["seed"] == first["seed"]


async def test_bias_by_text_forces_and_bans_a_token(api: Api) -> None:
    body = {"model": "narrow", "prompt": "Say", "max_tokens": 3, "temperature": 0} | ALONE
    _, forced = await api.post("/v1/completions", body | {"logit_bias": {" dog": 100}})
    assert forced["choices"][0]["text"] == " dog dog dog"
    banned = [[" dog", False], [" cat", 90]]
    _, other = await api.post("/v1/completions", body | {"logit_bias": banned})
    assert other["choices"][0]["text"] == " cat cat cat"


async def test_gap_is_refused_by_a_model_that_cannot_fill_it(api: Api) -> None:
    body = {"model": "narrow", "prompt": "def f(", "suffix": "return x", "max_tokens": 2}
    status, error = await api.post("/v1/completions", body)
    assert (status, error["error"]["code"], error["error"]["param"]) == (400, "unsupported_by_model", "suffix")


async def test_prompt_that_is_too_long_for_a_stream_is_an_http_error(api: Api) -> None:
    body = {"model": "narrow", "messages": [{"role": "user", "content": "word " * 400}], "stream": True}
    status, error = await api.post("/v1/chat/completions", body)
    assert (status, error["error"]["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 256 tokens" in error["error"]["message"]


async def test_compressed_conversation_is_understood(api: Api) -> None:
    body = json.dumps({"model": "narrow", "messages": [{"role": "user", "content": "Hi " * 60}], "max_tokens": 2})
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    url = f"{api.server.url}/v1/chat/completions"
    async with api.session.post(url, data=gzip.compress(body.encode()), headers=headers) as reply:
        assert reply.status == 200
        assert (await reply.json())["model"] == "narrow"
