"""A bias reaches the token that it names, by id or by text, or the request is told why not."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from tests.fakes.engine import BOS, FakeVocabulary
from worker.api.logit_bias import read_biases, resolve_biases
from worker.errors import RequestError

VOCABULARY = FakeVocabulary()
HELLO = VOCABULARY.words["Hello"]
LAST = VOCABULARY.num_vocab - 1


def biases(value: Any) -> dict[int, float]:
    return dict(resolve_biases(VOCABULARY, read_biases(value)))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, {}),
        ({}, {}),
        ([], {}),
        ({"5": -100, "6": 1.5, "7": False}, {5: -100.0, 6: 1.5, 7: -math.inf}),
        ({"Hello": 2, "a": False}, {HELLO: 2.0, 97: -math.inf}),
        ([[5, 1], [6.0, -0.5], ["Hello", False]], {5: 1.0, 6: -0.5, HELLO: -math.inf}),
        ([["7", 1]], {55: 1.0}),  # in a list a number in quotes is a text
        ([[5, 1], [5, 1]], {5: 1.0}),
        ({str(LAST): 1}, {LAST: 1.0}),
    ],
)
def test_every_form_names_its_tokens(value: Any, expected: dict[int, float]) -> None:
    assert biases(value) == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, "must be an object from token ids or texts to numbers, or a list of such pairs, but it is 3"),
        ({"5": 101}, "maps token 5 to 101, but it must be a number from -100 to 100, or false"),
        ({"Hello": "x"}, 'maps token "Hello" to "x"'),
        ({"5": True}, "maps token 5 to true"),
        ({"": 1}, "a text of 0 characters, but each must have 1 to 256"),
        ([["x" * 257, 1]], "a text of 257 characters"),
        ([5], "has 5 at index 0, but it must be a pair"),
        ([[5, 1], [6]], "has a list at index 1, but it must be a pair"),
        ([[True, 1]], "has true at index 0, but a pair must begin with a token id or a text"),
        ([[1.5, 1]], "has 1.5 at index 0"),
        ([[1, 0]] * 1025, "has 1025 entries, but at most 1024 are allowed"),
    ],
)
def test_other_forms_are_refused_with_what_is_allowed(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        read_biases(value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({str(LAST + 1): 1}, f"names the token {LAST + 1}, but the ids of this model are 0 to {LAST}"),
        ({"-1": 1}, "names the token -1"),
        ([[2**63, 1]], f"names the token {2**63}"),
        ([["Hello you", 1]], 'names the text "Hello you", which is 5 tokens for this model'),
        ({"<s>": 1}, "which is 3 tokens"),  # the text of a control token is text
        ([[5, 1], [5, 2]], "names the token 5 twice, with different numbers"),
        ([[HELLO, 1], ["Hello", 2]], f"names the token {HELLO} twice"),
    ],
)
def test_what_names_no_single_token_is_refused(value: Any, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        biases(value)
    assert (caught.value.status, caught.value.param) == (400, "logit_bias")
    assert words in caught.value.message


def test_control_token_is_named_by_its_id() -> None:
    assert biases({str(BOS): False}) == {BOS: -math.inf}
