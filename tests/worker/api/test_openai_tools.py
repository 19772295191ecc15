"""Tools in OpenAI's forms, with a model that calls them: what is asked of the engine, and replies in both modes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.fakes.engine import FakeEngine, Script, make_facts
from tests.support.held_answers import HERMES, SpeakingVocabulary, may_be
from tests.support.worker_client import WorkerReply, serve
from tests.worker.api.test_openai_chat import CHATML, chat, template
from worker.engine.request import FinishReason, GenerationRequest

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city", "parameters": SCHEMA},
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
CALL = '«<tool_call>»\n{"name": "weather", "arguments": {"city": "Köln"}}\n«</tool_call>»'
NOW_CALL = '«<tool_call>»\n{"name": "now", "arguments": {}}\n«</tool_call>»'
SHOWS = (
    "{{ tools | tojson }}{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{{ m.tool_calls | default(0) | tojson }};{% endfor %}"
)


def scripts(*outputs: str, finish: FinishReason = FinishReason.STOP) -> FakeEngine:
    """Return an engine that answers so, token by token."""
    vocabulary = SpeakingVocabulary()
    answers = [Script([[token] for token in vocabulary.tokens(one)], finish) for one in outputs]
    return FakeEngine(vocabulary, make_facts(context=2048), answers)


async def ask(on: FakeEngine, *messages: Any, source: str = HERMES + CHATML, **fields: Any) -> WorkerReply:
    assert isinstance(on.vocabulary, SpeakingVocabulary)
    speaks = on.vocabulary.speaks(source)
    speaks.pop("template_source")
    return await chat(on, *messages, source=source, model_options=speaks, **fields)


async def asked(**fields: Any) -> GenerationRequest:
    on = scripts(CALL)
    reply = await ask(on, **fields)
    assert reply.end["outcome"] == "ok", reply.frames
    return on.submitted[0]


async def refused(**fields: Any) -> Any:
    on = scripts(CALL)
    error = (await ask(on, **fields)).error
    assert on.submitted == []
    return error


def call_of(name: str, arguments: Any) -> str:
    return f'«<tool_call>»\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n«</tool_call>»'


# --- replies --------------------------------------------------------------------------------------------


async def test_calls_are_told_in_openais_form() -> None:
    reply = await ask(scripts("Let me look. " + CALL), tools=TOOLS)
    ChatCompletion.model_validate(reply.json, strict=True)
    [choice] = reply.json["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me look."
    [call] = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]) == ("function", {"name": "weather", "arguments": '{"city": "Köln"}'})
    assert "corral_format" not in choice


async def test_a_stream_tells_the_same_calls_with_each_id_and_name_once() -> None:
    whole = (await ask(scripts(CALL + "\n" + NOW_CALL), tools=TOOLS)).json["choices"][0]["message"]["tool_calls"]
    reply = await ask(scripts(CALL + "\n" + NOW_CALL), tools=TOOLS, stream=True)
    calls: list[dict[str, Any]] = []
    for event in reply.events:
        ChatCompletionChunk.model_validate(event, strict=True)
        for delta in event["choices"][0]["delta"].get("tool_calls", ()):
            if "id" in delta:
                assert delta["index"] == len(calls)
                calls.append({"id": delta["id"], "type": delta["type"], "function": dict(delta["function"])})
            else:
                calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    assert calls == whole
    assert len({call["id"] for call in calls}) == 2
    assert reply.events[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_each_answer_has_ids_of_its_own() -> None:
    choices = (await ask(scripts(CALL, CALL, CALL), tools=TOOLS, n=3)).json["choices"]
    ids = {choice["message"]["tool_calls"][0]["id"] for choice in choices}
    assert len(ids) == 3


async def test_a_call_that_is_cut_off_ends_with_length_and_is_no_reason_to_call() -> None:
    reply = await ask(scripts(CALL[:50], finish=FinishReason.LENGTH), tools=TOOLS, stream=True)
    assert reply.events[-1]["choices"][0]["finish_reason"] == "length"
    named = CALL[: CALL.index('", "arg')]
    whole = (await ask(scripts(named, finish=FinishReason.LENGTH), tools=TOOLS)).json["choices"][0]
    assert (whole["finish_reason"], whole["message"].get("tool_calls")) == ("length", None)
    assert "<tool_call>" not in (whole["message"]["content"] or "")


async def test_a_stop_string_counts_in_a_call_as_everywhere() -> None:
    reply = await ask(scripts("Look: " + CALL), tools=TOOLS, stop=["Köln"])
    [choice] = reply.json["choices"]
    assert choice["message"]["content"] == "Look:"
    assert "Köln" not in json.dumps(choice, ensure_ascii=False)
    assert choice["finish_reason"] == "stop"
    streamed = await ask(scripts("Look: " + CALL), tools=TOOLS, stop=["Köln"], stream=True)
    assert streamed.events[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_calls_of_which_one_is_cut_off_are_no_reason_to_call(is_stream: bool) -> None:
    output = NOW_CALL + "\n" + CALL
    reply = await ask(scripts(output), tools=TOOLS, stop=["Köln"], stream=is_stream)
    assert (reply.events[-1] if is_stream else reply.json)["choices"][0]["finish_reason"] == "stop"
    reply = await ask(scripts(output + "END", ""), tools=TOOLS, stop=["END"], stream=is_stream)
    assert (reply.events[-1] if is_stream else reply.json)["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_response_tells_which_call_a_stop_string_cut_off() -> None:
    on = scripts(NOW_CALL + "\n" + CALL)
    assert isinstance(on.vocabulary, SpeakingVocabulary)
    source = HERMES + CHATML
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    body = {"input": "hi", "tools": tools, "stop": ["Köln"]}
    async with serve(on, template=template(source, on.vocabulary), **on.vocabulary.speaks(source)) as worker:
        response = (await worker.post("/v1/responses", json.dumps(body).encode())).json
    assert [(one["type"], one["status"]) for one in response["output"]] == [
        ("function_call", "completed"),
        ("function_call", "incomplete"),
    ]


@pytest.mark.parametrize(("fields", "text"), [({"choice": ["éa"]}, ""), ({}, "\ufffd")])
async def test_half_a_character_is_no_part_of_an_answer_that_is_held_to_a_form(fields: Any, text: str) -> None:
    on = scripts("é", finish=FinishReason.LENGTH)
    on.answers[0] = Script([["é".encode()[0]]], FinishReason.LENGTH)
    [choice] = (await ask(on, **fields)).json["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "length")


async def test_a_marker_that_was_made_of_plain_text_is_text() -> None:
    plain = NOW_CALL.replace("«", "").replace("»", "")
    [choice] = (await ask(scripts(plain), tools=TOOLS)).json["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", plain)


async def test_log_probabilities_are_those_of_all_tokens_with_the_markers_by_their_names() -> None:
    written = "Sí! " + CALL
    for stream in (False, True):
        reply = await ask(scripts(written), tools=TOOLS, logprobs=True, top_logprobs=1, stream=stream)
        if stream:
            parts = [event["choices"][0]["logprobs"] for event in reply.events if event["choices"]]
            content = [entry for part in parts if part is not None for entry in part["content"]]
        else:
            content = reply.json["choices"][0]["logprobs"]["content"]
        assert len(content) == len(SpeakingVocabulary().tokens(written))
        text = b"".join(bytes(entry["bytes"]) for entry in content).decode()
        assert text == written.replace("«<tool_call>»", "").replace("«</tool_call>»", "")
        assert [entry["token"] for entry in content if not entry["bytes"]] == ["<tool_call>", "</tool_call>"]


# --- choices --------------------------------------------------------------------------------------------


async def test_a_model_may_call_or_not_as_it_likes() -> None:
    request = await asked(tools=TOOLS)
    for text in ("Hello", "", CALL, "Look: " + CALL, CALL + "\n" + NOW_CALL):
        assert may_be(request, text), text
    for text in (call_of("nobody", {}), call_of("weather", {}), call_of("weather", {"city": 5})):
        assert not may_be(request, text), text


@pytest.mark.parametrize("choice", ["required", "any", {"type": "required"}])
async def test_a_call_may_be_demanded(choice: Any) -> None:
    request = await asked(tools=TOOLS, tool_choice=choice)
    assert may_be(request, CALL)
    assert may_be(request, CALL + "\n" + NOW_CALL)
    assert not may_be(request, "Hello")
    assert not may_be(request, "")


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "function": {"name": "now"}},
        {"type": "function", "name": "now"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NOW]}},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]},
    ],
)
async def test_a_tool_may_be_demanded_by_its_name_and_all_are_shown(choice: Any) -> None:
    on = scripts(NOW_CALL)
    await ask(on, tools=TOOLS, tool_choice=choice, source=HERMES + SHOWS)
    assert may_be(on.submitted[0], NOW_CALL)
    assert not may_be(on.submitted[0], CALL)
    assert not may_be(on.submitted[0], "Hello")
    assert '"weather"' in on.vocabulary.text(on.submitted[0].prompt)


async def test_tools_that_are_allowed_may_be_called_or_not() -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NOW]}}
    request = await asked(tools=TOOLS, tool_choice=allowed)
    assert may_be(request, NOW_CALL)
    assert may_be(request, "Hello")
    assert not may_be(request, CALL)


async def test_calls_side_by_side_may_be_forbidden() -> None:
    for choice in ("auto", "required"):
        request = await asked(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
        assert may_be(request, CALL)
        assert not may_be(request, CALL + "\n" + NOW_CALL)


async def test_no_call_is_one_where_none_may_be_made() -> None:
    on = scripts(CALL)
    reply = await ask(on, tools=TOOLS, tool_choice="none", source=HERMES + SHOWS)
    [choice] = reply.json["choices"]
    assert (choice["finish_reason"], "tool_calls" in choice["message"]) == ("stop", False)
    assert on.submitted[0].constraint is None
    assert on.vocabulary.text(on.submitted[0].prompt).startswith("null")


async def test_a_form_and_tools_go_together() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "t", "schema": {"type": "array", "items": {"const": 1}}}}
    request = await asked(tools=TOOLS, response_format=form)
    assert may_be(request, CALL)
    assert may_be(request, "[1, 1]")
    assert not may_be(request, "Hello")
    assert not may_be(request, "[1] " + CALL)
    assert not may_be(await asked(tools=TOOLS, response_format=form, tool_choice="required"), "[1]")


# --- what cannot be enforced ----------------------------------------------------------------------------

LOOSE: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"properties": {"a": {"uniqueItems": True}}}},
}
PLACE = "tools[0].function.parameters.properties.a.uniqueItems"


@pytest.mark.parametrize(("value", "is_valid"), [([1, 2], True), ([1, 1], False)])
async def test_what_of_a_schema_cannot_be_enforced_is_named_and_checked(value: Any, is_valid: bool) -> None:
    whole = (await ask(scripts(call_of("f", {"a": value})), tools=[LOOSE])).json["choices"][0]
    assert whole["corral_format"]["not_enforced"] == [PLACE]
    assert whole["corral_format"]["is_valid"] is is_valid
    assert ("'f'" in (whole["corral_format"]["problem"] or "")) is not is_valid
    events = (await ask(scripts(call_of("f", {"a": value})), tools=[LOOSE], stream=True)).events
    assert events[-1]["choices"][0]["corral_format"] == whole["corral_format"]
    assert all("corral_format" not in event["choices"][0] for event in events[:-1])


async def test_a_strict_tool_is_enforced_or_refused() -> None:
    strict = {"type": "function", "function": LOOSE["function"] | {"strict": True}}
    error = await refused(tools=[strict])
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", "tools[0].function.parameters")
    assert "$.properties.a.uniqueItems" in error.message
    assert (await asked(tools=[{"type": "function", "function": WEATHER["function"] | {"strict": True}}])).constraint


# --- the older fields -----------------------------------------------------------------------------------

FUNCTIONS = [WEATHER["function"], NOW["function"]]


async def test_functions_are_answered_with_a_function_call() -> None:
    reply = await ask(scripts(CALL), functions=FUNCTIONS)
    ChatCompletion.model_validate(reply.json, strict=True)
    [choice] = reply.json["choices"]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "weather", "arguments": '{"city": "Köln"}'}
    assert (choice["message"]["content"], "tool_calls" in choice["message"]) == (None, False)
    events = (await ask(scripts(CALL), functions=FUNCTIONS, stream=True)).events
    told = {"name": "", "arguments": ""}
    for event in events:
        ChatCompletionChunk.model_validate(event, strict=True)
        delta = event["choices"][0]["delta"]
        assert "tool_calls" not in delta
        for name, text in delta.get("function_call", {}).items():
            told[name] += text
    assert told == choice["message"]["function_call"]
    assert events[-1]["choices"][0]["finish_reason"] == "function_call"


async def test_of_functions_one_is_called_at_most_and_a_named_one_must_be() -> None:
    request = await asked(functions=FUNCTIONS)
    assert may_be(request, CALL)
    assert may_be(request, "Hello")
    assert not may_be(request, CALL + "\n" + NOW_CALL)
    named = await asked(functions=FUNCTIONS, function_call={"name": "now"})
    assert may_be(named, NOW_CALL)
    assert not may_be(named, CALL)
    assert not may_be(named, "Hello")
    assert (await asked(functions=FUNCTIONS, function_call="none")).constraint is None


async def test_a_conversation_with_a_function_call_goes_on() -> None:
    on = scripts("Sunny.")
    said = {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": '{"city": "K"}'}}
    result = {"role": "function", "name": "weather", "content": "sun"}
    reply = await ask(on, ("user", "hi"), said, result, functions=FUNCTIONS, source=HERMES + SHOWS)
    assert reply.json["choices"][0]["message"]["content"] == "Sunny."
    assert "sun" in on.vocabulary.text(on.submitted[0].prompt)


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"tool_choice": "required"}, "invalid_request_error", "tool_choice"),
        (
            {"tools": [], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "invalid_request_error",
            "tool_choice",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "invalid_request_error",
            "tool_choice",
        ),
        ({"tools": TOOLS, "tool_choice": "weather"}, "invalid_request_error", "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "invalid_request_error", "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "invalid_request_error", "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}},
            "invalid_request_error",
            "tool_choice",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "custom", "custom": {}}}, "unsupported_parameter", "tool_choice"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "unsupported_parameter", "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0]"),
        ({"tools": [{"type": "function"}]}, "invalid_request_error", "tools[0]"),
        ({"tools": [WEATHER, WEATHER]}, "invalid_request_error", "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, None, "tools[0].function.strict"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, None, "tools[0].function.name"),
        ({"tools": TOOLS, "functions": FUNCTIONS}, None, "functions"),
        ({"tools": TOOLS, "tool_choice": "auto", "function_call": "auto"}, None, "function_call"),
        ({"functions": FUNCTIONS, "function_call": {"name": "f"}}, None, "function_call"),
        ({"functions": [{"name": "a b"}]}, None, "functions[0].name"),
        ({"function_call": {"name": "f"}}, None, "function_call"),
    ],
    ids=lambda one: str(one)[:60],
)
async def test_what_cannot_be_chosen_is_refused_by_name(fields: dict[str, Any], code: str | None, param: str) -> None:
    error = await refused(**fields)
    assert (error.status, error.param) == (400, param)
    assert code is None or error.code == code
    assert f"'{param}" in error.message


async def test_a_model_without_a_template_for_tools_says_so() -> None:
    error = (await chat(scripts("x"), tools=TOOLS)).error
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", "tools")
    error = (await chat(scripts("x"), functions=FUNCTIONS)).error
    assert error.param == "functions"
