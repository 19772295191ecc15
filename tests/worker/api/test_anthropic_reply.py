"""Blocks of a message, streamed and whole, from every kind of delta that a parser can bring."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.deltas import join_deltas
from worker.api.anthropic_messages import MessageFormatter
from worker.api.anthropic_reply import SIGNATURE, BlockStream, blocks_of, message_usage, usage_of
from worker.api.formatter import Answer, Ending, Piece
from worker.api.usage import Totals
from worker.chat.deltas import CallArguments, CallStart, Delta, ReasoningDelta, TextDelta
from worker.engine.request import FinishReason

TOTALS = Totals(prompt_tokens=20, cached_tokens=15, completion_tokens=7)

ANSWERS: dict[str, Sequence[Delta]] = {
    "text": [TextDelta("It "), TextDelta("rains.")],
    "thought": [ReasoningDelta("Hm"), ReasoningDelta("m."), TextDelta("Yes.")],
    "thought alone": [ReasoningDelta("Hm")],
    "call": [
        TextDelta("Let me see."),
        CallStart(0, "toolu_1", "weather"),
        CallArguments(0, '{"city":'),
        CallArguments(0, '"Oslo"}'),
    ],
    "two calls": [
        ReasoningDelta("Both."),
        CallStart(0, "toolu_1", "weather"),
        CallArguments(0, '{"city":"Oslo"}'),
        CallStart(1, "toolu_2", "time"),
        CallArguments(1, "{}"),
        TextDelta("Wait."),
    ],
    "call without arguments": [CallStart(0, "toolu_1", "now")],
    "nothing": [],
    "empty pieces": [TextDelta(""), ReasoningDelta(""), TextDelta("a"), TextDelta("")],
    "text between thoughts": [ReasoningDelta("a"), TextDelta("b"), ReasoningDelta("c")],
}


def events_of(data: bytes) -> list[dict[str, Any]]:
    """Return the JSON of each event; its name is its type."""
    *blocks, rest = data.decode().split("\n\n")
    assert rest == ""
    found = []
    for block in blocks:
        name, body = block.split("\n")
        fields = json.loads(body.removeprefix("data: "))
        assert name == f"event: {fields['type']}"
        found.append(fields)
    return found


def stream_of(deltas: Sequence[Delta], **options: Any) -> list[dict[str, Any]]:
    blocks = BlockStream(**options)
    return events_of(b"".join(blocks.add(delta) for delta in deltas) + blocks.close())


def put_together(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks as a client accumulates them, one open at a time and numbered in order."""
    blocks: list[dict[str, Any]] = []
    inputs = ""
    is_open = False
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(blocks)
                blocks.append(dict(event["content_block"]))
                inputs, is_open = "", True
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(blocks) - 1
                match event["delta"]:
                    case {"type": "text_delta", "text": text}:
                        blocks[-1]["text"] += text
                    case {"type": "thinking_delta", "thinking": text}:
                        blocks[-1]["thinking"] += text
                    case {"type": "signature_delta", "signature": signature}:
                        assert blocks[-1]["signature"] == ""
                        blocks[-1]["signature"] = signature
                    case {"type": "input_json_delta", "partial_json": text}:
                        inputs += text
                    case other:
                        raise AssertionError(other)
            case "content_block_stop":
                assert is_open
                assert event["index"] == len(blocks) - 1
                is_open = False
                if inputs:
                    blocks[-1]["input"] = json.loads(inputs)
            case other:
                raise AssertionError(other)
    assert not is_open
    return blocks


@pytest.mark.parametrize("name", ANSWERS)
def test_streamed_blocks_are_those_of_the_whole_message(name: str) -> None:
    deltas = ANSWERS[name]
    assert put_together(stream_of(deltas)) == blocks_of(join_deltas(deltas))


def test_thought_text_and_call_are_blocks_in_their_order_with_all_that_clients_insist_on() -> None:
    assert blocks_of(join_deltas(ANSWERS["two calls"])) == [
        {"type": "thinking", "thinking": "Both.", "signature": SIGNATURE},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}},
        {"type": "tool_use", "id": "toolu_2", "name": "time", "input": {}},
        {"type": "text", "text": "Wait."},
    ]
    assert SIGNATURE


def test_signature_comes_right_before_the_end_of_a_thought() -> None:
    kinds = [event.get("delta", {}).get("type", event["type"]) for event in stream_of(ANSWERS["thought"])]
    assert kinds == [
        "content_block_start",
        *("thinking_delta", "thinking_delta", "signature_delta", "content_block_stop"),
        *("content_block_start", "text_delta", "content_block_stop"),
    ]


def test_pieces_of_text_and_arguments_are_passed_on_one_by_one() -> None:
    deltas = [event["delta"] for event in stream_of(ANSWERS["call"]) if event["type"] == "content_block_delta"]
    assert deltas == [
        {"type": "text_delta", "text": "Let me see."},
        {"type": "input_json_delta", "partial_json": '{"city":'},
        {"type": "input_json_delta", "partial_json": '"Oslo"}'},
    ]


def test_text_is_escaped_as_json_wants_it() -> None:
    hard = 'a "b"\n\\ é 🙂\u2028'
    assert put_together(stream_of([TextDelta(hard)])) == [{"type": "text", "text": hard}]


def test_an_empty_answer_has_one_block_without_text() -> None:
    assert blocks_of([]) == [{"type": "text", "text": ""}]
    assert [event["type"] for event in stream_of([])] == ["content_block_start", "content_block_stop"]


def test_omitted_thoughts_leave_a_signed_block_behind() -> None:
    deltas = ANSWERS["thought"]
    blocks = blocks_of(join_deltas(deltas), shows_thoughts=False)
    assert blocks[0] == {"type": "thinking", "thinking": "", "signature": SIGNATURE}
    assert put_together(stream_of(deltas, shows_thoughts=False)) == blocks


@pytest.mark.parametrize("arguments", ['{"city": "Os', "[1]", "Oslo"])
def test_arguments_that_are_no_object_are_told_as_they_are(arguments: str) -> None:
    (block,) = blocks_of([CallStart(0, "toolu_1", "weather"), CallArguments(0, arguments)])
    assert block["input"] == {"invalid_json": arguments}


def test_usage_adds_up_to_the_prompt() -> None:
    usage = usage_of(TOTALS)
    counted = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert [usage[name] for name in counted] == [5, 15, 0]
    assert sum(usage[name] for name in counted) == TOTALS.prompt_tokens
    assert usage["output_tokens"] == 7


# --- the message around the blocks ------------------------------------------------------------------------


def ending(finish: FinishReason = FinishReason.STOP, **more: Any) -> Ending:
    return Ending(finish, **more)


def whole(deltas: Sequence[Delta], end: Ending) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(
        MessageFormatter("msg_1", "tiny", 7).whole([Answer(join_deltas(deltas), end)], TOTALS)
    )
    return message


def test_a_streamed_message_is_opened_filled_and_closed_once() -> None:
    formatter = MessageFormatter("msg_1", "tiny", 7)
    opened = Totals(prompt_tokens=20, cached_tokens=15)
    data = formatter.first(0, opened)
    data += b"".join(formatter.piece(0, Piece(delta)) for delta in ANSWERS["two calls"])
    data += formatter.last(0, ending(has_calls=True), TOTALS) + formatter.closing(TOTALS)
    start, *blocks, delta, stop = events_of(data)
    assert start["message"] == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": message_usage(opened),
    }
    assert put_together(blocks) == blocks_of(join_deltas(ANSWERS["two calls"]))
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert delta["usage"] == usage_of(TOTALS)
    assert "service_tier" not in delta["usage"], "the SDK's type of this event's usage has no such field"
    assert delta["timings"]["predicted_n"] == 7
    assert stop == {"type": "message_stop"}


@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        (ending(), "end_turn", None),
        (ending(stop_string="END"), "stop_sequence", "END"),
        (ending(FinishReason.LENGTH), "max_tokens", None),
        (ending(has_calls=True), "tool_use", None),
        (ending(FinishReason.LENGTH, has_calls=True), "max_tokens", None),
    ],
)
def test_why_it_ended_is_told_in_their_words_streamed_and_whole(end: Ending, reason: str, sequence: str | None) -> None:
    formatter = MessageFormatter("msg_1", "tiny", 7)
    streamed = events_of(formatter.last(0, end, TOTALS))[-1]["delta"]
    message = whole([TextDelta("a")], end)
    for told in (streamed, message):
        assert (told["stop_reason"], told["stop_sequence"]) == (reason, sequence)


def test_a_whole_message_tells_its_tokens_and_times() -> None:
    message = whole(ANSWERS["thought"], ending())
    assert message["type"] == "message"
    assert message["role"] == "assistant"
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert message["usage"] == message_usage(TOTALS)
    assert message["timings"]["cache_n"] == 15
