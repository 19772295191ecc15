"""Where the text of a JSON value ends, whether it is one, and how a broken one is closed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worker.chat.tool_calls.json_text import JsonText

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def _text(value: Any, indent: int | None, *, ascii_only: bool) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ascii_only)


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError:
        return False
    return text == text.strip(" \t\r\n")


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _is_whole(text: str) -> bool:
    reader = JsonText()
    num, is_well = reader.take(text)
    return is_well and num == len(text) and reader.end()


@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_every_value_is_read_to_its_end(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = _text(value, indent, ascii_only=ascii_only)
    assert _is_whole(text)
    reader = JsonText()
    assert reader.take(f"{text} more") == (len(text), True)
    assert reader.is_complete


@given(VALUES, st.data())
def test_a_value_that_breaks_off_is_closed(value: Any, data: st.DataObject) -> None:
    text = _text(value, None, ascii_only=data.draw(st.booleans()))
    cut = data.draw(st.integers(0, len(text)))
    reader = JsonText()
    assert reader.take(text[:cut]) == (cut, True)
    json.loads(text[:cut] + reader.closing)


@given(VALUES, st.data())
def test_it_is_as_strict_as_the_parser_of_python(value: Any, data: st.DataObject) -> None:
    text = _text(value, None, ascii_only=True)
    place = data.draw(st.integers(0, len(text)))
    text = text[:place] + data.draw(st.sampled_from('{}[]",:x01-.eE\\n')) + text[place:]
    assert _is_whole(text) == _is_json(text)


@pytest.mark.parametrize(
    "text", ["01", "-", "1.", "1e", '"\n"', '"\\x"', "[1,]", '{"a":1,}', "nul", "True", "NaN", "{1:2}", '"\\u12g4"']
)
def test_what_is_no_json_is_told(text: str) -> None:
    assert not _is_whole(text)


def test_what_is_taken_piece_by_piece_is_taken_as_a_whole() -> None:
    text = '{"a": [1, -2.5e+3, "x\\u00e9\\n", true], "b": {}}'
    reader = JsonText()
    for char in text:
        assert reader.take(char) == (1, True)
    assert reader.is_complete


@given(st.text('{}[]",:\\u0aZtrue-1.eE+ n', max_size=12))
@example('{"\\q')
@example('{"a": "\\u1Z')
def test_what_goes_wrong_anywhere_is_closed(text: str) -> None:
    reader = JsonText()
    num, _ = reader.take(text)
    json.loads(text[:num] + reader.closing)
