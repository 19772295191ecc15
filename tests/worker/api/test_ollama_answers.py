"""Forms, tools and thoughts in Ollama's dialect over a real socket; answers are read token by token."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.engine import FakeEngine, FakeVocabulary, make_facts
from tests.support.called_tools import (
    ALWAYS,
    CALLING,
    CITY,
    PLAIN,
    SWITCHED,
    ZONE,
    allows,
    call,
    forced_after,
    one_by_one,
)
from tests.support.ollama_worker import ask, engine, lines, prompt_text
from tests.support.worker_client import WorkerReply
from worker.engine.request import FinishReason

HI = {"role": "user", "content": "hi"}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "How it is.", "parameters": CITY}}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": ZONE}}
TOOLS = [WEATHER, CLOCK]
ROME, UTC = call("weather", {"city": "Rome"}), call("clock", {"zone": "UTC"})
LONG = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5_000_000}}}
ENDING = "\n</think>\n\n"


def saying(text: str, finish: FinishReason = FinishReason.STOP, **options: Any) -> FakeEngine:
    return engine(*one_by_one(text), finish=finish, facts=make_facts(context=4096), **options)


async def chat(on: FakeEngine, *messages: Any, source: str = CALLING, **fields: Any) -> WorkerReply:
    return await ask(on, "/api/chat", source, **{"messages": messages or [HI], **fields})


async def generate(on: FakeEngine, *, source: str | None = CALLING, **fields: Any) -> WorkerReply:
    return await ask(on, "/api/generate", source, **{"prompt": "hi", **fields})


def joined(reply: WorkerReply) -> dict[str, Any]:
    """Return the message that a client puts together of a stream."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for line in lines(reply):
        piece = line["message"]
        message["content"] += piece["content"]
        if "thinking" in piece:
            message["thinking"] = message.get("thinking", "") + piece["thinking"]
        if "tool_calls" in piece:
            message["tool_calls"] = [*message.get("tool_calls", ()), *piece["tool_calls"]]
    return message


def called(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls", ())]


# --- tools ------------------------------------------------------------------------------------------------


async def test_calls_are_told_whole_and_with_their_arguments_as_objects() -> None:
    answer = f"<think>Both.</think>\n\nLet me look.\n{ROME}\n{UTC}"
    reply = await chat(saying(answer), tools=TOOLS)
    whole = (await chat(saying(answer), tools=TOOLS, stream=False)).json
    assert joined(reply) == whole["message"]
    assert called(whole["message"]) == [("weather", {"city": "Rome"}), ("clock", {"zone": "UTC"})]
    assert (whole["message"]["content"], whole["message"]["thinking"]) == ("Let me look.", "Both.")
    assert [len(line["message"]["tool_calls"]) for line in lines(reply) if "tool_calls" in line["message"]] == [1, 1]
    assert lines(reply)[-1]["done_reason"] == whole["done_reason"] == "stop"


@pytest.mark.parametrize("num_kept", [25, 40, 50])
async def test_a_call_that_the_length_cuts_is_dropped_and_the_whole_one_before_it_is_told(num_kept: int) -> None:
    answer = f"{UTC}\n{ROME[:num_kept]}"
    reply = await chat(saying(answer, FinishReason.LENGTH), tools=TOOLS)
    whole = (await chat(saying(answer, FinishReason.LENGTH), tools=TOOLS, stream=False)).json
    for message in (joined(reply), whole["message"]):
        assert called(message) == [("clock", {"zone": "UTC"})]
        assert message["content"] == ""
    assert lines(reply)[-1]["done_reason"] == whole["done_reason"] == "length"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_call_that_a_stop_string_cuts_is_dropped(is_stream: bool) -> None:
    reply = await chat(saying(f"Hm. {ROME}"), tools=TOOLS, options={"stop": ["Rome"]}, stream=is_stream)
    message = joined(reply) if is_stream else reply.json["message"]
    assert (message["content"].strip(), called(message)) == ("Hm.", [])
    assert reply.end["outcome"] == "ok"


async def test_a_call_that_was_complete_at_the_length_is_told() -> None:
    reply = await chat(saying(UTC[: UTC.index("}\n") + 1], FinishReason.LENGTH), tools=TOOLS)
    assert called(joined(reply)) == [("clock", {"zone": "UTC"})]


async def test_answers_are_held_to_the_schemas_of_the_tools() -> None:
    on = saying("ok")
    await chat(on, tools=TOOLS)
    assert allows(on, f"Words. {ROME}\n{UTC}")
    assert not allows(on, call("clock", {"zone": "EST"}))
    assert not allows(on, call("king", {}))


async def test_the_template_is_shown_the_tools_as_they_were_sent() -> None:
    on = saying("ok")
    await chat(on, tools=TOOLS, source="{{ tools | tojson }}<tool_call>")
    assert prompt_text(on).startswith(
        '[{"type": "function", "function": {"name": "weather", "description": "How it is."'
    )


async def test_what_looks_like_a_call_is_text_where_no_tool_is_offered() -> None:
    for tools in (None, []):
        message = (await chat(saying(ROME), tools=tools, stream=False)).json["message"]
        assert message == {"role": "assistant", "content": ROME}


async def test_a_choice_and_a_single_call_may_be_demanded_as_in_openais_chat() -> None:
    on = saying("ok")
    await chat(on, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert allows(on, ROME)
    assert not allows(on, "Words")
    assert not allows(on, f"{ROME}\n{UTC}")
    on = saying("ok")
    await chat(on, tools=TOOLS, tool_choice="none")
    assert on.submitted[0].constraint is None
    assert "weather" not in prompt_text(on)


async def test_results_of_tools_are_shown_with_the_calls_that_clients_send_back() -> None:
    on = saying("Sunny.")
    use = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    told = {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [use]}
    await chat(on, HI, told, {"role": "tool", "tool_name": "weather", "content": "sunny"}, tools=TOOLS)
    shown = prompt_text(on)
    assert '<think>Hm.</think><tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>' in shown
    assert "<|im_start|>tool\nsunny<|im_end|>" in shown


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"parameters": CITY}}]}, "tools[0].function.name"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": TOOLS, "tool_choice": "king"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
async def test_tools_that_cannot_be_offered_or_demanded_are_a_400_that_names_them(
    fields: dict[str, Any], param: str
) -> None:
    on = saying("never")
    error = (await chat(on, **fields)).error
    assert (error.status, error.param) == (400, param)
    assert not on.submitted


# --- forms ------------------------------------------------------------------------------------------------


async def test_json_is_any_object() -> None:
    for ask_for in (chat, generate):
        on = saying('{"a": 1}')
        await ask_for(on, format="json")
        assert allows(on, '{"a": [1, "b"]}')
        assert not allows(on, "Words")
        assert not allows(on, "[1]")


async def test_a_schema_is_what_the_text_is_held_to() -> None:
    for ask_for in (chat, generate):
        on = saying('{"city": "Rome"}')
        await ask_for(on, format=CITY)
        assert allows(on, '{"city": "Rome"}')
        assert not allows(on, '{"city": 5')
        assert not allows(on, "Words")


async def test_an_empty_schema_is_any_json() -> None:
    on = saying("[1]")
    await chat(on, format={})
    assert allows(on, "[1]")
    assert allows(on, '"a"')
    assert not allows(on, "Words")


async def test_an_empty_format_is_none() -> None:
    for ask_for in (chat, generate):
        for nothing in ("", None):
            on = saying("ok")
            await ask_for(on, format=nothing)
            assert on.submitted[0].constraint is None


@pytest.mark.parametrize("fields", [{"raw": True}, {"source": None}, {"suffix": "yz"}])
async def test_a_prompt_without_a_template_may_have_a_form_too(fields: dict[str, Any]) -> None:
    on = saying('{"city": "Rome"}', vocabulary=FakeVocabulary(has_fim=True))
    reply = await generate(on, format=CITY, stream=False, **fields)
    assert reply.json["response"] == '{"city": "Rome"}'
    assert allows(on, '{"city": "Rome"}')
    assert not allows(on, "<think>")
    assert not allows(on, "Words")


async def test_a_form_holds_the_answer_behind_the_thoughts() -> None:
    for ask_for in (chat, generate):
        on = saying('Hm.</think>{"city": "Rome"}')
        await ask_for(on, format=CITY, source=ALWAYS)
        assert allows(on, 'Hm.\n</think>\n\n{"city": "Rome"}')
        assert not allows(on, "Hm.\n</think>\n\nWords")


async def test_tools_and_a_form_leave_the_choice_between_a_call_and_such_a_text() -> None:
    on = saying(UTC)
    await chat(on, format=CITY, tools=TOOLS)
    assert allows(on, UTC)
    assert allows(on, '{"city": "Rome"}')
    assert not allows(on, "Words")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("answer", ['{"a": "x"}', '{"a": 5}'])
async def test_what_cannot_be_enforced_is_checked_and_told_with_the_end(answer: str, is_stream: bool) -> None:
    for ask_for in (chat, generate):
        reply = await ask_for(saying(answer), format=LONG, stream=is_stream)
        last = lines(reply)[-1] if is_stream else reply.json
        assert last["corral_format"]["not_enforced"] == ["$.properties.a.maxLength"]
        assert last["corral_format"]["is_valid"] is ("x" in answer)
        assert is_stream is False or not any("corral_format" in line for line in lines(reply)[:-1])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"format": "yaml"}, "format"),
        ({"format": []}, "format"),
        ({"format": {"type": "nonsense"}}, "format"),
        ({"format": {"type": "array", "uniqueItems": True}}, "format"),
        ({"options": {"format": "json"}}, "options.format"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"grammar": 'root ::= "a"'}, "grammar"),
        ({"regex": "a+"}, "regex"),
        ({"options": {"grammar": 'root ::= "a"'}}, "options.grammar"),
        ({"options": {"choice": ["a"]}}, "options.choice"),
        ({"thinking_budget_tokens": 5}, "thinking_budget_tokens"),
        ({"reasoning_format": "none"}, "reasoning_format"),
    ],
)
async def test_a_form_that_cannot_be_had_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    for ask_for in (chat, generate):
        on = saying("never")
        error = (await ask_for(on, **fields)).error
        assert (error.status, error.param) == (400, param)
        assert f"'{param.rpartition('.')[2]}'" in error.message
        assert not on.submitted


# --- thoughts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "answer"), [(SWITCHED, "<think>\nHm.\n</think>\n\nFour."), (ALWAYS, "Hm.\n</think>\n\nFour.")]
)
async def test_thoughts_are_told_beside_the_text(source: str, answer: str) -> None:
    message = {"role": "assistant", "content": "Four.", "thinking": "Hm."}
    assert joined(await chat(saying(answer), source=source, think=True)) == message
    assert (await chat(saying(answer), source=source, stream=False)).json["message"] == message
    whole = (await generate(saying(answer), source=source, stream=False)).json
    assert (whole["response"], whole["thinking"]) == ("Four.", "Hm.")
    streamed = lines(await generate(saying(answer), source=source))
    assert "".join(line["response"] for line in streamed) == "Four."
    assert "".join(line.get("thinking", "") for line in streamed) == "Hm."


async def test_the_context_of_a_reply_has_its_thoughts_as_well() -> None:
    on = saying("Hm.</think>Four.")
    reply = await generate(on, source=ALWAYS, stream=False)
    assert reply.json["context"] == [*on.submitted[0].prompt, *b"Hm.</think>Four."]
    next_one = saying("ok")
    await generate(next_one, source=ALWAYS, context=reply.json["context"])
    assert prompt_text(next_one).startswith(on.vocabulary.text(reply.json["context"]))


async def test_a_thought_that_the_length_cuts_is_a_thought() -> None:
    reply = await chat(saying("Hm. Wel", FinishReason.LENGTH), source=ALWAYS)
    assert joined(reply) == {"role": "assistant", "content": "", "thinking": "Hm. Wel"}
    assert lines(reply)[-1]["done_reason"] == "length"


async def test_a_raw_prompt_has_its_thoughts_in_the_text() -> None:
    answer = "<think>Hm.</think>Four."
    assert (await generate(saying(answer), source=ALWAYS, raw=True, stream=False)).json["response"] == answer


async def test_a_model_that_always_thinks_ends_its_thought_at_once_where_none_is_wanted() -> None:
    for ask_for in (chat, generate):
        on = saying("ok")
        await ask_for(on, source=ALWAYS, think=False)
        assert forced_after(on, "") == ENDING
        assert forced_after(on, ENDING) == ""


async def test_a_model_with_a_switch_is_told_and_held_to_nothing() -> None:
    for ask_for in (chat, generate):
        for think, told in ((True, "[on]"), (False, "[off]")):
            on = saying("ok")
            await ask_for(on, source=SWITCHED, think=think)
            assert prompt_text(on).endswith(told)
            assert on.submitted[0].constraint is None


async def test_a_model_that_always_thinks_may_be_told_to() -> None:
    for think in (True, None):
        on = saying("Hm.</think>Four.")
        assert (await chat(on, source=ALWAYS, think=think, stream=False)).json["message"]["thinking"] == "Hm."
    error = (await chat(saying("never"), source=PLAIN, think=True)).error
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", "think")
