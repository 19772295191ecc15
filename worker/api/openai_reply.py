"""The bytes that OpenAI's chat and completions replies have in common.

Everything but the text is encoded once for a request. Must not know where text comes from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from worker.api.usage import Totals, prompt_progress
from worker.contract import ModelFacts
from worker.engine.request import FinishReason, PrefillProgress

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Head:
    """The fields in front of the choices, equal in every chunk."""

    id: str
    created: int
    model: str
    fingerprint: str
    seed: int
    """Of the random numbers; it stands beside the timings, so that an answer can be had again."""

    def fields(self, object_: str) -> dict[str, Any]:
        """Return them for an object of this kind."""
        return {
            "id": self.id,
            "object": object_,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class ChunkStream:
    """The server-sent events of one reply."""

    def __init__(self, head: Head, object_: str, *, includes_usage: bool) -> None:
        self._seed = head.seed
        self._start = b"data: " + orjson.dumps(head.fields(object_))[:-1] + b',"choices":['
        self._includes_usage = includes_usage
        self._end = b'],"usage":null' if includes_usage else b"]"

    def affixes(self, before: bytes, after: bytes) -> tuple[bytes, bytes]:
        """Return what goes before and after the JSON text of a choice that reads `before` text `after`."""
        return self._start + before, after + self._end + b"}\n\n"

    def chunk(self, choice: dict[str, Any], totals: Totals | None = None) -> bytes:
        """Return the event for one choice, with the timings so far if there are `totals`."""
        timings = {} if totals is None else {"timings": totals.timings}
        return self._event(choice, timings)

    def progress(self, choice: dict[str, Any], progress: PrefillProgress) -> bytes:
        """Return the event that tells how far a prompt is, under llama-server's names."""
        return self._event(choice, {"prompt_progress": prompt_progress(progress)})

    def last_chunk(self, choice: dict[str, Any], totals: Totals | None) -> bytes:
        """Return the event that closes a choice; the last one has timings and seed unless a usage chunk follows."""
        if totals is None or self._includes_usage:
            return self._event(choice, {})
        return self._event(choice, {"seed": self._seed, "timings": totals.timings})

    def _event(self, choice: dict[str, Any], beside: dict[str, Any]) -> bytes:
        tail = b"," + orjson.dumps(beside)[1:] if beside else b"}"
        return self._start + orjson.dumps(choice) + self._end + tail + b"\n\n"

    def closing(self, totals: Totals) -> bytes:
        """Return the events that end the stream."""
        if not self._includes_usage:
            return DONE
        usage = orjson.dumps({"usage": totals.usage, "seed": self._seed, "timings": totals.timings})
        return self._start + b"]," + usage[1:] + b"\n\n" + DONE


def whole_reply(head: Head, object_: str, choices: Sequence[dict[str, Any]], totals: Totals) -> bytes:
    """Return the JSON of a reply that is not streamed."""
    rest = {"choices": choices, "usage": totals.usage, "seed": head.seed, "timings": totals.timings}
    return orjson.dumps(head.fields(object_) | rest)


def finish_reason(finish: FinishReason) -> str:
    """Return OpenAI's word. A reply only ends with `stop` or `length`; everything else is an error."""
    return "length" if finish is FinishReason.LENGTH else "stop"


def fingerprint(facts: ModelFacts) -> str:
    """Return `system_fingerprint`: equal for every worker that has loaded the same file."""
    told = f"{facts.description}|{facts.num_params}|{facts.size_bytes}|{facts.num_vocab}"
    return f"fp_{hashlib.sha256(told.encode()).hexdigest()[:12]}"
