"""What a template expects of messages where templates differ, found out by rendering small conversations.

Owns the conversations and what is read off the results. Must not know how rendering works.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from worker.chat.errors import TemplateError
from worker.chat.messages import Turn

_PROBE = "corral-probe"
_CALL = {"id": "call00001", "type": "function", "function": {"name": "probe", "arguments": {_PROBE: "x"}}}
_CALLING: Sequence[Turn] = (
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "content": "x", "tool_call_id": "call00001", "name": "probe"},
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

    def fit(self, turns: Sequence[Turn]) -> list[Turn]:
        """Return the turns as the template wants them."""
        return [self._fit(turn) for turn in turns]

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
    return max(candidates, key=lambda candidate: _score_of_calls(render, candidate))


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
    text = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**call["function"], "arguments": text}}
