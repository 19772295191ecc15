"""Calls and their answers stay together however they are arranged."""

from __future__ import annotations

from time import process_time
from typing import Any

from worker.chat.tool_turns import Turn, one_by_one, said_apart, with_ids, with_short_ids, with_tools_in_system

USER: Turn = {"role": "user", "content": "x"}


def call(id_: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": "f", "arguments": {}}}


def calling(*ids: str, content: str | None = None) -> Turn:
    return {"role": "assistant", "content": content, "tool_calls": [call(id_) for id_ in ids]}


def answer(id_: str, text: str = "y") -> Turn:
    return {"role": "tool", "content": text, "tool_call_id": id_}


def test_calls_come_one_by_one_with_their_answers() -> None:
    given = [USER, calling("a", "b", content="Hm."), answer("b", "1"), answer("a", "2"), USER]
    assert one_by_one(given) == [
        USER,
        calling("a", content="Hm."),
        answer("a", "2"),
        calling("b"),
        answer("b", "1"),
        USER,
    ]


def test_answers_to_none_of_the_calls_stay_behind_them() -> None:
    given = [answer("z"), USER, calling("a", "b"), answer("c"), answer("a")]
    assert one_by_one(given) == [answer("z"), USER, calling("a"), answer("a"), calling("b"), answer("c")]


def test_single_calls_are_left_as_they_are() -> None:
    given = [USER, calling("a"), answer("b"), answer("a")]
    assert one_by_one(given) == given


def test_words_beside_calls_stand_in_a_turn_in_front() -> None:
    assert said_apart([USER, calling("a", content="Hm."), calling("b")]) == [
        USER,
        {"role": "assistant", "content": "Hm."},
        calling("a"),
        calling("b"),
    ]


def test_thoughts_stay_in_front_of_what_they_led_to() -> None:
    thinking = calling("a", content="Hm.") | {"reasoning_content": "Why?"}
    said, called = said_apart([thinking])
    assert said == {"role": "assistant", "content": "Hm.", "reasoning_content": "Why?"}
    assert called == calling("a")


def test_short_ids_are_those_of_the_calls() -> None:
    given = [calling("call_1", "call_2"), answer("call_2"), answer("call_1"), answer("of nothing")]
    assert with_short_ids(given) == [
        calling("call00001", "call00002"),
        answer("call00002"),
        answer("call00001"),
        answer("call00003"),
    ]


def test_tools_stand_in_the_first_turn_of_the_system() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    told = '[{"name": "f"}]'
    system = {"role": "system", "content": "Be brief."}
    assert with_tools_in_system([system, USER], tools) == [system | {"tools": told}, USER]
    assert with_tools_in_system([USER], tools) == [{"role": "system", "content": "", "tools": told}, USER]


def test_tens_of_thousands_of_calls_in_a_turn_are_arranged_at_once() -> None:
    ids = [f"c{number}" for number in range(30_000)]
    given = [calling(*ids), *(answer(id_) for id_ in reversed(ids))]
    started = process_time()
    arranged = one_by_one(with_ids(given))
    assert process_time() - started < 3.0
    assert arranged[-2:] == [calling(ids[-1]), answer(ids[-1])]


def test_calls_and_answers_without_ids_get_as_many_as_there_are() -> None:
    num = 100_001
    nameless = {"role": "tool", "content": "y"}
    calls = [{"type": "function", "function": {"name": "f", "arguments": {}}}] * num
    given = with_ids([{"role": "assistant", "content": None, "tool_calls": calls}, *[nameless] * num])
    assert [one["id"] for one in given[0]["tool_calls"]] == [turn["tool_call_id"] for turn in given[1:]]
    assert len({turn["tool_call_id"] for turn in given[1:]}) == num
