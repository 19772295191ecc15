"""Answers in a form, in Anthropic's dialect over a real socket: both names that it has for it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.called_tools import CALLING, CITY, PLAIN, allows, call
from tests.worker.api.test_anthropic_messages import HI, count, engine, send
from tests.worker.api.test_anthropic_reply import events_of

FORM = {"type": "json_schema", "schema": CITY}
LONG = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5_000_000}}}


def asking(form: Any, name: str) -> dict[str, Any]:
    return {"output_config": {"format": form}} if name == "output_config.format" else {name: form}


@pytest.mark.parametrize("name", ["output_config.format", "output_format"])
async def test_a_schema_is_what_the_text_is_held_to(name: str) -> None:
    on = engine(b'{"city": "Rome"}')
    reply = await send(on, source=PLAIN, **asking(FORM, name))
    assert reply.json["content"] == [{"type": "text", "text": '{"city": "Rome"}'}]
    assert allows(on, '{"city": "Rome"}')
    assert not allows(on, "Rome")
    assert not allows(on, '{"city": 5')
    assert not allows(on, '{"city": "Rome"} It is.')


async def test_both_names_may_say_the_same_and_not_something_else() -> None:
    on = engine(b'{"city": "Rome"}')
    await send(on, source=PLAIN, output_config={"format": FORM}, output_format=FORM)
    assert not allows(on, "Rome")
    other = {"type": "json_schema", "schema": {"type": "object"}}
    error = (await send(engine(), source=PLAIN, output_config={"format": FORM}, output_format=other)).error
    assert (error.status, error.param) == (400, "output_format")


async def test_other_forms_than_json_are_honoured_in_the_same_place() -> None:
    on = engine(b"12")
    await send(on, source=PLAIN, output_config={"format": {"type": "regex", "pattern": "[0-9]+"}})
    assert allows(on, "12")
    assert not allows(on, "a")


async def test_null_and_text_ask_for_no_form() -> None:
    for form in (None, {"type": "text"}):
        on = engine()
        await send(on, source=PLAIN, output_config={"format": form})
        assert on.submitted[0].constraint is None


async def test_tools_and_a_form_leave_the_choice_between_a_call_and_such_a_text() -> None:
    on = engine(b'{"city": "Rome"}')
    tools = [{"name": "weather", "input_schema": CITY}]
    await send(on, source=PLAIN, tools=tools, output_config={"format": FORM})
    assert allows(on, '{"city": "Rome"}')
    assert allows(on, call("weather", {"city": "Rome"}))
    assert not allows(on, "Rome")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("answer", ['{"a": "x"}', '{"a": 5}'])
async def test_what_cannot_be_enforced_is_checked_and_told(answer: str, is_stream: bool) -> None:
    form = {"type": "json_schema", "schema": LONG}
    reply = await send(engine(answer.encode()), source=PLAIN, output_config={"format": form}, stream=is_stream)
    told = (events_of(reply.body)[-2] if is_stream else reply.json)["corral_format"]
    assert told["not_enforced"] == ["$.properties.a.maxLength"]
    assert told["is_valid"] is ("x" in answer)
    assert (told["problem"] is None) is told["is_valid"]


async def test_nothing_is_told_of_a_form_that_is_enforced_as_a_whole() -> None:
    reply = await send(engine(b'{"city": "Rome"}'), source=PLAIN, output_config={"format": FORM})
    assert "corral_format" not in reply.json


@pytest.mark.parametrize("name", ["output_config.format", "output_format"])
@pytest.mark.parametrize(
    ("form", "place"),
    [
        ({"type": "json_schema"}, ".schema"),
        ({"type": "json_schema", "schema": {"type": "array", "uniqueItems": True}}, ".schema"),
        ({"type": "json_schema", "schema": {"type": "nonsense"}}, ".schema"),
        ({"type": "structural_tag"}, ".type"),
        ({"type": "xml"}, ".type"),
        ({"type": "regex", "pattern": "["}, ""),
        ("json", ""),
    ],
)
async def test_a_form_that_cannot_be_enforced_is_refused_by_its_place(name: str, form: Any, place: str) -> None:
    on = engine()
    error = (await send(on, source=PLAIN, **asking(form, name))).error
    assert (error.status, error.param) == (400, f"{name}{place}")
    assert f"'{name}{place}" in error.message
    assert not on.submitted


async def test_an_answer_that_goes_on_with_a_message_has_no_form() -> None:
    begun = [*HI["messages"], {"role": "assistant", "content": "{"}]
    for path in (send, count):
        error = (await path(engine(), source=PLAIN, output_config={"format": FORM}, messages=begun)).error
        assert (error.status, error.param) == (400, "output_config.format")
        assert "the last message" in error.message


async def test_the_form_changes_nothing_of_the_prompt() -> None:
    on = engine()
    await send(on, source=CALLING, output_config={"format": FORM})
    assert (await count(engine(), source=CALLING)).json["input_tokens"] == len(on.submitted[0].prompt)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("json_schema", {}),
        ("grammar", 'root ::= "a"'),
        ("regex", "a+"),
        ("choice", ["a"]),
        ("lark", 'start: "a"'),
        ("guided_json", {"type": "object"}),
        ("structured_outputs", {"regex": "a"}),
        ("format", "json"),
    ],
)
async def test_a_form_under_the_name_of_another_dialect_is_refused_with_the_right_one(name: str, value: Any) -> None:
    error = (await send(engine(), source=PLAIN, **{name: value})).error
    assert (error.status, error.param) == (400, name)
    assert "'output_config.format'" in error.message
