"""The arguments of a call whose parameters stand in tags, each as text: made into the text of a JSON object.

Strings are passed on piece by piece. What else there is is held back until it has ended, and becomes JSON by what the
tool's schema says of it. Must not know which tags those are.
"""

from __future__ import annotations

import json

from worker.chat.marks import unmarked
from worker.chat.tool_calls.json_values import followed, is_text, json_of, kinds_of, schema_of
from worker.chat.tool_calls.scanner import Emit, Reading, Scanner
from worker.chat.tool_calls.tools import Tool

_LINE = "\n"


class Arguments:
    """The arguments of the call that began last. `has_lines`: values stand on lines of their own."""

    def __init__(self, scan: Scanner, tool: Tool, *, has_lines: bool = False) -> None:
        self._scan = scan
        self.tool = tool
        self._has_lines = has_lines
        self._opening = "{"
        """What stands in front of the next argument."""

    def read(self, name: str, *ends: str, is_string: bool | None = None) -> Reading[str | None]:
        """Read the value that stands here up to the first of `ends`, and return that; None at the end of the answer.

        `is_string` is what the model says, where its form lets it; the schema counts for more.
        """
        scan = self._scan
        root = self.tool.parameters
        kinds = kinds_of(schema_of(name, followed(root, root)), root)
        may_be_string = not kinds or "string" in kinds
        if (is_string is True and may_be_string) or (is_string is not False and is_text(kinds)):
            text = _Text(self._emit_behind(name), has_lines=self._has_lines, may_be_null="null" in kinds)
            forms = [scan.markers.form(one) for one in ends]

            def add(piece: str) -> None:
                # What comes behind the cut was held back because it may be the beginning of an end.
                if not (scan.is_cut and any(form.startswith(piece) for form in forms)):
                    text.add(unmarked(piece))

            found = yield from scan.until(*ends, emit=add)
            if found is not None or not scan.is_cut:
                text.end()
            return found
        value, found = yield from self._read_json(ends) if kinds and not may_be_string else scan.collect(*ends)
        if found is not None or not scan.is_cut:
            self.put(name, json_of(self._without_lines(unmarked(value)), kinds))
        return found

    def put(self, name: str, value: str) -> None:
        """There is an argument whose value is this JSON text."""
        self._emit_behind(name)(value)

    def close(self) -> None:
        """There are no more."""
        self._scan.arguments("{}" if self._opening == "{" else "}")

    def _read_json(self, ends: tuple[str, ...]) -> Reading[tuple[str, str | None]]:
        """Read a value as `collect` does. What looks like an end may stand in a string of JSON."""
        scan = self._scan
        value = yield from scan.space()
        json_text, is_whole = yield from scan.collected_json()
        value += json_text + (yield from scan.space())
        if is_whole and (found := (yield from scan.skip(*ends))) is not None:
            return value, found
        rest, found = yield from scan.collect(*ends)
        return value + rest, found

    def _emit_behind(self, name: str) -> Emit:
        """Return what passes on the pieces of one argument's value: the name is put in front of the first."""
        prefix = f"{self._opening}{json.dumps(name, ensure_ascii=False)}: "

        def emit(text: str) -> None:
            nonlocal prefix
            self._scan.arguments(prefix + text)
            prefix, self._opening = "", ", "

        return emit

    def _without_lines(self, value: str) -> str:
        return value.removeprefix(_LINE).removesuffix(_LINE) if self._has_lines else value


class _Text:
    """A string as it comes. It may turn out to be null where it is nothing but that word."""

    def __init__(self, emit: Emit, *, has_lines: bool, may_be_null: bool) -> None:
        self._emit = emit
        self._has_lines = has_lines
        self._may_be_null = may_be_null
        self._is_at_start = True
        self._has_begun = False
        self._held = ""

    def add(self, piece: str) -> None:
        """There is more of it."""
        if self._is_at_start and piece:
            self._is_at_start = False
            piece = piece.removeprefix(_LINE) if self._has_lines else piece
        self._held += piece
        ready = self._held.removesuffix(_LINE) if self._has_lines else self._held
        if self._has_begun or not (self._may_be_null and "null".startswith(ready)):
            self._pass_on(ready)

    def end(self) -> None:
        """There is no more of it."""
        rest = self._held.removesuffix(_LINE) if self._has_lines else self._held
        if self._may_be_null and not self._has_begun and rest == "null":
            self._emit(rest)
            return
        self._pass_on(rest)
        self._emit('"' if self._has_begun else '""')

    def _pass_on(self, text: str) -> None:
        self._held = self._held[len(text) :]
        if text:
            self._emit(("" if self._has_begun else '"') + json.dumps(text, ensure_ascii=False)[1:-1])
            self._has_begun = True
