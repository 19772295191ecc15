"""OpenAI's Responses API through a real `corral serve`, asked by the official client: conversations outlive workers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseCompletedEvent, ResponseIncompleteEvent

from tests.support.openai_types import response_events, strict_event, strict_items, strict_response
from tests.support.real_server import RealServer, api_of, real_server, wait_gone
from tests.support.tiny_gguf import write_tiny_llama

CHATML = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHORT = {"max_output_tokens": 12, "temperature": 0.0}
ON = {"ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """`tiny` and `other`, two models of one shape."""
    folder: Path = tmp_path_factory.mktemp("responses")
    write_tiny_llama(folder / "tiny.gguf", chat_template=CHATML)
    file = {"model": "./tiny.gguf", "slots": 2, "context": 2048, "device": "cpu", "threads": 1}
    with real_server(folder, {"tiny": file, "other": file}) as running:
        yield running


@pytest.fixture
async def client(server: RealServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as sdk:
        yield sdk


async def create(client: openai.AsyncOpenAI, input_: Any, model: str = "tiny", **fields: Any) -> Any:
    """Return the response, after a strict look at it."""
    raw = await client.responses.with_raw_response.create(
        model=model, input=input_, extra_body=ON, **{**SHORT, **fields}
    )
    return strict_response(json.loads(raw.content))


@pytest.mark.slow
async def test_a_conversation_goes_on_after_its_worker_is_gone_and_on_another_model(
    client: openai.AsyncOpenAI, server: RealServer
) -> None:
    first = await create(client, "hello world", instructions="tell a story")
    assert (first.status, first.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    pids = server.worker_pids("tiny")
    assert pids
    async with api_of(server) as api:
        status, _ = await api.post("/models/unload", {"model": "tiny"})
        assert status == 200
    wait_gone(pids, 20.0)
    again = await create(client, "and then", previous_response_id=first.id)
    elsewhere = await create(client, "and then", "other", previous_response_id=first.id)
    assert again.output_text == elsewhere.output_text, "both have seen the same conversation"
    alone = await create(client, "and then")
    assert again.usage.input_tokens > alone.usage.input_tokens + first.usage.output_tokens
    said = [
        {"role": "user", "content": "hello world"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "and then"},
    ]
    assert (await create(client, said)).output_text == again.output_text


async def test_a_turn_finds_the_turns_before_it_in_the_cache(client: openai.AsyncOpenAI) -> None:
    first = await create(client, "hello world " * 20)
    second = await create(client, "and then", previous_response_id=first.id)
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens // 2


async def test_a_response_is_read_listed_and_deleted(client: openai.AsyncOpenAI) -> None:
    first = await create(client, "hello")
    second = await create(client, "world", previous_response_id=first.id)
    read = await client.responses.with_raw_response.retrieve(second.id)
    assert strict_response(json.loads(read.content)) == second
    page = await client.responses.input_items.with_raw_response.list(second.id, order="asc")
    listed = strict_items(json.loads(page.content))
    assert [item.role for item in listed.data] == ["user", "assistant", "user"]  # type: ignore[union-attr]
    assert [item.id async for item in client.responses.input_items.list(second.id, limit=1)] == [
        item.id for item in reversed(listed.data)
    ]
    with pytest.raises(openai.BadRequestError):
        await client.responses.cancel(second.id)
    await client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        await create(client, "x", previous_response_id=first.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
    assert (await create(client, "x", previous_response_id=second.id)).status == "incomplete"


async def test_what_shall_not_be_stored_is_not(client: openai.AsyncOpenAI) -> None:
    response = await create(client, "hello", store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)


async def test_streamed_and_whole_are_the_same_and_every_event_is_as_the_client_knows_it(
    client: openai.AsyncOpenAI,
) -> None:
    fields: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2} | SHORT
    raw = await client.responses.with_raw_response.create(
        model="tiny", input="hello", stream=True, extra_body=ON, **fields
    )
    events = response_events(await raw.http_response.aread())
    for event in events:
        strict_event(event)
    last = strict_response(events[-1]["response"])
    whole = await create(client, "hello", **fields)
    assert (last.status, last.output_text) == (whole.status, whole.output_text)
    told = [one for event in events if event["type"].endswith("text.delta") for one in event["logprobs"]]
    assert told == events[-1]["response"]["output"][0]["content"][0]["logprobs"][: len(told)]
    assert last.usage is not None
    assert len(events[-1]["response"]["output"][0]["content"][0]["logprobs"]) == last.usage.output_tokens


async def test_the_clients_stream_helper_gives_the_final_response(client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(
        model="tiny", input="hello", temperature=0.0, extra_body={"stop": [" "]}
    ) as stream:
        texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert final.status == "completed"
    assert final.output_text == "".join(texts)
    assert (await client.responses.retrieve(final.id)).output_text == final.output_text


async def test_counts_are_what_the_routes_use(client: openai.AsyncOpenAI, server: RealServer) -> None:
    first = await create(client, "hello world", instructions="tell a story")
    fields: dict[str, Any] = {"input": "and then", "previous_response_id": first.id, "instructions": "be brief"}
    counted = await client.responses.input_tokens.count(model="tiny", **fields)
    used = await create(client, fields.pop("input"), **fields)
    assert counted.input_tokens == used.usage.input_tokens
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello world"}]}
    async with api_of(server) as api:
        _, counted_chat = await api.post("/v1/chat/completions/input_tokens", body)
        _, chat = await api.post("/v1/chat/completions", body | {"max_tokens": 1})
    assert counted_chat == {"object": "response.input_tokens", "input_tokens": chat["usage"]["prompt_tokens"]}


async def test_the_events_of_a_response_go_on_when_its_worker_dies_in_the_middle(
    client: openai.AsyncOpenAI, server: RealServer
) -> None:
    stream = await client.responses.create(
        model="other", input="hello", stream=True, max_output_tokens=64, extra_body=ON
    )
    events = []
    async for event in stream:
        events.append(event)
        if sum(one.type == "response.output_text.delta" for one in events) == 3:
            for pid in server.worker_pids("other"):
                os.kill(pid, signal.SIGKILL)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert isinstance(last, ResponseIncompleteEvent | ResponseCompletedEvent)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert last.response.output_text == text
    assert last.response.usage is not None
    assert last.response.usage.output_tokens <= 64
    assert (
        len({event.response.id for event in events if event.type.endswith(("created", "completed", "incomplete"))}) == 1
    )
