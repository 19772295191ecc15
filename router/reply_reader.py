"""What the router must know of another server's reply while it passes on: tokens, finish reasons, whether it failed.

Owns the little that is read of OpenAI's replies, streamed or whole. Must not change a byte of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeGuard

import orjson

from worker.contract import ErrorPayload

MAX_LINE_BYTES = 2**20
"""A longer line of an event stream passes unread; no event with usage is that long."""

_MATTERS = re.compile(rb'"(?:usage|error)"\s*:\s*[{"]|"finish_reason"\s*:\s*"')
"""Most events hold nothing but text and need not be parsed."""

_DEFAULT_CODE = "remote_error"


class ReplyReader:
    """Reads along with one reply."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._is_skipping = False
        self.usage: Mapping[str, Any] = {}
        """The last one that the reply told."""
        self.finish_reasons: tuple[str, ...] = ()
        self.error: ErrorPayload | None = None
        """What the reply says went wrong."""
        self.is_done = False
        """The stream has said that it is complete."""

    @property
    def tokens(self) -> dict[str, int]:
        """How many tokens the reply tells, by what they are."""
        details = self.usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return {
            "prompt_tokens": self.usage.get("prompt_tokens", 0),
            "cached_tokens": cached if is_count(cached) else 0,
            "generated_tokens": self.usage.get("completion_tokens", 0),
        }

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of an event stream, however they are cut."""
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            if not self._is_skipping and len(self._line) + len(line) <= MAX_LINE_BYTES:
                self._read_line(bytes(self._line) + line if self._line else line)
            self._line.clear()
            self._is_skipping = False
        if len(self._line) + len(rest) > MAX_LINE_BYTES:
            self._is_skipping = True
            self._line.clear()
        elif not self._is_skipping:
            self._line += rest

    def read_whole(self, body: bytes) -> bool:
        """Take a reply that came at once; return whether it is JSON."""
        return self._read(body)

    def _read_line(self, line: bytes) -> None:
        name, _, data = line.partition(b":")
        data = data.strip()
        if name != b"data":
            return
        if data == b"[DONE]":
            self.is_done = True
        elif _MATTERS.search(data) is not None:
            self._read(data)

    def _read(self, data: bytes) -> bool:
        """Return whether it is JSON; what it says has been noted."""
        try:
            fields = orjson.loads(data)
        except ValueError:
            return False
        if isinstance(fields, dict):
            self._note(fields, data)
        return True

    def _note(self, fields: dict[str, Any], data: bytes) -> None:
        """Take over what one object, read from `data`, says of the reply."""
        if isinstance(usage := fields.get("usage"), dict):
            self.usage = {
                name: value for name, value in usage.items() if is_count(value) or name == "prompt_tokens_details"
            }
        if fields.get("error"):
            self.error = read_error(500, data)
        choices = fields.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            reason = choice.get("finish_reason") if isinstance(choice, dict) else None
            if isinstance(reason, str):
                self.finish_reasons = (*self.finish_reasons, reason[:40])[:16]


def read_error(status: int, body: bytes) -> ErrorPayload | None:
    """Return what an error reply says, in any of the usual forms; None if it is none of them."""
    try:
        fields = orjson.loads(body)
    except ValueError:
        return None
    if not isinstance(fields, dict):
        return None
    error = fields.get("error", fields)
    if isinstance(error, str):
        error = {"message": error}
    if not isinstance(error, dict):
        return None
    message = error.get("message") or error.get("detail")
    if not message:
        return None
    code, param = error.get("code"), error.get("param")
    return ErrorPayload(
        status,
        code if isinstance(code, str) and code else _DEFAULT_CODE,
        message if isinstance(message, str) else orjson.dumps(message).decode(),
        param if isinstance(param, str) else None,
    )


def object_in(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object at `key`; an empty one where there is none."""
    value = holder.get(key)
    return value if isinstance(value, dict) else {}


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a number of tokens may be so."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
