"""Writes the grammars of values in a notation that is not JSON, by their schemas.

What the notation cannot be held to, such as the pattern of a text without escapes, is left to the model. Must not know
a family.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from worker.chat.marks import unmarked
from worker.chat.tool_calls.grammar import TEXT, GrammarWriter
from worker.chat.tool_calls.json_values import followed, inner_names, resolved
from worker.chat.tool_calls.values import Notation

_DEPTH_OF_ANY = 3
"""How deep lists and objects lie in each other in a value that may be anything."""
_NUMERIC = ("type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_TEXTUAL = ("type", "minLength", "maxLength", "pattern", "format")
_BARE_KEY = "[A-Za-z_][A-Za-z0-9_]*"
Schema = Mapping[str, Any] | bool


def unreadable_names(schema: Schema, notation: Notation, colon: str) -> Iterator[str]:
    """Yield the names of arguments, and of properties inside of them, that the notation cannot hold."""
    if not isinstance(schema, Mapping):
        return
    arguments = followed(schema, schema)
    named = arguments.get("properties")
    tops = [*(named if isinstance(named, Mapping) else ()), *arguments.get("required", ())]
    can_be_inner = _is_bare_key if notation.has_bare_keys else _is_quoted_key
    yield from (name for name in tops if isinstance(name, str) and not _is_bare_key(name, colon))
    # The names of the arguments come again here: they are told apart by being among these.
    yield from (name for name in inner_names(schema) if name not in tops and not can_be_inner(name, notation.colon))


def _is_bare_key(key: str, colon: str) -> bool:
    """Whether a key that stands without quotes is read as what it is."""
    is_word = bool(key) and key == unmarked(key).strip() and not any(char in f"{colon},{{}}[]()<|\n" for char in key)
    return is_word and (colon != "=" or not (key[0] in "\"'+-." or key[0].isdigit()))


def _is_quoted_key(key: str, colon: str) -> bool:
    """The same for one with quotes, in which nothing is escaped."""
    return bool(key) and json.dumps(key, ensure_ascii=False) == f'"{key}"' and key == unmarked(key)


class ValueGrammar:
    """Writes values of the schema `root`, and of the parts of it, in one notation."""

    def __init__(self, write: GrammarWriter, notation: Notation, root: Schema) -> None:
        self._write = write
        self._notation = notation
        self._root = root
        self._any: dict[int, str] = {}
        self._being_written: set[str] = set()

    def arguments(self, colon: str) -> str:
        """Return the expression of the members of the root without what stands around them: `a=1, b=2`."""
        root = self._root if isinstance(self._root, Mapping) else {}
        return self._members(followed(root, root), colon, are_bare=True)

    def value(self, schema: Schema) -> str:
        """Return the expression of a value of the schema."""
        match schema:
            case {"$ref": str(pointer)}:
                return self._referred(pointer)
            case {"const": value}:
                return self.literal(value)
            case {"enum": [_, *_] as values}:
                return self._write.any_of(self.literal(one) for one in values)
            case {"anyOf": [_, *_] as schemas} | {"oneOf": [_, *_] as schemas} | {"allOf": [_] as schemas}:
                return self._write.any_of(self.value(one) for one in schemas)
            case bool():
                return self._any_value()
            case _:
                kinds = _types_of(schema)
                return self._write.any_of(self._of_type(one, schema) for one in kinds) if kinds else self._any_value()

    def literal(self, value: Any) -> str:
        """Return the expression of exactly this value."""
        write, notation = self._write, self._notation
        match value:
            case True | False | None:
                written = write.literal(notation.words[(True, False, None).index(value)])
            case str() if not notation.has_escapes:
                quote = write.marker(notation.quotes[0])
                written = f"{quote} {write.literal(value)} {quote}"
            case list():
                written = self._joined('"["', [self.literal(one) for one in value], '"]"')
            case dict():
                pairs = [f"{self._key(key, notation.colon)} {self.literal(one)}" for key, one in value.items()]
                written = self._joined('"{"', pairs, '"}"')
            case _:
                written = write.literal(json.dumps(value, ensure_ascii=False))
        return written

    # --- inside -------------------------------------------------------------------------------------------

    def _of_type(self, kind: object, schema: Mapping[str, Any]) -> str:
        write, words = self._write, self._notation.words
        match kind:
            case "string":
                written = self._text(schema)
            case "integer" | "number":
                written = write.schema({**_only(schema, _NUMERIC), "type": kind})
            case "boolean":
                written = f"({write.literal(words[0])} | {write.literal(words[1])})"
            case "null":
                written = write.literal(words[2])
            case "array":
                written = self._items(schema)
            case "object":
                written = write.rule(f'"{{" {self._members(schema, self._notation.colon)} "}}"')
            case _:
                written = self._any_value()
        return written

    def _text(self, schema: Mapping[str, Any]) -> str:
        write, notation = self._write, self._notation
        limits = {key: value for key, value in _only(schema, _TEXTUAL).items() if key != "type"}
        if notation.has_escapes:
            usual = write.schema({**limits, "type": "string"})
            single = write.regex(r"'([^'\\\n]|\\[\\'nrt])*'")
            return usual if limits else f"({usual} | {single})"
        quote = notation.quotes[0]
        least, most = limits.get("minLength", 0), limits.get("maxLength", "")
        text = f"/(.|\\n){{{least},{most}}}/" if least or most != "" else TEXT
        if write.markers.is_token(quote):
            return f"{write.marker(quote)} {write.rule(text)} {write.marker(quote)}"
        rest = write.rule(f"{text} {write.literal(quote)}", options="lazy")
        return f"{write.literal(quote)} {rest}"

    def _items(self, schema: Mapping[str, Any]) -> str:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return '"[]"'
        # Where places differ they are left to the model.
        items = True if "prefixItems" in schema else schema.get("items", True)
        item = self._write.rule(self.value(items if isinstance(items, Mapping | bool) else True))
        more = f"({self._comma} {item}){{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        body = f"{item} {more}" if least else f"({item} {more})?"
        return f'"[" {body} "]"'

    def _members(self, schema: Mapping[str, Any], colon: str, *, are_bare: bool = False) -> str:
        """Return the expression of the members of an object, each of which comes once and has its place."""
        required = [key for key in schema.get("required", []) if isinstance(key, str)]
        named = schema.get("properties")
        properties = {key: one for key, one in named.items() if one is not False} if isinstance(named, Mapping) else {}
        properties |= {key: True for key in required if key not in properties}
        if not properties:
            if schema.get("additionalProperties", True) is False:
                return '""'
            others = schema.get("additionalProperties", True)
            key = self._any_key(are_bare=are_bare)
            value = self._write.rule(self.value(others if isinstance(others, Mapping) else True))
            pair = self._write.rule(f"{key} {self._write.literal(colon)} {value}")
            return f"({pair} ({self._comma} {pair})*)?"
        # From the end to the beginning: what may follow where a member stands before, and where none does.
        after, first = '""', '""'
        order = sorted(properties, key=str.lower) if self._notation.are_keys_sorted else list(properties)
        for key in reversed(order):
            one = properties[key]
            name = self._write.literal(key + colon) if are_bare else self._key(key, colon)
            pair = self._write.rule(f"{name} {self.value(one if isinstance(one, Mapping | bool) else True)}")
            with_it, with_it_first = f"{self._comma} {pair} {after}", f"{pair} {after}"
            if key in required:
                after, first = self._write.rule(with_it), self._write.rule(with_it_first)
            else:
                first = self._write.any_of([with_it_first, first])
                after = self._write.any_of([with_it, after])
        return first

    def _key(self, key: str, colon: str) -> str:
        if self._notation.has_bare_keys:
            return self._write.literal(key + colon)
        return self._write.literal(json.dumps(key, ensure_ascii=False) + colon)

    def _any_key(self, *, are_bare: bool) -> str:
        if are_bare or self._notation.has_bare_keys:
            return self._write.regex(_BARE_KEY)
        return self._write.schema({"type": "string"})

    @property
    def _comma(self) -> str:
        return self._write.literal(self._notation.comma)

    def _joined(self, opening: str, bodies: Sequence[str], closing: str) -> str:
        return " ".join([opening, f" {self._comma} ".join(bodies), closing])

    def _any_value(self, depth: int = _DEPTH_OF_ANY) -> str:
        if depth not in self._any:
            bodies = [self._of_type(kind, {}) for kind in ("string", "number", "boolean", "null")]
            if depth > 0:
                inner = self._any_value(depth - 1)
                colon = self._write.literal(self._notation.colon)
                pair = self._write.rule(f"{self._any_key(are_bare=False)} {colon} {inner}")
                bodies.append(f'"[" ({inner} ({self._comma} {inner})*)? "]"')
                bodies.append(f'"{{" ({pair} ({self._comma} {pair})*)? "}}"')
            self._any[depth] = self._write.any_of(bodies)
        return self._any[depth]

    def _referred(self, pointer: str) -> str:
        found = resolved(pointer, self._root if isinstance(self._root, Mapping) else {})
        if pointer in self._being_written or not isinstance(found, Mapping | bool):
            return self._any_value()
        self._being_written.add(pointer)
        try:
            return self.value(found)
        finally:
            self._being_written.discard(pointer)


def _only(schema: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: schema[key] for key in keys if key in schema}


def _types_of(schema: Mapping[str, Any]) -> Sequence[object]:
    kind = schema.get("type", "object" if "properties" in schema else [])
    return kind if isinstance(kind, list) else [kind]
