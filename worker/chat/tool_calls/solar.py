"""Answers as messages, each for thoughts, text or calls: Solar Open.

    <|think|>They want the weather.<|end|><|begin|>assistant<|tool_calls|>
    <|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>{"city": "Paris"}<|tool_call:end|>

(without the line break). The prompt has written the first role already.
Source: the chat template of the model.
"""

from __future__ import annotations

from typing import Final

from worker.chat.marks import unmarked
from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.grammar import TEXT, GrammarWriter
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.tools import Tool, Tools

BEGIN, THINK, CONTENT, CALLS = "<|begin|>", "<|think|>", "<|content|>", "<|tool_calls|>"
END, CALLS_END, FLUSH = "<|end|>", "<|calls|>", "<|flush|>"
CALL, NAME, ARGUMENTS, CALL_END = "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"
_KINDS: Final = (THINK, CONTENT, CALLS)
_ENDS: Final = (END, CALLS_END, FLUSH)
_ID: Final = "[a-z0-9]{10}"


class Solar(Family):
    """Messages of three kinds."""

    name = "solar"
    title = "Solar Open"
    markers = (BEGIN, *_KINDS, *_ENDS, CALL, NAME, ARGUMENTS, CALL_END)
    triggers = (CALLS,)
    holds_many = True

    def fits(self, source: str) -> bool:
        """Whether the template writes calls so."""
        return CALL in source and ARGUMENTS in source

    def read(self, scan: Scanner) -> Reading[None]:
        """Read messages; what stands outside of them is text."""
        found = yield from scan.leading(BEGIN, *_KINDS, CALL)
        while True:
            match found:
                case None:
                    found = yield from scan.until(BEGIN, *_KINDS, CALL, *_ENDS)
                    if found is None:
                        return
                case _ if found in _ENDS:
                    found = yield from scan.leading(BEGIN, *_KINDS, CALL)
                case _ if found == BEGIN:
                    found = yield from self._read_role(scan)
                case _ if found == THINK:
                    found = yield from scan.until(*_ENDS, BEGIN, CONTENT, CALLS, emit=scan.reasoning)
                    if found is None:
                        return
                case _ if found == CALL:
                    found = yield from self._read_call(scan)
                case _:
                    found = yield from scan.leading(CALL)

    def _read_role(self, scan: Scanner) -> Reading[str | None]:
        """Read the role behind the beginning of a message; return what kind of message it is."""
        scan.remember(scan.markers.form(BEGIN))
        _, found = yield from scan.collect(*_KINDS, *_ENDS)
        if found in _KINDS or scan.is_cut:
            scan.forget()
            return found
        scan.give_back()
        return None

    def _read_call(self, scan: Scanner) -> Reading[str | None]:
        """Read a call; return what begins the next one, None if none does."""
        scan.remember(scan.markers.form(CALL))
        id_, found = yield from scan.collect(NAME, CALL_END, *_ENDS)
        if found == NAME:
            name, found = yield from scan.collect(ARGUMENTS, CALL_END, *_ENDS)
            name = unmarked(name).strip()
            yield from scan.space()
            if found == ARGUMENTS and scan.knows(name) and (yield from scan.peek()) == "{":
                scan.forget()
                scan.start_call(name, unmarked(id_).strip() or None)
                if not (yield from scan.json_arguments()):
                    return None
                yield from scan.leading(CALL_END)
                return (yield from scan.leading(CALL, *_ENDS))
        scan.give_back()
        return None

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return calls of the tools."""
        call = write.any_of(self._call(write, tool) for tool in tools.offered)
        return f"{call}+" if tools.is_parallel else call

    def required_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the expression of thoughts and calls."""
        return f"{self._thoughts(write)} {write.marker(CALLS)} {self.block(write, tools, CALLS)}"

    def free_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the expression of thoughts, and of text or calls."""
        calls = f"{write.marker(CALLS)} {self.block(write, tools, CALLS)}"
        before = write.rule(f"{write.marker(CONTENT)} {self._rest(write)}")
        return f"{self._thoughts(write)} ({before}? {calls} | {write.marker(CONTENT)} {TEXT})"

    def answer(self, write: GrammarWriter, body: str) -> str:
        """Return the expression of thoughts, and of `body` in a message for text."""
        return f"{self._thoughts(write)} {write.marker(CONTENT)} {body}"

    def call_id(self, key: str, index: int, name: str) -> str:
        """Return ten characters, as the prompt asks for."""
        return f"{key[:8]}{index:02d}"

    def _thoughts(self, write: GrammarWriter) -> str:
        return write.rule(f"{write.marker(THINK)} {self._rest(write)}") + "?"

    def _rest(self, write: GrammarWriter) -> str:
        """Return the expression of the rest of a message that is not the last one."""
        return f'{write.text_before(END)} {write.marker(BEGIN)} "assistant"'

    def _call(self, write: GrammarWriter, tool: Tool) -> str:
        head = f"{write.marker(CALL)} {write.regex(_ID)} {write.marker(NAME)} {write.literal(tool.name)}"
        return f"{head} {write.marker(ARGUMENTS)} {write.schema(tool.grammar_schema)} {write.marker(CALL_END)}"
