"""OpenAI's Python SDK: responses, their events, and conversations that the server keeps."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
from checking import CLAUDE, EXACT, KEY, QUESTION, SLASHED, SMOL, TINY, URL, main, refusal
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseIncompleteEvent,
    ResponseItem,
    ResponseOutputMessage,
    ResponseStreamEvent,
)
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from typed import strictly

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=120)
OURS = {"timings", "seed", "store"}
"""What our responses tell beyond the SDK's types; OpenAI's own have `store` as well."""
OURS_IN_EVENTS = {f"response.{name}" for name in OURS} | {"logprobs.bytes", "logprobs.top_logprobs.bytes"}


def ask(**fields: Any) -> Response:
    """Return the response to the question, read strictly."""
    body = {"model": TINY, "input": QUESTION, "max_output_tokens": 16, "temperature": 0} | fields
    return strictly(Response, client.responses.create(**body), OURS)


def events_of(**fields: Any) -> list[Any]:
    """Return the events of the response to the question, each read strictly."""
    body = {"model": TINY, "input": QUESTION, "max_output_tokens": 16, "temperature": 0} | fields
    return [
        strictly(ResponseStreamEvent, event, OURS_IN_EVENTS) for event in client.responses.create(stream=True, **body)
    ]


def check_a_response_is_what_the_types_say() -> None:
    reply = ask(model=SMOL)
    assert reply.id.startswith("resp_")
    assert (reply.model, reply.status) == (SMOL, "incomplete")
    assert reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"
    (message,) = reply.output
    assert isinstance(message, ResponseOutputMessage)
    assert message.role == "assistant"
    assert reply.output_text
    assert reply.usage is not None
    assert reply.usage.output_tokens == 16
    assert reply.usage.output_tokens_details.reasoning_tokens == 0
    assert reply.usage.total_tokens == reply.usage.input_tokens + 16
    assert (reply.temperature, reply.max_output_tokens, reply.parallel_tool_calls) == (0, 16, True)


def check_every_name_of_a_model_reaches_it() -> None:
    assert {ask(model=name).model for name in (SMOL, SLASHED, CLAUDE)} == {SMOL}


def check_a_stream_is_what_the_types_say() -> None:
    events = events_of()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    deltas = [kind for kind in kinds if kind == "response.output_text.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert deltas  # how many is up to the clock
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == ask().output_text
    last = events[-1]
    assert isinstance(last, ResponseIncompleteEvent)
    assert last.response.output_text == text
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == 16
    assert events[0].response.id == last.response.id


def check_the_stream_manager_makes_a_response_of_the_events() -> None:
    whole = ask(model=EXACT).output_text
    with client.responses.stream(
        model=EXACT, input=QUESTION, max_output_tokens=48, temperature=0, extra_body={"stop": [whole[-3:]]}
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.status == "completed"
    assert final.output_text == text
    assert whole.startswith(text)


def check_an_answer_that_ends_by_itself_is_completed() -> None:
    stop = {"extra_body": {"stop": [ask().output_text[-3:]]}}
    reply = ask(**stop)
    assert (reply.status, reply.incomplete_details) == ("completed", None)
    last = events_of(**stop)[-1]
    assert isinstance(last, ResponseCompletedEvent)
    assert last.response.status == "completed"


def check_a_conversation_goes_on_from_the_response_before() -> None:
    first = ask(input="My name is Ann.", instructions="Answer shortly.")
    second = ask(input="What is my name?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    whole = ask(
        input=[
            {"role": "user", "content": "My name is Ann."},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "What is my name?"},
        ]
    )
    assert second.output_text == whole.output_text
    assert second.usage is not None
    assert whole.usage is not None
    assert second.usage.input_tokens == whole.usage.input_tokens
    streamed = events_of(input="And yours?", previous_response_id=second.id)[-1]
    assert streamed.response.previous_response_id == second.id
    assert ask(input="More.", previous_response_id=streamed.response.id).output_text


def check_output_items_can_be_sent_back() -> None:
    first = ask()
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    items += [item.to_dict() for item in first.output]
    items += [{"role": "user", "content": [{"type": "input_text", "text": "More."}]}]
    assert ask(input=items).output_text


def check_a_kept_response_can_be_read_listed_and_deleted() -> None:
    made = ask()
    kept = strictly(Response, client.responses.retrieve(made.id), OURS)
    assert kept.output_text == made.output_text
    items = list(client.responses.input_items.list(made.id))
    assert [strictly(ResponseItem, item).type for item in items] == ["message"]
    client.responses.delete(made.id)
    with refusal(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with refusal(openai.BadRequestError) as refused:
        ask(previous_response_id=made.id)
    assert refused.error.code == "previous_response_not_found"


def check_what_is_not_to_be_stored_is_not_kept() -> None:
    made = ask(store=False)
    with refusal(openai.NotFoundError):
        client.responses.retrieve(made.id)


def check_input_tokens_are_counted() -> None:
    counted = strictly(
        InputTokenCountResponse,
        client.responses.input_tokens.count(model=SMOL, input=QUESTION, instructions="Be kind."),
    )
    usage = ask(model=SMOL, instructions="Be kind.").usage
    assert usage is not None
    assert counted.input_tokens == usage.input_tokens


def check_log_probabilities_are_told_when_asked() -> None:
    asked: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = ask(**asked).output[0].content[0].logprobs
    assert len(whole) == 16
    assert all(len(entry.top_logprobs) == 2 for entry in whole)
    done = next(event for event in events_of(**asked) if event.type == "response.output_item.done")
    assert done.item.content[0].logprobs == whole


def check_what_cannot_be_honoured_is_refused_by_name() -> None:
    for fields, param in (
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "nothing"}}}}, "text"),
        ({"temperature": -3}, "temperature"),
        ({"input": []}, "input"),
    ):
        for stream in (False, True):
            body: dict[str, Any] = {"model": SMOL, "input": QUESTION, "stream": stream} | fields
            with refusal(openai.BadRequestError) as refused:
                client.responses.create(**body)
            assert (refused.error.param or "").startswith(param), refused.error.param
    with refusal(openai.NotFoundError):
        ask(model="smoll")


async def check_async_streams_too() -> None:
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=120) as many:

        async def stream(word: str) -> str:
            pieces = []
            async for event in await many.responses.create(
                model=SMOL, input=f"Say {word}.", max_output_tokens=16, temperature=0, stream=True
            ):
                pieces += [event.delta] if event.type == "response.output_text.delta" else []
            return "".join(pieces)

        assert all(await asyncio.gather(*map(stream, ["yes", "no", "maybe"])))


if __name__ == "__main__":
    main(globals())
