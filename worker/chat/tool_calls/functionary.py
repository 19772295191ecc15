"""Calls of Functionary: in tags that hold the name (v3.1), or as messages to a recipient (v3.2).

    <function=get_weather>{"city": "Paris"}</function>

    >>>all
    I look it up.>>>get_weather
    {"city": "Paris"}

In v3.2 the prompt ends with `>>>`, so an answer begins with its recipient; what is written to `all` is text. Both give
the tool `python` plain code.
Source: the chat templates of these models, and the description of their prompt formats.
"""

from __future__ import annotations

from worker.chat.tool_calls.code_calls import CodeCall, code_tool
from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.grammar import TEXT, GrammarWriter
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.tools import Tool, Tools
from worker.chat.tool_calls.values import read_name

OPEN, CLOSE, TAG = "<function=", "</function>", "<|python_tag|>"
TURN, EVERYBODY = ">>>", "all"


class Functionary31(Family):
    """The name in a tag."""

    name = "functionary-v3.1"
    title = "Functionary v3.1, and Llama 3.1 with tools in tags"
    markers = (OPEN, CLOSE, TAG)
    triggers = (OPEN,)
    between = ""

    def fits(self, source: str) -> bool:
        """Whether the template shows arguments in JSON behind such a tag."""
        return "<function" in source and TAG in source and "</function>" in source

    def read(self, scan: Scanner) -> Reading[None]:
        """Read text and calls."""
        while (found := (yield from scan.until(OPEN, TAG))) is not None:
            scan.remember(found)
            if found == OPEN:
                yield from self._read_call(scan)
            elif (tool := code_tool(scan.tools)) is not None:
                call = CodeCall(scan, tool)
                yield from scan.until(emit=call.write)
                call.end()
            else:
                scan.give_back()

    def _read_call(self, scan: Scanner) -> Reading[None]:
        name = yield from read_name(scan)
        is_begun = scan.knows(name) and (yield from scan.skip(">")) is not None
        yield from scan.space()
        if not is_begun or (yield from scan.peek()) != "{":
            scan.give_back()
            return
        scan.forget()
        scan.start_call(name)
        if (yield from scan.json_arguments()):
            yield from scan.leading(CLOSE)

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return one call of one of the tools."""
        return write.any_of(
            f"{write.literal(f'{tool.name}>')} {write.schema(tool.grammar_schema)} {write.marker(CLOSE)}"
            for tool in tools.offered
        )


class Functionary32(Family):
    """Messages to recipients."""

    name = "functionary-v3.2"
    title = "Functionary v3.2"
    markers = ()
    triggers = (TURN,)
    between = TURN

    def fits(self, source: str) -> bool:
        """Whether the template shows recipients."""
        return ">>>all\\n" in source

    def read(self, scan: Scanner) -> Reading[None]:
        """Read messages. Where no recipient is named, what goes before goes on."""
        found: str | None = ""
        code: CodeCall | None = None
        yield from scan.skip(TURN)
        while found is not None:
            name = yield from read_name(scan)
            if (name == EVERYBODY or scan.knows(name)) and (yield from scan.skip("\n")) is not None:
                if code is not None:
                    code.end()
                code = None if name == EVERYBODY else (yield from self._read_call(scan, name))
            else:
                (scan.text if code is None else code.write)(found + name)
            found = yield from scan.until(TURN, emit=None if code is None else code.write)
        if code is not None:
            code.end()

    def _read_call(self, scan: Scanner, name: str) -> Reading[CodeCall | None]:
        """Read a call behind its recipient; code is returned where it begins."""
        yield from scan.space()
        tool = scan.tools.by_name[name]
        if tool == code_tool(scan.tools) and (yield from scan.peek()) != "{":
            return CodeCall(scan, tool)
        scan.start_call(name)
        yield from scan.json_arguments()
        return None

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return one call of one of the tools."""
        return write.any_of(self._call(write, tool) for tool in tools.offered)

    def _call(self, write: GrammarWriter, tool: Tool) -> str:
        return f"{write.literal(tool.name + chr(10))} {write.schema(tool.grammar_schema)}"

    def required_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return calls alone; the first stands behind what the prompt ends with."""
        block = self.block(write, tools, TURN)
        return f"{block} ({write.marker(TURN)} {block})*" if tools.is_parallel else block

    def free_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return calls, or text and perhaps calls behind it. Only a recipient that may be called ends the text."""
        calls = write.rule(self.required_calls(write, tools))
        opening = write.literal(f"{EVERYBODY}\n")
        more = f"({write.marker(TURN)} {self.block(write, tools, TURN)})*" if tools.is_parallel else '""'
        later = write.any_of(
            f"{write.text_before(f'{TURN}{tool.name}{chr(10)}')} {write.schema(tool.grammar_schema)}"
            for tool in tools.offered
        )
        return write.any_of([calls, f"{opening} {later} {more}", f"{opening} {TEXT}"])

    def answer(self, write: GrammarWriter, body: str) -> str:
        """Return text behind its recipient."""
        return f"{write.literal(f'{EVERYBODY}{chr(10)}')} {body}"
