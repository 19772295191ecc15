"""`logit_bias` in all the forms that clients send: a map or a list, from token ids or texts to numbers.

Owns what it may hold and how a text becomes its token. Must not know the other fields.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from worker.api.ports import Vocabulary
from worker.api.refusals import show
from worker.errors import RequestError

MAX_BIASES = 1024
MAX_TEXT_CHARS = 256
"""No vocabulary has longer tokens."""

Bias = tuple[int | str, float]
"""A token id, or a text that is one token, and what is added to its logit."""

_ID = re.compile("-?[0-9]{1,10}")


def read_biases(value: Any) -> tuple[Bias, ...]:
    """Return what `value` says. Raises: ValueError that completes the sentence "'logit_bias' ...".

    In a map a key that is a number is a token id, any other a text. A list has pairs, in which texts may be numbers.
    """
    if value is None:
        return ()
    if not isinstance(value, dict | list):
        raise ValueError(
            f"must be an object from token ids or texts to numbers, or a list of such pairs, but it is {show(value)}"
        )
    if len(value) > MAX_BIASES:
        raise ValueError(f"has {len(value)} entries, but at most {MAX_BIASES} are allowed")
    if isinstance(value, dict):
        return tuple((int(key) if _ID.fullmatch(key) else _text(key), _bias(key, one)) for key, one in value.items())
    return tuple(_pair(index, one) for index, one in enumerate(value))


def resolve_biases(vocabulary: Vocabulary, biases: Iterable[Bias]) -> tuple[tuple[int, float], ...]:
    """Return them by token id. Raises: RequestError when the vocabulary has no such token, or one is named twice."""
    found: dict[int, float] = {}
    for token, bias in biases:
        id_ = _token_of(vocabulary, token) if isinstance(token, str) else token
        if not 0 <= id_ < vocabulary.num_vocab:
            raise RequestError(
                f"'logit_bias' names the token {id_}, but the ids of this model are 0 to {vocabulary.num_vocab - 1}.",
                param="logit_bias",
            )
        if found.setdefault(id_, bias) != bias:
            raise RequestError(
                f"'logit_bias' names the token {id_} twice, with different numbers. Set only one of them.",
                param="logit_bias",
            )
    return tuple(found.items())


def _token_of(vocabulary: Vocabulary, text: str) -> int:
    tokens: Sequence[int] = vocabulary.tokenize(text, add_special=False, parse_special=False)
    if len(tokens) != 1:
        raise RequestError(
            f"'logit_bias' names the text {show(text)}, which is {len(tokens)} tokens for this model, but only a text "
            "that is exactly one token can have a bias. Name the ids of its tokens instead.",
            param="logit_bias",
        )
    return tokens[0]


def _pair(index: int, value: Any) -> Bias:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f'has {show(value)} at index {index}, but it must be a pair such as [42, -1] or ["no", false]')
    token, bias = value
    if isinstance(token, float) and token.is_integer():
        token = int(token)
    if isinstance(token, bool) or not isinstance(token, int | str):
        raise ValueError(f"has {show(token)} at index {index}, but a pair must begin with a token id or a text")
    return _text(token) if isinstance(token, str) else token, _bias(token, bias)


def _text(text: str) -> str:
    if not 1 <= len(text) <= MAX_TEXT_CHARS:
        raise ValueError(f"names a text of {len(text)} characters, but each must have 1 to {MAX_TEXT_CHARS}")
    return text


def _bias(token: int | str, value: Any) -> float:
    if value is False:  # llama-server's way to ban a token
        return -math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not -100 <= value <= 100:
        shown = token if isinstance(token, int) or _ID.fullmatch(token) else show(token)
        raise ValueError(f"maps token {shown} to {show(value)}, but it must be a number from -100 to 100, or false")
    return float(value)
