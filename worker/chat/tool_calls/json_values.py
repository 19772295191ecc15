"""Values that stand as plain text where no JSON marks their type: what a schema says they are, and the JSON of them.

Must not know a family or how the values are marked.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

MAX_DEPTH: Final = 16
"""References and choices in each other that are followed at most."""
_MAX_LITERAL: Final = 64 * 1024
"""Characters of a Python literal that is looked at: Python's parser needs much memory for long ones."""
_KINDS: Final = (
    (type(None), "null"),
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
)
"""What Python reads JSON as; a boolean is an integer, too."""
_NO_SCHEMAS: Final = frozenset({"properties", "const", "enum", "default", "examples", "required"})
"""Keys whose values are none, or are looked at by themselves."""
_WORDS: Final = {"true": "true", "false": "false", "none": "null", "null": "null"}


def kinds_of(schema: object, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a schema names; empty if it does not say. `root` is where its references lead."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return frozenset()
    kinds: frozenset[str] = frozenset()
    match schema:
        case {"type": str(kind)}:
            kinds = frozenset({kind})
        case {"type": list(named)}:
            kinds = frozenset(kind for kind in named if isinstance(kind, str))
        case {"const": value}:
            kinds = frozenset({_kind(value)})
        case {"enum": list(values)}:
            kinds = frozenset(_kind(value) for value in values)
        case {"$ref": str(reference)}:
            kinds = kinds_of(resolved(reference, root), root, depth + 1)
        case {"anyOf": list(schemas)} | {"oneOf": list(schemas)}:
            each = [kinds_of(one, root, depth + 1) for one in schemas]
            kinds = frozenset().union(*each) if all(each) else frozenset()
        case {"allOf": list(schemas)}:
            each = [found for one in schemas if (found := kinds_of(one, root, depth + 1))]
            kinds = frozenset.intersection(*each) if each else frozenset()
    return kinds


def schema_of(name: str, schema: Mapping[str, Any]) -> object:
    """Return the schema of one property of an object that has `schema`; None if that says nothing of it."""
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return schema.get("additionalProperties")


def followed(schema: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a schema refers to, or the first of its choices that is not only null; empty if there is none.

    The parts of an `allOf` come as one schema. Of choices beside properties all have a place, and none is demanded.
    """
    parts, choices = _Parts(root), _Parts(root, takes_choice=True)
    parts.add(schema)
    if any("properties" in part for part in parts.found):
        return _joined([*parts.found, *parts.possible])
    choices.add(schema)
    return _joined(choices.found)


def inner_names(schema: object) -> Iterator[str]:
    """Yield the names of all properties that are named anywhere in a schema."""
    pending = [schema]
    while pending:
        match pending.pop():
            case Mapping() as found:
                named = found.get("properties")
                if isinstance(named, Mapping):
                    yield from named
                    pending += named.values()
                required = found.get("required")
                if isinstance(required, list):
                    yield from (name for name in required if isinstance(name, str))
                pending += (one for key, one in found.items() if key not in _NO_SCHEMAS)
            case list() as found:
                pending += found


def resolved(reference: str, root: Mapping[str, Any]) -> object:
    """Return what a reference within the schema names; None if it names nothing there."""
    found: object = root
    for step in reference.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if reference.startswith("#") else None


def is_text(kinds: frozenset[str]) -> bool:
    """Whether values of these types are strings, which stand as they are."""
    return "string" in kinds and kinds <= {"string", "null"}


def json_of(text: str, kinds: frozenset[str]) -> str:
    """Return the JSON of a value that was written as `text`: of the types if it can be, else a string."""
    stripped = text.strip()
    for candidate in _readings(stripped, kinds):
        if (value := _parsed(candidate)) is not None and _is_of(value[0], kinds):
            return candidate
    return json.dumps(text if not kinds or "string" in kinds else stripped, ensure_ascii=False)


class _Parts:
    """What all must hold for a schema; each reference is followed once.

    `takes_choice`: the first choice that is not only null must hold; else choices say which properties there may be.
    """

    def __init__(self, root: Mapping[str, Any], *, takes_choice: bool = False) -> None:
        self._root = root
        self._takes_choice = takes_choice
        self._seen: set[str] = set()
        self.found: list[Mapping[str, Any]] = []
        self.possible: list[Mapping[str, Any]] = []
        """Schemas of properties that a choice has."""

    def add(self, schema: object, depth: int = 0) -> None:
        """Add the parts of a schema."""
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return
        match schema:
            case {"$ref": str(reference)}:
                if reference not in self._seen:
                    self._seen.add(reference)
                    self.add(resolved(reference, self._root), depth + 1)
                self.add({key: value for key, value in schema.items() if key != "$ref"}, depth + 1)
            case {"allOf": list(inner)}:
                for one in [{key: value for key, value in schema.items() if key != "allOf"}, *inner]:
                    self.add(one, depth + 1)
            case {"anyOf": list(choices)} | {"oneOf": list(choices)}:
                self._add_choices(schema, choices, depth)
            case _ if schema:
                self.found.append(schema)

    def _add_choices(self, schema: Mapping[str, Any], choices: Sequence[object], depth: int) -> None:
        if self._takes_choice:
            self.add(next((one for one in choices if kinds_of(one, self._root) != {"null"}), None), depth + 1)
            return
        self.found.append(schema)
        each = _Parts(self._root)
        each._seen = self._seen
        for one in choices:
            each.add(one, depth + 1)
        properties: dict[str, list[object]] = {}
        for part in (*each.found, *each.possible):
            for name, one in _mapping(part.get("properties")).items():
                properties.setdefault(name, []).append(one)
        self.possible += [
            {"properties": {name: ones[0] if len(ones) == 1 else {"anyOf": ones}}} for name, ones in properties.items()
        ]


def _joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one schema of an object that demands what each of these does, as far as names, places and types go."""
    if len(parts) == 1:
        return dict(parts[0])
    joined: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    required: list[Any] = []
    for part in parts:
        joined = {**part, **joined}
        for name, one in _mapping(part.get("properties")).items():
            others = properties.get(name, one)
            properties[name] = one if others == one else {"allOf": [others, one]}
        demanded = part.get("required")
        required += demanded if isinstance(demanded, list) else []
    if any(part.get("additionalProperties") is False for part in parts):
        joined["additionalProperties"] = False
    found = {"properties": properties} if properties else {}
    return {**joined, **found, **({"required": list(dict.fromkeys(required))} if required else {})}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _readings(text: str, kinds: frozenset[str]) -> Iterable[str]:
    """Return what the JSON of `text` may be: itself, and as some templates write such values, in Python's words."""
    yield text
    if kinds and (word := _WORDS.get(text.lower())) is not None:
        yield word
    # A backslash may be an escape that Python warns of.
    if kinds & {"array", "object"} and text[:1] in {"[", "{", "("} and len(text) <= _MAX_LITERAL and "\\" not in text:
        try:
            yield json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return


def _parsed(text: str) -> tuple[object] | None:
    """Return the value of JSON text, which may be null; None if it is none."""
    try:
        return (json.loads(text, parse_constant=_refuse),)
    except (ValueError, RecursionError):
        return None


def _refuse(word: str) -> object:
    raise ValueError(f"{word} is no JSON")


def _is_of(value: object, kinds: frozenset[str]) -> bool:
    kind = _kind(value)
    is_whole = kind == "number" and isinstance(value, float) and value.is_integer()
    return not kinds or kind in kinds or (kind == "integer" and "number" in kinds) or (is_whole and "integer" in kinds)


def _kind(value: object) -> str:
    """Return the JSON type of a value."""
    return next((kind for type_, kind in _KINDS if isinstance(value, type_)), "object")
