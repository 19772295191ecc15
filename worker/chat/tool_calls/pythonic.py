"""Calls as a list in Python, which the answer begins with.

    [get_weather(city="Paris", days=2), now()]

Source: Meta's description of Llama 3.2's zero-shot function calling, Google's of function calling with Gemma 3.
"""

from __future__ import annotations

from worker.chat.tool_calls.family import Family, unreadable
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.leading import not_beginning_with
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.tools import Tool, Tools
from worker.chat.tool_calls.value_grammar import ValueGrammar, unreadable_names
from worker.chat.tool_calls.values import PYTHON, read_python_call

FENCES = ("```tool_code", "```python", "```")
"""Gemma puts its calls into a block of code."""


def read_call_list(scan: Scanner) -> Reading[bool]:
    """Read the list of calls that stands here; return whether all of it was one. What is no call is given back."""
    if (yield from scan.skip("[")) is None:
        scan.give_back()
        return False
    yield from scan.space()
    while (yield from read_python_call(scan)):
        yield from scan.space()
        scan.remember()
        yield from scan.skip(",")
        yield from scan.space()
        if (yield from scan.skip("]")) is not None:
            scan.forget()
            return True
    scan.give_back()
    return False


class Pythonic(Family):
    """A list of calls."""

    name = "pythonic"
    title = "Models whose template asks for `[name(argument=value)]`: Llama 3.2 and Gemma 3 in places"
    markers = ()
    triggers = ()
    holds_many = True
    is_exact = False

    def problem_with(self, tool: Tool) -> str | None:
        """Return which parameter has a name that the notation cannot hold."""
        return unreadable(unreadable_names(tool.grammar_schema, PYTHON, "="))

    def fits(self, source: str) -> bool:
        """Whether the template shows the form as Meta and Google do."""
        return "func_name1(params_name1=" in source

    def read(self, scan: Scanner) -> Reading[None]:
        """Read calls at the beginning, or text."""
        scan.remember()
        yield from scan.space()
        fence = yield from scan.skip(*FENCES)
        yield from scan.space()
        if (yield from read_call_list(scan)) and fence is not None:
            yield from scan.space()
            yield from scan.skip("```")

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return the list."""
        first = write.any_of(self._call(write, tool, "[") for tool in tools.offered)
        call = write.any_of(self._call(write, tool, "") for tool in tools.offered)
        more = f"({write.literal(', ')} {call})*" if tools.is_parallel else '""'
        return f"{first} {more} {write.literal(']')}"

    def required_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the list alone."""
        return self.block(write, tools, "")

    def free_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the list, or text that does not begin like one."""
        text = not_beginning_with(f"[{tool.name}(" for tool in tools.offered)
        return write.any_of([write.rule(self.block(write, tools, "")), write.regex(text)])

    def _call(self, write: GrammarWriter, tool: Tool, opening: str) -> str:
        arguments = ValueGrammar(write, PYTHON, tool.grammar_schema).arguments("=")
        return f"{write.literal(f'{opening}{tool.name}(')} {arguments} {write.literal(')')}"
