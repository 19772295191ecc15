"""What a family of models is asked about its form of tool calls. Each has a file of its own.

A family reads what its models write, and writes the grammar of what they may write. Both in text: which of its markers
are tokens is told by `Markers`. Must not know dialects or requests.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from worker.chat.reasoning import Tags
from worker.chat.tool_calls.grammar import TEXT, GrammarWriter
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.tools import Tool, Tools


class Family(ABC):
    """One form of tool calls."""

    name: ClassVar[str]
    """Short, as in the table of the docs."""
    title: ClassVar[str]
    """Which models write it, for people."""
    markers: ClassVar[tuple[str, ...]]
    """What may be tokens of their own, beside the tags of thoughts."""
    triggers: ClassVar[tuple[str, ...]]
    """A call, or a block of calls, begins with one of these markers. Behind one nothing but calls can come."""
    holds_many: ClassVar[bool] = False
    """One block holds all calls; else each call is a block of its own."""
    between: ClassVar[str] = "\n"
    """What stands between two blocks."""
    tags: ClassVar[Tags | None] = None
    """What stands around thoughts where the family reads them itself."""
    tested_on: ClassVar[str] = ""
    """The real model that the tests have called tools with; empty = canned outputs only."""
    needs_instructions: ClassVar[bool] = False
    """The chat template says nothing of tools: the prompt must tell which there are and how to call them."""
    is_exact: ClassVar[bool] = True
    """Arguments are JSON, so that the grammar holds them to all that it gets of a schema; else parts of it are left to
    the model, and calls must be checked."""

    @abstractmethod
    def fits(self, source: str) -> bool:
        """Whether a chat template with this source is one of the family's."""

    @abstractmethod
    def read(self, scan: Scanner) -> Reading[None]:
        """Read a whole answer behind its first thoughts. What is no call, or a broken one, is text."""

    @abstractmethod
    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return the expression of what stands behind `trigger`, to the end of the block. More than one call may be
        in it if the block `holds_many` and `tools` allows several."""

    def required_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the expression of an answer that is calls alone."""
        blocks = [f"{write.marker(trigger)} {self.block(write, tools, trigger)}" for trigger in self.triggers]
        block = write.any_of(blocks)
        if self.holds_many or not tools.is_parallel:
            return block
        return f"{block} ({write.literal(self.between)} {block})*"

    def free_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the expression of an answer in which text and calls come as the model likes."""
        block = write.any_of(
            f"{write.text_before(trigger)} {self.block(write, tools, trigger)}" for trigger in self.triggers
        )
        return f"{block}* {TEXT}" if tools.is_parallel else f"{block} | {TEXT}"

    def problem_with(self, tool: Tool) -> str | None:
        """Return why a tool cannot be called in this form, as the end of a sentence about it; None = it can."""
        return None

    def instructions(self, tools: Tools) -> str:
        """Return what the prompt tells of the tools, for families whose templates do not."""
        return ""

    def answer(self, write: GrammarWriter, body: str) -> str:
        """Return the expression of an answer whose visible text is `body`, from where the model begins to write.

        The same for most families; some write more than the text.
        """
        return body

    def spell(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """Return calls, each with `name` and `arguments`, as the models write them.

        For histories in templates that print no calls; of use for families that have such.
        """
        return spell_calls(calls)

    @property
    def wraps_answers(self) -> bool:
        """Whether answers hold more than their text, so that they must be read where nothing can be called, too."""
        return type(self).answer is not Family.answer

    def call_id(self, key: str, index: int, name: str) -> str:
        """Return the id of a call, unique and in the form that the templates demand. `key` is 32 hexadecimal digits.

        The same arguments give the same id.
        """
        return f"call_{key[:22]}{index:02d}"


def unreadable(names: Iterable[str]) -> str | None:
    """Return what is wrong with the first of these names, for `problem_with`; None if there is none."""
    name = next(iter(names), None)
    if name is None:
        return None
    return f"its parameter {name!r} has a name that the model's form of calls cannot hold"


def spell_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """Return calls in the form for models that know none. Arguments are objects, or text where they are no JSON."""
    return json.dumps({"tool_calls": [call_of(call) for call in calls]}, ensure_ascii=False)


def call_of(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call as most models know it: its name and its arguments."""
    return {"name": call["name"], "arguments": call["arguments"]}
