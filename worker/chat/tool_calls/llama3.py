"""Calls of Llama 3: JSON that the answer begins with, or stands behind `<|python_tag|>`.

    {"name": "get_weather", "parameters": {"city": "Paris"}}
    <|python_tag|>brave_search.call(query="weather in Paris")
    <|python_tag|>print(1 + 1)

The second form is that of built-in tools, the third that of the tool that runs code. Several calls stand behind one
another with `;` between them; some models that were trained further write a JSON list of them. Llama 4 has the same
JSON, behind what `<|python_start|>` and `<|python_end|>` enclose.
Source: the chat templates of these models, and Meta's description of their prompt formats.
"""

from __future__ import annotations

import json
from typing import ClassVar

from worker.chat.tool_calls.code_calls import CodeCall, code_tool
from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.grammar import TEXT, GrammarWriter
from worker.chat.tool_calls.json_calls import CallKeys, read_call, read_calls
from worker.chat.tool_calls.leading import not_beginning_with
from worker.chat.tool_calls.pythonic import read_call_list
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.tools import Tool, Tools
from worker.chat.tool_calls.value_grammar import ValueGrammar
from worker.chat.tool_calls.values import PYTHON, read_arguments, read_name

TAG = "<|python_tag|>"
START, END = "<|python_start|>", "<|python_end|>"
KEYS = CallKeys(("name", "function"), ("parameters", "arguments"), (), ("type",))
OPENINGS = ('{"name": ', '{"type": "function", "name": ')
ARGUMENTS = ', "parameters": '
BUILT_IN = ("brave_search", "wolfram_alpha")


class Llama3(Family):
    """JSON at the beginning."""

    name = "llama3"
    title = "Llama 3.1, 3.2 and 3.3"
    markers: ClassVar[tuple[str, ...]] = (TAG,)
    triggers = ()
    holds_many = True
    has_lists: ClassVar[bool] = True
    """Lists of calls in JSON are calls, too."""

    def fits(self, source: str) -> bool:
        """Whether the template asks for JSON with parameters in turns of Llama 3."""
        return '"parameters": ' in source and "<|start_header_id|>" in source and "ipython" in source

    def read(self, scan: Scanner) -> Reading[None]:
        """Read calls at the beginning, then text and calls behind the marker."""
        scan.remember()
        yield from scan.space()
        yield from self._read_json(scan)
        while (yield from scan.until(TAG)) is not None:
            scan.remember(TAG)
            spaces = yield from scan.space()
            if (yield from scan.peek()) == "{":
                yield from self._read_json(scan)
            else:
                yield from self._read_code(scan, spaces)

    def _read_json(self, scan: Scanner) -> Reading[None]:
        """Read calls one behind another, or a list of them; what is none is given back."""
        if self.has_lists and (yield from scan.peek()) == "[":
            if not (yield from read_calls(scan, KEYS)):
                scan.give_back()
            return
        while (yield from read_call(scan, KEYS)):
            scan.remember()
            yield from scan.space()
            if (yield from scan.skip(";")) is not None:
                scan.remember()
                yield from scan.space()
        scan.give_back()

    def _read_code(self, scan: Scanner, spaces: str) -> Reading[None]:
        """Read the call of a built-in tool, or else code to the end of the answer."""
        name = yield from read_name(scan)
        called = name.removesuffix(".call")
        if scan.knows(called) and (yield from scan.skip("(")) is not None:
            scan.forget()
            scan.start_call(called)
            yield from read_arguments(scan, PYTHON, called, "=", ")")
            return
        tool = code_tool(scan.tools)
        if tool is None:
            scan.give_back()
            return
        call = CodeCall(scan, tool)
        call.write(spaces + name)
        yield from scan.until(emit=call.write)
        call.end()

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return one call: the templates refuse turns with more of them."""
        return write.any_of(self._call(write, tool) for tool in tools.offered)

    def required_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return a call, behind the marker or without it."""
        block = write.rule(self.block(write, tools, ""))
        return write.any_of([block, *self._lists(write, tools), *self._tagged(write, tools, block)])

    def free_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return calls at the beginning, or text and perhaps calls behind the marker."""
        block = write.rule(self.block(write, tools, ""))
        beginnings = [
            bracket + opening + json.dumps(tool.name, ensure_ascii=False)
            for tool in tools.offered
            for opening in OPENINGS
            for bracket in ("", "[")[: 1 + self.has_lists]
        ]
        text = write.rule(write.regex(not_beginning_with(beginnings)))
        tagged = self._tagged(write, tools, block)
        return write.any_of([block, *self._lists(write, tools), text, *(f"{text} {one}" for one in tagged)])

    def _lists(self, write: GrammarWriter, tools: Tools) -> list[str]:
        """Return lists of calls where such are read."""
        if not self.has_lists:
            return []
        first = write.any_of(self._call(write, tool, "[") for tool in tools.offered)
        more = f"({write.literal(', ')} {self.block(write, tools, '')})*" if tools.is_parallel else ""
        return [write.rule(f"{first} {more} {write.literal(']')}")]

    def _call(self, write: GrammarWriter, tool: Tool, before: str = "") -> str:
        name = json.dumps(tool.name, ensure_ascii=False)
        opening = write.any_of(write.literal(before + one + name + ARGUMENTS) for one in OPENINGS)
        return f"{opening} {write.schema(tool.grammar_schema)} {write.literal('}')}"

    def _tagged(self, write: GrammarWriter, tools: Tools, block: str) -> list[str]:
        """Return what may stand behind the marker, and that; nothing where the marker is no token."""
        if not write.markers.is_token(TAG):
            return []
        bodies = [block]
        for tool in tools.offered:
            if tool.name in BUILT_IN:
                arguments = ValueGrammar(write, PYTHON, tool.grammar_schema).arguments("=")
                bodies.append(f"{write.literal(tool.name + '.call(')} {arguments} {write.literal(')')}")
        if code_tool(tools) is not None:
            bodies.append(TEXT)
        return [f"{write.marker(TAG)} {write.any_of(bodies)}"]


class Llama4(Llama3):
    """JSON behind what may be said in front."""

    name = "llama4"
    title = "Llama 4"
    markers = (START, END)
    has_lists = False

    def fits(self, source: str) -> bool:
        """Whether the template has turns of Llama 4 and tools."""
        return "<|header_start|>" in source and START in source

    def read(self, scan: Scanner) -> Reading[None]:
        """Read text and calls. Lists of calls in Python, which Meta describes too, are read as well."""
        while True:
            scan.remember()
            yield from scan.space()
            if (yield from scan.peek()) == "[":
                yield from read_call_list(scan)
            else:
                yield from self._read_json(scan)
            if (yield from scan.until(START, END)) is None:
                return

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return calls one behind another."""
        call = super().block(write, tools, trigger)
        return f"{call} ({write.regex('(; ?)?')} {call})*" if tools.is_parallel else call

    def required_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return calls, with nothing in front."""
        return self.block(write, tools, "")

    def _tagged(self, write: GrammarWriter, tools: Tools, block: str) -> list[str]:
        if not write.markers.is_token(START):
            return []
        return [f"{write.marker(START)} {TEXT} {write.marker(END)} {block}"]
