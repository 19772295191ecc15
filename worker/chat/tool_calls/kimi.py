"""Calls as JSON between tokens of their own, each with an id that says which tool it calls: Kimi K2.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}
    <|tool_call_end|><|tool_calls_section_end|>

(without the line break). Ids count the calls of the conversation.
Source: Moonshot's guide to tool calls of Kimi K2, and the chat templates.
"""

from __future__ import annotations

from typing import Final

from worker.chat.marks import unmarked
from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.sections import SectionSigns, read_sections
from worker.chat.tool_calls.spelling import written
from worker.chat.tool_calls.tools import Tools

OPEN, CLOSE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_SIGNS: Final = SectionSigns(OPEN, CLOSE, CALL)
_NAMESPACE: Final = "functions."


class KimiK2(Family):
    """JSON behind an id."""

    name = "kimi-k2"
    title = "Kimi K2"
    markers = (OPEN, CLOSE, CALL, ARGUMENTS, CALL_END)
    triggers = (OPEN,)
    holds_many = True

    def fits(self, source: str) -> bool:
        """Whether the template shows these tokens."""
        return ARGUMENTS in source

    def call_id(self, key: str, index: int, name: str) -> str:
        """Return the id in the form that the model knows."""
        return f"{_NAMESPACE}{name}:{index}"

    def read(self, scan: Scanner) -> Reading[None]:
        """Read text and calls. Ids that the model gives are kept, if they are ids and none comes twice."""
        ids: set[str] = set()

        def read_call(scan: Scanner) -> Reading[None]:
            return (yield from self._read_call(scan, ids))

        yield from read_sections(scan, _SIGNS, read_call)

    def _read_call(self, scan: Scanner, ids: set[str]) -> Reading[None]:
        said, found = yield from scan.collect(ARGUMENTS, CALL_END, CLOSE)
        said = unmarked(said).strip()
        name = _name_in(said)
        if found != ARGUMENTS or not scan.knows(name):
            return
        yield from scan.space()
        scan.forget()
        id_ = said if said != name else ""
        number = scan.num_calls
        while not id_ or id_ in ids:
            id_, number = self.call_id("", number, name), number + 1
        ids.add(id_)
        scan.start_call(name, id_)
        if (yield from scan.json_arguments()):
            yield from scan.space()
            yield from scan.skip(CALL_END)

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return calls of the tools, and the end of all."""
        calls = [
            f"{written(write, f'{CALL}{_NAMESPACE}{tool.name}:')} {write.regex('[0-9]{1,6}')}"
            f" {written(write, ARGUMENTS)} {write.schema(tool.grammar_schema)} {written(write, CALL_END)}"
            for tool in tools.offered
        ]
        call = write.any_of(calls)
        return f"{call}{'+' if tools.is_parallel else ''} {written(write, CLOSE)}"


def _name_in(id_: str) -> str:
    """Return the name of the tool that an id calls: `get_weather` of `functions.get_weather:0`, or of less of that."""
    before, colon, number = id_.rpartition(":")
    return (before if colon and number.isdecimal() else id_).removeprefix(_NAMESPACE)
