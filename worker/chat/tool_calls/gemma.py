"""Calls of FunctionGemma and Gemma 4, whose values have a notation of their own.

    <start_function_call>call:get_weather{city:<escape>Paris<escape>,days:2}<end_function_call>
    <|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>

Texts have no escapes: they stand between two of the same marker. Keys come in the order of the alphabet.
Source: the chat templates of these models, and Google's description of function calling.
"""

from __future__ import annotations

from typing import ClassVar

from worker.chat.reasoning import Tags
from worker.chat.tool_calls.family import Family, unreadable
from worker.chat.tool_calls.grammar import TEXT, GrammarWriter
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.tools import Tool, Tools
from worker.chat.tool_calls.value_grammar import ValueGrammar, unreadable_names
from worker.chat.tool_calls.values import Notation, read_arguments, read_name

CALL = "call:"
CHANNEL, CHANNEL_END, THOUGHT = "<|channel>", "<channel|>", "thought\n"


class FunctionGemma(Family):
    """Calls between markers."""

    name = "functiongemma"
    title = "FunctionGemma"
    markers: ClassVar[tuple[str, ...]] = ("<start_function_call>", "<end_function_call>", "<escape>")
    triggers = ("<start_function_call>",)
    between = ""
    is_exact = False
    notation: ClassVar[Notation] = Notation(("<escape>",), are_keys_sorted=True)

    def problem_with(self, tool: Tool) -> str | None:
        """Return which parameter has a name that the notation cannot hold."""
        return unreadable(unreadable_names(tool.grammar_schema, self.notation, ":"))

    def fits(self, source: str) -> bool:
        """Whether the template shows calls between these markers."""
        return self.triggers[0] in source

    def read(self, scan: Scanner) -> Reading[None]:
        """Read text and calls."""
        while (yield from scan.until(*self.triggers)) is not None:
            yield from self._read_call(scan)

    def _read_call(self, scan: Scanner) -> Reading[None]:
        scan.remember(self.triggers[0])
        yield from scan.leading(CALL)
        yield from scan.space()
        name = yield from read_name(scan)
        yield from scan.space()
        if not scan.knows(name) or (yield from scan.skip("{")) is None:
            scan.give_back()
            return
        scan.forget()
        scan.start_call(name)
        if (yield from read_arguments(scan, self.notation, name, ":", "}")):
            yield from scan.leading(self.markers[1])

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return one call of one of the tools."""
        return write.any_of(self._call(write, tool) for tool in tools.offered)

    def _call(self, write: GrammarWriter, tool: Tool) -> str:
        arguments = ValueGrammar(write, self.notation, tool.grammar_schema).arguments(":")
        opening = write.literal(CALL + tool.name + "{")
        return f"{opening} {arguments} {write.literal('}')} {write.marker(self.markers[1])}"


class Gemma4(FunctionGemma):
    """The same with other markers, and thoughts in a channel."""

    name = "gemma4"
    title = "Gemma 4"
    markers = ("<|tool_call>", "<tool_call|>", '<|"|>', CHANNEL, CHANNEL_END)
    triggers = ("<|tool_call>",)
    tags = Tags(CHANNEL, CHANNEL_END)
    notation = Notation(('<|"|>',), are_keys_sorted=True)

    def read(self, scan: Scanner) -> Reading[None]:
        """Read thoughts, text and calls."""
        while (found := (yield from scan.until(CHANNEL, *self.triggers))) is not None:
            if found == CHANNEL:
                yield from scan.skip(THOUGHT)
                yield from scan.until(CHANNEL_END, emit=scan.reasoning)
            else:
                yield from self._read_call(scan)

    def required_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return calls alone; in front of each there may be a thought."""
        call = f"{self._thought(write)} {write.marker(self.triggers[0])} {self.block(write, tools, self.triggers[0])}"
        return f"({call})+" if tools.is_parallel else call

    def free_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return thoughts, text and calls."""
        thought = self._thought(write)
        call = f"{thought} {write.text_before(self.triggers[0])} {self.block(write, tools, self.triggers[0])}"
        return f"({call})* {thought} {TEXT}" if tools.is_parallel else write.any_of([call, f"{thought} {TEXT}"])

    def answer(self, write: GrammarWriter, body: str) -> str:
        """Return text, and perhaps a thought in front."""
        return f"{self._thought(write)} {body}"

    def _thought(self, write: GrammarWriter) -> str:
        return write.rule(f"({write.marker(CHANNEL)} {write.literal(THOUGHT)} {write.text_before(CHANNEL_END)})?")
