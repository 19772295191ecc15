"""OpenAI's Python SDK: raw completions and embeddings."""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any

import openai
from checking import EMBEDDER, EXACT, KEY, MINI, NUM_DIMENSIONS, SMOL, TINY, URL, main, refusal
from openai.types import Completion, CreateEmbeddingResponse
from typed import strictly

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=120)
OURS = {"timings", "seed"}
BEGINNING = "Once upon a time"


def complete(**fields: Any) -> Completion:
    """Return the continuation of a beginning, read strictly."""
    body = {"model": EXACT, "prompt": BEGINNING, "max_tokens": 8, "temperature": 0} | fields
    return strictly(Completion, client.completions.create(**body), OURS)


def complete_streamed(**fields: Any) -> list[Completion]:
    """Return the chunks of it. The SDK's type has no `null` for a finish reason, which every chunk but one has."""
    body = {"model": EXACT, "prompt": BEGINNING, "max_tokens": 8, "temperature": 0, "stream": True} | fields
    chunks = list(client.completions.create(**body))
    for chunk in chunks:
        told = json.loads(chunk.to_json())
        for choice in told["choices"]:
            assert choice["finish_reason"] in (None, "stop", "length")
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        strictly(Completion, Completion.construct(**told), OURS)
    return chunks


def check_a_completion_is_what_the_types_say() -> None:
    reply = complete()
    (choice,) = reply.choices
    assert (reply.model, choice.index, choice.finish_reason) == (SMOL, 0, "length")
    assert choice.text
    assert choice.logprobs is None
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 8


def check_a_stream_of_a_completion_says_the_same() -> None:
    chunks = complete_streamed()
    assert "".join(one.text for chunk in chunks for one in chunk.choices) == complete().choices[0].text
    reasons = [one.finish_reason for chunk in chunks for one in chunk.choices]
    assert [reason for reason in reasons if reason is not None] == ["length"]
    assert reasons[-1] == "length"
    assert all(chunk.usage is None for chunk in chunks)
    *others, last = complete_streamed(stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 8
    assert all(chunk.usage is None for chunk in others)


def check_log_probabilities_are_four_lists_the_same_streamed_and_not() -> None:
    whole = complete(logprobs=2).choices[0].logprobs
    assert whole is not None
    lists = [whole.tokens, whole.token_logprobs, whole.top_logprobs, whole.text_offset]
    assert [len(one or ()) for one in lists] == [8, 8, 8, 8]
    assert all(2 <= len(one) <= 3 for one in whole.top_logprobs or ())
    parts = [one.logprobs for chunk in complete_streamed(logprobs=2) for one in chunk.choices if one.logprobs]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [value for part in parts for value in getattr(part, name)] == getattr(whole, name)


def check_each_prompt_of_a_list_has_its_choices_in_order() -> None:
    prompts = ["tell the", "red", "hello world"]
    together = complete(model=TINY, prompt=prompts, n=1)
    alone = [complete(model=TINY, prompt=prompt).choices[0].text for prompt in prompts]
    assert [one.text for one in together.choices] == alone
    assert [one.index for one in together.choices] == [0, 1, 2]
    chunks = complete_streamed(model=TINY, prompt=prompts)
    assert [
        "".join(one.text for chunk in chunks for one in chunk.choices if one.index == index) for index in range(3)
    ] == alone


def check_stop_and_seed_are_honoured() -> None:
    whole = complete(max_tokens=24).choices[0].text
    stop = whole[len(whole) // 2 :][:3]
    choice = complete(max_tokens=24, stop=[stop]).choices[0]
    assert (choice.text, choice.finish_reason) == (whole[: whole.index(stop)], "stop")
    one, same, other = (complete(seed=seed, temperature=1, max_tokens=16).choices[0].text for seed in (11, 11, 12))
    assert one == same
    assert one != other


def embed(**fields: Any) -> CreateEmbeddingResponse:
    """Return vectors of plain numbers, read strictly."""
    body = {"model": MINI, "input": "a cow", "encoding_format": "float"} | fields
    return strictly(CreateEmbeddingResponse, client.embeddings.create(**body))


def cosine(one: list[float], other: list[float]) -> float:
    """Return how alike two vectors are."""
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))


def check_embeddings_are_what_the_types_say_and_mean_something() -> None:
    reply = embed(input=["a cow", "a bull and a calf", "the parliament"], model=EMBEDDER)
    assert reply.model == MINI
    assert [one.index for one in reply.data] == [0, 1, 2]
    cow, bull, parliament = (one.embedding for one in reply.data)
    assert len(cow) == NUM_DIMENSIONS
    assert cosine(cow, bull) > cosine(cow, parliament)
    assert reply.usage.prompt_tokens == reply.usage.total_tokens > 0


def check_the_sdks_default_of_base64_gives_the_same_numbers() -> None:
    read = client.embeddings.create(model=MINI, input="a cow")  # asks for base64 and decodes it
    plain = embed().data[0].embedding
    assert cosine(read.data[0].embedding, plain) > 0.9999
    coded: Any = client.embeddings.create(model=MINI, input="a cow", encoding_format="base64").data[0].embedding
    assert cosine(list(struct.unpack(f"<{NUM_DIMENSIONS}f", base64.b64decode(coded))), plain) > 0.9999


def check_fewer_dimensions_and_token_ids_can_be_asked_for() -> None:
    assert len(embed(dimensions=64).data[0].embedding) == 64
    assert len(embed(input=[[101, 1037, 11190, 102], [101, 102]]).data) == 2
    with refusal(openai.BadRequestError) as refused:
        embed(dimensions=10_000)
    assert refused.error.param == "dimensions"


def check_a_model_that_cannot_do_it_says_so() -> None:
    with refusal(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MINI, messages=[{"role": "user", "content": "Hi"}])
    assert refused.error.code == "unsupported_by_model"


if __name__ == "__main__":
    main(globals())
