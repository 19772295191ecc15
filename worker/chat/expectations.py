"""What a template expects of messages where templates differ, found out by rendering small conversations.

Owns the conversations and what is read off the results. Must not know how rendering works.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from worker.chat.errors import TemplateError
from worker.chat.tool_calls.family import spell_calls
from worker.chat.tool_turns import Turn, one_by_one, said_apart, short_id, with_short_ids, with_tools_in_system

_PROBE, _SECOND = "corral-probe", "corral-second"
_RESULT, _SECOND_RESULT = "corral-result", "corral-other-result"
_SAID, _THOUGHT, _TOOL = "corral-said", "corral-thought", "corral-tool"
_USER: Turn = {"role": "user", "content": "x"}
_LONG_ID = "call_corral00000000000001"
_IN_FORM = re.compile(rf"""\"{_PROBE}\"|(?<!["'\\]){_PROBE}(?!["'\\])""")
_PARTS_IN_JSON = re.compile("""["']thinking["']""")
_THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking", "thought", "content")
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": _TOOL,
            "parameters": {
                "type": "object",
                "properties": {"x": {"type": "string", "description": "x"}},
                "required": [],
            },
        },
    }
]


def _call(argument: str, id_: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": "probe", "arguments": {argument: "x"}}}


def _answer(result: str, id_: str) -> Turn:
    return {"role": "tool", "content": result, "tool_call_id": id_, "name": "probe"}


_CALL = _call(_PROBE, short_id(1))
_CALLS: Turn = {"role": "assistant", "content": None, "tool_calls": [_CALL]}
_CALLING: Sequence[Turn] = (_USER, _CALLS, _answer(_RESULT, short_id(1)))
_CALLING_TWICE: Sequence[Turn] = (
    _USER,
    {**_CALLS, "tool_calls": [_CALL, _call(_SECOND, short_id(2))]},
    _answer(_RESULT, short_id(1)),
    _answer(_SECOND_RESULT, short_id(2)),
)
_CALLING_LONG: Sequence[Turn] = (
    _USER,
    {**_CALLS, "tool_calls": [_call(_PROBE, _LONG_ID)]},
    _answer(_RESULT, _LONG_ID),
)
_ANSWERED: Sequence[Turn] = ({"role": "assistant", "content": "x"}, _USER)
_SAYING: Sequence[Turn] = (_USER, {**_CALLS, "content": _SAID}, _answer(_RESULT, short_id(1)))
_THINKING: Sequence[Turn] = (_USER, {**_CALLS, "reasoning_content": _THOUGHT}, _answer(_RESULT, short_id(1)))
_SAYING_AND_THINKING: Sequence[Turn] = (_USER, {**_THINKING[1], "content": _SAID}, _answer(_RESULT, short_id(1)))


Spell = Callable[[Sequence[Mapping[str, Any]]], str]
"""Writes calls, each with `name` and `arguments`, as a model of the template does."""


class Render(Protocol):
    """Renders turns with nothing but themselves and tools. Raises: TemplateError."""

    def __call__(self, turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """Return the prompt."""


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
    takes_long_ids: bool = True
    """Any text is an id of a call; else nine letters and digits."""
    takes_many_calls: bool = True
    """Several calls in one turn are taken, and printed; else they must come one by one, each with its result."""
    shows_words_beside_calls: bool = True
    """What is said beside calls is printed, and so are they; else it must be a turn of its own."""
    thought_key: str = "reasoning_content"
    """Under which name thoughts are looked for; `content` = they are a part of it, of the type `thinking`."""
    takes_words_and_thoughts: bool = True
    """There may be both beside calls; else the words must follow the thoughts in one."""
    shows_tools: bool = True
    """Tools are printed; else the prompt must tell of them in another way."""
    takes_tools_in_system: bool = False
    """They are looked for in the system's turn."""
    is_tool_list: bool = False
    """Where there are no tools the template wants a list of none."""

    def spell_out(self, turns: Sequence[Turn], spell: Spell = spell_calls) -> list[Turn]:
        """Return the turns with calls and results of tools in a form in which the template has a place for them.

        It is plain text where there is no place; `spell` writes calls.
        """
        arranged = list(turns)
        if self.shows_calls:
            arranged = arranged if self.takes_many_calls else one_by_one(arranged)
            arranged = arranged if self.shows_words_beside_calls else said_apart(arranged)
        if not self.takes_long_ids:
            arranged = with_short_ids(arranged)
        return [self._spell_out(turn, spell) for turn in arranged]

    def fit(self, turns: Sequence[Turn]) -> list[Turn]:
        """Return the turns as the template wants them."""
        return [self._fit(turn) for turn in turns]

    def _spell_out(self, turn: Turn, spell: Spell) -> Turn:
        if turn.get("tool_calls") and not self.shows_calls:
            calls = spell([call["function"] for call in turn["tool_calls"]])
            said = [turn["content"]] if turn["content"] else []
            rest = {key: value for key, value in turn.items() if key != "tool_calls"}
            return {**rest, "content": "\n".join([*said, calls])}
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
        return self._with_thoughts(fitted) if "reasoning_content" in turn else fitted

    def _with_thoughts(self, turn: Turn) -> Turn:
        """Return a turn of the assistant whose thoughts stand where they are looked for."""
        thought, content = turn["reasoning_content"], turn["content"]
        rest = {key: value for key, value in turn.items() if key != "reasoning_content"}
        if self.thought_key == "content":
            is_said = bool(content) or "tool_calls" not in turn
            said = [{"type": "text", "text": content}] if is_said and isinstance(content, str) else content or []
            return {**rest, "content": [{"type": "thinking", "thinking": thought}, *said]}
        if content and "tool_calls" in turn and not self.takes_words_and_thoughts:
            return {**rest, "content": "", self.thought_key: f"{thought}\n\n{content}"}
        return {**rest, self.thought_key: thought}


def find_expectations(render: Render) -> Expectations:
    """Return what the template behind `render` expects; the usual where it shows no difference."""
    user: Turn = {"role": "user", "content": _PROBE}
    is_tool_list = not _rendered(render, [user]) and bool(_rendered(render, [user], []))
    shown = _rendered(render, [user], [] if is_tool_list else None)
    shown_list = _rendered(render, Expectations(is_content_list=True).fit([user]), [] if is_tool_list else None)
    is_content_list = _PROBE not in shown and _PROBE in shown_list and "'text'" not in shown_list
    found = Expectations(is_content_list=is_content_list, is_tool_list=is_tool_list)
    if (shown or shown_list) and _TOOL not in _rendered(render, found.fit([user]), _TOOLS):
        in_system = _TOOL in _shown(render, found, with_tools_in_system([user], _TOOLS))
        found = replace(found, shows_tools=in_system, takes_tools_in_system=in_system)
    # The two can depend on each other: some look for calls only in turns without a content.
    candidates = [
        replace(found, is_null_content=is_null_content, is_argument_object=is_argument_object)
        for is_null_content in (True, False)
        for is_argument_object in (True, False)
    ]
    best = max(candidates, key=lambda candidate: _score_of_calls(render, candidate))
    # The first one wins where all are equal: nothing is changed without need.
    candidates = [
        replace(best, shows_calls=shows_calls, takes_tool_turns=takes_tool_turns)
        for takes_tool_turns in (True, False)
        for shows_calls in (True, False)
    ]
    best = max(candidates, key=lambda one: _how_much(render, one, _CALLING, _PROBE, _RESULT))
    if not best.shows_calls:
        return best
    candidates = [best, replace(best, takes_long_ids=False)]
    best = max(candidates, key=lambda one: _how_much(render, one, _CALLING_LONG, _PROBE, _RESULT))
    candidates = [best, replace(best, takes_many_calls=False)]
    wanted = (_PROBE, _RESULT, _SECOND, _SECOND_RESULT)
    best = max(candidates, key=lambda one: _how_much(render, one, _CALLING_TWICE, *wanted))
    candidates = [best, replace(best, shows_words_beside_calls=False)]
    best = max(candidates, key=lambda one: _score_of_words(render, one))
    candidates = [replace(best, thought_key=key) for key in _THOUGHT_KEYS]
    best = max(candidates, key=lambda one: _score_of_thoughts(render, one))
    candidates = [best, replace(best, takes_words_and_thoughts=False)]
    return max(candidates, key=lambda one: _how_much(render, one, _SAYING_AND_THINKING, _PROBE))


def _how_much(render: Render, expectations: Expectations, turns: Sequence[Turn], *wanted: str) -> tuple[bool, ...]:
    """Return how much of a conversation comes out: is it taken at all, and is each of `wanted` in it?"""
    shown = _shown(render, expectations, expectations.spell_out(turns))
    return bool(shown), *(one in shown for one in wanted)


def _score_of_words(render: Render, expectations: Expectations) -> tuple[bool, ...]:
    """Return how well words beside calls come out: can the conversation go on, and is all printed before it does?"""
    goes_on, *_ = _how_much(render, expectations, [*_SAYING, *_ANSWERED])
    return goes_on, *_how_much(render, expectations, _SAYING, _PROBE, _RESULT, _SAID)


def _score_of_thoughts(render: Render, expectations: Expectations) -> tuple[bool, ...]:
    """Return how well thoughts come out: are they printed, and not as what stands for them in JSON?"""
    shown = _shown(render, expectations, expectations.spell_out(_THINKING))
    return bool(shown), _PROBE in shown, _THOUGHT in shown and not _PARTS_IN_JSON.search(shown)


def _score_of_calls(render: Render, expectations: Expectations) -> tuple[bool, bool]:
    """Return how well a conversation with a tool call comes out: is it printed, and are the arguments?

    They are JSON, or in a form of the template's own; not in Python's, nor JSON in JSON.
    """
    shown = _shown(render, expectations, _CALLING)
    return bool(shown) and "None" not in shown, _IN_FORM.search(shown) is not None


def _shown(render: Render, expectations: Expectations, turns: Sequence[Turn]) -> str:
    return _rendered(render, expectations.fit(turns), [] if expectations.is_tool_list else None)


def _rendered(render: Render, turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
    """Return what `render` shows; nothing if it refuses."""
    try:
        return render(turns, tools)
    except TemplateError:
        return ""


def _with_argument_text(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    if isinstance(arguments, str):
        return call
    text = _json(arguments)
    return {**call, "function": {**call["function"], "arguments": text}}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
