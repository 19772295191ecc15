"""Calls as messages of their own, or behind a marker: GigaChat 3 and 3.1. An answer holds one call.

    I look it up.<|message_sep|>

    function call<|role_sep|>
    {"name": "get_weather", "arguments": {"city": "Paris"}}

    I look it up.<|function_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}

Source: the chat templates of these models.
"""

from __future__ import annotations

from typing import ClassVar

from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.grammar import TEXT, GrammarWriter
from worker.chat.tool_calls.json_calls import read_call
from worker.chat.tool_calls.json_lists import call_object
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.spelling import spelled, written, written_up_to
from worker.chat.tool_calls.tools import Tools

MESSAGE_SEP, ROLE_SEP, FUNCTION_CALL = "<|message_sep|>", "<|role_sep|>", "<|function_call|>"


class GigaChat(Family):
    """What both versions share."""

    markers = (MESSAGE_SEP, ROLE_SEP, FUNCTION_CALL)
    opening: ClassVar[str]
    """What stands in front of a call, with all that is written there."""
    sign: ClassVar[str]
    """What of that is enough to know one."""

    def read(self, scan: Scanner) -> Reading[None]:
        """Read text, and calls. Messages that follow each other are one text."""
        sign = spelled(scan.markers, self.sign)
        found = yield from scan.leading(sign)
        while True:
            if found is None:
                found = yield from scan.until(sign, MESSAGE_SEP)
                if found is None:
                    return
            if found == sign:
                scan.remember(sign)
                yield from scan.space()
                if not (yield from read_call(scan)):
                    scan.give_back()
                    found = None
                    continue
                found = yield from scan.leading(MESSAGE_SEP)
            if found is not None:
                found = yield from scan.leading(sign)

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return one call of one of the tools."""
        return write.any_of(call_object(write, tool) for tool in tools.offered)

    def required_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the expression of a call."""
        return f"{written(write, self.opening)} {self.block(write, tools, '')}"

    def free_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the expression of text, or of text and a call."""
        return f"{written_up_to(write, self.opening)} {self.block(write, tools, '')} | {TEXT}"


class GigaChat3(GigaChat):
    """A call is a message with a role of its own."""

    name = "gigachat3"
    title = "GigaChat 3"
    opening = f"{MESSAGE_SEP}\n\nfunction call{ROLE_SEP}\n"
    sign = f"function call{ROLE_SEP}"
    triggers = (opening,)

    def fits(self, source: str) -> bool:
        """Whether the template writes this role, and not the marker of the next version."""
        return ROLE_SEP in source and "function call" in source and FUNCTION_CALL not in source


class GigaChat31(GigaChat):
    """A call stands behind a marker."""

    name = "gigachat3.1"
    title = "GigaChat 3.1"
    opening = FUNCTION_CALL
    sign = FUNCTION_CALL
    triggers = (FUNCTION_CALL,)

    def fits(self, source: str) -> bool:
        """Whether the template writes the marker."""
        return FUNCTION_CALL in source
