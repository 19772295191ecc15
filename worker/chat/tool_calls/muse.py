"""Answers as messages with recipients, calls with parameters in tags: Muse Glimmer.

     to=self<|message|>They want the weather.<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>
    <atem:invoke name="get_weather">
    <atem:parameter name="city">Paris</atem:parameter>
    </atem:invoke>
    </atem:function_calls>

What goes to the model itself are thoughts. The prompt has written the first role already.
Source: the chat template of the model.
"""

from __future__ import annotations

import re
from typing import Final

from worker.chat.marks import unmarked
from worker.chat.tool_calls.grammar import TEXT, GrammarWriter
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.tagged import Layout, TaggedFamily
from worker.chat.tool_calls.tools import Tool, Tools

START, MESSAGE, END_OF_MESSAGE, END_OF_TURN = "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"
_ENDS: Final = (END_OF_MESSAGE, END_OF_TURN)
_TO: Final = "to="
_RECIPIENT = re.compile(r"\bto=(\S+)")


class Muse(TaggedFamily):
    """Messages to the model itself, to tools, to the user."""

    name = "muse"
    title = "Muse Glimmer"
    markers = (START, MESSAGE, *_ENDS)
    triggers = ("<atem:function_calls>",)
    layout = Layout(
        open="<atem:function_calls>",
        close="</atem:function_calls>",
        call='<atem:invoke name="',
        name_end='">',
        call_end="</atem:invoke>",
        key='<atem:parameter name="',
        key_end='">',
        value_end="</atem:parameter>",
    )

    def fits(self, source: str) -> bool:
        """Whether the template shows these tags."""
        return self.layout.call in source

    def read(self, scan: Scanner) -> Reading[None]:
        """Read messages; what stands outside of them is text."""
        tags = self.layout
        opening = yield from scan.leading(START, _TO)
        while True:
            if opening is not None and (yield from self._read_header(scan, opening)) == "self":
                found = yield from scan.until(*_ENDS, START, emit=scan.reasoning)
            else:
                found = yield from scan.until(tags.open, tags.call, *_ENDS, START)
            if found is None:
                return
            if found in (tags.open, tags.call):
                yield from self._read_block(scan, found)
            opening = START if found == START else None
            if found in _ENDS:
                opening = yield from scan.leading(START, _TO)

    def _read_header(self, scan: Scanner, opening: str) -> Reading[str]:
        """Read the rest of a message's header; return its recipient, empty if it has none, or there is no header."""
        scan.remember(scan.markers.form(opening))
        header, found = yield from scan.collect(MESSAGE, "\n", *_ENDS)
        if found == MESSAGE or scan.is_cut:
            scan.forget()
            match = _RECIPIENT.search(unmarked(opening + header))
            return match[1] if match is not None else ""
        scan.give_back()
        return ""

    def _read_block(self, scan: Scanner, opening: str) -> Reading[None]:
        """Read the calls behind `opening`; what is none is text."""
        tags = self.layout
        found: str | None = opening
        while found is not None:
            scan.remember(found)
            num_calls = scan.num_calls
            if found == tags.open:
                yield from scan.space()
                found = yield from scan.skip(tags.call)
            if found is not None:
                yield from self.read_call(scan)
            if scan.num_calls == num_calls:
                return scan.give_back()
            found = yield from scan.leading(tags.call, tags.close)
            if found == tags.close:
                break
        return None

    def required_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the expression of thoughts and calls."""
        return f"{self._thoughts(write)} {self._messages(write, tools)}"

    def free_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the expression of thoughts, and of text or calls."""
        before = write.rule(f"{self._header(write, 'user')} {self._rest(write)}")
        return f"{self._thoughts(write)} ({before}? {self._messages(write, tools)} | {self.answer(write, TEXT)})"

    def answer(self, write: GrammarWriter, body: str) -> str:
        """Return the expression of thoughts, and of `body` in a message to the user."""
        return f"{self._thoughts(write)} {self._header(write, 'user')} {body}"

    def _messages(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the expression of calls, each in a message to its tool."""
        call = write.any_of(self._message(write, tool) for tool in tools.offered)
        more = f'({write.marker(END_OF_MESSAGE)} {write.marker(START)} "assistant" {call})*'
        return f"{call} {more}" if tools.is_parallel else call

    def _message(self, write: GrammarWriter, tool: Tool) -> str:
        trigger = self.triggers[0]
        block = self.block(write, Tools((tool,), is_parallel=False), trigger)
        return f"{self._header(write, tool.name)} {write.literal(trigger)} {block}"

    def _header(self, write: GrammarWriter, recipient: str) -> str:
        return f"{write.literal(f' {_TO}{recipient}')} {write.marker(MESSAGE)}"

    def _thoughts(self, write: GrammarWriter) -> str:
        return write.rule(f"{self._header(write, 'self')} {self._rest(write)}") + "*"

    def _rest(self, write: GrammarWriter) -> str:
        """Return the expression of the rest of a message that is not the last one."""
        return f'{write.text_before(END_OF_MESSAGE)} {write.marker(START)} "assistant"'
