"""Calls in one block: with parameters in tags, MiniMax M2; as lines of JSON, MiniMax M1.

    <minimax:tool_call>
    <invoke name="get_weather">
    <parameter name="city">Paris</parameter>
    </invoke>
    </minimax:tool_call>

    <tool_calls>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_calls>

Source: the chat templates of these models.
"""

from __future__ import annotations

import json

from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.json_calls import read_call
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.spelling import spelled, written
from worker.chat.tool_calls.tagged import LINE, Layout, TaggedFamily
from worker.chat.tool_calls.tools import Tools

_LINES, _LINES_END = "<tool_calls>", "</tool_calls>"
_OPEN, _CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"


class MiniMaxM2(TaggedFamily):
    """Parameters in tags."""

    name = "minimax-m2"
    title = "MiniMax M2 and M2.1"
    markers = (_OPEN, _CLOSE)
    triggers = (_OPEN,)
    holds_many = True
    layout = Layout(
        open=_OPEN,
        close=_CLOSE,
        call='<invoke name="',
        name_end='">',
        call_end="</invoke>",
        key='<parameter name="',
        key_end='">',
        value_end="</parameter>",
        is_bare=False,
    )

    def fits(self, source: str) -> bool:
        """Whether the template shows these tags."""
        return _OPEN in source


class MiniMaxM1(Family):
    """JSON, one call a line."""

    name = "minimax-m1"
    title = "MiniMax M1"
    markers = (_LINES, _LINES_END)
    triggers = (_LINES,)
    holds_many = True

    def fits(self, source: str) -> bool:
        """Whether the template shows lines of JSON behind the tag."""
        return f'{_LINES}\\n{{"name": ' in source

    def read(self, scan: Scanner) -> Reading[None]:
        """Read text and calls."""
        while (yield from scan.until(_LINES)) is not None:
            scan.remember(spelled(scan.markers, _LINES))
            yield from scan.space()
            while (yield from read_call(scan)):
                yield from scan.space()
                if (yield from scan.skip(_LINES_END)) is not None:
                    break
                scan.remember()
            scan.give_back()

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return the calls and the end of the block."""
        heads = [(tool, f'{{"name": {json.dumps(tool.name)}, "arguments": ') for tool in tools.offered]
        end = write.literal("}")
        call = write.any_of(f"{write.literal(head)} {write.schema(tool.grammar_schema)} {end}" for tool, head in heads)
        more = f"({write.literal(LINE)} {call})*" if tools.is_parallel else ""
        return f"{write.literal(LINE)} {call} {more} {written(write, LINE + _LINES_END)}"
