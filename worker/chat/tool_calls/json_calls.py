"""Calls that are JSON objects with a name and arguments, the form that most families share in one way or another.

Must not know a family: each has its own names for the keys.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from worker.chat.tool_calls.scanner import Reading, Scanner, json_object


@dataclass(frozen=True, slots=True)
class CallKeys:
    """What a family calls the parts of a call."""

    names: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    ids: tuple[str, ...] = ("id",)


USUAL = CallKeys()


def read_call(scan: Scanner, keys: CallKeys = USUAL) -> Reading[bool]:
    """Read the object that stands here as a call; return whether all of it was one.

    Arguments are passed on as they come if the name stands before them. When false is returned without a call having
    begun, nothing was made of what was read: whoever asked for it to be remembered can give it back.
    """
    if (yield from scan.skip("{")) is None:
        return False
    name: str | None = None
    id_: str | None = None
    arguments: str | None = None
    has_begun = False
    while True:
        yield from scan.space()
        if (yield from scan.skip("}")) is not None:
            break
        key, is_key = yield from scan.collected_json()
        yield from scan.space()
        if not is_key or not key.startswith('"') or (yield from scan.skip(":")) is None:
            return False
        yield from scan.space()
        word = json.loads(key)
        if word in keys.arguments and name is not None and not has_begun and (yield from scan.peek()) == "{":
            scan.forget()
            scan.start_call(name, id_)
            has_begun = True
            if not (yield from scan.json_arguments()):
                return False
        else:
            value, is_value = yield from scan.collected_json()
            if not is_value:
                return False
            if word in keys.names and value.startswith('"'):
                name = json.loads(value)
                if not scan.knows(name):
                    return False
            elif word in keys.ids:
                id_ = value.strip('"') or None
            elif word in keys.arguments and not has_begun:
                arguments = _as_object(value)
                if arguments is None:
                    return False
        yield from scan.space()
        if (yield from scan.skip(",")) is None:
            yield from scan.space()
            if (yield from scan.skip("}")) is None:
                return False
            break
    if not has_begun:
        if name is None:
            return False
        scan.forget()
        scan.whole_call(name, arguments or "{}", id_)
    return True


def read_calls(scan: Scanner, keys: CallKeys = USUAL) -> Reading[bool]:
    """Read the list of calls that stands here; return whether all of it was one. As `read_call` for each."""
    if (yield from scan.skip("[")) is None:
        return False
    yield from scan.space()
    while (yield from scan.skip("]")) is None:
        if not (yield from read_call(scan, keys)):
            return False
        yield from scan.space()
        yield from scan.skip(",")
        yield from scan.space()
    return True


def _as_object(value: str) -> str | None:
    """Return the JSON text of an object; some models write the text of it as a string, and null for none."""
    if value == "null":
        return "{}"
    if value.startswith('"'):
        value = json.loads(value)
    return value if json_object(value) is not None else None
