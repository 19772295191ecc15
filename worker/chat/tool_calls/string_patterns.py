"""What a schema demands of a string that stands as plain text, as patterns in the dialect of the grammar library.

Of demands that cannot be told so there is no pattern: they are left to the model. Must not know how such texts end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_ANY: Final = "(?s:.*)"
_MAX_COUNT: Final = 10_000
"""Characters that are counted at most: an automaton that counts is as large as the count."""
_DATE: Final = "[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_TIME: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_FORMATS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
}
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
"""One escape, class of characters, or character of a pattern."""


def string_patterns(schema: Mapping[str, Any]) -> list[str]:
    """Return patterns of which each must match the whole of a string with this schema."""
    return list(_patterns(schema)) if schema.get("type") == "string" else []


def _patterns(schema: Mapping[str, Any]) -> Iterator[str]:
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and (whole := _whole(pattern)) is not None:
        yield whole
    if (known := _FORMATS.get(str(schema.get("format")))) is not None:
        yield known
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    least = least if isinstance(least, int) and least <= _MAX_COUNT else 0
    most = most if isinstance(most, int) and most <= _MAX_COUNT else None
    if least or most is not None:
        yield f"(?s:.{{{least},{'' if most is None else most}}})"


def _whole(pattern: str) -> str | None:
    """Return a pattern for a whole text in which `pattern` matches somewhere; None where anchors stand inside."""
    tokens = _TOKEN.findall(pattern)
    is_begun, is_ended = tokens[:1] == ["^"], tokens[-1:] == ["$"]
    inner = tokens[is_begun : len(tokens) - is_ended]
    if "^" in inner or "$" in inner or ((is_begun or is_ended) and _has_outer_choice(inner)):
        return None
    # The library's form of a pattern ends at a slash.
    text = "".join("/" if one == r"\/" else one for one in inner)
    return f"{'' if is_begun else _ANY}(?:{text}){'' if is_ended else _ANY}"


def _has_outer_choice(tokens: list[str]) -> bool:
    """Whether the pattern is a choice, so that an anchor belongs to one part of it only."""
    depth = 0
    for one in tokens:
        depth += (one == "(") - (one == ")")
        if one == "|" and not depth:
            return True
    return False
