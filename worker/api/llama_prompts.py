"""llama-server's forms of a prompt: text, token ids, both mixed, objects, and lists of all these.

Owns how they are told apart and how they become tokens. Must not know the other fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worker.api.json_schemas import TEXT, Schema, any_of, list_of, object_of
from worker.api.ports import Vocabulary
from worker.api.prompt import check_text_length, check_token, with_one_bos
from worker.api.refusals import show
from worker.chat.errors import TEXT_ONLY, UnsupportedContent
from worker.errors import RequestError

MixedPrompt = tuple[str | int, ...]
"""Texts and token ids, one after the other."""

ALLOWED = "text, a list of token ids and texts, an object with prompt_string, or a list of several of these"

_MIXED = list_of({"type": ["integer", "string"]}, minItems=1)
_OBJECT = object_of(("prompt_string",), prompt_string=TEXT, multimodal_data={"type": "array", "maxItems": 0})
PROMPTS: Schema = any_of(TEXT, _OBJECT, _MIXED, list_of(any_of(TEXT, _OBJECT, _MIXED), minItems=1))
"""For openapi.json."""


def read_prompts(value: Any, param: str) -> tuple[MixedPrompt, ...]:
    """Return the prompts in `value`: a list with a token id in it is one prompt, any other list has several.

    Raises: ValueError that completes the sentence "'prompt' …"; UnsupportedContent for images and the like.
    """
    if isinstance(value, list) and value and not any(_is_token(one) for one in value):
        return tuple(_one_prompt(one, param, f" at index {index}") for index, one in enumerate(value))
    return (_one_prompt(value, param),)


def _one_prompt(value: Any, param: str, place: str = "") -> MixedPrompt:
    match value:
        case str():
            return (value,)
        case {"prompt_string": str(text)}:
            if value.get("multimodal_data"):
                raise UnsupportedContent(
                    f"'{param}' has something in 'multimodal_data': {TEXT_ONLY}.",
                    param=f"{param}.multimodal_data",
                )
            return (text,)
        case [_, *_] if all(isinstance(one, str) or _is_token(one) for one in value):
            return tuple(value)
        case _ if place:
            raise ValueError(
                f"has {show(value)}{place}, but it must be text, a list of token ids and texts, or an object with "
                "prompt_string"
            )
        case _:
            raise ValueError(f"is {show(value)}, but it must be {ALLOWED}")


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def prompt_tokens(vocabulary: Vocabulary, prompt: MixedPrompt, *, context: int, param: str) -> tuple[int, ...]:
    """Return the tokens, at least one; a prompt that begins with text gets the model's BOS.

    Special tokens in the text count as such: a raw prompt is its author's own responsibility. Raises: RequestError.
    """
    num_chars = sum(len(part) for part in prompt if isinstance(part, str))
    check_text_length(num_chars, context=context, param=param)
    tokens = mixed_tokens(vocabulary, prompt, parse_special=True, param=param)
    if isinstance(prompt[0], str):
        tokens = with_one_bos(vocabulary, tokens)
    if not tokens:
        raise RequestError(f"'{param}' is empty: this model needs at least one token to start from.", param=param)
    return tuple(tokens)


def mixed_tokens(
    vocabulary: Vocabulary, parts: Sequence[str | int], *, parse_special: bool, param: str, add_special: bool = False
) -> list[int]:
    """Return the tokens of `parts`; `add_special` is about the first one, if it is text. Raises: RequestError."""
    tokens: list[int] = []
    for number, part in enumerate(parts):
        if isinstance(part, str):
            adds = add_special and number == 0
            tokens += vocabulary.tokenize(part, add_special=adds, parse_special=parse_special)
        else:
            tokens.append(check_token(vocabulary, part, param))
    return tokens
