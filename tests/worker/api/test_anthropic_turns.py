"""Anthropic's messages become those that templates know, and what cannot is refused by its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.api.anthropic_turns import make_turns
from worker.chat.errors import UnsupportedContent
from worker.chat.messages import normalize_messages
from worker.errors import RequestError

NONCE = "x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;"


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
CALL = {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}


def result(content: Any = "rain", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more}


def test_texts_come_as_they_are() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello"}]
    assert make_turns(messages, "Be brief.") == [{"role": "system", "content": "Be brief."}, *messages]
    assert make_turns(messages) == messages
    assert make_turns(messages, "") == messages
    assert make_turns(messages, []) == messages


def test_text_blocks_are_joined_with_newlines_whatever_marks_them_for_the_cache() -> None:
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system = [text("one", **mark), text("two")]
    turns = make_turns([user(text("a"), text("b", **mark))], system)
    assert turns == [{"role": "system", "content": "one\ntwo"}, {"role": "user", "content": "a\nb"}]


def test_a_message_of_the_system_may_stand_between_others() -> None:
    turns = make_turns([user(text("a")), {"role": "system", "content": [text("note")]}, user(text("b"))])
    assert [turn["role"] for turn in turns] == ["user", "system", "user"]


def test_thoughts_go_back_as_reasoning_and_what_nobody_can_read_goes() -> None:
    thought = {"type": "thinking", "thinking": "rainy?", "signature": "x"}
    hidden = {"type": "redacted_thinking", "data": "Zm9v"}
    omitted = {"type": "thinking", "thinking": "", "signature": "x"}
    turns = make_turns([assistant(thought, hidden, omitted, text("It rains."))])
    assert turns == [{"role": "assistant", "content": "It rains.", "reasoning_content": "rainy?"}]


def test_a_use_of_a_tool_becomes_a_call_and_its_result_a_turn_of_the_tool() -> None:
    turns = make_turns([user(text("weather?")), assistant(text("Let me see."), USE), user(result(), text("and?"))])
    assert turns == [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "rain"},
        {"role": "user", "content": "and?"},
    ]
    assert make_turns([assistant(USE)]) == [{"role": "assistant", "content": None, "tool_calls": [CALL]}]


def test_results_and_texts_of_one_message_keep_their_order() -> None:
    turns = make_turns([user(text("a"), result("1"), result("2"), text("b"), text("c"))])
    assert [(turn["role"], turn["content"]) for turn in turns] == [
        ("user", "a"),
        ("tool", "1"),
        ("tool", "2"),
        ("user", "b\nc"),
    ]


@pytest.mark.parametrize(
    ("block", "content"),
    [
        (result([text("a"), text("b")]), "a\nb"),
        (result(None), ""),
        ({"type": "tool_result", "tool_use_id": "toolu_1"}, ""),
        (result("no such city", is_error=True), "Error: no such city"),
        (result("Error 404", is_error=True), "Error 404"),
        (result([], is_error=True), "Error"),
        (result("fine", is_error=False), "fine"),
    ],
)
def test_the_result_of_a_tool_is_its_text_and_tells_a_failure(block: dict[str, Any], content: str) -> None:
    (turn,) = make_turns([user(block)])
    assert turn == {"role": "tool", "tool_call_id": "toolu_1", "content": content}


def test_empty_content_is_an_empty_text() -> None:
    assert make_turns([user(), assistant()]) == [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": ""},
    ]


def test_templates_take_all_of_it() -> None:
    turns = make_turns([user(text("weather?")), assistant(USE), user(result())], "Be brief.")
    assert normalize_messages(turns)[-1] == {
        "role": "tool",
        "tool_call_id": "toolu_1",
        "content": "rain",
        "name": "weather",
    }


# --- the line that changes each time ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "system",
    [
        [text(NONCE), text("You are helpful.")],
        [text(f"{NONCE}\nYou are helpful.")],
        f"{NONCE}\nYou are helpful.",
        f"{NONCE}\n\n{NONCE}\nYou are helpful.",
    ],
)
def test_billing_line_is_taken_out_of_the_system_prompt_and_nothing_else(system: Any) -> None:
    assert make_turns([user(text("hi"))], system)[0] == {"role": "system", "content": "You are helpful."}


def test_a_system_prompt_of_nothing_else_is_none() -> None:
    for system in (NONCE, [text(NONCE)]):
        assert [turn["role"] for turn in make_turns([user(text("hi"))], system)] == ["user"]


def test_billing_line_stays_where_it_shall_or_where_it_does_not_begin_a_text() -> None:
    kept = make_turns([user(text("hi"))], [text(NONCE), text("Be brief.")], drops_billing_header=False)
    assert kept[0]["content"] == f"{NONCE}\nBe brief."
    inside = f"Never send\n{NONCE}"
    assert make_turns([user(text(NONCE))], inside) == [
        {"role": "system", "content": inside},
        {"role": "user", "content": NONCE},
    ]


# --- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([user(text("see"), {"type": "image", "source": {}})], "messages[0].content[1]"),
        ([user({"type": "document", "source": {}})], "messages[0].content[0]"),
        ([user({"type": "audio"})], "messages[0].content[0]"),
        ([user(result([text("x"), {"type": "image"}]))], "messages[0].content[0].content[1]"),
        ([user(text("a")), assistant({"type": "server_tool_use"})], "messages[1].content[0]"),
    ],
)
def test_what_is_no_text_is_unsupported_and_its_place_is_told(messages: list[Any], place: str) -> None:
    with pytest.raises(UnsupportedContent) as caught:
        make_turns(messages)
    assert (caught.value.code, caught.value.param) == ("unsupported_content", place)
    assert f"'{place}'" in str(caught.value)


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "hi"}], "messages[0]"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"role": 3, "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text"}}], "messages[0].content"),
        ([user("hi")], "messages[0].content[0]"),
        ([user({"text": "hi"})], "messages[0].content[0]"),
        ([user({"type": "text"})], "messages[0].content[0].text"),
        ([user(USE)], "messages[0].content[0]"),
        ([assistant(result())], "messages[0].content[0]"),
        ([assistant({"type": "thinking"})], "messages[0].content[0].thinking"),
        ([assistant(USE | {"input": "{}"})], "messages[0].content[0].input"),
        ([assistant(USE | {"name": None})], "messages[0].content[0].name"),
        ([assistant(USE | {"id": 7})], "messages[0].content[0].id"),
        ([user(result(5))], "messages[0].content[0].content"),
        ([user(result(is_error="yes"))], "messages[0].content[0].is_error"),
        ([user({"type": "tool_result", "content": "x"})], "messages[0].content[0].tool_use_id"),
    ],
)
def test_what_is_wrong_is_told_by_its_place(messages: list[Any], place: str) -> None:
    with pytest.raises(RequestError) as caught:
        make_turns(messages)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_request_error", place)
    assert f"'{place}" in str(caught.value)


@pytest.mark.parametrize(("system", "place"), [([text("a"), "b"], "system[1]"), ([{"type": "text"}], "system[0].text")])
def test_what_is_wrong_with_the_system_prompt_is_told_by_its_place(system: Any, place: str) -> None:
    with pytest.raises(RequestError) as caught:
        make_turns([user(text("hi"))], system)
    assert caught.value.param == place


# --- whatever comes ---------------------------------------------------------------------------------------

_KEYS = ("content", "text", "thinking", "id", "name", "input", "tool_use_id", "is_error")
_TYPES = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image")
_SIMPLE = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.just({}))
_BLOCK = st.fixed_dictionaries({"type": st.sampled_from(_TYPES)}, optional=dict.fromkeys(_KEYS, _SIMPLE))
_MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(("user", "assistant", "system", "tool", None)),
        "content": st.lists(_BLOCK | _SIMPLE) | _SIMPLE,
    }
)


@given(st.lists(_MESSAGE | _SIMPLE, max_size=4), st.none() | st.text(max_size=5) | st.lists(_BLOCK, max_size=3))
def test_whatever_comes_is_a_conversation_for_templates_or_refused_by_its_place(messages: Any, system: Any) -> None:
    try:
        turns = make_turns(messages, system)
    except RequestError as error:
        place = error.param or ""
    else:
        assert len(normalize_messages(turns)) == len(turns)
        place = "messages"
    assert place.partition("[")[0] in ("messages", "system")
