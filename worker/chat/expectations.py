"""What a template expects of messages where templates differ, found out by rendering small conversations.

Owns the conversations and what is read off the results. Must not know how rendering works.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from worker.chat.errors import TemplateError
from worker.chat.messages import Turn

_PROBE = "corral-probe"
_RESULT = "corral-result"
_CALL = {"id": "call00001", "type": "function", "function": {"name": "probe", "arguments": {_PROBE: "x"}}}
_CALLING: Sequence[Turn] = (
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "content": _RESULT, "tool_call_id": "call00001", "name": "probe"},
)
Render = Callable[[Sequence[Turn]], str]
"""Renders turns with nothing but themselves. Raises: TemplateError."""


@dataclass(frozen=True, slots=True)
class Expectations:
    """How one template wants its messages."""

    is_content_list: bool = False
    """Contents as a list of parts; a plain text would not show up."""
    is_null_content: bool = True
    """The content of a turn that only calls tools as None; else as an empty text."""
    is_argument_object: bool = True
    """Arguments of tool calls as objects; else as JSON text."""
    shows_calls: bool = True
    """Calls of tools are printed; else they must be written into the content."""
    takes_tool_turns: bool = True
    """There are turns of the role `tool`; else what a tool answers must be a turn of the user."""

    def spell_out(self, turns: Sequence[Turn]) -> list[Turn]:
        """Return the turns with calls and results of tools as plain text, where the template has no place for them."""
        return [self._spell_out(turn) for turn in turns]

    def fit(self, turns: Sequence[Turn]) -> list[Turn]:
        """Return the turns as the template wants them."""
        return [self._fit(turn) for turn in turns]

    def _spell_out(self, turn: Turn) -> Turn:
        if turn.get("tool_calls") and not self.shows_calls:
            calls = [_without_type(call) for call in turn["tool_calls"]]
            said = [turn["content"]] if turn["content"] else []
            rest = {key: value for key, value in turn.items() if key != "tool_calls"}
            return {**rest, "content": "\n".join([*said, _json({"tool_calls": calls})])}
        if turn["role"] == "tool" and not self.takes_tool_turns:
            name = {"name": turn["name"]} if turn.get("name") else {}
            told = {"tool_response": {**name, "content": turn["content"]}}
            return {"role": "user", "content": _json(told)}
        return turn

    def _fit(self, turn: Turn) -> Turn:
        content = turn["content"]
        if content is None and not self.is_null_content:
            content = ""
        if content is not None and self.is_content_list:
            content = [{"type": "text", "text": content}]
        fitted = {**turn, "content": content}
        if "tool_calls" in turn and not self.is_argument_object:
            fitted["tool_calls"] = [_with_argument_text(call) for call in turn["tool_calls"]]
        return fitted


def find_expectations(render: Render) -> Expectations:
    """Return what the template behind `render` expects; the usual where it shows no difference."""
    user: Turn = {"role": "user", "content": _PROBE}
    shown = _rendered(render, [user])
    shown_list = _rendered(render, Expectations(is_content_list=True).fit([user]))
    is_content_list = _PROBE not in shown and _PROBE in shown_list and "'text'" not in shown_list
    # The two can depend on each other: some look for calls only in turns without a content.
    candidates = [
        Expectations(is_content_list, is_null_content, is_argument_object)
        for is_null_content in (True, False)
        for is_argument_object in (True, False)
    ]
    best = max(candidates, key=lambda candidate: _score_of_calls(render, candidate))
    # The first one wins where all are equal: nothing is spelt out without need.
    candidates = [
        replace(best, shows_calls=shows_calls, takes_tool_turns=takes_tool_turns)
        for takes_tool_turns in (True, False)
        for shows_calls in (True, False)
    ]
    return max(candidates, key=lambda candidate: _score_of_tools(render, candidate))


def _score_of_tools(render: Render, expectations: Expectations) -> tuple[bool, bool, bool]:
    """Return how much of a conversation with a tool comes out: is it taken at all, with the call, with the result?"""
    shown = _rendered(render, expectations.fit(expectations.spell_out(_CALLING)))
    return bool(shown), _PROBE in shown, _RESULT in shown


def _score_of_calls(render: Render, expectations: Expectations) -> tuple[bool, bool]:
    """Return how well a conversation with a tool call comes out: is it printed, and are the arguments JSON in it?"""
    shown = _rendered(render, expectations.fit(_CALLING))
    return bool(shown) and "None" not in shown, f'"{_PROBE}"' in shown


def _rendered(render: Render, turns: Sequence[Turn]) -> str:
    """Return what `render` shows; nothing if it refuses."""
    try:
        return render(turns)
    except TemplateError:
        return ""


def _with_argument_text(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    if isinstance(arguments, str):
        return call
    text = _json(arguments)
    return {**call, "function": {**call["function"], "arguments": text}}


def _without_type(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call as models know it: its name and arguments, and its id if it has one."""
    id_ = {"id": call["id"]} if call.get("id") else {}
    return {**id_, "name": call["function"]["name"], "arguments": call["function"]["arguments"]}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
