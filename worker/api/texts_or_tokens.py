"""A field that is a text, several texts, token ids, or several lists of them: OpenAI's prompts and inputs.

Owns the form and its error messages. Must not know what the texts are for.
"""

from __future__ import annotations

from typing import Any

from worker.api.fields import wrong
from worker.api.json_schemas import TEXT, Schema, any_of, list_of
from worker.api.refusals import show

TextOrTokens = str | tuple[int, ...]

ALLOWED = "a string, a list of strings, a list of token ids or a list of such lists"
_TOKENS = list_of({"type": "integer", "minimum": 0}, minItems=1)


def texts_or_tokens_schema(*, at_most: int) -> Schema:
    """Return the schema of such a field with at most so many entries."""
    return any_of(TEXT, _TOKENS, list_of(any_of(TEXT, _TOKENS), minItems=1, maxItems=at_most))


def read_texts_or_tokens(value: Any, *, at_most: int) -> tuple[TextOrTokens, ...]:
    """Return the entries. Raises: the error of a validator that says which one is wrong."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise wrong(f"is {show(value)}, but it must be {ALLOWED}")
    if not is_list_of_entries(value):
        return (tuple(value),)
    if len(value) > at_most:
        raise wrong(f"has {len(value)} entries, but at most {at_most} are allowed in one request")
    return tuple(_entry(index, one) for index, one in enumerate(value))


def is_list_of_entries(value: Any) -> bool:
    """Return whether it has several entries, and not just one as it is or as token ids."""
    return isinstance(value, list) and not all(_is_token(one) for one in value)


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _entry(index: int, value: Any) -> TextOrTokens:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(_is_token(one) for one in value):
        return tuple(value)
    raise wrong(f"has {show(value)} at index {index}, but it must be a string or a list of token ids")
