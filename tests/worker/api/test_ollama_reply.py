"""Lines of Ollama's replies for every kind of thing that an answer can have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.deltas import join_deltas
from worker.api.formatter import Answer, Ending, Piece
from worker.api.ollama_reply import Layout, OllamaFormatter, OllamaHead, as_message, as_response, created_at
from worker.api.usage import Totals
from worker.chat.deltas import CallArguments, CallStart, Delta, ReasoningDelta, TextDelta
from worker.engine.request import FinishReason
from worker.errors import GenerationFailed

STOP = Ending(FinishReason.STOP, has_calls=True)
WEATHER = {"id": "c1", "function": {"index": 0, "name": "weather", "arguments": {"city": "Rom\u00e9"}}}
TIME = {"id": "c2", "function": {"index": 1, "name": "time", "arguments": {}}}
CALLS: tuple[Delta, ...] = (
    CallStart(0, "c1", "weather"),
    CallArguments(0, '{"city": '),
    CallArguments(0, '"Rom\u00e9"}'),
    CallStart(1, "c2", "time"),
)


def formatter(layout: Layout = as_message) -> OllamaFormatter:
    return OllamaFormatter(OllamaHead("m", 0), layout)


def streamed(deltas: Sequence[Delta], layout: Layout = as_message) -> list[Any]:
    made = formatter(layout)
    data = b"".join(made.piece(0, Piece(delta)) for delta in deltas)
    data += made.last(0, STOP, Totals()) + made.closing(Totals())
    return [json.loads(line) for line in data.splitlines()]


def test_thoughts_are_told_beside_the_text() -> None:
    thought, text, last = streamed([ReasoningDelta("hm"), TextDelta("well")])
    assert thought["message"] == {"role": "assistant", "content": "", "thinking": "hm"}
    assert text["message"] == {"role": "assistant", "content": "well"}
    assert last["message"] == {"role": "assistant", "content": ""}
    thought, text, _ = streamed([ReasoningDelta("hm"), TextDelta("well")], as_response)
    assert (thought["response"], thought["thinking"]) == ("", "hm")
    assert (text["response"], "thinking" in text) == ("well", False)


def test_each_call_is_told_in_one_piece_with_its_arguments_as_an_object() -> None:
    first, second, last = streamed(CALLS)
    assert first["message"]["tool_calls"] == [WEATHER]
    assert second["message"]["tool_calls"] == [TIME]
    assert (first["done"], second["done"], last["done"], last["done_reason"]) == (False, False, True, "stop")
    assert "tool_calls" not in last["message"]


def test_a_whole_reply_has_everything_at_once() -> None:
    answer = Answer((ReasoningDelta("hm"), TextDelta("well"), *CALLS), STOP)
    message = json.loads(formatter().whole([answer], Totals()))["message"]
    assert message == {"role": "assistant", "content": "well", "thinking": "hm", "tool_calls": [WEATHER, TIME]}


def test_arguments_that_are_no_object_fail_instead_of_looking_like_a_call() -> None:
    made = formatter()
    for delta in (CallStart(0, "c1", "weather"), CallArguments(0, "[1")):
        assert made.piece(0, Piece(delta)) == b""
    with pytest.raises(GenerationFailed, match="weather"):
        made.last(0, STOP, Totals())


@pytest.mark.parametrize("arguments", ["", '{"city": "Ro', '{"city": '])
def test_a_call_that_the_length_has_cut_off_is_dropped_and_the_answer_ends_by_its_length(arguments: str) -> None:
    end = Ending(FinishReason.LENGTH, has_calls=True)
    deltas = (TextDelta("well"), *CALLS, CallStart(2, "c3", "weather"), CallArguments(2, arguments))
    made = formatter()
    told = b"".join(made.piece(0, Piece(delta)) for delta in deltas) + made.last(0, end, Totals())
    lines = [json.loads(line) for line in told.splitlines()]
    whole = json.loads(formatter().whole([Answer(join_deltas(deltas), end)], Totals()))
    assert [call for line in lines for call in line["message"].get("tool_calls", ())] == [WEATHER, TIME]
    assert whole["message"]["tool_calls"] == [WEATHER, TIME]
    assert lines[-1]["done_reason"] == whole["done_reason"] == "length"


def test_a_call_is_told_when_text_follows_it_and_when_it_was_complete_at_the_length() -> None:
    end = Ending(FinishReason.LENGTH, has_calls=True)
    made = formatter()
    assert made.piece(0, Piece(CALLS[3])) == b""
    line = json.loads(made.piece(0, Piece(TextDelta("well"))))
    assert line["message"]["tool_calls"] == [TIME]
    made = formatter()
    for delta in CALLS[:3]:
        made.piece(0, Piece(delta))
    first, last = made.last(0, end, Totals()).splitlines()
    assert json.loads(first)["message"]["tool_calls"] == [WEATHER]
    assert json.loads(last)["done_reason"] == "length"


def test_text_of_any_kind_is_one_line() -> None:
    text = 'a "quoted"\nline\u2028 \u0000 \U0001f642'
    first, _ = streamed([TextDelta(text)])
    assert first["message"]["content"] == text


def test_times_are_utc_with_nine_digits() -> None:
    assert created_at(1_700_000_000) == "2023-11-14T22:13:20.000000000Z"


def test_counts_and_nanoseconds_are_whole_numbers() -> None:
    made = formatter()
    totals = Totals(prompt_tokens=3, cached_tokens=1, completion_tokens=2, prompt_ms=0.5, predicted_ms=1.25)
    last = json.loads(made.last(0, STOP, totals))
    assert last["prompt_eval_count"] == 3
    assert (last["prompt_eval_duration"], last["eval_duration"]) == (500_000, 1_250_000)
    assert last["total_duration"] == 1_750_000
