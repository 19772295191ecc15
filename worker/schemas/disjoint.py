"""Whether no value can fit two of the schemas of a `oneOf`: then it demands the same as `anyOf`.

Owns that proof, on rewritten schemas, within bounded work; what it cannot prove counts as an overlap.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any, Final

from worker.schemas.expansion import Schema, definition
from worker.schemas.keywords import TYPES

MAX_COMPARISONS: Final = 10_000
MAX_DEPTH: Final = 6
_JSON_TYPES: Final = frozenset(TYPES) - {"integer"}


@dataclass(slots=True)
class _Outline:
    """What can be told of a schema at a glance: never less than what fits it."""

    types: frozenset[str] = _JSON_TYPES
    values: frozenset[str] | None = None
    """All that can fit, as texts; None = not so few that they are listed."""
    required: set[str] = field(default_factory=set)
    properties: dict[str, list[Schema]] = field(default_factory=dict)
    closed_to: list[frozenset[str]] = field(default_factory=list)
    """For each part that allows no other properties: those that it allows."""
    options: list[list[Schema]] = field(default_factory=list)
    is_empty: bool = False


class Disjointness:
    """Compares schemas of one rewritten document, up to a bound for the whole document."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._num_left = MAX_COMPARISONS
        self._outlines: dict[int, _Outline] = {}
        """Of single schemas, by the identity of an object that the document keeps alive."""

    def holds(self, schemas: list[Schema]) -> bool:
        """Return whether it is proven that no value fits two of `schemas`."""
        if self._by_one_property(schemas) or self._by_values(schemas):
            return True
        return all(self._apart([one], [other], 0) for one, other in itertools.combinations(schemas, 2))

    def _by_values(self, schemas: list[Schema]) -> bool:
        """Return whether all are lists of constants without a common one; fast for thousands of them."""
        return _are_apart([self._outline([schema]).values for schema in schemas])

    def _by_one_property(self, schemas: list[Schema]) -> bool:
        """Return whether a property that all demand has another constant in each."""
        outlines = [self._outline([schema]) for schema in schemas]
        if any(outline.types != frozenset({"object"}) for outline in outlines):
            return False
        for name in sorted(set.intersection(*(outline.required for outline in outlines))):
            inner = [self._outline(outline.properties.get(name, [])).values for outline in outlines]
            if _are_apart(inner):
                return True
        return False

    def _apart(self, ones: list[Schema], others: list[Schema], depth: int) -> bool:
        self._num_left -= 1
        if self._num_left < 0 or depth > MAX_DEPTH:
            return False
        one, other = self._outline(ones), self._outline(others)
        if one.is_empty or other.is_empty or not one.types & other.types:
            return True
        if one.values is not None and other.values is not None and not one.values & other.values:
            return True
        for outline, whole, rest in ((one, ones, others), (other, others, ones)):
            for options in outline.options:
                if all(self._apart([*whole, option], rest, depth + 1) for option in options):
                    return True
        return one.types & other.types == {"object"} and self._objects_apart(one, other, depth)

    def _objects_apart(self, one: _Outline, other: _Outline, depth: int) -> bool:
        for mine, theirs in ((one, other), (other, one)):
            if any(mine.required - allowed for allowed in theirs.closed_to):
                return True
        return any(
            self._apart(one.properties[name], other.properties[name], depth + 1)
            for name in sorted(one.required | other.required)
            if name in one.properties and name in other.properties
        )

    def _outline(self, schemas: list[Schema]) -> _Outline:
        if len(schemas) != 1 or isinstance(schemas[0], bool):
            return self._drawn(schemas)
        if (known := self._outlines.get(id(schemas[0]))) is None:
            known = self._outlines[id(schemas[0])] = self._drawn(schemas)
        return known

    def _drawn(self, schemas: list[Schema]) -> _Outline:
        outline = _Outline()
        pending = list(schemas)
        seen: set[str] = set()
        while pending:
            schema = pending.pop()
            if isinstance(schema, bool):
                outline.is_empty |= not schema
                continue
            if (reference := schema.get("$ref")) is not None and reference not in seen:
                seen.add(reference)
                pending.append(definition(self._root, reference))
            pending.extend(schema.get("allOf", ()))
            if "anyOf" in schema:
                outline.options.append(schema["anyOf"])
            _narrow(outline, schema)
        return outline


def _narrow(outline: _Outline, schema: dict[str, Any]) -> None:
    """Let `outline` hold what the keywords of `schema` say themselves."""
    if (kinds := schema.get("type")) is not None:
        names = [kinds] if isinstance(kinds, str) else kinds
        outline.types &= {"number" if name == "integer" else name for name in names}
    for values in ([schema["const"]] if "const" in schema else None, schema.get("enum")):
        if values is not None:
            listed = frozenset(map(_identity, values))
            outline.values = listed if outline.values is None else outline.values & listed
            outline.types &= {_type_of(value) for value in values}
    outline.required.update(schema.get("required", ()))
    for name, inner in schema.get("properties", {}).items():
        outline.properties.setdefault(name, []).append(inner)
    if schema.get("additionalProperties") is False and "patternProperties" not in schema:
        allowed = (name for name, inner in schema.get("properties", {}).items() if inner is not False)
        outline.closed_to.append(frozenset(allowed))


def _are_apart(values: list[frozenset[str] | None]) -> bool:
    known = [listed for listed in values if listed is not None]
    return len(known) == len(values) and sum(map(len, known)) == len(frozenset().union(*known))


def _identity(value: Any) -> str:
    """Return a text that is the same for values that JSON Schema takes for equal."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return value


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
