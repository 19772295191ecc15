"""Chat replies from canned answers: text, reasoning and calls of tools, streamed and whole, in OpenAI's own types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.support.deltas import join_deltas
from worker.api.formatter import Answer, Ending, Formatter, Piece
from worker.api.openai_chat import ChatFormatter
from worker.api.openai_completions import CompletionFormatter
from worker.api.openai_reply import Head
from worker.api.usage import Totals
from worker.chat.deltas import CallArguments, CallStart, Delta, ReasoningDelta, TextDelta
from worker.engine.request import FinishReason, PrefillProgress

HEAD = Head("chatcmpl-1", 1_700_000_000, "tiny", "fp_1", 7)
TOTALS = Totals(prompt_tokens=3, completion_tokens=5, cached_tokens=2)
CALLS: list[Delta] = [
    TextDelta("Let me look. "),
    CallStart(0, "call_a", "weather"),
    CallArguments(0, '{"city": "K'),
    CallArguments(0, 'öln"}'),
    CallStart(1, "call_b", "time"),
    CallArguments(1, "{}"),
]
THOUGHTS: list[Delta] = [ReasoningDelta("Hm"), ReasoningDelta(", 4."), TextDelta("Four")]


def ending(deltas: Sequence[Delta], finish: FinishReason = FinishReason.STOP) -> Ending:
    return Ending(finish, has_calls=any(isinstance(one, CallStart) for one in deltas))


def streamed(deltas: Sequence[Delta], *, includes_usage: bool = False) -> list[dict[str, Any]]:
    formatter = ChatFormatter(HEAD, includes_usage=includes_usage)
    data = formatter.first(0, TOTALS) + b"".join(formatter.piece(0, Piece(delta)) for delta in deltas)
    data += formatter.last(0, ending(deltas), TOTALS) + formatter.closing(TOTALS)
    events = data.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def whole(deltas: Sequence[Delta], finish: FinishReason = FinishReason.STOP) -> dict[str, Any]:
    answer = Answer(tuple(join_deltas(deltas)), ending(deltas, finish))
    reply: dict[str, Any] = json.loads(ChatFormatter(HEAD, includes_usage=False).whole([answer], TOTALS))
    return reply


def joined(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that a client puts together of a stream."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    assert call["index"] == len(message["tool_calls"])
                    message["tool_calls"].append({key: call[key] for key in ("id", "type", "function")})
                else:
                    message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message


@pytest.mark.parametrize("deltas", [CALLS, THOUGHTS, [TextDelta("a")], [], CALLS[1:]], ids=str)
def test_a_stream_joins_to_the_message_of_the_whole_reply(deltas: list[Delta]) -> None:
    events, reply = streamed(deltas), whole(deltas)
    for event in events:
        ChatCompletionChunk.model_validate(event, strict=True)
    ChatCompletion.model_validate(reply, strict=True)
    message = reply["choices"][0]["message"]
    told = joined(events)
    assert told["content"] == (message["content"] or "")
    assert told["reasoning_content"] == message.get("reasoning_content", "")
    assert told["tool_calls"] == message.get("tool_calls", [])


def test_arguments_of_a_call_are_one_json_text() -> None:
    calls = whole(CALLS)["choices"][0]["message"]["tool_calls"]
    assert calls == [
        {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}},
        {"id": "call_b", "type": "function", "function": {"name": "time", "arguments": "{}"}},
    ]


def test_calls_of_tools_end_with_their_own_reason_and_nothing_before_it_has_one() -> None:
    reasons = [choice["finish_reason"] for event in streamed(CALLS) for choice in event["choices"]]
    assert reasons == [None] * (len(CALLS) + 1) + ["tool_calls"]
    assert whole(CALLS)["choices"][0]["finish_reason"] == "tool_calls"
    reasons = [choice["finish_reason"] for event in streamed(THOUGHTS) for choice in event["choices"]]
    assert reasons == [None] * (len(THOUGHTS) + 1) + ["stop"]


def test_a_call_that_the_length_has_cut_off_ends_with_length() -> None:
    cut = [*CALLS[:3]]
    assert whole(cut, FinishReason.LENGTH)["choices"][0]["finish_reason"] == "length"
    told = ChatFormatter(HEAD, includes_usage=True).last(0, ending(cut, FinishReason.LENGTH), None)
    assert json.loads(told.removeprefix(b"data: "))["choices"][0]["finish_reason"] == "length"


def test_message_that_only_calls_tools_has_no_content() -> None:
    assert whole(CALLS[1:])["choices"][0]["message"]["content"] is None


@pytest.mark.parametrize("includes_usage", [True, False])
def test_usage_is_null_but_in_a_chunk_of_its_own_and_absent_where_not_asked(includes_usage: bool) -> None:
    events = streamed(THOUGHTS, includes_usage=includes_usage)
    if includes_usage:
        assert [event["usage"] for event in events[:-1]] == [None] * (len(events) - 1)
        assert events[-1]["choices"] == []
        assert events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 2
    else:
        assert all("usage" not in event for event in events)
    assert [("timings" in event, "seed" in event) for event in events[:-1]] == [(False, False)] * (len(events) - 1)
    assert (events[-1]["timings"]["predicted_n"], events[-1]["seed"]) == (5, 7)


@pytest.mark.parametrize("kind", [ChatFormatter, CompletionFormatter])
def test_progress_and_timings_have_llama_servers_names(kind: type[ChatFormatter] | type[CompletionFormatter]) -> None:
    formatter: Formatter = kind(HEAD, includes_usage=True)
    told = formatter.progress(1, PrefillProgress(100, 20, 60, 0.5))
    event = json.loads(told.removeprefix(b"data: "))
    assert event["prompt_progress"] == {"total": 100, "cache": 20, "processed": 60, "time_ms": 500}
    assert (event["choices"][0]["index"], event["choices"][0]["finish_reason"], event["usage"]) == (1, None, None)
    told = formatter.piece(1, Piece(TextDelta("x"), totals=TOTALS))
    event = json.loads(told.removeprefix(b"data: "))
    assert (event["timings"]["predicted_n"], event["timings"]["cache_n"]) == (5, 2)
