"""OpenAI chat messages in the one form that templates get.

Owns what is accepted of a message and how it is unified. Must not know templates.

    content       text, or a list of text parts (joined with newlines), or absent
    role          system (also as developer), user, assistant, tool, function
    tool_calls    `arguments` as an object wherever they are JSON of one; the old `function_call` becomes a tool call;
                  no text beside them is no content
    name          kept; a tool's answer without one gets the name of the call that it answers
    reasoning     what an assistant has thought, under the name `reasoning_content`, also given as `reasoning` or
                  `thinking`
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from worker.chat.errors import TEXT_ONLY, TemplateError, UnsupportedContent
from worker.chat.tool_turns import Turn, with_ids

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Type of a content part to the key of its text."""

REASONING_NAMES = ("reasoning_content", "reasoning", "thinking")
"""Under which clients give back what the assistant has thought."""


def normalize_messages(messages: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """Return the messages as templates get them; `content` is a text, or None where there was none.

    Raises: TemplateError that names the field; UnsupportedContent for images, audio and files.
    """
    if not messages:
        raise TemplateError("'messages' is empty; send at least one message.", param="messages")
    turns = with_ids([_turn(message, f"messages[{index}]") for index, message in enumerate(messages)])
    call_names: dict[str, str] = {}
    for turn in turns:
        for call in turn.get("tool_calls", ()):
            call_names[call["id"]] = call["function"]["name"]
        answered = turn.get("tool_call_id")
        if turn["role"] == "tool" and not turn.get("name") and answered in call_names:
            turn["name"] = call_names[answered]
    return turns


def merge_for_template(turns: Sequence[Turn]) -> list[Turn]:
    """Return the conversation in the shape that the strictest templates take.

    One system message, in front; no two user turns, nor two plain assistant turns, in a row. Texts are joined with a
    blank line.
    """
    system = [turn for turn in turns if turn["role"] == "system"]
    runs: list[list[Turn]] = [system] if system else []
    for turn in turns:
        if turn["role"] == "system":
            continue
        last = runs[-1][-1] if runs else None
        if last is not None and _is_mergeable(last) and _is_mergeable(turn) and last["role"] == turn["role"]:
            runs[-1].append(turn)
        else:
            runs.append([turn])
    return [run[0] if len(run) == 1 and run is not system else _joined(run) for run in runs]


def without_system(turns: Sequence[Turn]) -> list[Turn]:
    """Return a conversation whose system text stands in front of the first user's, for templates that take none."""
    if len(turns) < 2 or turns[0]["role"] != "system" or turns[1]["role"] != "user":
        return list(turns)
    texts = [turn["content"] for turn in turns[:2] if turn["content"]]
    return [{**turns[1], "content": "\n\n".join(texts)}, *turns[2:]]


def _joined(turns: Sequence[Turn]) -> Turn:
    texts = [turn["content"] for turn in turns if turn["content"]]
    return {**turns[0], "content": "\n\n".join(texts)}


def _is_mergeable(turn: Turn) -> bool:
    return turn["role"] in ("user", "assistant") and not turn.get("tool_calls")


def _turn(message: Any, where: str) -> Turn:
    if not isinstance(message, Mapping):
        raise TemplateError(f"'{where}' is not an object with a 'role' and a 'content'.", param=where)
    role = message.get("role")
    if role not in ROLES:
        raise TemplateError(
            f"'{where}.role' is {json.dumps(role, ensure_ascii=False)[:100]}; it must be one of: {', '.join(ROLES)}.",
            param=f"{where}.role",
        )
    if not isinstance(message.get("name", ""), str | None):
        raise TemplateError(f"'{where}.name' is not a text.", param=f"{where}.name")
    turn = {key: value for key, value in message.items() if value is not None and key != "function_call"}
    turn["role"] = "system" if role == "developer" else role
    turn["content"] = _content(message.get("content"), f"{where}.content")
    if not isinstance(turn.get("tool_call_id", ""), str):
        raise TemplateError(f"'{where}.tool_call_id' must be a string.", param=f"{where}.tool_call_id")
    if role == "assistant":
        _unify_reasoning(turn)
    calls = message.get("tool_calls") or ()
    if not calls and message.get("function_call"):
        calls = ({"type": "function", "function": message["function_call"]},)
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise TemplateError(f"'{where}.tool_calls' is not a list.", param=f"{where}.tool_calls")
    turn.pop("tool_calls", None)
    if calls:
        turn["tool_calls"] = [_tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
        turn["content"] = turn["content"] or None
    elif turn["content"] is None:
        turn["content"] = ""
    return turn


def _unify_reasoning(turn: Turn) -> None:
    """Leave what the assistant has thought under one name alone. Mutates: `turn`."""
    given = [turn.pop(name) for name in REASONING_NAMES if isinstance(turn.get(name), str)]
    if thought := next(filter(None, given), None):
        turn["reasoning_content"] = thought


def _content(content: Any, where: str) -> str | None:
    """Return the text of a content. Raises: TemplateError, UnsupportedContent."""
    match content:
        case None | str():
            return content
        case list() | tuple():
            return "\n".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))
        case _:
            raise TemplateError(f"'{where}' is neither a text nor a list of parts.", param=where)


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise TemplateError(f"'{where}' is not a content part: an object with a 'type'.", param=where)
    if kind not in _TEXT_PARTS:
        raise UnsupportedContent(
            f"'{where}' is of type {json.dumps(kind, ensure_ascii=False)[:100]}: {TEXT_ONLY}.",
            param=where,
        )
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise TemplateError(f"'{where}.{_TEXT_PARTS[kind]}' is not a text.", param=where)
    return text


def _tool_call(call: Any, where: str) -> Turn:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TemplateError(f"'{where}.function.name' is missing or is not a text.", param=where)
    arguments = function.get("arguments")
    if arguments is None or arguments == "":
        arguments = {}
    elif isinstance(arguments, str):
        arguments = _object_or_text(arguments)
    elif not isinstance(arguments, Mapping):
        raise TemplateError(f"'{where}.function.arguments' is neither a text nor an object.", param=where)
    if not isinstance(call.get("id"), str | None):
        raise TemplateError(f"'{where}.id' must be a string.", param=f"{where}.id")
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def _object_or_text(arguments: str) -> Any:
    """Return the JSON object in `arguments`; the text itself when there is none, as models do write broken JSON."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
