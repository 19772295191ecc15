"""Ollama's Python client: models, conversations, raw prompts, vectors."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import httpx
import ollama
from checking import (
    CODER,
    COLD_S,
    HASTY,
    KEY,
    MINI,
    NUM_DIMENSIONS,
    QUESTION,
    SLASHED,
    SMOL,
    TAGGED,
    TINY,
    URL,
    main,
    refusal,
)
from counting import Weather

BEARER = {"Authorization": f"Bearer {KEY}"}
client = ollama.Client(host=URL, headers=BEARER, timeout=120)
ASKED: list[Any] = [{"role": "user", "content": QUESTION}]
GREEDY: dict[str, Any] = {"temperature": 0, "num_predict": 8}


def chat(**fields: Any) -> Any:
    """Return the reply to the question; of random weights, whose words are the same every time."""
    return client.chat(**({"model": TINY, "messages": ASKED, "options": GREEDY} | fields))


def generate(**fields: Any) -> Any:
    """Return the continuation of a prompt."""
    return client.generate(**({"model": TINY, "prompt": "tell the story", "options": GREEDY} | fields))


def require_figures(reply: Any) -> None:
    """Check what stands at the end of every answer."""
    assert reply.done is True
    assert reply.done_reason == "length"
    assert reply.eval_count == 8
    assert reply.prompt_eval_count > 0
    for name in ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"):
        assert isinstance(getattr(reply, name), int), name
        assert getattr(reply, name) >= 0, name
    assert reply.total_duration >= reply.eval_duration


def check_models_are_listed_with_their_tags() -> None:
    listed = {model.model: model for model in client.list().models}
    assert {"smol:latest", "mini:latest", "org/smol:fast", "smollm2:135m"} <= set(listed)
    smol = listed["smol:latest"]
    assert smol.size is not None
    assert smol.size > 90_000_000
    assert smol.modified_at is not None
    assert smol.digest
    assert smol.details is not None
    assert smol.details.format == "gguf"
    assert smol.details.family == "llama"
    assert smol.details.quantization_level


def check_a_model_is_shown() -> None:
    for name in (SMOL, "smol:latest", SLASHED, TAGGED):
        shown = client.show(name)
        assert shown.capabilities is not None
        assert "completion" in shown.capabilities
        assert shown.modelinfo is not None
        assert shown.modelinfo["general.architecture"] == "llama"
        assert shown.template
    assert client.show(MINI).capabilities == ["embedding"]


def check_a_conversation_is_answered() -> None:
    reply = chat(model=SMOL)
    assert reply.message.role == "assistant"
    assert reply.message.content
    require_figures(reply)


def check_every_name_of_a_model_reaches_it_and_is_told_back() -> None:
    for name in (SMOL, "smol:latest", SLASHED, TAGGED):
        assert chat(model=name).model == name


def check_a_stream_says_the_same() -> None:
    *pieces, last = chat(stream=True)
    assert pieces  # how many is up to the clock: what a busy client has not read yet comes in one piece
    assert all(piece.done is False and piece.message.role == "assistant" for piece in pieces)
    assert "".join(piece.message.content for piece in [*pieces, last]) == chat().message.content
    require_figures(last)


def check_raw_prompts_are_continued_streamed_and_not() -> None:
    whole = generate(raw=True)
    assert whole.response
    require_figures(whole)
    *pieces, last = generate(raw=True, stream=True)
    assert "".join(piece.response for piece in [*pieces, last]) == whole.response
    require_figures(last)


def check_a_prompt_with_a_system_text_goes_through_the_template() -> None:
    assert generate(system="hello", prompt="world").prompt_eval_count > generate(prompt="world").prompt_eval_count


def check_options_are_honoured() -> None:
    whole = generate(options={"temperature": 0, "num_predict": 24}).response
    stop = whole[len(whole) // 2 :][:3]
    ended = generate(options={"temperature": 0, "num_predict": 24, "stop": [stop]})
    assert (ended.response, ended.done_reason) == (whole[: whole.index(stop)], "stop")
    drawn = {"temperature": 1, "num_predict": 16}
    one, same, other = (generate(options=drawn | {"seed": seed}).response for seed in (11, 11, 12))
    assert one == same
    assert one != other


def check_log_probabilities_are_told_when_asked() -> None:
    reply = chat(logprobs=True, top_logprobs=2)
    assert len(reply.logprobs) == 8
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in reply.logprobs)
    assert chat().logprobs is None


def check_texts_become_vectors() -> None:
    reply = client.embed(model=MINI, input=["a cow", "a bull"])
    assert [len(one) for one in reply.embeddings] == [NUM_DIMENSIONS] * 2
    assert reply.model == MINI
    assert reply.prompt_eval_count > 0
    (vector,) = client.embed(model=MINI, input="a cow").embeddings
    assert abs(math.sqrt(sum(number * number for number in vector)) - 1) < 1e-3
    assert len(client.embed(model=MINI, input="a cow", dimensions=64).embeddings[0]) == 64
    old = client.embeddings(model=MINI, prompt="a cow").embedding
    length = math.sqrt(sum(number * number for number in old))
    assert sum(a * b for a, b in zip(old, vector, strict=True)) / length > 0.999


def check_what_is_loaded_is_listed() -> None:
    chat(model=SMOL)
    running = {model.model: model for model in client.ps().models}
    assert "smol:latest" in running
    assert running["smol:latest"].size is not None
    assert running["smol:latest"].expires_at is not None
    assert running["smol:latest"].context_length == 2048


def check_keep_alive_unloads_and_an_empty_prompt_loads() -> None:
    loaded = generate(model=TINY, prompt="", keep_alive="5m")
    assert (loaded.done, loaded.done_reason) == (True, "load")
    unloaded = generate(model=TINY, prompt="", keep_alive=0)
    assert (unloaded.done, unloaded.done_reason) == (True, "unload")
    deadline_s = time.monotonic() + 20
    while any(model.model == "tiny:latest" for model in client.ps().models):
        assert time.monotonic() < deadline_s, "it was not unloaded"
        time.sleep(0.1)


def check_refusals_are_its_own_exception() -> None:
    for status, named, ask in (
        (404, "smoll", lambda: client.chat(model="smoll", messages=ASKED)),
        (404, "smoll", lambda: client.show("smoll")),
        (404, "smoll", lambda: list(client.generate(model="smoll", prompt="x", stream=True))),
        (400, "temperature", lambda: chat(options={"temperature": "hot"})),
        (400, "temperature", lambda: list(chat(options={"temperature": "hot"}, stream=True))),
        (400, "image", lambda: chat(messages=[{"role": "user", "content": "x", "images": ["AA=="]}])),
        (400, "uniqueItems", lambda: chat(format={"type": "array", "uniqueItems": True})),
        (400, "tools", lambda: client.chat(model=TINY, messages=ASKED, tools=[{"type": "function"}])),
        (400, "embed", lambda: chat(model=MINI)),
        (501, "models.yaml", lambda: client.copy("smol", "other")),
    ):
        with refusal(ollama.ResponseError) as refused:
            ask()
        assert refused.error.status_code == status, (named, refused.error.status_code, refused.error.error)
        assert named in refused.error.error, (named, refused.error.error)
    with refusal(ollama.ResponseError) as refused:
        ollama.Client(host=URL, headers={"Authorization": "Bearer wrong"}).list()
    assert refused.error.status_code == 401


def get_weather(city: str) -> str:
    """Tell how warm it is in a city.

    Args:
        city: The name of the city.

    """
    return f"It is 3 degrees C in {city}."


FOR_WEATHER: list[Any] = [{"role": "user", "content": "How warm is it in Oslo? Use the tool get_weather."}]


def check_a_reply_is_held_to_the_form_that_was_asked_for() -> None:
    schema = Weather.model_json_schema()
    options = {"temperature": 1.5, "num_predict": 64}
    for told in (
        client.chat(model=CODER, messages=FOR_WEATHER, format=schema, options=options).message.content,
        client.generate(model=CODER, prompt="The weather in Oslo", format=schema, options=options).response,
    ):
        Weather.model_validate_json(told or "", strict=True)
    pieces = client.chat(model=CODER, messages=FOR_WEATHER, format=schema, options=options, stream=True)
    Weather.model_validate_json("".join(piece.message.content or "" for piece in pieces), strict=True)


def check_tools_are_called_and_told_what_came_of_it() -> None:
    asked: dict[str, Any] = {"model": CODER, "tools": [get_weather], "options": {"temperature": 0, "num_predict": 64}}
    reply = client.chat(messages=FOR_WEATHER, **asked)
    for call in reply.message.tool_calls or ():  # whether it calls is the model's own choice
        assert call.function.name == "get_weather"
        assert isinstance(call.function.arguments["city"], str)
    pieces = list(client.chat(messages=FOR_WEATHER, stream=True, **asked))
    streamed = [call.function for piece in pieces for call in piece.message.tool_calls or ()]
    assert streamed == [call.function for call in reply.message.tool_calls or ()]
    call: Any = {"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    result = {"role": "tool", "tool_name": "get_weather", "content": get_weather("Oslo")}
    conversation = [*FOR_WEATHER, {"role": "assistant", "content": "", "tool_calls": [call]}, result]
    assert client.chat(messages=conversation, **asked | {"tools": []}).message.content


def check_a_model_tells_whether_it_has_learnt_to_call_tools() -> None:
    assert "tools" in (client.show(CODER).capabilities or ())
    assert "tools" not in (client.show(TINY).capabilities or ())


async def check_async_streams_too() -> None:
    many = ollama.AsyncClient(host=URL, headers=BEARER, timeout=120)

    async def stream(word: str) -> str:
        chunks = await many.generate(model=TINY, prompt=f"tell {word}", options=GREEDY, stream=True, raw=True)
        return "".join([chunk.response async for chunk in chunks])

    words = ["the", "hello", "world"]
    assert await asyncio.gather(*map(stream, words)) == [await stream(word) for word in words]


def check_an_answer_to_whether_it_runs() -> None:
    assert "version" in httpx.get(f"{URL}/api/version", headers=BEARER).json()


def check_a_stream_that_breaks_off_does_not_look_like_one_that_ended() -> None:
    seen = []
    with refusal(ollama.ResponseError) as refused:
        for piece in chat(model=HASTY, stream=True, options={"num_predict": 2000, "ignore_eos": True}):
            seen.append(piece)  # noqa: PERF402 - what came before the error is wanted
    assert "request_timeout_s" in refused.error.error
    assert not any(piece.done for piece in seen)


def check_a_model_that_loads_is_waited_for() -> None:
    start_s = time.monotonic()
    require_figures(chat(model="cold-ollama"))
    assert time.monotonic() - start_s > COLD_S - 0.5, "it was loaded already, so nothing was shown"


if __name__ == "__main__":
    main(globals())
