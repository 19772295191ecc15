"""What families share whose calls have each parameter in tags of its own. Each of them says what the tags are.

<function=get_weather>
<parameter=city>
Paris
</parameter>
</function>
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from worker.chat.marks import unmarked
from worker.chat.tool_calls.family import Family, unreadable
from worker.chat.tool_calls.grammar import TEXT, GrammarWriter
from worker.chat.tool_calls.json_values import followed
from worker.chat.tool_calls.parameter_grammar import ParameterGrammar, members_of
from worker.chat.tool_calls.parameters import Arguments
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.sections import SectionSigns, read_sections
from worker.chat.tool_calls.spelling import spelled, written, written_up_to
from worker.chat.tool_calls.tools import Tool, Tools

LINE: Final = "\n"


@dataclass(frozen=True, slots=True)
class Layout:
    """The tags of one form, and under the names that begin with `after`, the white space that its templates write."""

    call: str
    """In front of a tool's name."""
    name_end: str
    """Behind it; empty where a line ends with it, or the next tag follows."""
    call_end: str
    key: str
    """In front of a parameter's name."""
    key_end: str
    value_end: str
    value: str = ""
    """In front of the value, where that is a tag of its own."""
    open: str = ""
    """In front of all calls, or of each if the family's blocks do not hold many; empty where nothing is."""
    close: str = ""
    is_bare: bool = True
    """A call without `open` is one, too: models forget it."""
    has_lines: bool = False
    """Values stand on lines of their own."""
    in_python: bool = False
    """Templates write values that are neither strings nor JSON as Python does."""
    after_open: str = LINE
    after_name: str = LINE
    after_key: str = ""
    after_value: str = LINE
    after_call: str = LINE
    may_lack_lines: bool = False
    """Some templates leave out these line breaks."""
    before_end: str = ""
    """What some templates write in front of the end of a call without arguments."""


class TaggedFamily(Family):
    """Calls with parameters in tags."""

    layout: ClassVar[Layout]
    is_exact = False

    def problem_with(self, tool: Tool) -> str | None:
        """Return which parameter has a name that its tag could not hold."""
        schema = tool.grammar_schema if isinstance(tool.grammar_schema, Mapping) else {}
        names = (name for name, _, _ in members_of(followed(schema, schema)))
        return unreadable(name for name in names if not self.holds_name(name))

    def holds_name(self, name: str) -> bool:
        """Whether a parameter's tag with this name is read as what it is."""
        end = self.layout.key_end
        is_plain = bool(name) and name == unmarked(name).strip() and LINE not in name
        return is_plain and (name + end).find(end) == len(name)

    # --- reading ------------------------------------------------------------------------------------------

    def read(self, scan: Scanner) -> Reading[None]:
        """Read text and calls."""
        tags = self.layout
        signs = SectionSigns(tags.open, tags.close, tags.call, may_be_bare=tags.is_bare or not tags.open)
        yield from read_sections(scan, signs, self.read_call)

    def read_call(self, scan: Scanner) -> Reading[None]:
        """Read what stands behind the beginning of a call. A call has begun if its tool may be called."""
        tags = self.layout
        key, call_end = spelled(scan.markers, tags.key), spelled(scan.markers, tags.call_end)
        name_end = spelled(scan.markers, tags.name_end)
        name, found = yield from scan.collect(*((name_end, LINE) if name_end else (LINE, key, call_end)))
        tool = scan.tools.by_name.get(unmarked(name).strip())
        if tool is None or found is None or (name_end and found == LINE):
            return
        scan.forget()
        scan.start_call(tool.name)
        yield from self._read_parameters(scan, tool, found if found in (key, call_end) else None)

    def _read_parameters(self, scan: Scanner, tool: Tool, found: str | None) -> Reading[None]:
        """Read to the end of the call. `found` is the tag that was read already; None = there is none."""
        arguments = Arguments(scan, tool, has_lines=self.layout.has_lines)
        key, call_end = spelled(scan.markers, self.layout.key), spelled(scan.markers, self.layout.call_end)
        value_end = spelled(scan.markers, self.layout.value_end)
        # Tags that hold tokens cannot be part of a value: where one comes, the value's own was forgotten.
        sure = [
            form for one in (self.layout.call_end, self.layout.close) if (form := spelled(scan.markers, one)) != one
        ]
        while True:
            if found is None:
                yield from scan.space()
                scan.remember()
                found = yield from scan.skip(key, call_end, *sure)
            if found is None and scan.skip_cut(key, call_end):
                return scan.forget()
            if found != key:
                break
            read = yield from self.read_key(scan)
            if read is None:
                if scan.skip_cut(""):
                    return scan.forget()
                found = None
                break
            scan.forget()
            found = yield from self.read_value(scan, arguments, *read, (value_end, *sure))
            if found is None:
                if scan.is_cut:
                    return None
                break
            found = None if found == value_end else found
        arguments.close()
        if found is None:
            scan.give_back()
        return scan.forget()

    def read_key(self, scan: Scanner) -> Reading[tuple[str, bool | None] | None]:
        """Read the rest of a parameter's tag; return its name, and whether the model says that it is a string.

        None if it is no such tag.
        """
        name, found = yield from scan.collect(spelled(scan.markers, self.layout.key_end), LINE)
        if found is None or found == LINE:
            return None
        if self.layout.value:
            yield from scan.space()
            if (yield from scan.skip(spelled(scan.markers, self.layout.value))) is None:
                return None
        return unmarked(name).strip(), None

    def read_value(
        self, scan: Scanner, arguments: Arguments, name: str, is_string: bool | None, ends: tuple[str, ...]
    ) -> Reading[str | None]:
        """Read a value up to the first of `ends` and return that; None at the end of the answer."""
        return (yield from arguments.read(name, *ends, is_string=is_string))

    # --- writing ------------------------------------------------------------------------------------------

    def block(self, write: GrammarWriter, tools: Tools, trigger: str) -> str:
        """Return what stands behind the beginning of a block."""
        tags = self.layout
        if not tags.open:
            return self._calls(write, tools, "")
        call, close = self._calls(write, tools, tags.call), written(write, tags.close)
        more = f"({self._line(write, tags.after_call)} {call})*" if self.holds_many and tools.is_parallel else ""
        return f"{self._line(write, tags.after_open)} {call} {more} {self._line(write, tags.after_call)} {close}"

    def required_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the expression of an answer that is calls alone."""
        block = write.rule(f"{written(write, self._beginning)} {self.block(write, tools, self._beginning)}")
        if self.holds_many or not tools.is_parallel:
            return block
        return f"{block} ({write.literal(self.between)}? {block})*"

    def free_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the expression of an answer in which text and calls come as the model likes."""
        before = written_up_to(write, self._beginning)
        block = write.rule(f"{before} {self.block(write, tools, self._beginning)}")
        return f"{block}* {TEXT}" if tools.is_parallel else f"{block} | {TEXT}"

    def write_key(self, write: GrammarWriter, name: str, is_string: bool) -> str:
        """Return the expression of what stands in front of a value; `name` is that of the parameter's name."""
        tags = self.layout
        value = written(write, tags.value) if tags.value else ""
        head = f"{written(write, tags.key)} {name} {written(write, tags.key_end)}"
        return f"{head} {self._line(write, tags.after_key)} {value}"

    def parameter_grammar(self, write: GrammarWriter) -> ParameterGrammar:
        """Return what writes the family's parameters."""
        tags = self.layout
        line = LINE if tags.has_lines else ""

        def tag(name: str, is_string: bool) -> str:
            return self.write_key(write, name, is_string)

        after = self._line(write, tags.after_value)
        return ParameterGrammar(write, tag, tags.value_end, after, line=line, in_python=tags.in_python)

    @property
    def _beginning(self) -> str:
        return self.layout.open or self.layout.call

    def _calls(self, write: GrammarWriter, tools: Tools, beginning: str) -> str:
        """Return the expression of a call of one of the tools."""
        tags = self.layout
        grammar = self.parameter_grammar(write)
        calls = []
        for tool in tools.offered:
            head = f"{written(write, beginning + tool.name + tags.name_end)} {self._line(write, tags.after_name)}"
            parameters = " ".join(grammar.parameters(tool.grammar_schema))
            before_end = f"{write.literal(tags.before_end)}?" if tags.before_end else ""
            calls.append(f"{head} {parameters} {before_end} {written(write, tags.call_end)}")
        return write.any_of(calls)

    def _line(self, write: GrammarWriter, text: str) -> str:
        if not text:
            return ""
        return f"{write.literal(text)}?" if self.layout.may_lack_lines else write.literal(text)
