"""The items of OpenAI's Responses API: what a client sends, what is kept of a conversation, and what a template gets.

Owns what is accepted of an item and the one form that items have from then on. Must not know a request's other fields,
nor replies.

    message                content a list of `input_text` parts; the assistant's of `output_text` and `refusal`
    function_call          with call_id, name and arguments, which are a text
    function_call_output   `output` a text, or a list of `input_text` parts
    reasoning              content a list of `reasoning_text` parts
    item_reference         stands for an item of the conversation so far, and becomes that item
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from worker.api.json_schemas import NULL, TEXT, any_of, list_of, object_of
from worker.api.refusals import show
from worker.chat.errors import TEXT_ONLY, UnsupportedContent
from worker.errors import RequestError

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
"""The form of `input`, for openapi.json: validators decide what is accepted."""

Item = dict[str, Any]

_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text")
_OTHER_PARTS = ("input_image", "input_file", "input_audio", "input_video")
_UNFINISHED = ("in_progress", "incomplete")
_MAX_ID_CHARS = 128
_SEAL = "corral:"


def read_input(value: str | Sequence[Any], request_id: str, history: Sequence[Item] = ()) -> list[Item]:
    """Return the items of `input`, each with an id. Raises: RequestError naming the place; UnsupportedContent."""
    listed = [{"role": "user", "content": value}] if isinstance(value, str) else value
    known = {item["id"]: item for item in history}
    calls = {item["call_id"] for item in history if item["type"] == "function_call"}
    items: list[Item] = []
    for index, raw in enumerate(listed):
        path = f"input[{index}]"
        if not isinstance(raw, Mapping):
            raise RequestError(f"'{path}' is {show(raw)}, but it must be an object.", param=path)
        item = _item(raw, path, f"{request_id}_{index}", known)
        if item["type"] == "function_call":
            calls.add(item["call_id"])
        elif item["type"] == "function_call_output" and item["call_id"] not in calls:
            raise RequestError(
                f"'{path}.call_id' is {show(item['call_id'])}, but there is no function call of this id before it.",
                param=f"{path}.call_id",
            )
        items.append(item)
    return items


def read_history(history: bytes) -> list[Item]:
    """Return the items of a conversation that `to_lines` wrote."""
    return [orjson.loads(line) for line in history.split(b"\n") if line]


def to_lines(items: Sequence[Item]) -> bytes:
    """Return the items as JSON, one a line."""
    return b"\n".join(map(orjson.dumps, items))


def to_messages(instructions: str | None, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return the conversation as OpenAI's chat has it.

    What an assistant thought, said and called without anything in between is one message.
    """
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    turn: dict[str, Any] | None = None  # the assistant's, as long as nobody else has spoken
    for item in items:
        kind = item["type"]
        is_own = kind in ("reasoning", "function_call") or item.get("role") == "assistant"
        if not is_own:
            turn = None
            messages.append(_foreign_message(item))
            continue
        if turn is None or (kind != "function_call" and ("said" in turn or "tool_calls" in turn)):
            turn = {"role": "assistant", "content": None}
            messages.append(turn)
        _add_to_turn(turn, item)
    for message in messages:
        message.pop("said", None)
        if "reasoning_content" in message:
            message["reasoning_content"] = "".join(message["reasoning_content"])
    return messages


def is_unfinished(items: Sequence[Item]) -> bool:
    """Return whether the last item is a message of the assistant's that an answer goes on with."""
    last = items[-1]
    return last.get("role") == "assistant" and last["status"] in _UNFINISHED


def seal(text: str) -> str:
    """Return reasoning in the form in which clients send it back unread. It hides nothing."""
    return _SEAL + base64.b64encode(text.encode("utf-8", "replace")).decode()


def _unseal(sealed: str, path: str) -> str:
    try:
        if not sealed.startswith(_SEAL):
            raise ValueError
        return base64.b64decode(sealed[len(_SEAL) :], validate=True).decode()
    except (ValueError, binascii.Error):
        raise RequestError(
            f"'{path}.encrypted_content' was not made by this server, so it cannot be read. Leave the item out.",
            param=f"{path}.encrypted_content",
        ) from None


# --- from clients ---------------------------------------------------------------------------------------


def _item(raw: Mapping[str, Any], path: str, suffix: str, known: dict[str, Item]) -> Item:
    kind = raw.get("type")
    if kind is None:
        kind = "message" if "role" in raw else "item_reference" if "id" in raw else None
    match kind:
        case "message":
            return _message(raw, path, suffix)
        case "function_call":
            return {
                "type": kind,
                "id": _id(raw, f"fc_{suffix}"),
                "call_id": _text(raw, "call_id", path),
                "name": _text(raw, "name", path),
                "arguments": _text(raw, "arguments", path, may_be_empty=True),
                "status": _status(raw),
            }
        case "function_call_output":
            output = raw.get("output")
            return {
                "type": kind,
                "id": _id(raw, f"fco_{suffix}"),
                "call_id": _text(raw, "call_id", path),
                "output": output if isinstance(output, str) else list(_parts(output, f"{path}.output", "input_text")),
                "status": _status(raw),
            }
        case "reasoning":
            return _reasoning(raw, path, suffix)
        case "item_reference":
            wanted = _text(raw, "id", path)
            if wanted not in known:
                raise RequestError(
                    f"'{path}.id': there is no item {show(wanted)} in this conversation. Only items of the response "
                    "that 'previous_response_id' names can be referred to, each once; send the item itself.",
                    param=f"{path}.id",
                )
            return known.pop(wanted)  # once: a reference of a few bytes may stand for a long text
        case None:
            raise RequestError(
                f"'{path}' has no 'type': it must be a message, a function_call, a function_call_output, a reasoning "
                "item or an item_reference.",
                param=f"{path}.type",
            )
        case _:
            raise UnsupportedContent(
                f"'{path}.type' is {show(kind)}, which this server does not have: an item must be a message, a "
                "function_call, a function_call_output, a reasoning item or an item_reference.",
                param=f"{path}.type",
            )


def _message(raw: Mapping[str, Any], path: str, suffix: str) -> Item:
    role = raw.get("role")
    if role not in _ROLES:
        raise RequestError(
            f"'{path}.role' is {show(role)}, but it must be one of: {', '.join(_ROLES)}.", param=f"{path}.role"
        )
    kind = "output_text" if role == "assistant" else "input_text"
    return {
        "type": "message",
        "id": _id(raw, f"msg_{suffix}"),
        "role": role,
        "content": list(_parts(raw.get("content"), f"{path}.content", kind)),
        "status": _status(raw),
    }


def _reasoning(raw: Mapping[str, Any], path: str, suffix: str) -> Item:
    content, summary = raw.get("content") or [], raw.get("summary") or []
    texts = list(_reasoning_texts(content, f"{path}.content"))
    sealed = raw.get("encrypted_content")
    if not texts and isinstance(sealed, str) and sealed:
        texts = [_unseal(sealed, path)]
    if not texts:
        texts = list(_reasoning_texts(summary, f"{path}.summary"))
    return {
        "type": "reasoning",
        "id": _id(raw, f"rs_{suffix}"),
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text} for text in texts],
        "status": _status(raw),
    }


def _reasoning_texts(parts: Any, path: str) -> Iterator[str]:
    if not isinstance(parts, list):
        raise RequestError(f"'{path}' is {show(parts)}, but it must be a list of parts.", param=path)
    for index, part in enumerate(parts):
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            raise RequestError(f"'{path}[{index}]' must be an object with a 'text'.", param=f"{path}[{index}]")
        yield text


def _parts(content: Any, path: str, kind: str) -> Iterator[Item]:
    """Yield the parts of a content, those with text as parts of `kind`."""
    if isinstance(content, str):
        yield _text_part(content, kind)
        return
    if not isinstance(content, list):
        raise RequestError(f"'{path}' is {show(content)}, but it must be a string or a list of parts.", param=path)
    for index, part in enumerate(content):
        place = f"{path}[{index}]"
        given = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping) or not isinstance(given, str):
            raise RequestError(f"'{place}' must be an object with a 'type'.", param=place)
        if given in _TEXT_PARTS:
            yield _text_part(_text(part, "text", place, may_be_empty=True), kind)
        elif given == "refusal" and kind == "output_text":
            yield {"type": "refusal", "refusal": _text(part, "refusal", place, may_be_empty=True)}
        elif given in _OTHER_PARTS:
            raise UnsupportedContent(f"'{place}' is of type {show(given)}: {TEXT_ONLY}.", param=place)
        else:
            raise UnsupportedContent(
                f"'{place}' is of type {show(given)}, which cannot stand here: use {show(kind)}.", param=place
            )


def _text_part(text: str, kind: str) -> Item:
    return {"type": kind, "text": text} | ({"annotations": []} if kind == "output_text" else {})


def _text(raw: Mapping[str, Any], name: str, path: str, *, may_be_empty: bool = False) -> str:
    value = raw.get(name)
    if not isinstance(value, str) or not (value or may_be_empty):
        raise RequestError(
            f"'{path}.{name}' is {show(value)}, but it must be a string{'' if may_be_empty else ' that is not empty'}.",
            param=f"{path}.{name}",
        )
    return value


def _id(raw: Mapping[str, Any], otherwise: str) -> str:
    value = raw.get("id")
    return value if isinstance(value, str) and 0 < len(value) <= _MAX_ID_CHARS else otherwise


def _status(raw: Mapping[str, Any]) -> str:
    status = raw.get("status")
    return status if status in _UNFINISHED else "completed"


# --- to templates ---------------------------------------------------------------------------------------


def _foreign_message(item: Item) -> dict[str, Any]:
    if item["type"] == "function_call_output":
        return {"role": "tool", "tool_call_id": item["call_id"], "content": _content(item["output"])}
    return {"role": item["role"], "content": _content(item["content"])}


def _add_to_turn(turn: dict[str, Any], item: Item) -> None:
    match item["type"]:
        case "reasoning":
            text = "\n".join(part["text"] for part in item["content"])
            turn.setdefault("reasoning_content", []).append(text)
        case "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            turn.setdefault("tool_calls", []).append({"id": item["call_id"], "type": "function", "function": function})
        case _:
            turn["content"] = _content(item["content"])
            turn["said"] = True


def _content(parts: str | Sequence[Item]) -> str | list[dict[str, Any]]:
    """Return the parts as chat has them; one alone as its text."""
    if isinstance(parts, str):
        return parts
    if len(parts) == 1 and "text" in parts[0]:
        text: str = parts[0]["text"]
        return text
    return [
        {"type": "refusal", "refusal": part["refusal"]} if "refusal" in part else {"type": "text", "text": part["text"]}
        for part in parts
    ]
