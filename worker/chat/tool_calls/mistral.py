"""Calls of Mistral's models, behind `[TOOL_CALLS]`: a list of JSON in the older ones, name and arguments in the newer.

    [TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "abcdef123"}]
    [TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}
    [TOOL_CALLS]get_weather[CALL_ID]abcdef123[ARGS]{"city": "Paris"}

Both are read whatever the template shows. Ids have nine letters and digits.
Source: the chat templates of these models.
"""

from __future__ import annotations

import json

from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.json_calls import CallKeys, read_calls
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.tools import Tool, Tools
from worker.chat.tool_calls.values import read_name

CALLS, ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
KEYS = CallKeys(names=("name",), arguments=("arguments",), ids=("id",))
ID_PATTERN = "[a-zA-Z0-9]{9}"
ID_KEY, QUOTE = ', "id": "', '"'


class Mistral(Family):
    """The name and the arguments behind the marker."""

    name = "mistral"
    title = "Mistral Small 3.2, Ministral 3, Magistral, Devstral"
    markers = (CALLS, ID, ARGUMENTS)
    triggers = (CALLS,)
    between = ""

    def fits(self, source: str) -> bool:
        """Whether the template shows arguments behind a marker of their own."""
        return CALLS in source and ARGUMENTS in source

    def read(self, scan: Scanner) -> Reading[None]:
        """Read text and calls."""
        while (yield from scan.until(CALLS)) is not None:
            scan.remember(CALLS)
            yield from scan.space()
            is_list = (yield from scan.peek()) == "["
            if not (yield from (read_calls(scan, KEYS) if is_list else self._read_call(scan))):
                scan.give_back()

    def _read_call(self, scan: Scanner) -> Reading[bool]:
        name = yield from read_name(scan)
        if not scan.knows(name):
            return False
        id_ = ""
        if (yield from scan.skip(ID)) is not None:
            id_ = yield from read_name(scan)
        yield from scan.skip(ARGUMENTS)
        yield from scan.space()
        if (yield from scan.peek()) != "{":
            return False
        scan.forget()
        scan.start_call(name, id_)
        return (yield from scan.json_arguments())

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return one call of one of the tools."""
        id_ = f"({write.marker(ID)} {write.regex(ID_PATTERN)})?"
        return write.any_of(
            f"{write.literal(tool.name)} {id_} {write.marker(ARGUMENTS)} {write.schema(tool.grammar_schema)}"
            for tool in tools.offered
        )

    def call_id(self, key: str, index: int, name: str) -> str:
        """Return nine letters and digits: the templates refuse all else."""
        return f"{key[:6]}{index:03d}"


class MistralList(Mistral):
    """All calls in one list."""

    name = "mistral-list"
    title = "Mistral 7B v0.3, Mistral Nemo, Mistral Large 2, Mistral Small 3.1 and before"
    holds_many = True

    def fits(self, source: str) -> bool:
        """Whether the template shows calls behind the marker."""
        return CALLS in source and ARGUMENTS not in source

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return the list."""
        call = write.any_of(self._call(write, tool) for tool in tools.offered)
        more = f"({write.literal(', ')} {call})*" if tools.is_parallel else '""'
        return f"{write.regex(' ?')} {write.literal('[')} {call} {more} {write.literal(']')}"

    def _call(self, write: GrammarWriter, tool: Tool) -> str:
        name = write.literal('{"name": ' + json.dumps(tool.name, ensure_ascii=False) + ', "arguments": ')
        id_ = f"({write.literal(ID_KEY)} {write.regex(ID_PATTERN + QUOTE)})?"
        return f"{name} {write.schema(tool.grammar_schema)} {id_} {write.literal('}')}"
