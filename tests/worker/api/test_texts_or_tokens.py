"""Texts or token ids, one or several: what is read, and how each refusal reads."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_core import PydanticCustomError

from worker.api.texts_or_tokens import is_list_of_entries, read_texts_or_tokens


@pytest.mark.parametrize(
    ("value", "entries", "is_list"),
    [
        ("a", ("a",), False),
        ("", ("",), False),
        ([1, 2], ((1, 2),), False),
        (["a"], ("a",), True),
        (["a", [1, 2]], ("a", (1, 2)), True),
        ([[1], [2]], ((1,), (2,)), True),
    ],
)
def test_every_form_becomes_a_list_of_entries(value: Any, entries: tuple[Any, ...], *, is_list: bool) -> None:
    assert read_texts_or_tokens(value, at_most=2) == entries
    assert is_list_of_entries(value) == is_list


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (5, "is 5, but it must be a string, a list of strings"),
        ([], "is an empty list, but it must be"),
        (["a", []], "has an empty list at index 1, but it must be a string or a list of token ids"),
        (["a", [1, "b"]], "has a list at index 1"),
        ([True], "has true at index 0"),
        ([1, "a"], "has 1 at index 0"),
        (["a", "b", "c"], "has 3 entries, but at most 2 are allowed in one request"),
    ],
)
def test_anything_else_is_refused_with_its_place(value: Any, words: str) -> None:
    with pytest.raises(PydanticCustomError, match=words):
        read_texts_or_tokens(value, at_most=2)


def test_the_length_of_one_prompt_in_token_ids_is_no_number_of_entries() -> None:
    assert read_texts_or_tokens([1] * 1000, at_most=2) == ((1,) * 1000,)
