"""The items of one answer of the Responses API while they grow, and the events that tell it.

Owns the order of events and their bytes. Must not know the request, nor the fields of a response around its output.

    output_item.added ─▶ content_part.added ─▶ deltas ─▶ text done ─▶ content_part.done ─▶ output_item.done
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import orjson

from worker.api.logprobs import PlacedPick, Shape
from worker.api.responses_items import Item, seal
from worker.chat.deltas import CallArguments, CallStart, Delta, ReasoningDelta, TextDelta

Event = tuple[str, dict[str, Any]]
"""Type and fields."""


class EventStream:
    """Numbers events and makes bytes of them."""

    def __init__(self) -> None:
        self._num_events = 0

    def encode(self, *events: Event) -> bytes:
        """Return the server-sent events, the next ones of the stream."""
        told: list[bytes] = []
        for type_, fields in events:
            body = orjson.dumps({"type": type_, "sequence_number": self._num_events, **fields})
            told.append(b"event: " + type_.encode() + b"\ndata: " + body + b"\n\n")
            self._num_events += 1
        return b"".join(told)


@dataclass(slots=True)
class _Open:
    """An item that still grows."""

    place: int
    """Among the items of the answer."""
    item: Item
    texts: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def where(self) -> dict[str, Any]:
        return {"item_id": self.item["id"], "output_index": self.place}

    @property
    def part_at(self) -> dict[str, Any]:
        return self.where | {"content_index": 0}


class Output:
    """What an answer consists of. `items` are finished, and in order, once it has ended."""

    def __init__(self, request_id: str, *, logprobs: Shape | None = None, is_sealed: bool = False) -> None:
        self.items: list[Item] = []
        self._request_id = request_id
        self._shape = logprobs
        self._is_sealed = is_sealed
        self._last: _Open | None = None
        """The item that grows: there is one at a time."""

    def push(self, delta: Delta, picks: Sequence[PlacedPick] = ()) -> list[Event]:
        """Return the events for one more piece of the answer. Of `picks` only those of a message are told."""
        match delta:
            case TextDelta(text):
                events, opened = self._switch("message")
                logprobs = self._logprobs(picks)
                opened.texts.append(text)
                opened.logprobs += logprobs
                told = opened.part_at | {"delta": text, "logprobs": logprobs}
                return [*events, ("response.output_text.delta", told)]
            case ReasoningDelta(text):
                events, opened = self._switch("reasoning")
                opened.texts.append(text)
                return [*events, ("response.reasoning_text.delta", opened.part_at | {"delta": text})]
            case CallStart(_, id_, name):
                events = self._close("completed")
                item = {"type": "function_call", "call_id": id_, "name": name, "arguments": ""}
                return [*events, _added(self._open(item, "fc"))]
            case CallArguments(_, text):
                call = self._last
                assert call is not None, "a call begins before its arguments"
                call.texts.append(text)
                return [("response.function_call_arguments.delta", call.where | {"delta": text})]
            case _:
                assert_never(delta)

    def end(self, picks: Sequence[PlacedPick], *, is_incomplete: bool) -> list[Event]:
        """Return the events that finish all items; an answer without any is an empty message.

        `picks` are those that came with no piece, such as that of the token that ends the answer.
        """
        events: list[Event] = []
        if not self.items:
            events, _ = self._switch("message")
        if self._last is not None and self._last.item["type"] == "message":
            self._last.logprobs += self._logprobs(picks)
        events += self._close("incomplete" if is_incomplete else "completed")
        return events

    def _switch(self, kind: str) -> tuple[list[Event], _Open]:
        """Return the item that takes texts of this kind, and the events that open it if need be."""
        if self._last is not None and self._last.item["type"] == kind:
            return [], self._last
        events = self._close("completed")
        if kind == "message":
            item: Item = {"type": kind, "role": "assistant", "content": []}
        else:
            item = {"type": kind, "summary": [], "content": []}
        opened = self._open(item, "msg" if kind == "message" else "rs")
        part = opened.part_at | {"part": _part(opened)}
        return [*events, _added(opened), ("response.content_part.added", part)], opened

    def _open(self, item: Item, prefix: str) -> _Open:
        item["id"] = f"{prefix}_{self._request_id}_o{len(self.items)}"
        item["status"] = "in_progress"
        self._last = opened = _Open(len(self.items), item)
        self.items.append(item)
        return opened

    def _close(self, status: str) -> list[Event]:
        """Finish the item that grows."""
        if self._last is None:
            return []
        opened, self._last = self._last, None
        item, text = opened.item, opened.text
        item["status"] = status
        if item["type"] == "function_call":
            item["arguments"] = text
            told = opened.where | {"name": item["name"], "arguments": text}
            return [("response.function_call_arguments.done", told), _done(opened)]
        part = _part(opened)
        item["content"] = [part]
        if item["type"] == "message":
            done = ("response.output_text.done", opened.part_at | {"text": text, "logprobs": opened.logprobs})
        else:
            done = ("response.reasoning_text.done", opened.part_at | {"text": text})
            if self._is_sealed:
                item["encrypted_content"] = seal(text)
        return [done, ("response.content_part.done", opened.part_at | {"part": part}), _done(opened)]

    def _logprobs(self, picks: Sequence[PlacedPick]) -> list[dict[str, Any]]:
        if self._shape is None or not picks:
            return []
        shaped: list[dict[str, Any]] = self._shape(picks)["content"]
        return shaped


def _part(opened: _Open) -> dict[str, Any]:
    """Return the one content part of a message or of reasoning, as far as it is."""
    if opened.item["type"] == "message":
        return {"type": "output_text", "text": opened.text, "annotations": [], "logprobs": list(opened.logprobs)}
    return {"type": "reasoning_text", "text": opened.text}


def _added(opened: _Open) -> Event:
    return "response.output_item.added", {"output_index": opened.place, "item": dict(opened.item)}


def _done(opened: _Open) -> Event:
    return "response.output_item.done", {"output_index": opened.place, "item": opened.item}
