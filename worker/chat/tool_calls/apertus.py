"""Calls as a JSON list of objects with the tool's name as the only key: Apertus.

    <|inner_prefix|>They want the weather.<|tools_prefix|>[{"get_weather": {"city": "Paris"}}]<|tools_suffix|>

Thoughts end where the answer begins, or a call.
Source: the chat template of the model.
"""

from __future__ import annotations

import json

from worker.chat.reasoning import Tags
from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.json_lists import more_calls
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.tools import Tool, Tools

OPEN, CLOSE = "<|tools_prefix|>", "<|tools_suffix|>"
INNER, INNER_END = "<|inner_prefix|>", "<|inner_suffix|>"


class Apertus(Family):
    """Names as keys."""

    name = "apertus"
    title = "Apertus"
    markers = (OPEN, CLOSE, INNER, INNER_END)
    triggers = (OPEN,)
    holds_many = True
    tags = Tags(INNER, INNER_END)

    def fits(self, source: str) -> bool:
        """Whether the template writes these markers."""
        return OPEN in source

    def read(self, scan: Scanner) -> Reading[None]:
        """Read thoughts, text and lists of calls."""
        found = yield from scan.leading(INNER)
        while True:
            if found == INNER:
                found = yield from scan.until(INNER_END, OPEN, emit=scan.reasoning)
            if found != OPEN:
                found = yield from scan.until(OPEN, INNER, INNER_END)
            if found is None:
                return
            if found == OPEN:
                yield from self._read_list(scan)
                found = yield from scan.leading(INNER)

    def _read_list(self, scan: Scanner) -> Reading[None]:
        scan.remember(scan.markers.form(OPEN))
        yield from scan.space()
        if (yield from scan.skip("[")) is not None and (yield from self._read_calls(scan)):
            yield from scan.leading(CLOSE)
        scan.give_back()

    def _read_calls(self, scan: Scanner) -> Reading[bool]:
        """Read the calls of a list; return whether all of them were some. What has become of none is remembered."""
        while True:
            yield from scan.space()
            if not (yield from self._read_call(scan)):
                return False
            yield from scan.space()
            if (yield from scan.skip("]")) is not None:
                return True
            scan.remember()
            yield from scan.skip(",")

    def _read_call(self, scan: Scanner) -> Reading[bool]:
        if (yield from scan.skip("{")) is None:
            return False
        yield from scan.space()
        key, is_key = yield from scan.collected_json()
        yield from scan.space()
        if not is_key or not key.startswith('"') or not scan.knows(name := json.loads(key)):
            return False
        if (yield from scan.skip(":")) is None:
            return False
        yield from scan.space()
        if (yield from scan.peek()) != "{":
            return False
        scan.forget()
        scan.start_call(name)
        if not (yield from scan.json_arguments()):
            return False
        yield from scan.leading("}")
        return True

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return a list of calls of the tools."""
        call = write.any_of(self._call(write, tool) for tool in tools.offered)
        more = more_calls(call) if tools.is_parallel else ""
        return f'"[" {call} {more} "]" {write.marker(CLOSE)}'

    def required_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the expression of thoughts and calls."""
        calls = super().required_calls(write, tools)
        return f"({write.marker(INNER)} {write.text_before(OPEN)} {self.block(write, tools, OPEN)} | {calls})"

    def free_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the expression of thoughts, and of text and calls."""
        at_once = f"{write.marker(INNER)} {write.text_before(OPEN)} {self.block(write, tools, OPEN)}"
        return f"({at_once} | {self.answer(write, f'({super().free_calls(write, tools)})')})"

    def answer(self, write: GrammarWriter, body: str) -> str:
        """Return the expression of thoughts and of `body`."""
        return f"({write.marker(INNER)} {write.text_before(INNER_END)})? {body}"

    def _call(self, write: GrammarWriter, tool: Tool) -> str:
        head = write.literal(f"{{{json.dumps(tool.name, ensure_ascii=False)}: ")
        return f'{head} {write.schema(tool.grammar_schema)} "}}"'
