"""How fields are refused that clients of this or another server know and that are not honoured where they stand.

Owns what may pass all the same: values that ask for nothing, and what another field of the request promises anyway.
Which fields there are is in the rooms `refused_*.py`. Fields that are in no table are ignored, as clients add extras.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from worker.errors import UnsupportedParameter

IsHarmless = Callable[[Any], bool]

NOT_AVAILABLE = "which is not available in this release"


def show(value: object) -> str:
    """Return `value` as a client would recognise it in a message: short, and never a whole prompt."""
    if isinstance(value, dict | list):
        kind = "object" if isinstance(value, dict) else "list"
        return f"an empty {kind}" if not value else f"{'an' if kind == 'object' else 'a'} {kind}"
    text = json.dumps(value[:60] if isinstance(value, str) else value, ensure_ascii=False)  # integers of any size
    return text if len(text) <= 60 else f"{text[:57]}..."


def never(_: Any) -> bool:
    """Return false: no value asks for nothing."""
    return False


def among(*values: Any) -> IsHarmless:
    """Return the check that these values alone pass."""
    # 0 == False in Python, but `logprobs: 0` asks for something and `logprobs: false` does not.
    return lambda value: any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)


def is_empty(value: Any) -> bool:
    """Return whether there is nothing in it, whatever kind of thing it is."""
    return isinstance(value, str | list | dict) and not value


def is_plain_text(value: Any) -> bool:
    """Return whether a `response_format` asks for nothing but text."""
    return isinstance(value, dict) and value.get("type") == "text" and len(value) == 1


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that is not honoured where it stands."""

    passes: IsHarmless
    """Which values ask for nothing."""
    instead: str = "Leave the field out."
    """What to do now."""
    why: str | None = None
    """What is the matter with it, behind its name; None = its value, and that there is no such thing."""
    twins: tuple[str, ...] = ()
    """Fields that mean the same, as paths such as `messages.0.content`: where one has the same value, this one promises
    nothing more."""


Table = Mapping[str, Refused]


def misplaced(instead: str, passes: IsHarmless = is_empty, twins: tuple[str, ...] = ()) -> Refused:
    """Return the entry of a field that belongs into another place, or to another route."""
    return Refused(passes, instead, "is not read here.", twins)


def renamed(passes: IsHarmless, *twins: str) -> Refused:
    """Return the entry of a field that is called otherwise here; the first of `twins` is told."""
    return Refused(passes, f"Use '{twins[0]}' instead.", "is not read here.", twins)


def structured(name: str, passes: IsHarmless) -> Refused:
    """Return the entry of a field that demands a form of the answer, on a route that has another one for it."""
    return misplaced(f"Use the field that this route has for the form of an answer. {way_out(name)}", passes)


def way_out(name: str) -> str:
    """Return what client and operator can do about a field that clients insist on."""
    return (
        f"Leave '{name}' out. For clients that insist on it, `request: {{drop: [{name}]}}` of this model in "
        "models.yaml has it passed over."
    )


def with_hints(table: Table, hints: Mapping[str, str]) -> dict[str, Refused]:
    """Return the table with other words on what to do instead."""
    return {name: replace(one, instead=hints.get(name, one.instead)) for name, one in table.items()}


def refuse_unsupported(body: Mapping[str, Any], table: Table) -> None:
    """Return when no field of `body` asks for something that is not done.

    Raises: UnsupportedParameter for the first field that does. Null never does.
    """
    for name, value in body.items():
        refused = table.get(name)
        if refused is None or value is None or refused.passes(value):
            continue
        if any(_is_same(value, _at(body, twin)) for twin in refused.twins):
            continue
        why = refused.why or f"is {show(value)}, {NOT_AVAILABLE}."
        raise UnsupportedParameter(f"'{name}' {why} {refused.instead}", param=name)


def _at(body: Mapping[str, Any], path: str) -> Any:
    value: Any = body
    for step in path.split("."):
        if isinstance(value, list) and step.isdecimal():
            value = value[int(step)] if int(step) < len(value) else None
        else:
            value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _is_same(value: Any, other: Any) -> bool:
    """Return whether both say the same; one text is a list of one."""
    first, second = ([one] if isinstance(one, str) else one for one in (value, other))
    return first == second and isinstance(first, bool) == isinstance(second, bool)
