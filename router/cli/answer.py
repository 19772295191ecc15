"""One answer of a model as it comes: its pieces, and at its end what it was made of and how fast.

Owns the reading of the chunks of `/v1/chat/completions`. Must not print.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from router.cli.formats import as_commands, counted, latency, rate
from router.cli.output import CommandFailed
from router.cli.server import Event
from router.cli.shapes import CHUNK, fits


class Kind(Enum):
    """What a piece of an answer is."""

    THOUGHT = auto()
    TEXT = auto()


@dataclass(frozen=True, slots=True)
class Piece:
    """Some characters of an answer."""

    kind: Kind
    text: str


@dataclass
class Answer:
    """What has come so far. Times are the client's own."""

    began_s: float = field(default_factory=time.monotonic)
    first_s: float | None = None
    last_s: float | None = None
    text: str = ""
    thoughts: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    model: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)

    def read(self, events: Iterable[Event]) -> Iterator[Piece]:
        """Yield the pieces as they come. Raises: CommandFailed when the server breaks the answer off."""
        for event in events:
            chunk = event.data
            if not isinstance(chunk, dict):
                continue
            if "error" in chunk:
                raise CommandFailed(f"the answer broke off: {_message(chunk['error'])}")
            if not fits(chunk, CHUNK):
                raise CommandFailed("the answer broke off: the server sent something that is no part of one")
            self.model = chunk.get("model") or self.model
            self.usage = chunk.get("usage") or self.usage
            self.timings = chunk.get("timings") or self.timings
            for choice in chunk.get("choices") or ():
                yield from self._pieces(choice)
        if self.finish is None:
            raise CommandFailed("the answer broke off: the connection ended before the answer did")

    def _pieces(self, choice: Mapping[str, Any]) -> Iterator[Piece]:
        delta = choice.get("delta") or {}
        self.finish = choice.get("finish_reason") or self.finish
        thought, text = delta.get("reasoning_content") or "", delta.get("content") or ""
        if thought or text or delta.get("tool_calls"):
            self.last_s = time.monotonic()
            self.first_s = self.last_s if self.first_s is None else self.first_s
        for call in delta.get("tool_calls") or ():
            self._add_call(call)
        if thought:
            self.thoughts += thought
            yield Piece(Kind.THOUGHT, thought)
        if text:
            self.text += text
            yield Piece(Kind.TEXT, text)

    def _add_call(self, call: Mapping[str, Any]) -> None:
        index = int(call.get("index") or 0)
        while len(self.tool_calls) <= index:
            self.tool_calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        whole, part = self.tool_calls[index], call.get("function") or {}
        whole["id"] = call.get("id") or whole["id"]
        whole["function"]["name"] += part.get("name") or ""
        whole["function"]["arguments"] += part.get("arguments") or ""

    @property
    def ttft_s(self) -> float | None:
        """Seconds until something came."""
        return None if self.first_s is None else self.first_s - self.began_s

    @property
    def num_tokens(self) -> int | None:
        """Of the answer, thoughts included; None = the server has not told."""
        found = self.usage.get("completion_tokens")
        return found if isinstance(found, int) else None

    @property
    def tokens_per_second(self) -> float | None:
        """As the server has measured it; else by our own clock, from the first token on."""
        measured = self.timings.get("predicted_per_second")
        if isinstance(measured, int | float) and measured > 0:
            return float(measured)
        if self.num_tokens is None or self.first_s is None or self.last_s is None or self.last_s <= self.first_s:
            return None
        return (self.num_tokens - 1) / (self.last_s - self.first_s)

    def describe(self) -> str:
        """Return what is known of the answer on one line; "" = nothing."""
        parts = []
        if self.num_tokens is not None:
            parts.append(counted(self.num_tokens, "token"))
        if self.tokens_per_second is not None:
            parts.append(f"{rate(self.tokens_per_second)} tokens/s")
        if self.ttft_s is not None:
            parts.append(f"first after {latency(self.ttft_s)}")
        if (prompt := self.usage.get("prompt_tokens")) is not None:
            cached = (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens")
            parts.append(f"prompt {prompt}" + (f", {cached} of them cached" if cached else ""))
        if self.finish == "length":
            parts.append("cut off at the limit of tokens")
        return " · ".join(parts)


def _message(error: Any) -> str:
    return as_commands(str(error.get("message") or error) if isinstance(error, dict) else str(error))
