"""The bytes of Anthropic's Messages API: whole messages, and the events of streamed ones.

Owns which events open, fill and close the blocks of a message, and their order. Pure; must not know where the parts of
an answer come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

import orjson

from worker.api.usage import Totals
from worker.chat.deltas import CallArguments, CallStart, Delta, ReasoningDelta, TextDelta

SIGNATURE = "Y29ycmFs"
"""Of every thought: clients insist on one and send it back; nothing here needs it."""

_TEXT = {"type": "text", "text": ""}


def event(name: str, **fields: Any) -> bytes:
    """Return one server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps({"type": name, **fields}))


def usage_of(totals: Totals) -> dict[str, Any]:
    """Return `usage`: the prompt's tokens are those computed and those that were cached.

    Whatever is computed stays in the cache, so that nothing would be told by counting it once more as written there.
    """
    return {
        "input_tokens": totals.prompt_tokens - totals.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": totals.cached_tokens,
        "output_tokens": totals.completion_tokens,
    }


def message_usage(totals: Totals) -> dict[str, Any]:
    """Return `usage` as messages have it; the event that ends a streamed one has the counts alone."""
    return usage_of(totals) | {"service_tier": "standard"}


class BlockStream:
    """The events of one message's blocks. One block is open at a time, and calls come one after another."""

    def __init__(self, *, shows_thoughts: bool = True) -> None:
        self._shows_thoughts = shows_thoughts
        self._num_blocks = 0
        self._open: type[Delta] | None = None
        """What the open block is filled with; None = no block is open."""
        self._text_start = b""

    def add(self, delta: Delta) -> bytes:
        """Return the events for one more piece of the answer."""
        match delta:
            case CallStart(_, id_, name):
                return self._begin(CallArguments, _use(id_, name, {}))
            case TextDelta("") | ReasoningDelta("") | CallArguments(_, ""):
                return b""
            case TextDelta(text):
                opened = b"" if self._open is TextDelta else self._begin(TextDelta, _TEXT)
                return opened + self._text_start + orjson.dumps(text) + b"}}\n\n"
            case ReasoningDelta(text):
                opened = b"" if self._open is ReasoningDelta else self._begin(ReasoningDelta, _thought(""))
                return opened + self._delta("thinking_delta", thinking=text) if self._shows_thoughts else opened
            case CallArguments(_, text):
                assert self._open is CallArguments, "a call begins before its arguments, and no other in between"
                return self._delta("input_json_delta", partial_json=text)
            case _:
                assert_never(delta)

    def close(self) -> bytes:
        """Return the events that close the last block; an answer without any block gets one without text."""
        opened = b"" if self._num_blocks else self._begin(TextDelta, _TEXT)
        return opened + self._end()

    def _begin(self, kind: type[Delta], block: Mapping[str, Any]) -> bytes:
        ended = self._end()
        index = self._num_blocks
        self._num_blocks, self._open = index + 1, kind
        self._text_start = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"text_delta","text":' % index
        )
        return ended + event("content_block_start", index=index, content_block=block)

    def _end(self) -> bytes:
        if self._open is None:
            return b""
        signed = self._delta("signature_delta", signature=SIGNATURE) if self._open is ReasoningDelta else b""
        self._open = None
        return signed + event("content_block_stop", index=self._num_blocks - 1)

    def _delta(self, type_: str, **fields: str) -> bytes:
        return event("content_block_delta", index=self._num_blocks - 1, delta={"type": type_, **fields})


def blocks_of(deltas: Sequence[Delta], *, shows_thoughts: bool = True) -> list[dict[str, Any]]:
    """Return the blocks of a whole message, at least one; `deltas` are joined where two of a kind follow each other."""
    blocks: list[dict[str, Any]] = []
    arguments: dict[int, str] = {}
    uses: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        match delta:
            case TextDelta("") | ReasoningDelta(""):
                pass
            case TextDelta(text):
                blocks.append({"type": "text", "text": text})
            case ReasoningDelta(text):
                blocks.append(_thought(text if shows_thoughts else "") | {"signature": SIGNATURE})
            case CallStart(index, id_, name):
                uses[index] = _use(id_, name, {})
                blocks.append(uses[index])
            case CallArguments(index, text):
                arguments[index] = arguments.get(index, "") + text
            case _:
                assert_never(delta)
    for index, text in arguments.items():
        uses[index]["input"] = _input(text)
    return blocks or [dict(_TEXT)]


def _thought(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": ""}


def _use(id_: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": arguments}


def _input(text: str) -> dict[str, Any]:
    """Return the JSON object in `text`; what is none, such as a call that was cut off, is told and not passed over."""
    if not text.strip():
        return {}
    try:
        value = orjson.loads(text)
    except ValueError:
        return {"invalid_json": text}
    return value if isinstance(value, dict) else {"invalid_json": text}
