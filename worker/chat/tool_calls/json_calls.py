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
    others: tuple[str, ...] | None = None
    """Keys that may stand beside these and mean nothing; None = all. An object with yet others is no call."""

    def knows(self, key: str) -> bool:
        """Whether a call may have this key."""
        return self.others is None or key in (*self.names, *self.arguments, *self.ids, *self.others)


USUAL = CallKeys()


def read_call(scan: Scanner, keys: CallKeys = USUAL, *, is_open: bool = False) -> Reading[bool]:
    """Read the object that stands here, or is open already, as a call; return whether all of it was one.

    Arguments are passed on as they come if the name stands before them. When false is returned without a call having
    begun, nothing was made of what was read: whoever asked for it to be remembered can give it back.
    """
    if not is_open and (yield from scan.skip("{")) is None:
        return False
    call = _Call(scan, keys)
    while (yield from scan.leading("}")) is None:
        if not (yield from call.read_member()):
            return False
        if (yield from scan.leading(",")) is None:
            if (yield from scan.leading("}")) is None:
                return False
            break
    return call.end()


def read_calls(scan: Scanner, keys: CallKeys = USUAL, *, is_open: bool = False) -> Reading[bool]:
    """Read the list of calls that stands here, or is open already; return whether all of it was one, not empty.

    As `read_call` for each. What has become of no call behind the first is text already when false is returned.
    """
    if not is_open and (yield from scan.skip("[")) is None:
        return False
    yield from scan.space()
    num_calls = 0
    while (yield from scan.skip("]")) is None:
        if num_calls:
            scan.remember()
        if not (yield from read_call(scan, keys)):
            if num_calls:
                scan.give_back()
            return False
        num_calls += 1
        yield from scan.space()
        yield from scan.skip(",")
        yield from scan.space()
    return num_calls > 0


class _Call:
    """What is known of a call while the members of its object are read."""

    def __init__(self, scan: Scanner, keys: CallKeys) -> None:
        self._scan, self._keys = scan, keys
        self._name: str | None = None
        self._id: str | None = None
        self._arguments = "{}"
        self._has_begun = False

    def read_member(self) -> Reading[bool]:
        """Read a key and its value; return whether they are well written and may be a call's."""
        scan, keys = self._scan, self._keys
        yield from scan.space()
        key, is_key = yield from scan.collected_json()
        if not is_key or not key.startswith('"') or (yield from scan.leading(":")) is None:
            return False
        yield from scan.space()
        word = json.loads(key)
        if not self._has_begun and not keys.knows(word):
            return False
        can_begin = word in keys.arguments and self._name is not None and not self._has_begun
        if can_begin and (yield from scan.peek()) == "{":
            self._begin()
            return (yield from scan.json_arguments())
        value, is_value = yield from scan.collected_json()
        return is_value and (self._has_begun or self._take(word, value))

    def end(self) -> bool:
        """Pass on what was not yet; return whether there was a call."""
        if self._name is None:
            return False
        if not self._has_begun:
            self._begin()
            self._scan.arguments(self._arguments)
        return True

    def _begin(self) -> None:
        assert self._name is not None
        self._scan.forget()
        self._scan.start_call(self._name, self._id)
        self._has_begun = True

    def _take(self, key: str, value: str) -> bool:
        """Note the value; return whether it may be that of a call."""
        if key in self._keys.names and value.startswith('"'):
            self._name = json.loads(value)
            return self._scan.knows(self._name or "")
        if key in self._keys.arguments:
            arguments = _as_object(value)
            self._arguments = arguments or ""
            return arguments is not None
        if key in self._keys.ids:
            self._id = None if value == "null" else str(json.loads(value)) or None
        return True


def _as_object(value: str) -> str | None:
    """Return the JSON text of an object; some models write the text of it as a string, and null for none."""
    if value == "null":
        return "{}"
    if value.startswith('"'):
        value = json.loads(value)
    return value if json_object(value) is not None else None
