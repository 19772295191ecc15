"""OpenAI messages become one form, or the field to blame is named."""

from __future__ import annotations

import time
from typing import Any

import pytest

from worker.chat.errors import TemplateError, UnsupportedContent
from worker.chat.messages import ROLES, merge_for_template, normalize_messages


def one(**message: Any) -> dict[str, Any]:
    [turn] = normalize_messages([message])
    return turn


def call(arguments: Any, name: str = "f", id_: str = "c1") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("role", ROLES)
def test_accepted_roles_are_kept_and_developer_is_system(role: str) -> None:
    assert one(role=role, content="x")["role"] == ("system" if role == "developer" else role)


@pytest.mark.parametrize("role", ["", "root", None, 3, ["user"]])
def test_other_roles_are_refused_with_the_accepted_ones(role: object) -> None:
    with pytest.raises(TemplateError, match="system, developer, user, assistant, tool, function") as caught:
        normalize_messages([{"role": "user", "content": ""}, {"role": role, "content": "x"}])
    assert caught.value.param == "messages[1].role"


def test_no_messages_are_refused() -> None:
    with pytest.raises(TemplateError, match="empty") as caught:
        normalize_messages([])
    assert caught.value.param == "messages"


def test_message_that_is_no_object_is_refused() -> None:
    with pytest.raises(TemplateError) as caught:
        normalize_messages(["hi"])  # type: ignore[list-item]
    assert caught.value.param == "messages[0]"


def test_text_parts_are_joined_with_newlines() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "input_text", "text": "b"},
        {"type": "output_text", "text": "c"},
        {"type": "refusal", "refusal": "d"},
        "e",
    ]
    assert one(role="user", content=parts)["content"] == "a\nb\nc\nd\ne"


@pytest.mark.parametrize("kind", ["image_url", "input_image", "input_audio", "video_url", "file"])
def test_parts_that_are_no_text_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedContent, match=f'"{kind}"') as caught:
        one(role="user", content=[{"type": "text", "text": "a"}, {"type": kind}])
    assert caught.value.param == "messages[0].content[1]"
    assert caught.value.code == "unsupported_content"


@pytest.mark.parametrize("content", [3, {"text": "a"}, [3], [{}], [{"type": "text"}], [{"type": "text", "text": 3}]])
def test_malformed_content_is_refused(content: object) -> None:
    with pytest.raises(TemplateError, match=r"messages\[0\]\.content"):
        one(role="user", content=content)


def test_absent_content_is_empty_text() -> None:
    assert one(role="assistant")["content"] == ""
    assert one(role="user", content=None)["content"] == ""


def test_absent_content_of_a_turn_that_calls_tools_stays_absent() -> None:
    assert one(role="assistant", content=None, tool_calls=[call("{}")])["content"] is None


def test_names_and_unknown_fields_are_kept_and_nulls_are_not() -> None:
    turn = one(role="user", content="x", name="ann", reasoning_content="hm", refusal=None)
    assert turn == {"role": "user", "content": "x", "name": "ann", "reasoning_content": "hm"}


def test_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(TemplateError) as caught:
        one(role="user", content="x", name=3)
    assert caught.value.param == "messages[0].name"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"a": "ü"}', {"a": "ü"}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
        ("{broken", "{broken"),
        ("[1]", "[1]"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_of_tool_calls_are_objects_where_they_can_be(given: object, expected: object) -> None:
    turn = one(role="assistant", tool_calls=[call(given)])
    assert turn["tool_calls"][0]["function"]["arguments"] == expected


@pytest.mark.parametrize("calls", ["x", 3, [3], [{}], [{"function": {"name": 3}}], [call(3)]])
def test_malformed_tool_calls_are_refused(calls: object) -> None:
    with pytest.raises(TemplateError, match=r"messages\[0\]\.tool_calls"):
        one(role="assistant", content="", tool_calls=calls)


def test_type_of_a_tool_call_may_be_left_out() -> None:
    turn = one(role="assistant", tool_calls=[{"function": {"name": "f"}}])
    assert turn["tool_calls"][0]["type"] == "function"


def test_old_function_call_becomes_a_tool_call() -> None:
    turn = one(role="assistant", content=None, function_call={"name": "f", "arguments": '{"a": 1}'})
    assert turn == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "id": "call00001", "function": {"name": "f", "arguments": {"a": 1}}}],
    }


def test_no_text_beside_calls_is_no_content() -> None:
    assert one(role="assistant", content="", tool_calls=[call("{}")])["content"] is None


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_have_one_name(name: str) -> None:
    assert one(role="assistant", content="x", **{name: "hm"}) == {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "hm",
    }


def test_no_thoughts_have_none() -> None:
    assert one(role="assistant", content="x", reasoning_content="") == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize("absent", [None, ""])
def test_calls_and_answers_without_ids_get_some_in_their_order(absent: Any) -> None:
    def calls(*names: str) -> dict[str, Any]:
        return {"role": "assistant", "tool_calls": [call("{}", name, absent) for name in names]}

    def answer(text: str) -> dict[str, Any]:
        return {"role": "tool", "content": text, "tool_call_id": absent}

    given = [calls("f", "g"), answer("1"), answer("2"), calls("h"), answer("3"), answer("4")]
    turns = normalize_messages(given)
    assert [one["id"] for turn in turns for one in turn.get("tool_calls", ())] == [
        "call00001",
        "call00002",
        "call00003",
    ]
    answers = [(turn["tool_call_id"], turn.get("name")) for turn in turns if turn["role"] == "tool"]
    assert answers == [("call00001", "f"), ("call00002", "g"), ("call00003", "h"), ("call00004", None)]


def test_ids_that_are_given_to_calls_are_not_taken() -> None:
    given = [{"role": "assistant", "tool_calls": [call("{}", "f", "call00001"), call("{}", "g", "")]}]
    assert [one["id"] for one in normalize_messages(given)[0]["tool_calls"]] == ["call00001", "call00002"]


def test_an_id_of_a_call_that_is_no_string_is_refused_by_name() -> None:
    with pytest.raises(TemplateError) as caught:
        one(role="assistant", tool_calls=[{"id": 3, "function": {"name": "f"}}])
    assert caught.value.param == "messages[0].tool_calls[0].id"


def test_answer_of_a_tool_gets_the_name_of_its_call() -> None:
    turns = normalize_messages(
        [
            {"role": "assistant", "tool_calls": [call("{}", "f", "c1"), call("{}", "g", "c2")]},
            {"role": "tool", "tool_call_id": "c2", "content": "2"},
            {"role": "tool", "tool_call_id": "c1", "content": "1", "name": "own"},
            {"role": "tool", "tool_call_id": "c3", "content": "3"},
        ]
    )
    assert [turn.get("name") for turn in turns[1:]] == ["g", "own", None]


def test_input_is_not_changed() -> None:
    message = {"role": "developer", "content": None, "tool_calls": [call('{"a": 1}')]}
    normalize_messages([message])
    assert message == {"role": "developer", "content": None, "tool_calls": [call('{"a": 1}')]}


def turns(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in pairs]


def test_merging_puts_system_texts_in_front_and_joins_turns_of_one_role() -> None:
    given = turns(
        ("user", "a"),
        ("user", "b"),
        ("system", "s"),
        ("assistant", "c"),
        ("assistant", "d"),
        ("system", "t"),
        ("user", ""),
    )
    assert merge_for_template(given) == turns(
        ("system", "s\n\nt"), ("user", "a\n\nb"), ("assistant", "c\n\nd"), ("user", "")
    )


def test_merging_leaves_tool_calls_and_their_answers_apart() -> None:
    calling = {"role": "assistant", "content": None, "tool_calls": [call("{}")]}
    given = [*turns(("user", "a")), calling, calling, *turns(("tool", "1"), ("tool", "2"), ("assistant", "x"))]
    assert merge_for_template(given) == given


def test_merging_changes_nothing_where_nothing_is_to_merge() -> None:
    given = turns(("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"))
    assert merge_for_template(given) == given


@pytest.mark.parametrize("call_id", [[], {}, 3])
def test_a_call_id_that_is_no_string_is_refused_by_name(call_id: Any) -> None:
    with pytest.raises(TemplateError) as caught:
        normalize_messages([{"role": "tool", "content": "x", "tool_call_id": call_id}])
    assert caught.value.param == "messages[0].tool_call_id"


def test_thousands_of_messages_in_a_row_are_joined_once() -> None:
    given = turns(*[("user", "x" * 300)] * 20_000)
    started_s = time.process_time()
    (joined,) = merge_for_template(given)
    assert time.process_time() - started_s < 2.0
    assert len(joined["content"]) == 20_000 * 302 - 2
