"""Where templates differ in what they want, each gets what it wants."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worker.chat.templates import CHATML, FAMILIES, NOW, chat_template, text_of
from worker.chat.expectations import Expectations

CALL = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": '{"a": "ü"}'}}
CALLING: list[dict[str, Any]] = [
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call00001", "content": "y"},
]

LIST_ONLY = """\
{%- for m in messages %}[{% for p in m.content if p.type is defined %}{{ p.text }}{% endfor %}]{% endfor %}
"""
PRINTS_NULL = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
NULL_MEANS_CALLS = """\
{%- for m in messages %}
    {%- if m.content is none %}
        {%- for call in m.tool_calls %}{{ 'call ' + call.function.name + ' ' + call.function.arguments }}{% endfor %}
    {%- else %}{{ '<' + m.content + '>' }}{% endif %}
{%- endfor %}
"""
ARGUMENT_TEXT = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}{% endfor %}"
)
ARGUMENT_OBJECT = ARGUMENT_TEXT.replace("arguments }}", "arguments | tojson }}")
EITHER = ARGUMENT_TEXT.replace(
    "{{ c.function.arguments }}",
    "{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}",
)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (LIST_ONLY, "[x][][y]"),
        (PRINTS_NULL, "<x><><y>"),
        (NULL_MEANS_CALLS, '<x>call f {"a": "ü"}<y>'),
        (ARGUMENT_TEXT, '{"a": "ü"}'),
        (ARGUMENT_OBJECT, '{"a": "ü"}'),
        (EITHER, '{"a": "ü"}'),
    ],
)
def test_conversation_with_a_call_is_fitted_to_the_template(source: str, expected: str) -> None:
    assert text_of(chat_template(source).render(CALLING, now=NOW)) == expected


def test_content_list_can_be_continued() -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Once "}]
    segments = chat_template(LIST_ONLY).render(messages, now=NOW, continue_final_message=True)
    assert text_of(segments) == "[x][Once "


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_common_families_take_plain_text_and_objects(family: str) -> None:
    expectations = chat_template(FAMILIES[family]).expectations
    assert not expectations.is_content_list
    assert expectations.is_argument_object


def test_template_that_refuses_everything_gets_the_usual() -> None:
    assert chat_template("{{ raise_exception('no') }}").expectations == Expectations()


def test_text_that_is_no_json_stays_as_it_is() -> None:
    broken = {"type": "function", "function": {"name": "f", "arguments": "{oops"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [broken]},
    ]
    assert text_of(chat_template(ARGUMENT_TEXT).render(messages, now=NOW)) == "{oops"


def test_null_content_that_cannot_be_added_is_empty_text() -> None:
    assert "assistant\n<|im_end|>" in text_of(chat_template(CHATML).render(CALLING, now=NOW))
