"""Anthropic's messages to those of OpenAI's chat, which templates are written for.

Owns what is accepted of content blocks. Pure: must not know templates
nor replies.

    text                  text; several of one message are joined with newlines
    thinking              `reasoning_content` of the assistant's turn; redacted thoughts, which nobody can read, go
    tool_use              a call in `tool_calls`
    tool_result           a turn of the role `tool`
    everything else       refused, naming its place
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from worker.chat.errors import TEXT_ONLY, UnsupportedContent
from worker.contract import without_billing_header
from worker.errors import RequestError

Turn = dict[str, Any]

_BLOCKS = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}
"""Role to the types of its blocks."""


def make_turns(
    messages: Sequence[Any], system: str | Sequence[Any] | None = None, *, drops_billing_header: bool = True
) -> list[Turn]:
    """Return the conversation, the system prompt first.

    Raises: RequestError naming the place of what is wrong; UnsupportedContent for images, documents and the like.
    """
    if not messages:
        raise RequestError("'messages' is empty: send at least one message.", param="messages")
    turns: list[Turn] = []
    if text := _system_text(system, drops_billing_header=drops_billing_header):
        turns.append({"role": "system", "content": text})
    for index, message in enumerate(messages):
        turns += _turns_of(message, f"messages[{index}]")
    return turns


def _system_text(system: str | Sequence[Any] | None, *, drops_billing_header: bool) -> str:
    if system is None:
        return ""
    if isinstance(system, str):
        return without_billing_header(system) if drops_billing_header else system
    texts = [_text(block, where) for block, where in _blocks(system, "system", "system")]
    if drops_billing_header:
        texts = [without_billing_header(text) for text in texts]
    return "\n".join(text for text in texts if text)


def _turns_of(message: Any, where: str) -> list[Turn]:
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(message, Mapping) or role is None:
        raise RequestError(f"'{where}' must be an object with a 'role' and a 'content'.", param=where)
    if not isinstance(role, str) or role not in _BLOCKS:
        raise RequestError(
            f'\'{where}.role\' is {_shown(role)}, but it must be "user", "assistant" or "system".',
            param=f"{where}.role",
        )
    content, path = message.get("content"), f"{where}.content"
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise RequestError(f"'{path}' must be a text or a list of content blocks.", param=path)
    blocks = _blocks(content, path, role)
    return [_assistant_turn(blocks)] if role == "assistant" else _plain_turns(role, blocks)


def _plain_turns(role: str, blocks: Iterator[tuple[Mapping[str, Any], str]]) -> list[Turn]:
    """Return the user's or the system's turns, with the results of tools in their places between them."""
    turns: list[Turn] = []
    texts: list[str] = []

    def end_text() -> None:
        if texts:
            turns.append({"role": role, "content": "\n".join(texts)})
            texts.clear()

    for block, where in blocks:
        if block["type"] == "tool_result":
            end_text()
            turns.append(_tool_turn(block, where))
        else:
            texts.append(_text(block, where))
    end_text()
    return turns or [{"role": role, "content": ""}]


def _assistant_turn(blocks: Iterator[tuple[Mapping[str, Any], str]]) -> Turn:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Turn] = []
    for block, where in blocks:
        match block["type"]:
            case "text":
                texts.append(_text(block, where))
            case "thinking":
                thoughts.append(_string(block, "thinking", where))
            case "tool_use":
                calls.append(_call(block, where))
            case _:
                pass  # a redacted thought
    turn: Turn = {"role": "assistant", "content": "\n".join(texts) if texts or not calls else None}
    if thought := "\n".join(filter(None, thoughts)):
        turn["reasoning_content"] = thought
    if calls:
        turn["tool_calls"] = calls
    return turn


def _call(block: Mapping[str, Any], where: str) -> Turn:
    arguments = block.get("input")
    if not isinstance(arguments, Mapping):
        raise RequestError(f"'{where}.input' must be an object.", param=f"{where}.input")
    function = {"name": _string(block, "name", where), "arguments": arguments}
    return {"id": _string(block, "id", where), "type": "function", "function": function}


def _tool_turn(block: Mapping[str, Any], where: str) -> Turn:
    content, is_error = block.get("content"), block.get("is_error")
    if not isinstance(is_error, bool | None):
        raise RequestError(f"'{where}.is_error' must be true or false.", param=f"{where}.is_error")
    if isinstance(content, list):
        content = "\n".join(_text(one, path) for one, path in _blocks(content, f"{where}.content", "system"))
    elif not isinstance(content, str | None):
        raise RequestError(f"'{where}.content' must be a text or a list of content blocks.", param=f"{where}.content")
    text = content or ""
    if is_error and not text.lower().startswith("error"):  # templates know no other sign of it
        text = f"Error: {text}" if text else "Error"
    return {"role": "tool", "tool_call_id": _string(block, "tool_use_id", where), "content": text}


def _blocks(content: Sequence[Any], path: str, role: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield each block with its place. Raises: RequestError, UnsupportedContent for one that `role` may not have."""
    for index, block in enumerate(content):
        where = f"{path}[{index}]"
        kind = block.get("type") if isinstance(block, Mapping) else None
        if not isinstance(block, Mapping) or not isinstance(kind, str):
            raise RequestError(f"'{where}' must be a content block: an object with a 'type'.", param=where)
        if kind in _BLOCKS[role]:
            yield block, where
        elif any(kind in kinds for kinds in _BLOCKS.values()):
            allowed = ", ".join(f"'{one}'" for one in _BLOCKS[role])
            raise RequestError(f"'{where}' is of type {_shown(kind)}; here only {allowed} can stand.", param=where)
        else:
            raise UnsupportedContent(f"'{where}' is of type {_shown(kind)}: {TEXT_ONLY}.", param=where)


def _text(block: Mapping[str, Any], where: str) -> str:
    return _string(block, "text", where)


def _string(block: Mapping[str, Any], key: str, where: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise RequestError(f"'{where}.{key}' must be a string.", param=f"{where}.{key}")
    return value


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:100]
