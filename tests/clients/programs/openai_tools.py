"""OpenAI's Python SDK: calls of tools and forms of answers, streamed and not, in chat and in responses."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
from checking import CODER, CODER_EXACT, KEY, SMOL, URL, main, refusal
from counting import Ticket, Weather
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseFunctionToolCall
from typed import strictly

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=120)
OURS = {"timings", "seed", "store"}
QUESTION = "What is the weather in Oslo for the next 3 days, in degrees C?"
ASKED: list[Any] = [{"role": "user", "content": QUESTION}]
WEATHER: Any = openai.pydantic_function_tool(Weather, name="get_weather")
TICKET: Any = openai.pydantic_function_tool(Ticket, name="open_ticket")
BY_NAME: Any = {"type": "function", "function": {"name": "get_weather"}}
DEMANDED: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}


def ask(**fields: Any) -> ChatCompletion:
    """Return the reply to the question, read strictly."""
    body = {"model": CODER, "messages": ASKED, "max_tokens": 64, "temperature": 0} | fields
    return strictly(ChatCompletion, client.chat.completions.create(**body), OURS)


def call_of(reply: ChatCompletion) -> Any:
    """Return the only call of a reply that is nothing but that."""
    (choice,) = reply.choices
    assert choice.finish_reason == "tool_calls", choice
    assert not choice.message.content
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function"
    assert call.id
    return call


def check_a_call_that_is_demanded_is_made() -> None:
    for demand in ("required", BY_NAME):
        call = call_of(ask(**DEMANDED | {"tool_choice": demand}))
        assert call.function.name == "get_weather"
        Weather.model_validate_json(call.function.arguments, strict=True)


def check_the_tool_that_is_named_is_the_one_that_is_called() -> None:
    named = {"type": "function", "function": {"name": "open_ticket"}}
    call = call_of(ask(tools=[WEATHER, TICKET], tool_choice=named))
    assert call.function.name == "open_ticket"
    Ticket.model_validate_json(call.function.arguments, strict=True)


def check_a_model_that_has_not_learnt_it_calls_tools_too() -> None:
    call = call_of(ask(model=SMOL, **DEMANDED))
    Weather.model_validate_json(call.function.arguments, strict=True)


def check_a_stream_of_a_call_adds_up_to_the_same() -> None:
    whole = call_of(ask(model=CODER_EXACT, **DEMANDED)).function
    chunks = [
        strictly(ChatCompletionChunk, chunk, OURS)
        for chunk in client.chat.completions.create(
            model=CODER_EXACT, messages=ASKED, max_tokens=64, temperature=0, stream=True, **DEMANDED
        )
    ]
    pieces = [one for chunk in chunks for choice in chunk.choices for one in choice.delta.tool_calls or ()]
    assert [piece.index for piece in pieces] == [0] * len(pieces)
    assert [piece.function.name for piece in pieces if piece.id] == [whole.name]
    arguments = [piece.function.arguments for piece in pieces if piece.function.arguments]
    assert arguments  # in how many pieces is up to the clock
    assert "".join(arguments) == whole.arguments
    assert [choice.finish_reason for choice in chunks[-1].choices] == ["tool_calls"]


def check_no_tool_is_called_where_none_may_be() -> None:
    message = ask(**DEMANDED | {"tool_choice": "none", "max_tokens": 8}).choices[0].message
    assert message.tool_calls is None
    assert message.content


def check_what_a_tool_has_answered_goes_back() -> None:
    reply = ask(**DEMANDED)
    told = {"role": "tool", "tool_call_id": call_of(reply).id, "content": "Oslo: 3 C, then 4 C, then 2 C."}
    again = [*ASKED, reply.choices[0].message.to_dict(), told]
    answer = ask(messages=again, tools=[WEATHER], tool_choice="none", max_tokens=24).choices[0].message
    assert answer.content
    with_result, without = (
        one.usage.prompt_tokens if one.usage else 0
        for one in (ask(messages=again, max_tokens=1), ask(messages=again[:-1], max_tokens=1))
    )
    assert with_result > without


def check_the_older_form_of_tools_is_answered_in_its_own_form() -> None:
    choice = ask(functions=[WEATHER["function"]], function_call={"name": "get_weather"}).choices[0]
    assert choice.finish_reason == "function_call"
    assert choice.message.function_call is not None
    assert choice.message.function_call.name == "get_weather"
    Weather.model_validate_json(choice.message.function_call.arguments, strict=True)


def check_a_reply_is_parsed_into_the_form_that_was_asked_for() -> None:
    reply = client.chat.completions.parse(model=CODER, messages=ASKED, response_format=Weather, max_tokens=64)
    assert isinstance(reply.choices[0].message.parsed, Weather)
    assert reply.choices[0].finish_reason == "stop"


def check_arguments_are_parsed_too() -> None:
    reply = client.chat.completions.parse(model=CODER, messages=ASKED, max_tokens=64, **DEMANDED)
    (call,) = reply.choices[0].message.tool_calls or ()
    assert isinstance(call.function.parsed_arguments, Weather)


def check_the_stream_manager_parses_calls_and_forms() -> None:
    asked: dict[str, Any] = {"model": CODER, "messages": ASKED, "max_tokens": 64}
    with client.chat.completions.stream(**asked, **DEMANDED) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    assert [(one.name, type(one.parsed_arguments)) for one in done] == [("get_weather", Weather)]
    with client.chat.completions.stream(**asked, response_format=Weather) as stream:
        done = [event for event in stream if event.type == "content.done"]
    assert [type(one.parsed) for one in done] == [Weather]


def check_other_forms_are_kept_to() -> None:
    for fields, pattern in (
        ({"regex": "[a-z]{3,8}"}, "[a-z]{3,8}"),
        ({"choice": ["red", "blue"]}, "red|blue"),
        ({"grammar": 'root ::= "yes" | "no"'}, "yes|no"),
        ({"structured_outputs": {"regex": "[0-9]{4}"}}, "[0-9]{4}"),
        ({"guided_choice": ["one", "two"]}, "one|two"),
    ):
        choice = ask(extra_body=fields, temperature=1.5).choices[0]
        assert re.fullmatch(pattern, choice.message.content or ""), (fields, choice)
        assert choice.finish_reason == "stop"


def check_any_json_object_may_be_asked_for() -> None:
    choice = ask(response_format={"type": "json_object"}).choices[0]
    text = choice.message.content or ""
    assert text.startswith("{")
    assert choice.finish_reason == "length" or isinstance(json.loads(text), dict)


def check_what_cannot_be_enforced_is_refused_by_name() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    strange: Any = {"type": "code_interpreter"}
    for fields, param in (
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}},
            "response_format.json_schema.schema",
        ),
        ({"tools": [strange]}, "tools[0]"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
    ):
        with refusal(openai.BadRequestError) as refused:
            ask(**fields)
        assert (refused.error.param or "").startswith(param), refused.error.param


# --- responses --------------------------------------------------------------------------------------------

FUNCTION: Any = {
    "type": "function",
    "name": "get_weather",
    "description": Weather.__doc__,
    "parameters": Weather.model_json_schema(),
    "strict": True,
}


def respond(**fields: Any) -> Response:
    """Return the response to the question, read strictly."""
    body = {"model": CODER, "input": QUESTION, "max_output_tokens": 64, "temperature": 0} | fields
    return strictly(Response, client.responses.create(**body), OURS)


def call_in(reply: Response) -> ResponseFunctionToolCall:
    """Return the only item of a response, which is a call."""
    (item,) = reply.output
    assert isinstance(item, ResponseFunctionToolCall)
    assert (item.name, reply.status) == ("get_weather", "completed")
    Weather.model_validate_json(item.arguments, strict=True)
    return item


def check_responses_call_tools_and_go_on_with_what_these_say() -> None:
    asked: dict[str, Any] = {"model": CODER_EXACT, "tools": [FUNCTION]}
    asked |= {"tool_choice": "required", "parallel_tool_calls": False}
    first = respond(**asked)
    result: Any = {"type": "function_call_output", "call_id": call_in(first).call_id, "output": "3 C"}
    second = respond(input=[result], previous_response_id=first.id, tools=[FUNCTION], tool_choice="none")
    assert second.output_text
    events = list(client.responses.create(input=QUESTION, max_output_tokens=64, temperature=0, stream=True, **asked))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call_in(first).arguments
    (done,) = (event for event in events if event.type == "response.function_call_arguments.done")
    assert done.arguments == call_in(first).arguments


def check_responses_are_parsed_into_the_form_that_was_asked_for() -> None:
    reply = client.responses.parse(model=CODER, input=QUESTION, text_format=Weather, max_output_tokens=64)
    assert isinstance(reply.output_parsed, Weather)


if __name__ == "__main__":
    main(globals())
