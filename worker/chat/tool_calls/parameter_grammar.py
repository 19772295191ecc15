"""Grammars of parameters that stand in tags: required ones must be there, all in the order of the tool's schema.

Strings stand as they are and end where their tag does; everything else is JSON, held to its schema. Must not know which
tags those are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.json_values import MAX_DEPTH, followed, kinds_of, resolved
from worker.chat.tool_calls.spelling import written, written_text, written_up_to
from worker.chat.tool_calls.string_patterns import string_patterns

_DEFINITIONS: Final = ("$defs", "definitions")
_ANY_NAME: Final = "[A-Za-z_][A-Za-z0-9_.-]*"
_WORDS: Final = {"boolean": ("true", "false"), "null": ("null",)}
_PYTHON_WORDS: Final = {"boolean": ("true", "false", "True", "False"), "null": ("null", "None")}

WriteTag = Callable[[str, bool], str]
"""To what stands in front of a value: the expression of the parameter's name, and whether the value is a string."""


def members_of(schema: Mapping[str, Any]) -> Iterator[tuple[str, object, bool]]:
    """Yield the name and schema of each property of an object with this schema, and whether it must be there."""
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = [name for name in schema.get("required", ()) if isinstance(name, str)]
    for name, one in properties.items():
        if one is not False:
            yield name, one, name in required
    for name in required:
        if name not in properties:
            yield name, schema.get("additionalProperties", True), True


def choices_of(schema: object, root: Mapping[str, Any], depth: int = 0) -> list[str]:
    """Return the texts of all values that a schema allows; empty if it lists none, or lists or objects among them."""
    listed: object = None
    match schema:
        case _ if depth > MAX_DEPTH:
            pass
        case {"$ref": str(reference)}:
            return choices_of(resolved(reference, root), root, depth + 1)
        case {"const": value}:
            listed = [value]
        case {"enum": list(values)}:
            listed = values
        case {"type": "null"}:
            listed = [None]
        case {"anyOf": list(schemas)} | {"oneOf": list(schemas)}:
            each = [choices_of(one, root, depth + 1) for one in schemas]
            return [one for texts in each for one in texts] if all(each) else []
    if not isinstance(listed, list) or any(isinstance(one, list | Mapping) for one in listed):
        return []
    return [one if isinstance(one, str) else json.dumps(one) for one in listed]


def with_definitions(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of the schema `root` as one of its own, whose references still lead somewhere."""
    return {**{key: root[key] for key in _DEFINITIONS if key in root}, **schema}


class ParameterGrammar:
    """Writes parameters into one grammar.

    `end` is what stands behind each value, and in front of it `line`; `after` is the expression of white space behind a
    parameter. `in_python`: templates write true as Python does.
    """

    def __init__(
        self, write: GrammarWriter, tag: WriteTag, end: str, after: str = "", *, line: str = "", in_python: bool = False
    ) -> None:
        self._write = write
        self._tag = tag
        self._end = end
        self._after = after
        self._line = line
        self._words = _PYTHON_WORDS if in_python else _WORDS
        self._text = ""

    def parameters(self, schema: Mapping[str, Any] | bool) -> list[str]:
        """Return the expressions of all parameters of a tool whose arguments have this schema, one after another."""
        root = schema if isinstance(schema, Mapping) else {}
        arguments = followed(root, root)
        found = []
        for name, one, is_required in members_of(arguments):
            parameter = self._write.rule(self._parameter(self._write.literal(name), one, root))
            found.append(parameter if is_required else f"{parameter}?")
        others = arguments.get("additionalProperties", True)
        if not found and others is not False:
            found.append(f"{self._write.rule(self._parameter(self._write.regex(_ANY_NAME), others, root))}*")
        return found

    def text(self) -> str:
        """Return the expression of a string and the end of its tag."""
        return written_up_to(self._write, self._end)

    def _parameter(self, name: str, schema: object, root: Mapping[str, Any]) -> str:
        kinds = kinds_of(schema, root)
        if not kinds or not isinstance(schema, Mapping):
            return f"{self._tag(name, True)} {self._any_text()} {self._after}"
        if "string" in kinds:
            return f"{self._tag(name, True)} {self._string(schema, root)} {self._after}"
        value = f"{self._json(schema, kinds, root)} {written(self._write, self._line + self._end)}"
        return f"{self._tag(name, False)} {value} {self._after}"

    def _any_text(self) -> str:
        """The same rule for all: a grammar of many strings stays small."""
        self._text = self._text or self._write.rule(self.text())
        return self._text

    def _string(self, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
        if not (choices := choices_of(schema, root)):
            patterns = string_patterns(schema)
            return written_text(self._write, patterns, self._line, self._end) if patterns else self._any_text()
        end = written(self._write, self._line + self._end)
        return self._write.any_of(f"{self._write.literal(one)} {end}" for one in choices)

    def _json(self, schema: Mapping[str, Any], kinds: frozenset[str], root: Mapping[str, Any]) -> str:
        if kinds <= self._words.keys() and not schema.keys() & {"enum", "const"}:
            return self._write.any_of(self._write.literal(word) for kind in sorted(kinds) for word in self._words[kind])
        return self._write.rule(self._write.schema(with_definitions(schema, root)))
