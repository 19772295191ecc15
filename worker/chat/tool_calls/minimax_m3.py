"""Calls in tags of which each has a token in front, down into lists and objects: MiniMax M3.

    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="search">]<]minimax[>[<tags>]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>[</tags>
    ]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

(the line does not break before the end of the call). Lists are elements that are called `item`.
Source: the chat template of MiniMax M3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from worker.chat.marks import unmarked
from worker.chat.tool_calls.family import unreadable
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.json_values import followed, inner_names, is_text, json_of, kinds_of, schema_of
from worker.chat.tool_calls.parameter_grammar import choices_of, members_of, with_definitions
from worker.chat.tool_calls.parameters import Arguments
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.spelling import spelled, written, written_text, written_up_to
from worker.chat.tool_calls.string_patterns import string_patterns
from worker.chat.tool_calls.tagged import LINE, Layout, TaggedFamily
from worker.chat.tool_calls.tools import Tool, Tools

NAMESPACE: Final = "]<]minimax[>["
_THOUGHT_END: Final = "</mm:think>"
_ITEM: Final = "item"
_MAX_DEPTH: Final = 32
_NAME = re.compile(r"[^\s<>/][^\s<>]*")


class MiniMaxM3(TaggedFamily):
    """Elements in elements."""

    name = "minimax-m3"
    title = "MiniMax M3"
    markers = (NAMESPACE, "<tool_call>", "</tool_call>")
    triggers = ()
    holds_many = True
    layout = Layout(
        open=f"{NAMESPACE}<tool_call>",
        close=f"{NAMESPACE}</tool_call>",
        call=f'{NAMESPACE}<invoke name="',
        name_end='">',
        call_end=f"{NAMESPACE}</invoke>",
        key=f"{NAMESPACE}<",
        key_end=">",
        value_end=f"{NAMESPACE}</",
        after_name="",
        after_value="",
    )

    def fits(self, source: str) -> bool:
        """Whether the template shows the token."""
        return NAMESPACE in source

    def problem_with(self, tool: Tool) -> str | None:
        """Return which parameter, or property inside of one, has a name that cannot be that of an element."""
        return unreadable(name for name in inner_names(tool.grammar_schema) if not _NAME.fullmatch(name))

    def read(self, scan: Scanner) -> Reading[None]:
        """Read text and calls. An answer without thoughts may begin with the end of such."""
        yield from scan.leading(_THOUGHT_END)
        yield from super().read(scan)

    def read_key(self, scan: Scanner) -> Reading[tuple[str, bool | None] | None]:
        """Read the rest of a parameter's tag; return its name."""
        read = yield from super().read_key(scan)
        return read if read is not None and _NAME.fullmatch(read[0]) else None

    def read_value(
        self, scan: Scanner, arguments: Arguments, name: str, is_string: bool | None, ends: tuple[str, ...]
    ) -> Reading[str | None]:
        """Read an element to its end and return the first of `ends`; None where it has none."""
        root = arguments.tool.parameters
        schema = schema_of(name, followed(root, root))
        if is_text(kinds_of(schema, root)):
            end = spelled(scan.markers, f"{self.layout.value_end}{name}>")
            return ends[0] if (yield from arguments.read(name, end)) is not None else None
        scan.remember(f"{self.layout.key}{name}>")
        value = yield from self._read_element(scan, name, schema, root, 0)
        if value is None:
            return None
        scan.forget()
        arguments.put(name, value)
        return ends[0]

    def _read_element(
        self, scan: Scanner, name: str, schema: object, root: Mapping[str, Any], depth: int
    ) -> Reading[str | None]:
        """Read what is in an element, and its end; return the JSON of it, None if it is none."""
        end, beginning = spelled(scan.markers, f"</{name}>"), "<"
        text, found = yield from scan.collect(NAMESPACE)
        kinds = kinds_of(schema, root)
        members: list[tuple[str, str]] = []
        while found is not None and depth < _MAX_DEPTH:
            if (yield from scan.skip(end)) is not None:
                return _json_of_members(members, kinds) if members else _json_of_text(unmarked(text), kinds)
            if (yield from scan.skip(beginning)) is None:
                scan.skip_cut(end, beginning)
                return None
            key, found = yield from scan.collect(">", LINE)
            if found != ">" or not _NAME.fullmatch(key):
                return None
            inner = followed(schema, root)
            one = inner.get("items") if key == _ITEM and "items" in inner else schema_of(key, inner)
            value = yield from self._read_element(scan, key, one, root, depth + 1)
            if value is None:
                return None
            members.append((key, value))
            yield from scan.space()
            found = yield from scan.skip(NAMESPACE)
        scan.skip_cut(NAMESPACE)
        return None

    def _calls(self, write: GrammarWriter, tools: Tools, beginning: str) -> str:
        elements = _Elements(write)
        return write.any_of(
            f"{written(write, f'{beginning}{tool.name}{self.layout.name_end}')}"
            f" {elements.of_tool(tool)} {written(write, self.layout.call_end)}"
            for tool in tools.offered
        )


class _Elements:
    """Writes the expressions of elements."""

    def __init__(self, write: GrammarWriter) -> None:
        self._write = write

    def of_tool(self, tool: Tool) -> str:
        """Return the expression of the arguments of one tool."""
        schema = tool.grammar_schema
        return self._members(followed(schema, schema), schema) if isinstance(schema, Mapping) else ""

    def _members(self, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
        return " ".join(
            f"{self._write.rule(self._element(name, one, root))}{'' if is_required else '?'}"
            for name, one, is_required in members_of(schema)
        )

    def _element(self, name: str, schema: object, root: Mapping[str, Any]) -> str:
        """Return the expression of an element. References are written as JSON: they may lead back to themselves."""
        head, end = written(self._write, f"{NAMESPACE}<{name}>"), f"{NAMESPACE}</{name}>"
        kinds = kinds_of(schema, root)
        if not isinstance(schema, Mapping) or not kinds or "string" in kinds:
            if choices := choices_of(schema, root):
                values = self._write.any_of(self._write.literal(one) for one in choices)
                return f"{head} {values} {written(self._write, end)}"
            patterns = string_patterns(schema) if isinstance(schema, Mapping) else []
            text = written_text(self._write, patterns, "", end) if patterns else written_up_to(self._write, end)
            return f"{head} {text}"
        match schema:
            case {"type": "array", "items": Mapping() as items} if not schema.keys() & {"minItems", "maxItems"}:
                body = f"{self._write.rule(self._element(_ITEM, items, root))}*"
            case {"type": "object", "properties": Mapping()}:
                body = self._members(schema, root)
            case _:
                body = self._write.rule(self._write.schema(with_definitions(schema, root)))
        return f"{head} {body} {written(self._write, end)}"


def _json_of_text(text: str, kinds: frozenset[str]) -> str:
    if not text.strip() and kinds & {"array", "object"} and "string" not in kinds:
        return "[]" if "array" in kinds else "{}"
    return json_of(text, kinds)


def _json_of_members(members: Sequence[tuple[str, str]], kinds: frozenset[str]) -> str:
    if all(name == _ITEM for name, _ in members) and ("array" in kinds or "object" not in kinds):
        return f"[{', '.join(value for _, value in members)}]"
    return "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {value}" for name, value in members) + "}"
