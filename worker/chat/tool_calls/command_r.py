"""Calls of Cohere's models: a list between `<|START_ACTION|>` and `<|END_ACTION|>`; behind `Action:` in older ones.

    <|START_ACTION|>[
        {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}
    ]<|END_ACTION|>

Text stands between markers, too. What the models number their calls with means nothing outside of one answer.
Source: the chat templates of these models.
"""

from __future__ import annotations

import json

from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.grammar import TEXT, GrammarWriter
from worker.chat.tool_calls.json_calls import CallKeys, read_calls
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.tools import Tool, Tools

OPEN, CLOSE = "<|START_ACTION|>", "<|END_ACTION|>"
RESPONSE, RESPONSE_END = "<|START_RESPONSE|>", "<|END_RESPONSE|>"
TEXT_START, TEXT_END = "<|START_TEXT|>", "<|END_TEXT|>"
KEYS = CallKeys(("tool_name", "name"), ("parameters", "arguments"), ())
ACTIONS = ("Action: ```json", "Action:\n```json", "Action:```json")


class CommandR(Family):
    """A list between markers."""

    name = "command-r"
    title = "Command R7B, Command A"
    markers = (OPEN, CLOSE, RESPONSE, RESPONSE_END)
    triggers = (OPEN,)
    holds_many = True

    def fits(self, source: str) -> bool:
        """Whether the template shows actions and responses between these markers."""
        return OPEN in source and RESPONSE in source

    def read(self, scan: Scanner) -> Reading[None]:
        """Read text and calls; the markers around text mean nothing more."""
        others = [one for one in self.markers if one != OPEN]
        while (found := (yield from scan.until(OPEN, *others))) is not None:
            if found == OPEN:
                scan.remember(OPEN)
                yield from scan.space()
                if not (yield from read_calls(scan, KEYS)):
                    scan.give_back()

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return the list."""
        call = write.any_of(self._call(write, tool) for tool in tools.offered)
        comma, opening, closing = (write.regex(one) for one in (r",\n? {0,4}", r"\[\n? {0,4}", r"\n?\]"))
        more = f"({comma} {call})*" if tools.is_parallel else '""'
        return f"{opening} {call} {more} {closing} {write.marker(CLOSE)}"

    def _call(self, write: GrammarWriter, tool: Tool) -> str:
        opening = write.regex(r'\{"tool_call_id": "[0-9]{1,4}')
        name = write.literal('", "tool_name": ' + json.dumps(tool.name, ensure_ascii=False) + ', "parameters": ')
        return f"{opening} {name} {write.schema(tool.grammar_schema)} {write.literal('}')}"

    def free_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return text, with its markers or without them, or calls."""
        start, end = self.markers[2:]
        call = f"{write.text_before(OPEN)} {self.block(write, tools, OPEN)}"
        return write.any_of([f"{write.marker(start)} {TEXT} {write.marker(end)}", call, TEXT])

    def answer(self, write: GrammarWriter, body: str) -> str:
        """Return text between its markers."""
        start, end = self.markers[2:]
        return f"{write.marker(start)} {body} {write.marker(end)}"


class Cohere2(CommandR):
    """The same with other markers around text."""

    name = "cohere2"
    title = "Cohere's models of 2026, as North Mini Code"
    markers = (OPEN, CLOSE, TEXT_START, TEXT_END)

    def fits(self, source: str) -> bool:
        """Whether the template shows actions and texts between these markers."""
        return OPEN in source and TEXT_START in source


class CommandRPlus(Family):
    """A list in a block of code."""

    name = "command-r-plus"
    title = "Command R and R+"
    markers = ()
    triggers = ACTIONS[:2]
    holds_many = True

    def fits(self, source: str) -> bool:
        """Whether the template asks for such a list."""
        return "Action:\\n" in source and '"tool_name"' in source and OPEN not in source

    def read(self, scan: Scanner) -> Reading[None]:
        """Read text and calls."""
        while (found := (yield from scan.until(*ACTIONS))) is not None:
            scan.remember(found)
            yield from scan.space()
            if (yield from read_calls(scan, KEYS)):
                yield from scan.leading("```")
            else:
                scan.give_back()

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return the list, with the line breaks and indents of the template or without them."""
        space = write.rule(write.regex(r"\n? {0,8}"))
        call = write.any_of(self._call(write, tool, space) for tool in tools.offered)
        more = f'("," {space} {call})*' if tools.is_parallel else '""'
        return f'{space} "[" {space} {call} {more} {space} "]" {space} "```"'

    def _call(self, write: GrammarWriter, tool: Tool, space: str) -> str:
        name = write.literal('"tool_name": ' + json.dumps(tool.name, ensure_ascii=False) + ",")
        parameters = write.literal('"parameters": ') + " " + write.schema(tool.grammar_schema)
        return f'"{{" {space} {name} {space} {parameters} {space} "}}"'
