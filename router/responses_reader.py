"""What the router must know of another server's reply in the Responses API while it passes on.

Owns the little that is read of it, told under the names of OpenAI's chat. Must not change a byte.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from router.reply_reader import ReplyReader, is_count, object_in, read_error
from worker.contract import ErrorPayload

_LAST = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
_MATTERS = re.compile(rb'"type"\s*:\s*"(?:response\.(?:completed|incomplete|failed|cancelled)|error)"')
"""All other events hold pieces of the answer and need not be parsed."""


class ResponsesReader(ReplyReader):
    """Reads along with one response, streamed or whole, or with a count of tokens. The last event ends a stream."""

    def __init__(self) -> None:
        super().__init__()
        self._is_in_last = False
        """The present event is the last one."""

    def _read_line(self, line: bytes) -> None:
        name, _, data = line.partition(b":")
        data = data.strip()
        if name == b"event":  # its data may be too long to be read
            self._is_in_last = data.decode("utf-8", "replace") in _LAST
        elif name == b"data" and _MATTERS.search(data) is not None:
            self._read(data)
        elif not line.strip() and self._is_in_last:  # not before: an event without its end is none
            self.is_done = True

    def _note(self, fields: dict[str, Any], data: bytes) -> None:
        match fields.get("type"), fields.get("object"):
            case "error", _:
                self.error = _error(fields)
            case str(kind), _ if kind in _LAST:
                self._is_in_last = True
                self._note_response(object_in(fields, "response"))
            case _, "response":
                self._note_response(fields)
            case _, "response.input_tokens":
                self._note_usage(fields)
            case _:
                if fields.get("error"):
                    self.error = _error(fields)

    def _note_response(self, response: Mapping[str, Any]) -> None:
        self._note_usage(object_in(response, "usage"))
        status = response.get("status")
        if isinstance(status, str):
            self.finish_reasons = (status[:40],)
        if status == "failed":
            self.error = _error(response)

    def _note_usage(self, usage: Mapping[str, Any]) -> None:
        prompt, answer = _count(usage, "input_tokens"), _count(usage, "output_tokens")
        self.usage = {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
            "prompt_tokens_details": {
                "cached_tokens": _count(object_in(usage, "input_tokens_details"), "cached_tokens")
            },
        }


def _error(fields: Mapping[str, Any]) -> ErrorPayload:
    """Return what a failed response or an event of an error tells."""
    told = read_error(500, orjson.dumps(fields))
    return told or ErrorPayload(500, "remote_error", "the other server's answer failed without a reason")


def _count(holder: Mapping[str, Any], key: str) -> int:
    value = holder.get(key)
    return value if is_count(value) else 0
