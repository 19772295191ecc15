"""Answers as messages in channels: gpt-oss, in the form that is called harmony.

    <|channel|>analysis<|message|>They want the weather.<|end|><|start|>assistant
    <|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>

(without the line break). Each message has a header, which may also name the recipient behind the role, and a body. What
stands in the channel `analysis` are thoughts, what has a recipient is a call, the rest is text. The prompt has written
the role already. A call ends the answer, so there is one at most.
Source: OpenAI's description of the harmony response format.
"""

from __future__ import annotations

import re
from typing import Final

from worker.chat.marks import unmarked
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.grammar import TEXT, GrammarWriter
from worker.chat.tool_calls.scanner import Emit, Reading, Scanner
from worker.chat.tool_calls.tools import Tools

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
_ENDS: Final = (END, CALL, RETURN)
_NAMESPACE: Final = "functions."
_RECIPIENT: Final = f"to={_NAMESPACE}"
_CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT_NAME = re.compile(r"\bto=([^\s<]+)")
_PARAGRAPH: Final = "\n\n"


class Harmony(Family):
    """Messages in channels."""

    name = "harmony"
    title = "gpt-oss"
    markers = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)
    triggers = ()
    tags = Tags(f"{CHANNEL}analysis{MESSAGE}", END, sign=CHANNEL, behind=f"{START}assistant")

    def fits(self, source: str) -> bool:
        """Whether the template writes channels."""
        return CHANNEL in source and MESSAGE in source

    def read(self, scan: Scanner) -> Reading[None]:
        """Read messages. What stands outside of all messages is text."""
        said = _Said(scan)
        opening = yield from scan.leading(START, CHANNEL, _RECIPIENT)
        while True:
            while opening is None:
                ending = yield from scan.until(START, CHANNEL, *_ENDS, emit=said.text)
                if ending is None:
                    return
                opening = (yield from scan.leading(START, CHANNEL, _RECIPIENT)) if ending in _ENDS else ending
            opening = yield from self._read_message(scan, opening, said)

    def _read_message(self, scan: Scanner, opening: str, said: _Said) -> Reading[str | None]:
        """Read the message that begins with `opening`; return what begins the next one, None where text comes."""
        scan.remember(scan.markers.form(opening))
        header, found = yield from scan.collect(MESSAGE, *_ENDS)
        if found != MESSAGE:
            if scan.is_cut:
                scan.forget()
            else:
                scan.give_back()
            return None
        header = unmarked(opening + header)
        recipient = _RECIPIENT_NAME.search(header)
        if recipient is not None and recipient[1] != "user":
            is_call = yield from self._read_call(scan, recipient[1].removeprefix(_NAMESPACE))
            if not is_call:
                said.begin()
                scan.give_back()
            return (yield from self._read_body(scan, said.text))
        scan.forget()
        channel = _CHANNEL_NAME.search(header)
        if channel is not None and channel[1] == "analysis":
            scan.reasoning(_PARAGRAPH)
            return (yield from self._read_body(scan, scan.reasoning))
        said.begin()
        return (yield from self._read_body(scan, said.text))

    def _read_call(self, scan: Scanner, name: str) -> Reading[bool]:
        """Read the arguments; return whether a call has begun."""
        yield from scan.space()
        if not scan.knows(name):
            return False
        if (yield from scan.peek()) != "{":
            return False
        scan.forget()
        scan.start_call(name)
        yield from scan.json_arguments()
        return True

    def _read_body(self, scan: Scanner, emit: Emit) -> Reading[str | None]:
        ending = yield from scan.until(*_ENDS, START, CHANNEL, emit=emit)
        if ending in _ENDS:
            return (yield from scan.leading(START, CHANNEL, _RECIPIENT))
        return ending

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return one call of one of the tools, from where a message begins."""
        channel, constrain, message = (write.marker(one) for one in (CHANNEL, CONSTRAIN, MESSAGE))
        kind = f"({write.literal(' ')} {constrain} {write.literal('json')} | {write.literal(' json')})?"
        calls = []
        for tool in tools.offered:
            recipient = write.literal(f" {_RECIPIENT}{tool.name}")
            commentary = write.literal("commentary")
            header = f"({channel} {commentary} {recipient} | {recipient} {channel} {commentary}) {kind} {message}"
            calls.append(f"{header} {write.schema(tool.grammar_schema)}")
        return write.any_of(calls)

    def required_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the expression of thoughts and a call."""
        return f"{self._thoughts(write)} {self.block(write, tools, '')}"

    def free_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the expression of thoughts, words in front of a call, and a call or the answer."""
        before = write.rule(f"{self._message(write, 'analysis')} | {self._message(write, 'commentary')}")
        answer = f"{self._header(write, 'final')} {TEXT}"
        return f"{before}* ({self.block(write, tools, '')} | {answer})"

    def answer(self, write: GrammarWriter, body: str) -> str:
        """Return the expression of thoughts, and of `body` in the channel for answers."""
        constrain = f"({write.literal(' ')}? {write.marker(CONSTRAIN)} {write.literal('json')})?"
        header = f"{write.marker(CHANNEL)} {write.literal('final')} {constrain} {write.marker(MESSAGE)}"
        return f"{self._thoughts(write)} {header} {body}"

    def _thoughts(self, write: GrammarWriter) -> str:
        return write.rule(self._message(write, "analysis")) + "*"

    def _header(self, write: GrammarWriter, channel: str) -> str:
        return f"{write.marker(CHANNEL)} {write.literal(channel)} {write.marker(MESSAGE)}"

    def _message(self, write: GrammarWriter, channel: str) -> str:
        """Return the expression of a message that is not the last one."""
        next_role = f"{write.marker(START)} {write.literal('assistant')}"
        return f"{self._header(write, channel)} {write.text_before(END)} {next_role}"


class _Said:
    """The visible text, in which messages are paragraphs."""

    def __init__(self, scan: Scanner) -> None:
        self._scan = scan
        self._has_begun = False

    def begin(self) -> None:
        """Another message begins."""
        if self._has_begun:
            self._scan.text(_PARAGRAPH)

    def text(self, text: str) -> None:
        """It is more of it."""
        self._has_begun = self._has_begun or bool(text.strip())
        self._scan.text(text)
