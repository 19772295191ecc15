"""The events of an answer made of every kind of piece, checked with the official client's types and its own helper."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState

from tests.support.openai_types import response_events, strict_event, strict_response
from worker.api.formatter import Answer, Ending, Piece, join_pieces
from worker.api.logprobs import PlacedPick
from worker.api.openai_responses import ResponsesFormatter
from worker.api.responses_events import Output
from worker.api.responses_items import seal
from worker.api.usage import Totals
from worker.chat.deltas import CallArguments, CallStart, Delta, ReasoningDelta, TextDelta
from worker.engine.request import FinishReason, Pick

SETTINGS: dict[str, Any] = {
    "id": "resp_r1",
    "object": "response",
    "created_at": 1700000000,
    "error": None,
    "model": "tiny",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
TOTALS = Totals(prompt_tokens=10, cached_tokens=4, completion_tokens=5)
EVERYTHING: tuple[Delta, ...] = (
    ReasoningDelta("let me "),
    ReasoningDelta("think"),
    TextDelta("I will "),
    TextDelta("look"),
    CallStart(0, "call_a", "look"),
    CallArguments(0, '{"at"'),
    CallArguments(0, ":1}"),
    CallStart(1, "call_b", "hear"),
    CallArguments(1, "{}"),
)


def shape(picks: Sequence[PlacedPick]) -> dict[str, Any]:
    return {
        "content": [{"token": str(one.pick.token), "logprob": -1.0, "bytes": [], "top_logprobs": []} for one in picks]
    }


def pick(token: int) -> PlacedPick:
    return PlacedPick(Pick(token, -1.0), 0)


def formatter(*, has_logprobs: bool = False, is_sealed: bool = False) -> ResponsesFormatter:
    output = Output("r1", logprobs=shape if has_logprobs else None, is_sealed=is_sealed)
    return ResponsesFormatter(SETTINGS, 5, output, None)


def stream(
    *deltas: Delta | tuple[Delta, Sequence[PlacedPick]],
    finish: FinishReason = FinishReason.STOP,
    last_picks: Sequence[PlacedPick] = (),
    **options: Any,
) -> list[dict[str, Any]]:
    made = formatter(**options)
    told = made.first(0, TOTALS)
    for delta in deltas:
        piece = Piece(delta[0], picks=delta[1]) if isinstance(delta, tuple) else Piece(delta)
        told += made.piece(0, piece)
    told += made.last(0, Ending(finish, picks=last_picks), TOTALS) + made.closing(TOTALS)
    return response_events(told)


def whole(
    *deltas: Delta | tuple[Delta, Sequence[PlacedPick]],
    finish: FinishReason = FinishReason.STOP,
    last_picks: Sequence[PlacedPick] = (),
    **options: Any,
) -> Any:
    pieces = [Piece(one[0], picks=one[1]) if isinstance(one, tuple) else Piece(one) for one in deltas]
    joined = join_pieces(pieces)
    picks = [*(pick for one in joined for pick in one.picks), *last_picks]
    answer = Answer([one.delta for one in joined], Ending(finish, picks=picks), [one.picks for one in joined])
    return json.loads(formatter(**options).whole([answer], TOTALS))


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_text_has_all_its_events_in_order() -> None:
    events = stream(TextDelta("Hello"), TextDelta(" you"))
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert events[0]["response"]["output"] == []
    assert events[2]["item"] == {
        "type": "message",
        "role": "assistant",
        "content": [],
        "id": "msg_r1_o0",
        "status": "in_progress",
    }
    assert events[6]["text"] == "Hello you"
    assert events[8]["item"]["content"][0]["text"] == "Hello you"
    assert events[9]["response"]["output"] == [events[8]["item"]]


def test_every_kind_of_piece_gives_events_that_the_client_knows() -> None:
    events = stream(*EVERYTHING)
    for event in events:
        strict_event(event)
    assert set(kinds(events)) == {
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    }
    reasoning, message, first, second = events[-1]["response"]["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "let me think"}]
    assert message["content"][0]["text"] == "I will look"
    assert (first["call_id"], first["name"], first["arguments"]) == ("call_a", "look", '{"at":1}')
    assert (second["call_id"], second["name"], second["arguments"]) == ("call_b", "hear", "{}")


def test_each_item_is_added_before_its_pieces_and_done_after_them() -> None:
    is_open: dict[int, str] = {}
    closed: list[int] = []
    for event in stream(*EVERYTHING):
        index = event.get("output_index")
        if event["type"] == "response.output_item.added":
            assert index == len(is_open)
            is_open[index] = event["item"]["id"]
        elif event["type"] == "response.output_item.done":
            assert event["item"]["id"] == is_open[index]
            closed.append(index)
        elif index is not None:
            assert event["item_id"] == is_open[index]
            assert index not in closed
    assert sorted(closed) == list(is_open)


def test_whole_and_streamed_answers_are_the_same_response() -> None:
    assert whole(*EVERYTHING) == stream(*EVERYTHING)[-1]["response"]
    strict_response(whole(*EVERYTHING))


def test_the_clients_own_helper_reads_the_stream_to_its_end() -> None:
    state: Any = ResponseStreamState(input_tools=[], text_format=omit)
    for event in stream(*EVERYTHING):
        state.handle_event(strict_event(event))
    assert state._completed_response.output_text == "I will look"


def test_each_item_is_done_before_the_next_one_begins() -> None:
    told = [event for event in stream(*EVERYTHING) if event["type"].startswith("response.output_item.")]
    places = [(event["type"].rpartition(".")[2], event["output_index"]) for event in told]
    assert places == [(kind, place) for place in range(4) for kind in ("added", "done")]


def test_text_again_after_calls_is_another_message() -> None:
    events = stream(TextDelta("a"), CallStart(0, "c", "f"), TextDelta("b"))
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "message"]
    assert len({item["id"] for item in output}) == 3
    assert kinds(events).count("output_item.done") == 3


def test_an_answer_of_nothing_is_an_empty_message() -> None:
    for response in (whole(), stream()[-1]["response"]):
        [item] = strict_response(response).output
        assert item.type == "message"
        assert item.content[0].type == "output_text"
        assert item.content[0].text == ""


def test_an_answer_that_is_too_long_ends_incomplete() -> None:
    events = stream(ReasoningDelta("hm"), TextDelta("a"), finish=FinishReason.LENGTH)
    assert events[-1]["type"] == "response.incomplete"
    strict_event(events[-1])
    response = events[-1]["response"]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert whole(ReasoningDelta("hm"), TextDelta("a"), finish=FinishReason.LENGTH) == response


def test_of_several_calls_only_the_last_one_was_cut_off() -> None:
    calls = (CallStart(0, "a", "f"), CallArguments(0, "{}"), CallStart(1, "b", "g"), CallArguments(1, "{"))
    output = whole(*calls, finish=FinishReason.LENGTH)["output"]
    assert [item["status"] for item in output] == ["completed", "incomplete"]


def test_usage_has_the_names_of_this_dialect_and_comes_with_the_end() -> None:
    events = stream(TextDelta("a"))
    assert [event["response"]["usage"] for event in events[:2]] == [None, None]
    assert events[-1]["response"]["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 15,
    }


def test_logprobs_stand_at_their_text_and_all_together_at_its_end() -> None:
    said = ((TextDelta("a"), [pick(1)]), (TextDelta("b"), [pick(2)]))
    events = stream(*said, last_picks=[pick(3)], has_logprobs=True)
    for event in events:
        strict_event(event)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [[one["token"] for one in event["logprobs"]] for event in deltas] == [["1"], ["2"]]
    done = next(event for event in events if event["type"] == "response.output_text.done")
    assert [one["token"] for one in done["logprobs"]] == ["1", "2", "3"]
    [item] = events[-1]["response"]["output"]
    assert item["content"][0]["logprobs"] == done["logprobs"]
    assert whole(*said, last_picks=[pick(3)], has_logprobs=True)["output"] == [item]


@pytest.mark.parametrize("other", [ReasoningDelta("hm"), CallStart(0, "c", "f")])
def test_messages_have_the_logprobs_of_their_own_text_alone(other: Delta) -> None:
    said = ((TextDelta("a"), [pick(1)]), (other, [pick(2)]), (TextDelta("b"), [pick(3)]), (other, [pick(4)]))
    for response in (
        stream(*said, last_picks=[pick(5)], has_logprobs=True)[-1]["response"],
        whole(*said, last_picks=[pick(5)], has_logprobs=True),
    ):
        messages = [item for item in response["output"] if item["type"] == "message"]
        shown = [[one["token"] for one in item["content"][0]["logprobs"]] for item in messages]
        assert shown == [["1"], ["3"]]


def test_reasoning_is_sealed_for_clients_that_ask_for_it() -> None:
    for sealed in (True, False):
        [item] = whole(ReasoningDelta("hm"), is_sealed=sealed)["output"]
        assert item.get("encrypted_content") == (seal("hm") if sealed else None)
