"""Items of the Responses API: what is accepted, what they become for a template, what survives being kept."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.json_bodies import ANYTHING, nearly
from worker.api.responses_items import ITEMS, Item, is_unfinished, read_history, read_input, seal, to_lines, to_messages
from worker.chat.errors import UnsupportedContent
from worker.errors import RequestError

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "a cow"}


def messages(value: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    return to_messages(instructions, read_input(value, "r1"))


def refusal(*items: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read_input(items, "r1")
    return caught.value


def test_a_string_is_one_message_of_the_user() -> None:
    assert messages("hi") == [{"role": "user", "content": "hi"}]


def test_instructions_stand_in_front() -> None:
    assert messages("hi", "be brief")[0] == {"role": "system", "content": "be brief"}
    assert len(messages("hi", "")) == 1


@pytest.mark.parametrize("role", ["user", "system", "developer", "assistant"])
def test_easy_and_full_messages_mean_the_same(role: str) -> None:
    kind = "output_text" if role == "assistant" else "input_text"
    easy = {"role": role, "content": "hi"}
    full = {"type": "message", "role": role, "content": [{"type": kind, "text": "hi"}]}
    assert messages([easy]) == messages([full]) == [{"role": role, "content": "hi"}]


def test_several_parts_stay_several() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    [message] = messages([{"role": "user", "content": parts}])
    assert message["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def test_a_refusal_is_part_of_what_the_assistant_said() -> None:
    part = {"type": "refusal", "refusal": "no"}
    [message] = messages([{"role": "assistant", "content": [part]}])
    assert message == {"role": "assistant", "content": [part]}
    assert refusal({"role": "user", "content": [part]}).param == "input[0].content[0]"


def test_thoughts_text_and_calls_in_a_row_are_one_message() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    said = {"role": "assistant", "content": "let me look"}
    other = CALL | {"call_id": "c2"}
    listed = messages([{"role": "user", "content": "hi"}, thought, said, CALL, other, RESULT])
    assert [one["role"] for one in listed] == ["user", "assistant", "tool"]
    assert listed[1] == {
        "role": "assistant",
        "content": "let me look",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": call_id, "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}
            for call_id in ("c1", "c2")
        ],
    }
    assert listed[2] == {"role": "tool", "tool_call_id": "c1", "content": "a cow"}


def test_calls_with_an_output_in_between_are_two_messages() -> None:
    listed = messages([CALL, RESULT, CALL | {"call_id": "c2"}, RESULT | {"call_id": "c2"}])
    assert [one["role"] for one in listed] == ["assistant", "tool", "assistant", "tool"]


def test_each_message_of_the_assistants_is_one_of_its_own() -> None:
    listed = messages([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert [one["content"] for one in listed] == ["a", "b"]


def test_the_output_of_a_call_may_come_in_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}]
    assert messages([CALL, RESULT | {"output": parts}])[1]["content"] == "a"
    image = [{"type": "input_image", "image_url": "http://x"}]
    wrong = refusal(CALL, RESULT | {"output": image})
    assert (wrong.param, wrong.code) == ("input[1].output[0]", "unsupported_content")


def test_an_output_without_its_call_is_refused() -> None:
    assert refusal(RESULT).param == "input[0].call_id"


@pytest.mark.parametrize("kind", ["input_image", "input_file", "input_audio"])
def test_what_is_no_text_is_refused_by_its_place(kind: str) -> None:
    wrong = refusal({"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": kind}]})
    assert isinstance(wrong, UnsupportedContent)
    assert (wrong.param, wrong.code) == ("input[0].content[1]", "unsupported_content")


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (5, "input[0]"),
        ({}, "input[0].type"),
        ({"type": 5}, "input[0].type"),
        ({"type": "web_search_call"}, "input[0].type"),
        ({"type": "message"}, "input[0].role"),
        ({"role": "tool", "content": "x"}, "input[0].role"),
        ({"role": ["user"], "content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": 5}, "input[0].content"),
        ({"role": "user", "content": ["x"]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        (CALL | {"arguments": {}}, "input[0].arguments"),
        (CALL | {"name": ""}, "input[0].name"),
        (CALL | {"call_id": None}, "input[0].call_id"),
        ({"type": "reasoning", "content": [{"type": "reasoning_text"}]}, "input[0].content[0]"),
        ({"type": "reasoning", "content": 5}, "input[0].content"),
        ({"type": "item_reference", "id": "msg_1"}, "input[0].id"),
        ({"id": "msg_1"}, "input[0].id"),
    ],
)
def test_a_broken_item_is_refused_by_its_place(item: Any, param: str) -> None:
    assert refusal(item).param == param


def test_a_reference_becomes_the_item_that_it_names() -> None:
    history = read_input([{"role": "user", "content": "hi", "id": "msg_9"}], "r0")
    for reference in ({"type": "item_reference", "id": "msg_9"}, {"id": "msg_9"}):
        assert read_input([reference], "r1", history) == history


def test_a_long_item_is_not_made_many_by_references_to_it() -> None:
    history = read_input([{"role": "user", "content": "long", "id": "msg_9"}], "r0")
    reference = {"type": "item_reference", "id": "msg_9"}
    with pytest.raises(RequestError, match="each once"):
        read_input([reference, reference], "r1", history)
    with pytest.raises(RequestError, match="each once"):
        read_input([{"role": "user", "content": "long", "id": "msg_8"}, reference | {"id": "msg_8"}], "r1")


def test_thoughts_one_after_another_are_one_text() -> None:
    thoughts = [
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]} for text in "abc"
    ]
    (message,) = messages(thoughts)
    assert message["reasoning_content"] == "abc"


def test_sealed_reasoning_comes_back_as_it_was() -> None:
    text = "hm \N{GRINNING FACE}"
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": seal(text)}
    assert messages([item])[0]["reasoning_content"] == text


@pytest.mark.parametrize("sealed", ["gAAAAB", "corral:%%", "corral:gA=="])
def test_reasoning_that_somebody_else_has_sealed_is_refused(sealed: str) -> None:
    wrong = refusal({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed})
    assert wrong.param == "input[0].encrypted_content"


def test_summaries_stand_for_reasoning_that_was_not_shown() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "in short"}]}
    assert messages([item])[0]["reasoning_content"] == "in short"


def test_items_have_ids_their_own_or_made_of_the_request_and_their_place() -> None:
    items = read_input([{"role": "user", "content": "a", "id": "mine"}, CALL, RESULT, CALL], "r1")
    assert [item["id"] for item in items] == ["mine", "fc_r1_1", "fco_r1_2", "fc_r1_3"]


def test_a_kept_conversation_is_read_as_it_was_written() -> None:
    items: list[Item] = read_input([{"role": "user", "content": "two\nlines \u2028 \x85"}, CALL, RESULT], "r1")
    lines = to_lines(items)
    assert lines.count(b"\n") == 2
    assert read_history(lines) == items


def test_only_an_unfinished_message_of_the_assistants_is_continued() -> None:
    def ends_with(**message: Any) -> bool:
        return is_unfinished(read_input([{"content": "a"} | message], "r1"))

    assert ends_with(role="assistant", status="incomplete")
    assert ends_with(role="assistant", status="in_progress")
    assert not ends_with(role="assistant", status="completed")
    assert not ends_with(role="assistant")
    assert not ends_with(role="user", status="incomplete")


def read_or_param(listed: list[Any]) -> tuple[list[Item], str | None]:
    """Return the items, or the field that they are refused for."""
    try:
        return read_input(listed, "r1"), None
    except RequestError as error:
        return [], error.param or ""


@settings(max_examples=200)
@given(st.one_of(nearly(ITEMS, {}), st.lists(ANYTHING, min_size=1, max_size=3)))
def test_whatever_stands_in_the_list_is_read_or_refused(listed: list[Any]) -> None:
    items, param = read_or_param(listed if isinstance(listed, list) else [])
    assert param is None or param.startswith("input[")
    assert read_history(to_lines(items)) == items
    orjson.dumps(to_messages(None, items))
