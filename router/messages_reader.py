"""What the router must know of another server's reply in Anthropic's dialect while it passes on.

Owns the little that is read of it, told under OpenAI's names. Must not change a byte.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from router.reply_reader import ReplyReader, is_count, object_in, read_error

_MATTERS = re.compile(rb'"(?:usage|error)"\s*:\s*[{"]|"stop_reason"\s*:\s*"|"message_stop"')
"""Most events hold nothing but text and need not be parsed."""


class MessagesReader(ReplyReader):
    """Reads along with one message, streamed or whole, or with a count of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[str, int] = {}

    def _read_line(self, line: bytes) -> None:
        name, _, data = line.partition(b":")
        if name == b"data" and _MATTERS.search(data) is not None:
            self._read(data.strip())

    def _note(self, fields: dict[str, Any], data: bytes) -> None:
        match fields.get("type"):
            case "error":
                self.error = read_error(500, data)
            case "message_stop":
                self.is_done = True
            case "message_start":
                self._note_usage(object_in(fields, "message"))
            case "message_delta":
                self._note_usage(fields)
                self._note_reason(object_in(fields, "delta"))
            case "message":
                self._note_usage(fields)
                self._note_reason(fields)
            case None:
                self._note_usage({"usage": fields})

    def _note_usage(self, holder: Mapping[str, Any]) -> None:
        """Take counts over; each is a total, and one that is not told stays what it was."""
        self._counts |= {name: value for name, value in object_in(holder, "usage").items() if is_count(value)}
        cached = self._counts.get("cache_read_input_tokens", 0)
        prompt = self._counts.get("input_tokens", 0) + self._counts.get("cache_creation_input_tokens", 0) + cached
        answer = self._counts.get("output_tokens", 0)
        if self._counts:
            self.usage = {
                "prompt_tokens": prompt,
                "completion_tokens": answer,
                "total_tokens": prompt + answer,
                "prompt_tokens_details": {"cached_tokens": cached},
            }

    def _note_reason(self, holder: Mapping[str, Any]) -> None:
        if isinstance(reason := holder.get("stop_reason"), str):
            self.finish_reasons = (reason[:40],)


def is_error(body: bytes) -> bool:
    """Return whether `body` is an error in this dialect's own form."""
    try:
        fields = orjson.loads(body)
    except ValueError:
        return False
    return isinstance(fields, dict) and fields.get("type") == "error" and isinstance(fields.get("error"), dict)
