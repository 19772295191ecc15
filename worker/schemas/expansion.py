"""How much the grammar library would make of a rewritten schema.

The library merges schemas that hold together (`allOf`, `$ref` beside other keywords) by writing out every combination
of their alternatives. Owns the count of that, without doing it. Knows rewritten schemas alone: draft 2020-12 with
references to `#/$defs/…`.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any, Final

from worker.schemas.keywords import MAX_MULTIPLE
from worker.schemas.values import significant

Schema = dict[str, Any] | bool

MAX_SUBSCHEMAS: Final = 10_000
"""The library's memory grows with it: 16,000 merged ones took 600 MB and two seconds."""
MAX_COMBINATIONS: Final = 1_000
MAX_ALTERNATIVES: Final = 10_000
MAX_DEPTH: Final = 200
"""Schemas inside one another, references followed. The library compiles by recursion on the thread's stack, without a
bound of its own: 1,600 of them overrun 8 MB and end the process; these fit into 2 MB."""
MAX_ROW: Final = 1_900
"""Possibilities at one place of an answer; the library gives up at 2,000, in the middle of an answer."""
PER_OPTIONAL: Final = 4
"""Of these that an optional property costs at the places before it."""
_PER_ARRAY: Final = 3
_IN_PLACE: Final = ("$ref", "allOf", "anyOf")


class TooMuch(Exception):
    """The schema becomes too large a grammar."""

    def __init__(self, why: str, culprit: Schema) -> None:
        super().__init__(why)
        self.why, self.culprit = why, culprit


def definition(root: dict[str, Any], reference: str) -> Schema:
    """Return what a reference of a rewritten schema stands for."""
    found: Schema = root["$defs"][reference.removeprefix("#/$defs/")]
    return found


@dataclass(slots=True)
class Expansion:
    """Counts what one rewritten schema becomes."""

    root: dict[str, Any]
    num_subschemas: int = 0
    _widths: dict[str, int] = field(default_factory=dict)
    """By reference: how many possibilities what it refers to has where it begins."""

    def count(self) -> int:
        """Return the number of subschemas after all merging. Raises: TooMuch."""
        self._walk([self.root], 0)
        return self.num_subschemas

    def _walk(self, parts: list[Schema], depth: int) -> int:
        """Return how many possibilities the merged parts have where they begin."""
        self.num_subschemas += 1
        if self.num_subschemas > MAX_SUBSCHEMAS:
            raise TooMuch(f"it becomes more than {MAX_SUBSCHEMAS:,} subschemas once all is put together", parts[0])
        self._require_depth(depth, parts[0])
        match parts:
            case [{"$ref": str(reference), **rest}] if not rest or rest.keys() == {"$defs"}:
                return self._referred(reference, depth)
        base, unions = self._flattened(parts, depth)
        if not unions:
            return self._merged(base, depth)
        limit = MAX_COMBINATIONS if len(unions) > 1 or base else MAX_ALTERNATIVES
        if math.prod(map(len, unions)) > limit:
            raise TooMuch("its alternatives that hold together make too many combinations", parts[0])
        width = 1
        for chosen in itertools.product(*unions):
            width += self._walk([*base, *chosen], depth + 1)
            if width > MAX_ROW:
                raise TooMuch("too many of its alternatives could begin at the same place", parts[0])
        return width

    def _require_depth(self, depth: int, part: Schema) -> None:
        if depth > MAX_DEPTH:
            raise TooMuch(
                f"more than {MAX_DEPTH} schemas stand inside one another or lead to one another, or one leads to "
                "itself where others hold with it",
                part,
            )

    def _referred(self, reference: str, depth: int) -> int:
        if reference not in self._widths:
            self._widths[reference] = 1  # while it refers to itself
            self._widths[reference] = self._walk([definition(self.root, reference)], depth + 1)
        return self._widths[reference]

    def _flattened(self, parts: list[Schema], depth: int) -> tuple[list[Schema], list[list[Schema]]]:
        """Return the parts without references and `allOf`, and the alternatives beside them."""
        base: list[Schema] = []
        unions: list[list[Schema]] = []
        inlined: set[str] = set()
        pending = [(part, depth) for part in reversed(parts)]
        while pending:
            part, level = pending.pop()
            if isinstance(part, bool):
                continue
            self._require_depth(level, part)
            if (reference := part.get("$ref")) is not None and reference not in inlined:
                inlined.add(reference)
                pending.append((definition(self.root, reference), level + 1))
            pending.extend((inner, level + 1) for inner in part.get("allOf", ()))
            if "anyOf" in part:
                unions.append(part["anyOf"])
            if any(key not in _IN_PLACE and key != "$defs" for key in part):
                base.append({key: value for key, value in part.items() if key not in _IN_PLACE})
        return base, unions

    def _merged(self, base: list[Schema], depth: int) -> int:
        """Walk what stands inside of merged objects and lists; return how many possibilities they begin with."""
        parts = [part for part in base if isinstance(part, dict)]
        self.num_subschemas += sum(len(part.get("enum", ())) // 8 for part in parts)
        steps = [significant(part["multipleOf"]) for part in parts if "multipleOf" in part]
        if len(steps) > 1 and math.prod(steps) > MAX_MULTIPLE:
            raise TooMuch("its multipleOf that hold together are more than can be counted", base[0])
        required = {name for part in parts for name in part.get("required", ())}
        inner = _inner(parts)
        first, longest = _runs([name in required for key, name in inner if key == "properties"])
        if PER_OPTIONAL * longest > MAX_ROW:
            raise TooMuch(f"more than {MAX_ROW // PER_OPTIONAL} optional properties follow one another", base[0])
        for schemas in inner.values():
            self._walk(schemas, depth + 1)
        kinds = _kinds(parts)
        is_open = not required and not any(part.get("additionalProperties") is False for part in parts)
        return ("object" in kinds) * (1 + PER_OPTIONAL * (first + is_open)) + ("array" in kinds) * _PER_ARRAY


def _kinds(parts: list[dict[str, Any]]) -> set[str]:
    """Return which of the types with something inside can fit all `parts`."""
    kinds = {"array", "object"}
    for part in parts:
        if "type" in part:
            kinds.intersection_update([part["type"]] if isinstance(part["type"], str) else part["type"])
        if "const" in part or "enum" in part:
            values = [part["const"]] if "const" in part else part["enum"]
            kinds.intersection_update(
                {"array" if isinstance(value, list) else "object" for value in values if isinstance(value, list | dict)}
            )
    return kinds


def _inner(parts: list[dict[str, Any]]) -> dict[tuple[str, Any], list[Schema]]:
    """Return the schemas that hold for each place inside of an object or list, if all `parts` hold for it."""
    inner: dict[tuple[str, Any], list[Schema]] = {}
    for part in parts:
        for key in ("items", "additionalProperties"):
            if key in part:
                inner.setdefault((key, None), []).append(part[key])
        for key in ("properties", "patternProperties"):
            for name, schema in part.get(key, {}).items():
                inner.setdefault((key, name), []).append(schema)
        for index, schema in enumerate(part.get("prefixItems", ())):
            inner.setdefault(("prefixItems", index), []).append(schema)
    for part in parts if len(parts) > 1 else ():
        if isinstance(others := part.get("additionalProperties"), dict):
            for (key, name), schemas in inner.items():
                if key == "properties" and name not in part.get("properties", {}):
                    schemas.append(others)
    return inner


def _runs(are_required: list[bool]) -> tuple[int, int]:
    """Return how many optional properties come first, and the most that follow one another."""
    run = longest = 0
    first = are_required.index(True) if True in are_required else len(are_required)
    for is_required in are_required:
        run = 0 if is_required else run + 1
        longest = max(longest, run)
    return first, longest
