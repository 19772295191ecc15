"""Log-probabilities of the real SmolLM2 through a real `corral serve`, read by OpenAI's own client."""

from __future__ import annotations

import math
from typing import Any

import openai
from openai.types.chat import ChatCompletionTokenLogprob

from tests.support.real_server import RealServer

TOKENS = 8
ALONE = {"cache_prompt": False}
"""Equal requests are computed equally."""


def client_of(real: RealServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{real.url}/v1", api_key="none", max_retries=0)


async def test_chat_tells_the_same_log_probabilities_streamed_and_whole(real: RealServer) -> None:
    asked: dict[str, Any] = {
        "model": "narrow",
        "messages": [{"role": "user", "content": "Hello there"}],
        "max_completion_tokens": TOKENS,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
        "extra_body": ALONE,
    }
    streamed: list[ChatCompletionTokenLogprob] = []
    async with client_of(real) as client:
        whole = (await client.chat.completions.create(**asked)).choices[0]
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            choice = chunk.choices[0]
            entries = choice.logprobs.content or [] if choice.logprobs else []
            text = b"".join(bytes(one.bytes or []) for one in entries)
            assert text.decode() == (choice.delta.content or ""), "each entry comes with its text"
            streamed += entries
    assert whole.logprobs is not None
    assert whole.logprobs.content == streamed
    assert len(streamed) == TOKENS
    assert "".join(one.token for one in streamed) == whole.message.content
    for one in streamed:
        likely = [other.logprob for other in one.top_logprobs]
        assert len(likely) == 3
        assert likely == sorted(likely, reverse=True)
        assert (one.token, one.logprob) == (one.top_logprobs[0].token, likely[0]), "greedy takes the most likely"
        assert 0.0 < sum(map(math.exp, likely)) < 1.0 + 1e-6
    assert len({one.logprob for one in streamed}) > 1


async def test_completions_tell_the_same_log_probabilities_streamed_and_whole(real: RealServer) -> None:
    asked: dict[str, Any] = {
        "model": "narrow",
        "prompt": "One, two, three,",
        "max_tokens": TOKENS,
        "temperature": 1.0,
        "seed": 3,
        "logprobs": 2,
        "extra_body": ALONE,
    }
    streamed: dict[str, list[Any]] = {}
    async with client_of(real) as client:
        whole = (await client.completions.create(**asked)).choices[0]
        async for chunk in await client.completions.create(**asked, stream=True):
            if (lists := chunk.choices[0].logprobs) is not None:
                for name, values in lists.model_dump().items():
                    streamed.setdefault(name, []).extend(values)
    assert whole.logprobs is not None
    assert whole.logprobs.model_dump() == streamed
    assert "".join(streamed["tokens"]) == whole.text
    assert streamed["text_offset"][0] == 0
    for index, (token, number) in enumerate(zip(streamed["tokens"], streamed["token_logprobs"], strict=True)):
        assert streamed["top_logprobs"][index][token] == number <= 0.0
        assert 2 <= len(streamed["top_logprobs"][index]) <= 3
        assert whole.text[streamed["text_offset"][index] :].startswith(token)


async def test_probabilities_after_sampling_are_shared_by_what_can_be_drawn(real: RealServer) -> None:
    async with client_of(real) as client:
        answer = await client.completions.create(
            model="narrow",
            prompt="Once upon a time",
            max_tokens=4,
            temperature=1.5,
            top_p=1.0,
            logprobs=5,
            extra_body=ALONE | {"post_sampling_probs": True, "top_k": 3, "min_p": 0.0},
        )
    lists = answer.choices[0].logprobs
    assert lists is not None
    assert lists.top_logprobs is not None
    for likely in lists.top_logprobs:
        assert len(likely) == 3
        assert math.isclose(sum(map(math.exp, likely.values())), 1.0, abs_tol=1e-6)
