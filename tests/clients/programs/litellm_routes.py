"""LiteLLM: one interface over everybody's API, here over OpenAI's and what else this server speaks."""

from __future__ import annotations

import asyncio
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its list of prices is otherwise fetched at import

import litellm
from checking import (
    CLAUDE,
    CODER,
    CODER_OF_CLAUDE,
    CODER_TAGGED,
    EXACT,
    KEY,
    MINI,
    NUM_DIMENSIONS,
    QUESTION,
    RANKER,
    SMOL,
    TAGGED,
    URL,
    main,
    refusal,
)
from counting import Weather

OPENAI: dict[str, Any] = {"api_base": f"{URL}/v1", "api_key": KEY, "max_retries": 0, "timeout": 120}
ASKED: list[Any] = [{"role": "user", "content": QUESTION}]
GREEDY: dict[str, Any] = {"messages": ASKED, "max_tokens": 8, "temperature": 0}

litellm.suppress_debug_info = True


def check_a_conversation_through_openais_api() -> None:
    reply = litellm.completion(model=f"openai/{EXACT}", **GREEDY, **OPENAI)
    (choice,) = reply.choices
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert reply.usage.completion_tokens == 8
    assert reply.model == SMOL


def check_a_stream_says_the_same_and_can_be_put_together() -> None:
    whole = litellm.completion(model=f"openai/{EXACT}", **GREEDY, **OPENAI)
    chunks = list(
        litellm.completion(
            model=f"openai/{EXACT}", stream=True, stream_options={"include_usage": True}, **GREEDY, **OPENAI
        )
    )
    rebuilt: Any = litellm.stream_chunk_builder(chunks, messages=ASKED)
    assert rebuilt.choices[0].message.content == whole.choices[0].message.content
    assert rebuilt.choices[0].finish_reason == "length"
    assert rebuilt.usage.completion_tokens == whole.usage.completion_tokens
    assert rebuilt.usage.prompt_tokens == whole.usage.prompt_tokens


def check_async_streams_too() -> None:
    async def text() -> str:
        stream = await litellm.acompletion(model=f"openai/{EXACT}", stream=True, **GREEDY, **OPENAI)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    whole = litellm.completion(model=f"openai/{EXACT}", **GREEDY, **OPENAI)
    assert asyncio.run(text()) == whole.choices[0].message.content


def check_log_probabilities_and_several_answers() -> None:
    reply = litellm.completion(
        model=f"openai/{SMOL}", n=2, seed=3, logprobs=True, top_logprobs=2, **GREEDY | {"temperature": 1}, **OPENAI
    )
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert all(len(choice.logprobs.content) == 8 for choice in reply.choices)


def check_raw_completions() -> None:
    reply = litellm.text_completion(
        model=f"text-completion-openai/{SMOL}", prompt="Once upon a time", max_tokens=8, temperature=0, **OPENAI
    )
    assert reply.choices[0].text
    assert reply.usage.completion_tokens == 8


def check_embeddings() -> None:
    reply = litellm.embedding(model=f"openai/{MINI}", input=["a cow", "a bull"], **OPENAI)
    assert [len(one["embedding"]) for one in reply.data] == [NUM_DIMENSIONS, NUM_DIMENSIONS]


def check_models_are_listed() -> None:
    listed = litellm.get_valid_models(
        check_provider_endpoint=True, custom_llm_provider="openai", api_key=KEY, api_base=f"{URL}/v1"
    )
    assert SMOL in [name.removeprefix("openai/") for name in listed]


def check_responses() -> None:
    # Of models that it does not know it otherwise takes for granted that they cannot be streamed.
    litellm.register_model({EXACT: {"litellm_provider": "openai", "mode": "chat", "supports_native_streaming": True}})
    asked: dict[str, Any] = {"input": QUESTION, "max_output_tokens": 16, "temperature": 0}
    reply: Any = litellm.responses(model=f"openai/{EXACT}", **asked, **OPENAI)
    text = reply.output[0].content[0].text
    assert text
    events: Any = litellm.responses(model=f"openai/{EXACT}", stream=True, **asked, **OPENAI)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == text


def check_the_same_through_anthropics_and_ollamas_apis() -> None:
    for model, finish in (
        (f"anthropic/{CLAUDE}", "length"),
        (f"ollama_chat/{TAGGED}", "length"),
        (f"ollama/{TAGGED}", "stop"),  # it says so itself, whatever it is told
    ):
        server: dict[str, Any] = {"api_base": URL, "api_key": KEY, "timeout": 120}
        reply = litellm.completion(model=model, **GREEDY, **server)
        assert reply.choices[0].message.content, model
        assert reply.choices[0].finish_reason == finish, model
        assert reply.usage.completion_tokens == 8, model
        chunks = list(litellm.completion(model=model, stream=True, **GREEDY, **server))
        rebuilt: Any = litellm.stream_chunk_builder(chunks, messages=ASKED)
        assert rebuilt.choices[0].message.content, model
        assert rebuilt.choices[0].finish_reason in (finish, "length"), model


def check_documents_are_ranked() -> None:
    documents = ["hello world", "red marker", "the story"]
    reply: Any = litellm.rerank(
        model=f"hosted_vllm/{RANKER}", query="tell the story", documents=documents, top_n=2, api_base=URL, api_key=KEY
    )
    scores = [one["relevance_score"] for one in reply.results]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    assert {one["index"] for one in reply.results} < {0, 1, 2}


def check_refusals_are_its_own_exceptions() -> None:
    for kind, fields in (
        (litellm.NotFoundError, {"model": "openai/smoll"}),
        (litellm.AuthenticationError, {"api_key": "wrong"}),
        (litellm.BadRequestError, {"temperature": 1e9}),
        (litellm.ContextWindowExceededError, {"messages": [{"role": "user", "content": "word " * 5000}]}),
    ):
        for stream in (False, True):
            with refusal(kind):
                litellm.completion(**({"model": f"openai/{SMOL}", "stream": stream} | GREEDY | OPENAI | fields))


ASKED_FOR_WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Oslo for 3 days, in degrees C?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": Weather.__doc__,
        "parameters": Weather.model_json_schema(),
    },
}
SERVERS: dict[str, dict[str, Any]] = {
    f"openai/{CODER}": OPENAI,
    f"anthropic/{CODER_OF_CLAUDE}": {"api_base": URL, "api_key": KEY, "timeout": 120},
    f"ollama_chat/{CODER_TAGGED}": {"api_base": URL, "api_key": KEY, "timeout": 120},
}


def check_a_call_that_is_demanded_is_made_through_every_api_that_can_demand_one() -> None:
    for model, server in SERVERS.items():
        if model.startswith("ollama"):  # its API has no way to demand one
            continue
        asked: dict[str, Any] = {"messages": ASKED_FOR_WEATHER, "max_tokens": 64, "temperature": 0}
        asked |= {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
        choice = litellm.completion(model=model, **asked, **server).choices[0]
        assert choice.finish_reason == "tool_calls", model
        (call,) = choice.message.tool_calls
        assert call.function.name == "get_weather", model
        Weather.model_validate_json(call.function.arguments, strict=True)
        chunks = list(litellm.completion(model=model, stream=True, **asked, **server))
        rebuilt: Any = litellm.stream_chunk_builder(chunks, messages=ASKED_FOR_WEATHER)
        (streamed,) = rebuilt.choices[0].message.tool_calls
        assert streamed.function.name == "get_weather", model
        Weather.model_validate_json(streamed.function.arguments, strict=True)


def check_a_reply_is_held_to_a_schema_through_every_api() -> None:
    for model, server in SERVERS.items():
        if model.startswith("anthropic"):  # it makes a tool of the schema, for names of models that it does not know
            continue
        reply = litellm.completion(
            model=model,
            messages=ASKED_FOR_WEATHER,
            max_tokens=64,
            temperature=1.5,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "weather", "strict": True, "schema": Weather.model_json_schema()},
            },
            **server,
        )
        Weather.model_validate_json(reply.choices[0].message.content, strict=True)


if __name__ == "__main__":
    main(globals())
