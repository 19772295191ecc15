"""The Responses dialect over a real socket, checked with OpenAI's own types; the engine is a fake with a script."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.engine import FakeEngine, Script
from tests.support.openai_types import response_events, strict_event, strict_response
from tests.support.worker_client import WorkerReply, serve
from tests.worker.api.test_openai_chat import CHATML, engine, prompt_text, template
from worker.api import openai_responses
from worker.contract import FrameType, Header
from worker.engine.request import FinishReason

PATH = "/v1/responses"
COUNT = "/v1/responses/input_tokens"
REASONS = "{{ reasoning_effort }}/" + CHATML


async def ask(
    on: FakeEngine, input_: Any = "hi", *, path: str = PATH, source: str = CHATML, history: bytes = b"", **fields: Any
) -> WorkerReply:
    body = history + json.dumps({"input": input_, **fields}).encode()
    headers = {Header.HISTORY_BYTES.value: str(len(history))} if history else {}
    async with serve(on, template=template(source, on.vocabulary), template_source=source) as worker:
        return await worker.post(path, body, **headers)


def stored(reply: WorkerReply) -> list[bytes]:
    [frame] = [frame for frame in reply.frames if frame.type is FrameType.STORE]
    return frame.payload.split(b"\n")


def items_of(reply: WorkerReply) -> bytes:
    return b"\n".join(stored(reply)[2:])


# --- replies --------------------------------------------------------------------------------------------


async def test_a_whole_reply_is_a_strict_response() -> None:
    reply = await ask(engine(num_cached=[4]))
    response = strict_response(reply.json)
    assert (response.id, response.created_at, response.model) == ("resp_r1", 1700000000, "tiny")
    assert (response.status, response.output_text, response.incomplete_details) == ("completed", "Hello you", None)
    assert response.usage is not None
    assert response.usage.output_tokens == 9
    assert response.usage.total_tokens == response.usage.input_tokens + 9
    assert response.usage.input_tokens_details.cached_tokens == 4
    assert (reply.json["timings"]["predicted_n"], reply.json["seed"]) == (9, 7)
    took_s = (reply.json["timings"]["prompt_ms"] + reply.json["timings"]["predicted_ms"]) / 1000
    assert 0 < took_s <= reply.json["completed_at"] - 1700000000 < took_s + 1
    assert reply.shown_type == "application/json"


async def test_a_stream_ends_with_the_response_that_a_whole_reply_is() -> None:
    streamed, whole = await ask(engine(), stream=True), await ask(engine())
    assert streamed.shown_type == "text/event-stream"
    events = response_events(streamed.body)
    for event in events:
        strict_event(event)
    assert "".join(event["delta"] for event in events if event["type"].endswith("text.delta")) == "Hello you"
    last = events[-1]["response"]
    assert last["output"] == whole.json["output"]
    assert {name: value for name, value in last.items() if name != "timings"} == {
        name: value for name, value in whole.json.items() if name != "timings"
    }


async def test_settings_are_told_as_they_hold() -> None:
    said = {
        "instructions": "be brief",
        "max_output_tokens": 20,
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "store": False,
        "temperature": 0.25,
        "tool_choice": "none",
        "top_p": 0.5,
        "truncation": "disabled",
        "user": "u",
    }
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    reply = await ask(engine(), tools=[tool], **said)
    strict_response(reply.json)
    assert {name: reply.json[name] for name in said} == said
    assert reply.json["tools"][0]["name"] == "look"
    unsaid = (await ask(engine())).json
    assert (unsaid["temperature"], unsaid["top_p"]) == (0.8, 0.95)
    assert (unsaid["tool_choice"], unsaid["service_tier"], unsaid["store"]) == ("auto", "default", True)


async def test_an_answer_that_is_cut_off_is_incomplete() -> None:
    on = engine(finish=FinishReason.LENGTH)
    reply = await ask(on, max_output_tokens=9)
    response = strict_response(reply.json)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert on.submitted[0].max_tokens == 9


async def test_sampling_fields_reach_the_engine() -> None:
    on = engine()
    await ask(on, seed=5, min_p=0.1, top_k=7, stop=["x"], temperature=0)
    sampling = on.submitted[0].sampling
    assert (sampling.seed, sampling.min_p, sampling.top_k, sampling.temperature) == (5, 0.1, 7, 0)


async def test_logprobs_are_the_same_streamed_or_not() -> None:
    wanted: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = (await ask(engine(), **wanted)).json
    strict_response(whole)
    logprobs = whole["output"][0]["content"][0]["logprobs"]
    assert len(logprobs) == 9
    assert {len(one["top_logprobs"]) for one in logprobs} == {2}
    events = response_events((await ask(engine(), stream=True, **wanted)).body)
    told = [one for event in events if event["type"].endswith("text.delta") for one in event["logprobs"]]
    assert told == logprobs
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == logprobs


async def test_logprobs_of_no_alternatives_are_those_of_the_tokens_alone() -> None:
    whole = (await ask(engine(), include=["message.output_text.logprobs"])).json
    assert {len(one["top_logprobs"]) for one in whole["output"][0]["content"][0]["logprobs"]} == {0}
    assert (await ask(engine(), top_logprobs=0)).json["output"][0]["content"][0]["logprobs"] == []


async def test_failures_of_the_engine_are_told_as_such() -> None:
    on = FakeEngine(answers=[Script([b"a"], FinishReason.ERROR)])
    reply = await ask(on, stream=True)
    assert FrameType.STORE not in [frame.type for frame in reply.frames]
    assert reply.end["outcome"] == "error"


# --- prompts and conversations --------------------------------------------------------------------------


async def test_input_and_instructions_become_the_prompt() -> None:
    on = engine()
    await ask(on, [{"role": "user", "content": "hi"}], instructions="be brief")
    assert prompt_text(on) == (
        "<|im_start|>system\nbe brief<|im_end|><|im_start|>user\nhi<|im_end|><|im_start|>assistant\n"
    )


async def test_an_unfinished_message_of_the_assistants_is_continued() -> None:
    on = engine()
    await ask(on, [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Sure", "status": "incomplete"}])
    assert prompt_text(on).endswith("<|im_start|>assistant\nSure")


async def test_what_is_kept_is_the_response_and_all_items() -> None:
    reply = await ask(engine(), instructions="be brief")
    head, response, *items = stored(reply)
    assert json.loads(head) == {"id": "resp_r1", "num_input_items": 1}
    assert response == reply.body
    asked, answered = map(json.loads, items)
    assert asked["content"] == [{"type": "input_text", "text": "hi"}]
    assert answered == reply.json["output"][0]


async def test_log_probabilities_are_kept_in_the_response_and_not_carried_along() -> None:
    reply = await ask(engine(), include=["message.output_text.logprobs"])
    _, response, _, answered = map(json.loads, stored(reply))
    assert response["output"][0]["content"][0]["logprobs"]
    assert answered["content"][0]["logprobs"] == []


async def test_what_is_kept_of_a_stream_comes_before_its_end() -> None:
    reply = await ask(engine(), stream=True)
    kinds = [frame.type for frame in reply.frames]
    assert kinds[-3:] == [FrameType.STORE, FrameType.DATA, FrameType.END]
    assert json.loads(stored(reply)[1]) == response_events(reply.body)[-1]["response"]


async def test_nothing_is_kept_for_clients_that_do_not_want_it() -> None:
    reply = await ask(engine(), store=False)
    assert FrameType.STORE not in [frame.type for frame in reply.frames]


async def test_a_conversation_goes_on_from_what_was_kept_without_its_instructions() -> None:
    first = await ask(engine(), "hi", instructions="be brief")
    on = engine()
    second = await ask(on, "more", history=items_of(first), previous_response_id="resp_r1", instructions="be long")
    assert prompt_text(on) == (
        "<|im_start|>system\nbe long<|im_end|><|im_start|>user\nhi<|im_end|><|im_start|>assistant\nHello you<|im_end|>"
        "<|im_start|>user\nmore<|im_end|><|im_start|>assistant\n"
    )
    assert second.json["previous_response_id"] == "resp_r1"
    assert json.loads(stored(second)[0])["num_input_items"] == 3
    assert items_of(second).startswith(items_of(first) + b"\n")
    assert len(stored(second)) == 2 + 4


async def test_a_conversation_may_be_referred_to_by_its_items() -> None:
    first = await ask(engine(), [{"role": "user", "content": "hi", "id": "msg_9"}])
    on = engine()
    reference = {"type": "item_reference", "id": "msg_9"}
    await ask(on, [reference], history=items_of(first), previous_response_id="resp_r1")
    assert prompt_text(on).count("user\nhi<|im_end|>") == 2


async def test_a_response_that_nothing_is_known_of_is_refused() -> None:
    assert (await ask(engine(), previous_response_id="resp_x")).error.param == "previous_response_id"


async def test_a_conversation_that_is_too_long_to_be_kept_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_responses, "MAX_STORED_BYTES", 150)
    assert (await ask(engine(), "x" * 100)).error.param == "store"
    assert (await ask(engine(), "x" * 100, store=False)).json["status"] == "completed"


# --- counting -------------------------------------------------------------------------------------------


async def test_the_count_is_the_prompt_that_a_response_would_have() -> None:
    first = await ask(engine())
    for fields in (
        {},
        {"instructions": "be brief"},
        {"previous_response_id": "resp_r1", "history": items_of(first), "stream": True},
    ):
        on = engine()
        await ask(on, "hello there", **fields)
        counted = await ask(engine(), "hello there", path=COUNT, **fields)
        assert counted.json == {"object": "response.input_tokens", "input_tokens": len(on.submitted[0].prompt)}


async def test_an_input_that_does_not_fit_is_counted_all_the_same() -> None:
    long = "x" * 1000
    error = (await ask(engine(), long)).error
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "input")
    assert "maximum context length is 256 tokens" in error.message
    assert (await ask(engine(), long, path=COUNT)).json["input_tokens"] > 1000


async def test_the_count_of_a_chat_is_the_prompt_that_it_would_have() -> None:
    on = engine()
    listed = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    async with serve(on, template=template(), template_source=CHATML) as worker:
        counted = await worker.post("/v1/chat/completions/input_tokens", {"messages": listed})
        assert not on.submitted
        await worker.post("/v1/chat/completions", {"messages": listed})
    assert counted.json == {"object": "response.input_tokens", "input_tokens": len(on.submitted[0].prompt)}


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"text": {"format": {"type": "json_schema", "schema": {"uniqueItems": True}}}}, "text.format.schema"),
        ({"reasoning_format": "none"}, "reasoning_format"),
        ({"thinking_budget_tokens": 5}, "thinking_budget_tokens"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"regex": "a"}, "regex"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "none"}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"messages": []}, "messages"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"n": 2}, "n"),
        ({"return_progress": True}, "return_progress"),
        ({"timings_per_token": True}, "timings_per_token"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = (await ask(engine(), **fields)).error
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_": ""}, "input"),
        ({"input_": []}, "input"),
        ({"input_": None}, "input"),
        ({"input_": {"role": "user"}}, "input"),
        ({"instructions": 5}, "instructions"),
        ({"instructions": ["x"]}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 1e30}, "max_output_tokens"),
        ({"max_tool_calls": 2**40}, "max_tool_calls"),
        ({"max_output_tokens": 5, "max_tokens": 6}, "max_output_tokens"),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "reasoning.effort"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": ["x"]}, "include"),
        ({"include": "message.output_text.logprobs"}, "include"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"temperature": 1e9}, "temperature"),
        ({"store": "yes"}, "store"),
        ({"text": {"format": {}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "t"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}, "strict": "yes"}}}, "text.format.strict"),
        ({"text": {"format": "text"}}, "text.format"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {"type": "array"}}]}, "tools[0].parameters"),
        (
            {"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function", "name": "g"}},
            "tool_choice",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "f"}, "tool_choice"),
    ],
)
async def test_a_wrong_field_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = (await ask(engine(), **fields)).error
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize(
    "fields",
    [
        {"background": False, "conversation": None, "prompt": None, "service_tier": "auto"},
        {"reasoning": {"effort": "none", "summary": None, "context": "auto", "mode": "standard"}},
        {"reasoning": {"effort": None, "summary": None}, "text": {"format": {"type": "text"}, "verbosity": "medium"}},
        {"include": ["reasoning.encrypted_content", "web_search_call.results"], "tools": [], "tool_choice": "auto"},
        {"stream_options": {"include_obfuscation": False}, "metadata": {}, "parallel_tool_calls": True},
        {"something_new": 1, "prompt_cache_retention": "24h"},
    ],
)
async def test_what_asks_for_nothing_passes(fields: dict[str, Any]) -> None:
    assert strict_response((await ask(engine(), **fields)).json).status == "completed"


@pytest.mark.parametrize("name", ["max_output_tokens", "max_tokens", "max_completion_tokens"])
async def test_the_length_may_be_said_by_chats_names_as_rules_of_a_model_do(name: str) -> None:
    on = engine()
    reply = await ask(on, **{name: 7})
    assert (on.submitted[0].max_tokens, reply.json["max_output_tokens"]) == (7, 7)


async def test_effort_is_given_to_templates_that_know_it() -> None:
    on = engine()
    reply = await ask(on, source=REASONS, reasoning={"effort": "low"})
    assert prompt_text(on).startswith("low/")
    assert reply.json["reasoning"] == {"effort": "low", "summary": None}
    on = engine()
    await ask(on, source=REASONS, reasoning_effort="low")
    assert prompt_text(on).startswith("low/")
