"""The keywords of JSON Schema: the form that their values must have, and what is made of each.

Owns the one table that the rewriting and the documentation follow. Must not rewrite anything itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")
FORMATS: Final = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)
"""The formats whose form is enforced; every other is an annotation, as the standard has it."""

LARGEST_COUNT: Final = 1_000_000
"""Of characters, items or properties. The library counts further, but no answer is as long."""
LARGEST_BOUND: Final = 2**53
"""Numbers beyond it are not exact in JSON, and the library compares them as 64-bit integers that end soon after."""
MAX_DECIMALS: Final = 20
MAX_MULTIPLE: Final = 10_000
"""Digits of `multipleOf` without its zeros at the end: the automaton has about as many states (9973: 27 ms to build,
99991: 400 ms, 999983: minutes)."""
MAX_ZEROS: Final = 6
"""And its power of ten: with 10^9 the library needs 28 ms for one place of the answer."""
MAX_PATTERN_PROPERTIES: Final = 64
"""The library compares each with each, ever slower: 64 take 17 ms, 200 take 900 ms, 300 take 6 s."""


class Treatment(StrEnum):
    """What is made of a keyword."""

    ENFORCED = "enforced"
    PARTLY = "enforced where possible"
    NOT = "not enforced"
    ANNOTATION = "no demand"


@dataclass(frozen=True, slots=True)
class Keyword:
    """One row of the table."""

    names: tuple[str, ...]
    treatment: Treatment
    note: str
    """For the documentation: where the treatment ends, or what it means."""
    mistake: Callable[[Any], str | None]
    """Return what is wrong with a value's form, None if nothing is. What is inside of it is looked at elsewhere."""


def is_number(value: Any) -> bool:
    """Return whether `value` is a number of JSON."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Any) -> str | None:
    if is_number(value) and value >= 0 and value == int(value):
        return None
    return "it must be a whole number, 0 or more"


def _bound(value: Any) -> str | None:
    return None if is_number(value) else "it must be a number"


def _exclusive_bound(value: Any) -> str | None:
    return None if isinstance(value, bool) else _bound(value)


def _multiple(value: Any) -> str | None:
    return None if is_number(value) and value > 0 else "it must be a number greater than 0"


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "it must be a string"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "it must be true or false"


def _schema(value: Any) -> str | None:
    return None if isinstance(value, dict | bool) else "it must be a schema: an object, true or false"


def _schema_or_list(value: Any) -> str | None:
    return None if isinstance(value, list) else _schema(value)


def _schemas(value: Any) -> str | None:
    return None if isinstance(value, list) and value else "it must be a list with at least one schema"


def _named_schemas(value: Any) -> str | None:
    return None if isinstance(value, dict) else "it must be an object with a schema under each name"


def _anything(_: Any) -> str | None:
    return None


def _values(value: Any) -> str | None:
    return None if isinstance(value, list) and value else "it must be a list with at least one value"


def _names(value: Any) -> str | None:
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return None
    return "it must be a list of property names"


def _required(value: Any) -> str | None:
    return None if isinstance(value, bool) else _names(value)


def _named_lists(value: Any) -> str | None:
    if isinstance(value, dict) and all(_names(names) is None for names in value.values()):
        return None
    return "it must be an object with a list of property names under each name"


def _named_dependencies(value: Any) -> str | None:
    if isinstance(value, dict) and all(isinstance(inner, list | dict | bool) for inner in value.values()):
        return None
    return "it must be an object with a schema or a list of names under each name"


def _type(value: Any) -> str | None:
    names = value if isinstance(value, list) else [value]
    if not names:
        return "the list of types is empty"
    for name in names:
        if not isinstance(name, str) or name not in TYPES:
            return f"{name!r} is no type; there are {', '.join(TYPES)}"
    return None


def _row(names: str, treatment: Treatment, mistake: Callable[[Any], str | None], note: str = "") -> Keyword:
    return Keyword(tuple(names.split()), treatment, note, mistake)


_FULL, _PARTLY, _NOT, _NONE = Treatment.ENFORCED, Treatment.PARTLY, Treatment.NOT, Treatment.ANNOTATION

TABLE: Final = (
    _row("type", _FULL, _type, "One type or a list of them."),
    _row("enum", _PARTLY, _values, "Values that `const` may have."),
    _row(
        "const",
        _PARTLY,
        _anything,
        "Any value; the keys of objects come in the order given. Except numbers beyond 2^53 and texts with control "
        "characters other than line ends and tabs.",
    ),
    _row("properties", _FULL, _named_schemas, "Written in the order in which the schema names them."),
    _row("required", _FULL, _required, "Also names that are not in `properties`."),
    _row(
        "additionalProperties",
        _FULL,
        _schema,
        "Left out it means false where there are `properties` (see above), else true.",
    ),
    _row(
        "patternProperties",
        _PARTLY,
        _named_schemas,
        f"Up to {MAX_PATTERN_PROPERTIES}, of which no two fit the same name.",
    ),
    _row(
        "propertyNames",
        _PARTLY,
        _schema,
        "`enum` and `const`; `pattern`, `minLength`, `maxLength` where no demand is made of properties without a name.",
    ),
    _row(
        "minProperties maxProperties",
        _PARTLY,
        _count,
        "Where all named properties are required, or `minProperties` is 1 and no others are allowed. A name that is "
        "written twice counts twice, so answers are checked afterwards for `minProperties` above 1.",
    ),
    _row("items prefixItems", _FULL, _schema_or_list, "`items` as a list, as in older drafts, means `prefixItems`."),
    _row("additionalItems", _FULL, _schema, "Of older drafts, beside `items` as a list."),
    _row("minItems maxItems minLength maxLength", _FULL, _count, f"Up to {LARGEST_COUNT:,}; larger ones are relaxed."),
    _row(
        "pattern",
        _PARTLY,
        _text,
        "All but lookaround, back references, `\\b`, control characters that `const` cannot have, and counts inside "
        "counts that multiply to more than 300. `\\d` and `\\w` mean ASCII.",
    ),
    _row("format", _FULL, _text, f"The form of {', '.join(sorted(FORMATS))}. Others demand nothing."),
    _row(
        "minimum maximum",
        _FULL,
        _bound,
        f"Up to 2^53 and {MAX_DECIMALS} decimals; others are relaxed.",
    ),
    _row("exclusiveMinimum exclusiveMaximum", _FULL, _exclusive_bound, "The same. Also true, as in draft 4."),
    _row(
        "multipleOf",
        _FULL,
        _multiple,
        f"Up to {MAX_MULTIPLE:,} without the decimal point and up to {MAX_ZEROS} zeros at the end; others are relaxed.",
    ),
    _row("allOf anyOf", _FULL, _schemas, "Merged with what stands beside them."),
    _row("oneOf", _PARTLY, _schemas, "Where no value can fit two of the schemas: other types, other constants."),
    _row(
        "$ref",
        _PARTLY,
        _text,
        "Inside the schema: `#`, JSON pointers, `$anchor`, `$id`; recursion too. Nothing is fetched.",
    ),
    _row("not", _PARTLY, _schema, "`not: {}`: the value must not be there. `not` with `type` alone. Nothing else."),
    _row(
        "unevaluatedProperties unevaluatedItems",
        _PARTLY,
        _schema,
        "Where they say the same as `additionalProperties` and `items`: without `allOf`, `$ref` and the like beside.",
    ),
    _row("uniqueItems", _PARTLY, _flag, "Where there is at most one item."),
    _row("contains", _NOT, _schema, "Without effect beside `minContains: 0`, and then dropped."),
    _row("minContains maxContains", _NOT, _count, "Only mean something beside `contains`."),
    _row("dependentRequired", _NOT, _named_lists, "Write the cases as `anyOf`."),
    _row("dependentSchemas", _NOT, _named_schemas, "The same."),
    _row("dependencies", _NOT, _named_dependencies, "Of older drafts. The same."),
    _row("if then else", _NOT, _schema, "Write the cases as `anyOf`. One of them alone has no effect and is dropped."),
    _row("$dynamicRef $recursiveRef", _NOT, _text, "Write `$ref`."),
    _row("$defs definitions", _NONE, _named_schemas, "Read where a `$ref` leads."),
    _row("$id id $anchor $dynamicAnchor $recursiveAnchor $schema $vocabulary", _NONE, _anything, "Names and dialects."),
    _row(
        "title description default examples deprecated readOnly writeOnly $comment contentEncoding contentMediaType "
        "contentSchema",
        _NONE,
        _anything,
        "For readers. So is every keyword that is not in this table: `x-…`, `nullable`, `discriminator`.",
    ),
)

KEYWORDS: Final[Mapping[str, Keyword]] = MappingProxyType({name: row for row in TABLE for name in row.names})


def keyword_table() -> str:
    """Return the table for the documentation, in Markdown."""
    lines = ["| keywords | while the answer is written | more exactly |", "| --- | --- | --- |"]
    for row in TABLE:
        names = ", ".join(f"`{name}`" for name in row.names)
        lines.append(f"| {names} | {row.treatment} | {row.note} |")
    return "\n".join(lines)
