"""Anthropic's Python SDK: calls of tools and forms of answers, streamed and not."""

from __future__ import annotations

import json
from typing import Any

import anthropic
from anthropic.types import Message, RawMessageStreamEvent, TextBlock, ToolUseBlock
from checking import CODER, CODER_EXACT, CODER_OF_CLAUDE, KEY, URL, main, refusal
from counting import Ticket, Weather
from typed import strictly

client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0, timeout=120)
QUESTION = "What is the weather in Oslo for the next 3 days, in degrees C?"
ASKED: list[Any] = [{"role": "user", "content": QUESTION}]
WEATHER: Any = {
    "name": "get_weather",
    "description": Weather.__doc__,
    "input_schema": Weather.model_json_schema(),
}
TICKET: Any = {"name": "open_ticket", "description": Ticket.__doc__, "input_schema": Ticket.model_json_schema()}
ANY: Any = {"type": "any", "disable_parallel_tool_use": True}
OURS = {"timings", "seed"}
OURS_IN_EVENTS = OURS | {f"message.{name}" for name in OURS}


def ask(**fields: Any) -> Message:
    """Return the message that answers the question, read strictly."""
    body = {"model": CODER, "messages": ASKED, "max_tokens": 64, "extra_body": {"temperature": 0}} | fields
    return strictly(Message, client.messages.create(**body), OURS)


def use_in(message: Message) -> ToolUseBlock:
    """Return the only block of a message, which is a call."""
    (block,) = message.content
    assert isinstance(block, ToolUseBlock)
    assert message.stop_reason == "tool_use"
    assert block.id
    return block


def check_a_call_that_is_demanded_is_made() -> None:
    for choice in (ANY, {"type": "tool", "name": "get_weather"}):
        block = use_in(ask(tools=[WEATHER], tool_choice=choice))
        assert block.name == "get_weather"
        Weather.model_validate_json(json.dumps(block.input), strict=True)


def check_the_tool_that_is_named_is_the_one_that_is_called() -> None:
    block = use_in(ask(tools=[WEATHER, TICKET], tool_choice={"type": "tool", "name": "open_ticket"}))
    assert block.name == "open_ticket"
    Ticket.model_validate_json(json.dumps(block.input), strict=True)


def check_a_stream_of_a_call_adds_up_to_the_same() -> None:
    whole = use_in(ask(model=CODER_EXACT, tools=[WEATHER], tool_choice=ANY))
    body: dict[str, Any] = {"model": CODER_EXACT, "messages": ASKED, "max_tokens": 64, "tools": [WEATHER]}
    body |= {"tool_choice": ANY, "extra_body": {"temperature": 0}}
    events: list[Any] = [
        strictly(RawMessageStreamEvent, event, OURS_IN_EVENTS) for event in client.messages.create(stream=True, **body)
    ]
    (start,) = (event for event in events if event.type == "content_block_start")
    assert (start.content_block.type, start.content_block.name) == ("tool_use", "get_weather")
    pieces = [event.delta.partial_json for event in events if event.type == "content_block_delta"]
    assert json.loads("".join(pieces)) == whole.input
    assert events[-2].delta.stop_reason == "tool_use"
    with client.messages.stream(**body) as stream:
        assert use_in(stream.get_final_message()).input == whole.input


def check_no_tool_is_called_where_none_may_be() -> None:
    (block,) = ask(tools=[WEATHER], tool_choice={"type": "none"}, max_tokens=8).content
    assert isinstance(block, TextBlock)


def check_what_a_tool_has_answered_goes_back() -> None:
    first = ask(tools=[WEATHER], tool_choice=ANY)
    result = {"type": "tool_result", "tool_use_id": use_in(first).id, "content": "Oslo: 3 C, then 4 C, then 2 C."}
    again: list[Any] = [*ASKED, first.to_param(), {"role": "user", "content": [result]}]
    assert ask(messages=again, tools=[WEATHER], tool_choice={"type": "none"}, max_tokens=24).content


def check_tools_count_as_tokens_of_the_prompt() -> None:
    with_tools, without = (
        client.messages.count_tokens(model=CODER, messages=ASKED, **fields).input_tokens
        for fields in ({"tools": [WEATHER]}, {})
    )
    assert with_tools > without + 20


def check_a_reply_is_held_to_the_form_that_was_asked_for() -> None:
    format_: Any = {"type": "json_schema", "schema": Weather.model_json_schema()}
    (block,) = ask(model=CODER_OF_CLAUDE, output_config={"format": format_}).content
    assert isinstance(block, TextBlock)
    Weather.model_validate_json(block.text, strict=True)


def check_a_reply_is_parsed_into_the_form_that_was_asked_for() -> None:
    told = client.messages.parse(model=CODER, messages=ASKED, max_tokens=64, output_format=Weather)
    assert isinstance(told.parsed_output, Weather)


def check_what_cannot_be_enforced_is_refused_by_name() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    search: Any = {"type": "web_search_20250305", "name": "web_search"}
    for fields, named in (
        ({"output_config": {"format": {"type": "json_schema", "schema": schema}}}, "uniqueItems"),
        ({"tools": [search]}, "tools[0]"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}}, "other"),
    ):
        with refusal(anthropic.BadRequestError) as refused:
            ask(**fields)
        assert named in refused.error.message, refused.error.message


if __name__ == "__main__":
    main(globals())
