"""Tools in Anthropic's dialect over a real socket: what is offered, what must be called, and how calls are told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.engine import make_facts
from tests.support.called_tools import CALLING, CITY, PLAIN, WITHOUT_TOOLS, ZONE, allows, call, one_by_one
from tests.worker.api.test_anthropic_messages import HI, count, engine, prompt_text, send
from tests.worker.api.test_anthropic_reply import events_of, put_together
from worker.engine.request import FinishReason

WEATHER: dict[str, Any] = {"name": "weather", "description": "How it is there.", "input_schema": CITY}
CLOCK: dict[str, Any] = {"name": "clock", "input_schema": ZONE}
TOOLS = [WEATHER, CLOCK]
ROME, UTC = call("weather", {"city": "Rome"}), call("clock", {"zone": "UTC"})


def saying(text: str, finish: FinishReason = FinishReason.STOP) -> Any:
    return engine(*one_by_one(text), finish=finish, facts=make_facts(context=100_000))


# --- calls ------------------------------------------------------------------------------------------------


async def test_words_and_calls_are_blocks_and_the_message_ends_with_tool_use() -> None:
    message = (await send(saying(f"Let me look.\n{ROME}\n{UTC}"), source=CALLING, tools=TOOLS)).json
    text, weather, clock = message["content"]
    assert text == {"type": "text", "text": "Let me look."}
    assert (weather["type"], weather["name"], weather["input"]) == ("tool_use", "weather", {"city": "Rome"})
    assert (clock["type"], clock["name"], clock["input"]) == ("tool_use", "clock", {"zone": "UTC"})
    assert len({weather["id"], clock["id"]}) == 2
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)


async def test_a_streamed_call_comes_piece_by_piece_and_joins_to_the_whole_one() -> None:
    answer = f"Let me look.\n{ROME}\n{UTC}"
    whole = (await send(saying(answer), source=CALLING, tools=TOOLS)).json
    _, *blocks, delta, stop = events_of((await send(saying(answer), source=CALLING, tools=TOOLS, stream=True)).body)
    assert put_together(blocks) == whole["content"]
    pieces = [one for one in blocks if one.get("delta", {}).get("type") == "input_json_delta"]
    assert len(pieces) > 10
    assert (delta["delta"]["stop_reason"], stop["type"]) == ("tool_use", "message_stop")


async def test_arguments_that_the_length_cuts_are_told_as_they_are_and_the_reason_is_the_length() -> None:
    answer = ROME[: ROME.index('me"}')]
    message = (await send(saying(answer, FinishReason.LENGTH), source=CALLING, tools=TOOLS)).json
    assert message["content"][-1]["input"] == {"invalid_json": '{"city": "Ro'}
    assert message["stop_reason"] == "max_tokens"
    reply = await send(saying(answer, FinishReason.LENGTH), source=CALLING, tools=TOOLS, stream=True)
    events = events_of(reply.body)
    told = "".join(one["delta"].get("partial_json", "") for one in events if one["type"] == "content_block_delta")
    assert told == '{"city": "Ro'
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_call_that_is_cut_before_it_has_begun_is_dropped(is_stream: bool) -> None:
    on = saying(f"Wait.{ROME[:25]}", FinishReason.LENGTH)
    reply = await send(on, source=CALLING, tools=TOOLS, stream=is_stream)
    content = put_together(events_of(reply.body)[1:-2]) if is_stream else reply.json["content"]
    told = events_of(reply.body)[-2]["delta"] if is_stream else reply.json
    assert content == [{"type": "text", "text": "Wait."}]
    assert told["stop_reason"] == "max_tokens"


async def test_what_looks_like_a_call_is_text_where_no_tool_is_offered() -> None:
    message = (await send(saying(ROME), source=CALLING)).json
    assert message["content"] == [{"type": "text", "text": ROME}]
    assert message["stop_reason"] == "end_turn"


# --- what may and must be called --------------------------------------------------------------------------


async def test_the_template_is_shown_the_tools_in_the_form_that_it_knows() -> None:
    on = saying("ok")
    await send(on, source="{{ tools | tojson }}<tool_call>", tools=TOOLS)
    shown = prompt_text(on)
    assert shown.startswith('[{"type": "function", "function": {"name": "weather", "description": "How it is there.", ')
    assert '"parameters": {"type": "object", "properties": {"zone"' in shown
    assert "input_schema" not in shown


@pytest.mark.parametrize(
    ("choice", "allowed", "forbidden"),
    [
        (None, ["Hello", ROME, f"{ROME}\n{UTC}", f"Hm. {UTC} Well"], [call("weather", 5), call("king", {})]),
        ({"type": "auto"}, ["Hello", ROME], [call("clock", {"zone": "EST"})]),
        ({"type": "any"}, [ROME, UTC, f"{ROME}\n{UTC}"], ["Hello", call("weather", {})]),
        ({"type": "tool", "name": "clock"}, [UTC], ["Hello", ROME, f"{UTC}\n{UTC}"]),
        ({"type": "any", "disable_parallel_tool_use": True}, [ROME], [f"{ROME}\n{UTC}"]),
        ({"type": "auto", "disable_parallel_tool_use": True}, ["Hello", f"Hm. {ROME}"], [f"{ROME}\n{UTC}"]),
    ],
)
async def test_answers_are_held_to_the_choice_and_to_the_schemas(
    choice: Any, allowed: list[str], forbidden: list[str]
) -> None:
    on = saying(UTC)
    reply = await send(on, source=PLAIN, tools=TOOLS, tool_choice=choice)
    assert reply.json["stop_reason"] == "tool_use"
    assert [text for text in allowed if not allows(on, text)] == []
    assert [text for text in forbidden if allows(on, text)] == []


async def test_tools_that_may_not_be_called_are_not_shown_and_hold_the_answer_to_nothing() -> None:
    on = saying(ROME)
    reply = await send(on, source=CALLING, tools=TOOLS, tool_choice={"type": "none"})
    assert reply.json["content"] == [{"type": "text", "text": ROME}]
    assert "weather" not in prompt_text(on)
    assert on.submitted[0].constraint is None


LOOSE = {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_what_of_a_schema_cannot_be_enforced_is_checked_and_told(is_stream: bool) -> None:
    for tags, is_valid in ((["a", "b"], True), (["a", "a"], False)):
        on = saying(call("tag", {"tags": tags}))
        tools = [{"name": "tag", "input_schema": LOOSE}]
        reply = await send(on, source=CALLING, tools=tools, stream=is_stream)
        told = (events_of(reply.body)[-2] if is_stream else reply.json)["corral_format"]
        assert told["not_enforced"] == ["tools[0].input_schema.properties.tags.uniqueItems"]
        assert told["is_valid"] is is_valid
        assert (told["problem"] is None) is is_valid


async def test_a_strict_tool_is_enforced_or_refused() -> None:
    on = saying("ok")
    await send(on, source=CALLING, tools=[WEATHER | {"strict": True}])
    assert not allows(on, call("weather", {"city": 5}))
    error = (
        await send(saying("ok"), source=CALLING, tools=[{"name": "t", "input_schema": LOOSE, "strict": True}])
    ).error
    assert (error.status, error.code) == (400, "unsupported_parameter")
    assert "uniqueItems" in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [WEATHER, {"type": "bash_20250124", "name": "bash"}]}, "tools[1]"),
        ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}]}, "tools[0]"),
        ({"tools": [WEATHER | {"allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers"),
        ({"tools": [WEATHER | {"strict": "yes"}]}, "tools[0].strict"),
        ({"tools": [{"input_schema": CITY}]}, "tools[0].name"),
        ({"tools": [{"name": "two words", "input_schema": CITY}]}, "tools[0].name"),
        ({"tools": [{"name": "t", "input_schema": 5}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "t", "input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
        ({"tools": [WEATHER | {"description": 5}]}, "tools[0].description"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "king"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
    ],
)
async def test_tools_that_cannot_be_offered_or_demanded_are_a_400_that_names_them(
    fields: dict[str, Any], param: str
) -> None:
    on = saying("never")
    error = (await send(on, source=CALLING, **fields)).error
    assert (error.status, error.param) == (400, param)
    assert not on.submitted


async def test_a_tool_of_their_service_is_refused_with_what_to_offer_instead() -> None:
    tool = {"type": "web_search_20250305", "name": "web_search"}
    message = (await send(saying("never"), source=CALLING, tools=[tool])).error.message
    assert '"web_search_20250305"' in message
    assert "'input_schema'" in message


async def test_a_tool_of_the_type_custom_with_marks_for_the_cache_is_the_same_tool() -> None:
    plain, marked = saying("ok"), saying("ok")
    await send(plain, source=CALLING, tools=[WEATHER])
    more = {"type": "custom", "cache_control": {"type": "ephemeral"}, "allowed_callers": ["direct"], "strict": None}
    await send(marked, source=CALLING, tools=[WEATHER | more])
    assert prompt_text(plain) == prompt_text(marked)


# --- conversations ----------------------------------------------------------------------------------------

AGENT_TOOLS = [
    {
        "name": f"Tool{number}",
        "description": f"Does the thing number {number}. " * 20,
        "input_schema": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {
                "file_path": {"type": "string", "description": "The absolute path"},
                "limit": {"type": "number", "exclusiveMinimum": 0},
                "mode": {"type": "string", "enum": ["content", "count"]},
                "edits": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "properties": {"old": {"type": "string"}, "new": {"type": "string"}},
                        "required": ["old", "new"],
                        "additionalProperties": False,
                    },
                },
            },
            "required": ["file_path"],
            "additionalProperties": False,
        },
    }
    for number in range(20)
]


async def test_a_request_as_coding_agents_send_it_is_answered_with_a_call() -> None:
    """Twenty tools, blocks marked for the cache, a history of thoughts, calls and results, and fields of betas."""
    edit = call("Tool7", {"file_path": "/a.py", "edits": [{"old": "x", "new": "y"}]})
    on = saying(f"<think>Now edit.</think>I will edit it.\n{edit}")
    marked = {"cache_control": {"type": "ephemeral"}}
    message = (
        await send(
            on,
            source=CALLING,
            model={},
            max_tokens=32000,
            tools=AGENT_TOOLS,
            system=[{"type": "text", "text": "You are an agent.", **marked}],
            thinking={"type": "adaptive"},
            metadata={"user_id": "u"},
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            output_config={"effort": "high"},
            messages=[
                {"role": "user", "content": [{"type": "text", "text": "Mend it.", **marked}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Read first.", "signature": "x"},
                        {"type": "tool_use", "id": "toolu_1", "name": "Tool1", "input": {"file_path": "/a.py"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "x", **marked}],
                },
            ],
        )
    ).json
    thought, text, use = message["content"]
    assert (thought["thinking"], text["text"]) == ("Now edit.", "I will edit it.")
    assert (use["name"], use["input"]["edits"]) == ("Tool7", [{"old": "x", "new": "y"}])
    assert message["stop_reason"] == "tool_use"
    assert allows(on, f"Hm.\n{edit}")
    assert not allows(on, f"Hm.\n{call('Tool7', {'file_path': 5})}")
    shown = prompt_text(on)
    assert shown.count('"type": "function"') == 20
    assert "<think>Read first.</think>" in shown
    assert '<tool_call>{"name": "Tool1", "arguments": {"file_path": "/a.py"}}</tool_call>' in shown
    assert "<|im_start|>tool\nx<|im_end|>" in shown


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "clock"}},
        {"tools": TOOLS, "tool_choice": {"type": "none"}},
        {"tools": TOOLS, "output_config": {"format": {"type": "json_schema", "schema": CITY}}},
    ],
)
async def test_tokens_are_counted_with_the_tools_that_the_request_would_show(fields: dict[str, Any]) -> None:
    on = saying("ok")
    await send(on, source=CALLING, **fields)
    counted = (await count(saying("never"), source=CALLING, **fields)).json["input_tokens"]
    assert counted == len(on.submitted[0].prompt)
    without = (await count(saying("never"), source=CALLING)).json["input_tokens"]
    assert (counted > without) is (fields.get("tool_choice") != {"type": "none"})


async def test_a_model_whose_template_knows_no_tools_is_told_of_them_in_words() -> None:
    on = saying('{"tool_calls": [{"name": "clock", "arguments": {"zone": "UTC"}}]}')
    fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": {"type": "any"}, "system": "Be brief."}
    message = (await send(on, source=WITHOUT_TOOLS, **fields)).json
    assert [(one["name"], one["input"]) for one in message["content"]] == [("clock", {"zone": "UTC"})]
    assert prompt_text(on).startswith("<|im_start|>system\nBe brief.\n\n")
    assert '{"name": "clock", "parameters": {"type": "object"' in prompt_text(on)
    assert not allows(on, "Noon")
    counted = (await count(saying("never"), source=WITHOUT_TOOLS, **fields)).json["input_tokens"]
    assert counted == len(on.submitted[0].prompt)


async def test_counting_refuses_the_tools_that_the_request_would_refuse() -> None:
    for tools in ([{"type": "bash_20250124", "name": "bash"}], [WEATHER, WEATHER]):
        refused = (await send(saying("never"), source=CALLING, tools=tools)).error
        assert (await count(saying("never"), source=CALLING, tools=tools)).error.message == refused.message


async def test_a_model_without_tools_in_its_history_can_still_be_asked_after_calls() -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "clock", "input": {"zone": "UTC"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "noon"}
    on = saying("It is noon.")
    turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    message = (await send(on, source=CALLING, messages=[*HI["messages"], *turns])).json
    assert message["content"] == [{"type": "text", "text": "It is noon."}]
