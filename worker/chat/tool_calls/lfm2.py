"""Calls as a list in Python's notation between markers: LFM 2 and 2.5.

    <|tool_call_start|>[get_weather(city="Paris", days=2), now()]<|tool_call_end|>

On request these models write the list as JSON.
Source: the chat templates and model cards of these models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from worker.chat.tool_calls.family import Family, unreadable
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.json_calls import read_calls
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.tools import Tool, Tools
from worker.chat.tool_calls.value_grammar import ValueGrammar, unreadable_names
from worker.chat.tool_calls.values import PYTHON, read_python_call

OPEN, CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_SIGNS = ("<|tool_list_start|>", "List of tools: [")


class Lfm2(Family):
    """A list in Python's notation."""

    name = "lfm2"
    title = "LFM 2 and 2.5"
    markers = (OPEN, CLOSE)
    triggers = (OPEN,)
    holds_many = True
    is_exact = False

    def problem_with(self, tool: Tool) -> str | None:
        """Return which parameter has a name that the notation cannot hold."""
        return unreadable(unreadable_names(tool.grammar_schema, PYTHON, "="))

    def fits(self, source: str) -> bool:
        """Whether the template writes these markers, or lists tools in its family's way."""
        return OPEN in source or any(sign in source for sign in _SIGNS)

    def read(self, scan: Scanner) -> Reading[None]:
        """Read text and lists of calls."""
        while (yield from scan.until(OPEN)) is not None:
            scan.remember(scan.markers.form(OPEN))
            yield from scan.space()
            if (yield from scan.skip("[")) is not None and (yield from self._read_list(scan)):
                yield from scan.leading(CLOSE)
            scan.give_back()

    def _read_list(self, scan: Scanner) -> Reading[bool]:
        """Read what stands behind the bracket; return whether all of it were calls."""
        yield from scan.space()
        if (yield from scan.peek()) == "{":
            return (yield from read_calls(scan, is_open=True))
        while True:
            if not (yield from read_python_call(scan)):
                return False
            yield from scan.space()
            if (yield from scan.skip("]")) is not None:
                return True
            scan.remember()
            yield from scan.skip(",")
            yield from scan.space()

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return a list of calls of the tools."""
        call = write.any_of(self._call(write, tool) for tool in tools.offered)
        more = f'(", " {call})*' if tools.is_parallel else ""
        return f'"[" {call} {more} "]" {write.marker(CLOSE)}'

    def spell(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """Return calls as the models write them."""
        return f"{OPEN}[{', '.join(_spelled(call) for call in calls)}]{CLOSE}"

    def _call(self, write: GrammarWriter, tool: Tool) -> str:
        arguments = ValueGrammar(write, PYTHON, tool.grammar_schema).arguments("=")
        return f'{write.literal(f"{tool.name}(")} {arguments} ")"'


def _spelled(call: Mapping[str, Any]) -> str:
    arguments = call["arguments"]
    if not isinstance(arguments, Mapping):
        return f"{call['name']}({arguments})"
    return f"{call['name']}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
