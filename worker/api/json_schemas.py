"""JSON schemas of values that validators of our own read, and pydantic can therefore not describe by itself.

Owns descriptions for openapi.json alone: validators decide what is accepted. Must not know the fields of a dialect.
"""

from __future__ import annotations

from typing import Any

from worker.chat.messages import ROLES

Schema = dict[str, Any]


def any_of(*schemas: Schema) -> Schema:
    """Return the schema of a value that fits one of `schemas`."""
    return {"anyOf": list(schemas)}


def list_of(items: Schema, **limits: int) -> Schema:
    """Return the schema of a list; `limits` are minItems and maxItems."""
    return {"type": "array", "items": items, **limits}


def object_of(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """Return the schema of an object that may have other keys too."""
    schema: Schema = {"type": "object", "properties": properties}
    return schema | {"required": list(required)} if required else schema


NULL: Schema = {"type": "null"}
TEXT: Schema = {"type": "string"}
ANY_OBJECT: Schema = {"type": "object"}
TOKENS = list_of({"type": "integer", "minimum": 0}, minItems=1)


def texts_or_tokens(**limits: int) -> Schema:
    """Return the schema of a text, texts, token ids or lists of token ids; `limits` are those of a list of several."""
    return any_of(TEXT, TOKENS, list_of(any_of(TEXT, TOKENS), minItems=1, **limits))


_TEXT_PART = any_of(
    object_of(("type", "text"), type={"enum": ["text", "input_text", "output_text"]}, text=TEXT),
    object_of(("type", "refusal"), type={"const": "refusal"}, refusal=TEXT),
    TEXT,
)
_CALLED = object_of(("name",), name=TEXT, arguments=any_of(TEXT, ANY_OBJECT, NULL))
_CALL = object_of(("function",), id=TEXT, type={"const": "function"}, function=_CALLED)
_MESSAGE = object_of(
    ("role",),
    role={"enum": list(ROLES)},
    content=any_of(TEXT, list_of(_TEXT_PART), NULL),
    name=any_of(TEXT, NULL),
    tool_calls=any_of(list_of(_CALL), NULL),
    tool_call_id=any_of(TEXT, NULL),
)
MESSAGES = list_of(_MESSAGE, minItems=1)
"""A conversation in the form of OpenAI's chat."""

_OUTPUT_PART = any_of(
    object_of(("type", "text"), type={"const": "output_text"}, text=TEXT),
    object_of(("type", "refusal"), type={"const": "refusal"}, refusal=TEXT),
)
_INPUT_PART = object_of(("type", "text"), type={"const": "input_text"}, text=TEXT)
_REASONING_PART = object_of(("type", "text"), type={"const": "reasoning_text"}, text=TEXT)
_ITEM = any_of(
    object_of(
        ("role", "content"),
        type={"const": "message"},
        role={"enum": ["user", "system", "developer"]},
        content=any_of(TEXT, list_of(_INPUT_PART)),
    ),
    object_of(
        ("role", "content"),
        type={"const": "message"},
        role={"const": "assistant"},
        content=any_of(TEXT, list_of(_OUTPUT_PART)),
        status={"enum": ["completed", "incomplete", "in_progress"]},
    ),
    object_of(
        ("type", "call_id", "name", "arguments"),
        type={"const": "function_call"},
        call_id=TEXT,
        name=TEXT,
        arguments=TEXT,
    ),
    object_of(
        ("type", "call_id", "output"),
        type={"const": "function_call_output"},
        call_id=TEXT,
        output=any_of(TEXT, list_of(_INPUT_PART)),
    ),
    object_of(("type",), type={"const": "reasoning"}, content=any_of(list_of(_REASONING_PART), NULL)),
    object_of(("id",), type={"const": "item_reference"}, id=TEXT),
)
ITEMS = list_of(_ITEM, minItems=1)
"""A conversation in the form of OpenAI's Responses API."""
