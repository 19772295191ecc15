"""Calls as one JSON list behind a marker: Granite 3, Phi-4-mini, Firefunction, Apriel, Hunyuan, Nemotron Nano 2.

    <|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]

What stands in front of the list and behind it differs.
Source: the chat templates and model cards of these models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from worker.chat.tool_calls.family import Family, call_of
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.json_calls import read_calls
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.spelling import spelled, written
from worker.chat.tool_calls.tools import Tool, Tools

NAME, ARGUMENTS, END = '{"name": ', ', "arguments": ', "}"
OPENING = "["
ANSWER, ANSWER_END = "<answer>", "</answer>"
FUNCTOOLS = "functools["
"""With the bracket: the word alone is that of a module of Python, which answers may speak of."""


class JsonList(Family):
    """A list behind one of the triggers."""

    closers: ClassVar[tuple[str, ...]]
    """What ends the list behind each of the triggers; empty = nothing does."""
    holds_many = True
    between = ""

    def read(self, scan: Scanner) -> Reading[None]:
        """Read text and lists of calls."""
        # The bracket may stand on the next line.
        signs = {trigger.removesuffix(OPENING): trigger for trigger in self.triggers}
        while (sign := (yield from scan.until(*signs))) is not None:
            yield from self._read_list(scan, sign, self._closer(signs[sign]))

    def _read_list(self, scan: Scanner, sign: str, closer: str) -> Reading[None]:
        """Read the list behind a sign, and what ends it; what is none is given back."""
        scan.remember(sign)
        yield from scan.space()
        if not (yield from read_calls(scan)):
            scan.give_back()
        elif closer:
            yield from scan.leading(closer)

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return a list of calls of the tools."""
        call = write.any_of(call_object(write, tool) for tool in tools.offered)
        opening = "" if trigger.endswith(OPENING) else write.literal(OPENING)
        more = more_calls(call) if tools.is_parallel else ""
        line = "(/[ \\n]{1,8}/)?"
        closer = self._closer(trigger)
        return f'{opening} {line} {call} {more} {line} "]" {write.marker(closer) if closer else ""}'

    def spell(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """Return calls as the models write them."""
        listed = json.dumps([call_of(call) for call in calls], ensure_ascii=False)
        return f"{self.triggers[0].removesuffix(OPENING)}{listed}{self.closers[0]}"

    def _closer(self, trigger: str) -> str:
        return self.closers[self.triggers.index(trigger)]


class Granite3(JsonList):
    """Behind `<|tool_call|>`, to the end."""

    name = "granite3"
    title = "Granite 3"
    markers = ("<|tool_call|>", "<tool_call>")
    triggers = markers
    closers = ("", "")

    def fits(self, source: str) -> bool:
        """Whether the template has Granite's roles, and tells of this marker."""
        return "<|start_of_role|>" in source and "</tool_call>" not in source


class Phi4Mini(JsonList):
    """Between two markers, or behind a word."""

    name = "phi4-mini"
    title = "Phi-4-mini"
    markers = ("<|tool_call|>", "<|/tool_call|>")
    triggers = ("<|tool_call|>", FUNCTOOLS)
    closers = ("<|/tool_call|>", "")

    def fits(self, source: str) -> bool:
        """Whether the template shows tools between its markers for them."""
        return "<|/tool|>" in source


class Functools(JsonList):
    """Behind a word, to the end."""

    name = "functools"
    title = "Firefunction 2"
    markers = ()
    triggers = (FUNCTOOLS,)
    closers = ("",)

    def fits(self, source: str) -> bool:
        """Whether the template tells of the word."""
        return FUNCTOOLS in source


class ToolCallsList(JsonList):
    """Between tags."""

    name = "tool-calls-list"
    title = "Apriel 1.5 and 1.6, and others with a list in `<tool_calls>`"
    markers: ClassVar[tuple[str, ...]] = ("<tool_calls>", "</tool_calls>")
    triggers = ("<tool_calls>",)
    closers = ("</tool_calls>",)

    def fits(self, source: str) -> bool:
        """Whether the template writes these tags. MiniMax, which has no list in them, is asked before."""
        return "<tool_calls>" in source and "</tool_calls>" in source


class HunyuanA13B(ToolCallsList):
    """The same, and tags around what is said."""

    name = "hunyuan-a13b"
    title = "Hunyuan A13B"
    markers = (*ToolCallsList.markers, ANSWER, ANSWER_END)

    def fits(self, source: str) -> bool:
        """Whether the template knows of both kinds of tags."""
        return ANSWER in source and ToolCallsList.fits(self, source)

    def read(self, scan: Scanner) -> Reading[None]:
        """Read text, with tags around it or without, and lists of calls."""
        if (yield from scan.leading(ANSWER)) is None:
            return (yield from super().read(scan))
        yield from scan.space()
        [sign], [closer] = self.triggers, self.closers
        ends = [spelled(scan.markers, one) for one in (f"\n{ANSWER_END}", ANSWER_END)]
        while (found := (yield from scan.until(*ends, sign))) is not None:
            if found == sign:
                yield from self._read_list(scan, found, closer)
            else:
                ends = []
                yield from scan.space()

    def answer(self, write: GrammarWriter, body: str) -> str:
        """Return the expression of an answer with the tags or without."""
        opening, end = written(write, f"{ANSWER}\n"), written(write, f"\n{ANSWER_END}")
        return write.any_of([f"{opening} {body} {end}", body])


class Nemotron2(JsonList):
    """Between tags in capitals."""

    name = "nemotron2"
    title = "Nemotron Nano 2"
    markers = ("<TOOLCALL>", "</TOOLCALL>")
    triggers = ("<TOOLCALL>",)
    closers = ("</TOOLCALL>",)

    def fits(self, source: str) -> bool:
        """Whether the template writes these tags."""
        return "<TOOLCALL>" in source


def more_calls(call: str) -> str:
    """Return the expression of any number of calls behind the first one, `call` being that of one."""
    return f"(/,[ \\n]{{0,8}}/ {call})*"


def call_object(write: GrammarWriter, tool: Tool) -> str:
    """Return the expression of a call as a JSON object."""
    head = write.literal(NAME + json.dumps(tool.name, ensure_ascii=False) + ARGUMENTS)
    return f"{head} {write.schema(tool.grammar_schema)} {write.literal(END)}"
