"""Calls as JSON between `<tool_call>` and `</tool_call>`: Hermes, Qwen 2.5 and 3, Granite 4 and many others.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

Source: the chat templates of these models, and Hermes' function calling format.
"""

from __future__ import annotations

import json

from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.json_calls import read_call
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.tools import Tools

OPEN, CLOSE = "<tool_call>", "</tool_call>"
NAME, ARGUMENTS = '\n{"name": ', ', "arguments": '
BRACE, END = "}", "}\n"
_FENCE = "```"
_BARE = ("{", "```json\n{", "```\n{")


class Hermes(Family):
    """JSON in tags."""

    name = "hermes"
    title = "Hermes 2 and 3, Qwen 2.5, Qwen 3, Granite 4 and others with JSON in `<tool_call>`"
    markers = (OPEN, CLOSE)
    triggers = (OPEN,)
    tested_on = "Qwen2.5-Coder 0.5B Instruct"

    def fits(self, source: str) -> bool:
        """Whether the template shows JSON in these tags."""
        return OPEN in source and "<function=" not in source and "<arg_key>" not in source

    def read(self, scan: Scanner) -> Reading[None]:
        """Read text and calls. Small models leave the tags out: an answer that begins with a call alone is one, too."""
        while (opening := (yield from scan.leading(*_BARE))) is not None:
            if not (yield from self._read_bare(scan, opening)):
                break
        while (yield from scan.until(OPEN)) is not None:
            yield from self._read_call(scan)

    def _read_bare(self, scan: Scanner, opening: str) -> Reading[bool]:
        scan.remember(opening)
        num_calls = scan.num_calls
        yield from read_call(scan, is_open=True)
        if scan.num_calls == num_calls:
            scan.give_back()
            return False
        if opening != "{":
            yield from scan.leading(_FENCE)
        return True

    def _read_call(self, scan: Scanner) -> Reading[None]:
        scan.remember(OPEN)
        yield from scan.space()
        num_calls = scan.num_calls
        yield from read_call(scan)
        if scan.num_calls == num_calls:
            scan.give_back()
            return
        # Small models write a brace too many or too few.
        while (found := (yield from scan.leading(CLOSE, BRACE))) == BRACE:
            pass
        if found is None:
            yield from scan.space()
            scan.skip_cut(CLOSE)

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return one call of one of the tools."""
        close = f"{write.literal(END)} {write.marker(CLOSE)}"
        calls = [
            f"{write.literal(NAME + json.dumps(tool.name) + ARGUMENTS)} {write.schema(tool.grammar_schema)} {close}"
            for tool in tools.offered
        ]
        return write.any_of(calls)
