"""Calls as JSON between tokens of their own: DeepSeek R1, V3 and V3.1.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
    ```json
    {"city": "Paris"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3.1 writes it without the word, the fence and line breaks. Both are read of both. Many of the templates print calls and
no tools: then the prompt must tell of these.
Source: the chat templates of these models.
"""

from __future__ import annotations

import json
from typing import ClassVar, Final

from worker.chat.marks import unmarked
from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.sections import SectionSigns, read_sections
from worker.chat.tool_calls.spelling import written
from worker.chat.tool_calls.tools import Demand, Tools

OPEN, CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_FENCE, _FENCE_END = "```json", "```"
_SIGNS: Final = SectionSigns(OPEN, CLOSE, CALL, may_lack_call=True)
_LINE: Final = "\n"


class DeepSeekR1(Family):
    """JSON in a fence, behind the name."""

    name = "deepseek-r1"
    title = "DeepSeek R1 and V3, and models distilled from R1"
    markers = (OPEN, CLOSE, CALL, SEPARATOR, CALL_END)
    triggers = (OPEN,)
    holds_many = True
    before_name: ClassVar[str] = f"function{SEPARATOR}"
    behind_name: ClassVar[str] = f"\n{_FENCE}\n"
    behind_arguments: ClassVar[str] = f"\n{_FENCE_END}{CALL_END}"
    before_next: ClassVar[str] = _LINE
    """What stands between two calls."""

    def fits(self, source: str) -> bool:
        """Whether the template shows these tokens and the fence."""
        return SEPARATOR in source and _FENCE in source

    def instructions(self, tools: Tools) -> str:
        """Return what the prompt tells of the tools, and how the model's own form of calls is filled in."""
        shown = "\n\n".join(
            f"### {tool.name}\n{tool.description or ''}\nParameters as a JSON schema: {_json(dict(tool.parameters))}"
            for tool in tools.offered
        )
        must = "You must call" if tools.demand is Demand.REQUIRED else "Where it helps you to answer, call"
        what = "one or more of them" if tools.is_parallel else "one of them"
        call = f"{CALL}{self.before_name}NAME{self.behind_name}ARGUMENTS{self.behind_arguments}"
        return (
            f"## Tools\n\n{shown}\n\n{must} {what}, in this form, with the arguments as a JSON object:\n"
            f"{OPEN}{call}{CLOSE}"
        )

    def read(self, scan: Scanner) -> Reading[None]:
        """Read text and calls."""
        yield from read_sections(scan, _SIGNS, self._read_call)

    def _read_call(self, scan: Scanner) -> Reading[None]:
        name, found = yield from scan.collect(SEPARATOR, CLOSE)
        if found != SEPARATOR:
            return
        yield from scan.space()
        if (yield from scan.peek()) != "{":
            name, found = yield from scan.collect(_LINE, _FENCE, CALL_END)
            if found in (None, CALL_END):
                return
            if found == _LINE:
                yield from scan.space()
                yield from scan.skip(_FENCE, _FENCE_END)
            yield from scan.space()
        name = unmarked(name).strip()
        if not scan.knows(name):
            return
        scan.forget()
        scan.start_call(name)
        if (yield from scan.json_arguments()):
            yield from scan.space()
            yield from scan.skip(_FENCE_END)
            yield from scan.space()
            yield from scan.skip(CALL_END)

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return calls of the tools, and the end of all."""
        calls = [
            f"{written(write, CALL + self.before_name + tool.name + self.behind_name)}"
            f" {write.schema(tool.grammar_schema)} {written(write, self.behind_arguments)}"
            for tool in tools.offered
        ]
        call = write.any_of(calls)
        more = f"({written(write, self.before_next)} {call})*" if tools.is_parallel else ""
        return f"{call} {more} {written(write, CLOSE)}"


class DeepSeekV31(DeepSeekR1):
    """JSON behind the name."""

    name = "deepseek-v3.1"
    title = "DeepSeek V3.1"
    before_name = ""
    behind_name = SEPARATOR
    behind_arguments = CALL_END
    before_next = ""

    def fits(self, source: str) -> bool:
        """Whether the template shows these tokens without a fence."""
        return SEPARATOR in source and _FENCE not in source


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
