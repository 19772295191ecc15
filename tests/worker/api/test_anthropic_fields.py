"""Fields of Anthropic's dialect: honoured, or refused by name; nothing in between."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worker.api.test_anthropic_messages import HI, ask, engine, send


async def test_sampling_fields_of_both_servers_are_honoured() -> None:
    on = engine()
    asked = {"temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.125, "seed": 11, "repeat_penalty": 1.5}
    await send(on, **asked, cache_prompt=False)
    sampling = on.submitted[0].sampling
    assert {name: getattr(sampling, name) for name in asked} == asked
    assert on.submitted[0].cache_prompt is False


async def test_fields_that_ask_for_nothing_pass() -> None:
    harmless: dict[str, Any] = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "container": None,
        "mcp_servers": [],
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "diagnostics": {"previous_message_id": None},
        "speed": "standard",
        "cache_control": {"type": "ephemeral"},
        "anthropic_version": "2023-06-01",
        "anthropic_beta": ["a-beta-that-nobody-knows"],
        "output_config": {},
        "fallbacks": [],
        "something_new": {"a": 1},
    }
    assert (await send(engine(), **harmless)).json["content"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
        ({"system": 5}, "system"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"stream": "yes"}, "stream"),
        ({"temperature": -1}, "temperature"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"thinking": True}, "thinking"),
        ({"tool_choice": "none"}, "tool_choice"),
        ({"tools": [5]}, "tools[0]"),
        ({"output_config": {"effort": "least"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema", "schema": 5}}}, "output_config.format.schema"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"container": "c1"}, "container"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}, "context_management"),
        ({"context_management": 5}, "context_management"),
        ({"diagnostics": {"previous_message_id": "msg_1"}}, "diagnostics"),
        ({"inference_geo": "us"}, "inference_geo"),
        ({"speed": "fast"}, "speed"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"grammar": "root ::= [a]"}, "grammar"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
        ({"return_progress": True}, "return_progress"),
    ],
)
async def test_what_is_wrong_or_cannot_be_honoured_is_a_400_that_names_it(fields: dict[str, Any], param: str) -> None:
    on = engine()
    error = (await send(on, **fields)).error
    assert (error.status, error.param) == (400, param)
    assert f"'{param}" in error.message
    assert not on.submitted


async def test_max_tokens_is_missing_only_where_something_is_generated() -> None:
    error = (await ask(engine(), "/v1/messages", HI)).error
    assert error.message == "'max_tokens' is missing: it must be an integer of at least 0."
