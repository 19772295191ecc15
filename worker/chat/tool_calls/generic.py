"""Calls as one JSON object, for models whose chat template says nothing of tools, or in a form that nobody knows.

    {"tool_calls": [{"name": "get_weather", "arguments": {"city": "Paris"}}]}

The model is told in the prompt which tools there are and how to call them: no model has learnt this form. Calls in the
history are spelt out in the same words by `expectations`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.json_calls import CallKeys, read_call, read_calls
from worker.chat.tool_calls.json_lists import call_object, more_calls
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.tools import Demand, Tool, Tools

TRIGGER: Final = '{"tool_calls": ['
_KEY: Final = '"tool_calls"'
_OPENINGS: Final = ("{", "```json\n{", "```\n{")
"""Many models put JSON into a block of code."""
_FENCE: Final = "```"
_KEYS = CallKeys(ids=())
"""Ids that stand here are copies of those in the history."""


class Generic(Family):
    """JSON as the prompt asks for it."""

    name = "generic"
    title = "any other model"
    markers = ()
    triggers = (TRIGGER,)
    holds_many = True
    needs_instructions = True
    tested_on = "SmolLM2 135M Instruct"

    def fits(self, source: str) -> bool:
        """Whether no other family does: this is asked last."""
        return True

    def read(self, scan: Scanner) -> Reading[None]:
        """Read text and objects with calls. A call alone, without a list around it, is one if nothing is before it."""
        opening = yield from scan.leading(*_OPENINGS)
        if opening is not None:
            yield from self._read_object(scan, opening, may_be_alone=True)
        while (opening := (yield from scan.until(*_OPENINGS))) is not None:
            yield from self._read_object(scan, opening, may_be_alone=False)

    def _read_object(self, scan: Scanner, opening: str, *, may_be_alone: bool) -> Reading[None]:
        scan.remember(opening)
        yield from scan.space()
        if (yield from scan.skip(_KEY)) is not None:
            is_call = yield from self._read_list(scan)
        else:
            is_call = may_be_alone and (yield from read_call(scan, _KEYS, is_open=True))
        if not is_call:
            scan.give_back()
        elif opening != "{":
            yield from scan.leading(_FENCE)

    def _read_list(self, scan: Scanner) -> Reading[bool]:
        yield from scan.space()
        if (yield from scan.skip(":")) is None:
            return False
        yield from scan.space()
        if not (yield from read_calls(scan, _KEYS)):
            return False
        yield from scan.leading("}")
        return True

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return the calls of the list and the end of the object."""
        call = write.any_of(call_object(write, tool) for tool in tools.offered)
        more = more_calls(call) if tools.is_parallel else ""
        return f'{call} {more} "]}}"'

    def instructions(self, tools: Tools) -> str:
        """Return what the prompt tells of the tools."""
        return instructions(tools)


def instructions(tools: Tools) -> str:
    """Return what the prompt tells of the tools, and of the form of a call."""
    shown = "\n".join(_json(_described(tool)) for tool in tools.offered)
    must = "You must call" if tools.demand is Demand.REQUIRED else "Where it helps you to answer, call"
    what = "one or more of them" if tools.is_parallel else "one of them"
    return (
        "You can call tools. These are all that there are, each with a JSON schema of its parameters:\n"
        f"{shown}\n\n"
        f"{must} {what}. To do so, write nothing but one JSON object of this form:\n"
        f'{TRIGGER}{{"name": "<name of the tool>", "arguments": {{<arguments as JSON>}}}}]}}\n\n'
        'What a tool returns is told to you afterwards, in an object with the key "tool_response".'
    )


def _described(tool: Tool) -> dict[str, Any]:
    described: dict[str, Any] = {"name": tool.name}
    if tool.description:
        described["description"] = tool.description
    parameters: Mapping[str, Any] = tool.parameters
    return {**described, "parameters": dict(parameters)}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
