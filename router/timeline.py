"""Where the time of one request went: its stages, with their beginnings and ends.

Owns the record that is kept for requests that are traced, and what is concluded from it once they have ended. Must not
read a clock, nor know what becomes of the stages (`tracing.py` does). Units: seconds of the event loop's clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

WAIT, LOAD, ANSWER, PREFILL, GENERATION = "wait", "load", "answer", "prefill", "generation"


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a request's time, and the parts that it consists of."""

    name: str
    start_s: float
    end_s: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Stage, ...] = ()
    is_last: bool = False
    """The request ended in it, so that it is the one that failed, if any did."""


@dataclass(slots=True)
class _Attempt:
    """One try to have the request answered."""

    asked_at_s: float
    granted_at_s: float | None = None
    load_s: float = 0.0
    loaded_at_s: float = 0.0
    by: Mapping[str, Any] = field(default_factory=dict)


class Timeline:
    """Filled in while the request runs; a request is tried again when its worker went away before it read it."""

    def __init__(self) -> None:
        self._attempts: list[_Attempt] = []
        self._ended_at_s: float | None = None

    def ask(self, now_s: float) -> None:
        """The request begins to wait for a place."""
        self._attempts.append(_Attempt(now_s))

    def grant(self, now_s: float, by: Mapping[str, Any], *, load_s: float = 0.0, ready_ago_s: float = 0.0) -> None:
        """It has got one, on what `by` tells, which was loading for `load_s` of the wait until `ready_ago_s` ago."""
        attempt = self._attempts[-1]
        attempt.granted_at_s, attempt.load_s, attempt.by = now_s, load_s, by
        attempt.loaded_at_s = now_s - ready_ago_s

    def note_end(self, now_s: float) -> None:
        """The worker has said all."""
        self._ended_at_s = now_s

    def stages(
        self,
        closed_at_s: float,
        *,
        usage: Mapping[str, Any],
        timings: Mapping[str, Any],
        first_byte_at_s: float | None,
    ) -> list[Stage]:
        """Return the stages of a request that has ended, in order.

        `timings` are the worker's, under llama-server's names. Without them a stream's first byte tells prefill and
        generation apart.
        """
        stages: list[Stage] = []
        for index, attempt in enumerate(self._attempts):
            is_last = index == len(self._attempts) - 1
            end_s = closed_at_s if is_last else self._attempts[index + 1].asked_at_s
            parts: list[Stage] = []
            if is_last and attempt.granted_at_s is not None:
                parts += self._parts(attempt.granted_at_s, end_s, usage, timings, first_byte_at_s)
            stages += _stages_of(attempt, end_s, tuple(parts), is_last)
        return stages

    def _parts(
        self,
        start_s: float,
        end_s: float,
        usage: Mapping[str, Any],
        timings: Mapping[str, Any],
        first_byte_at_s: float | None,
    ) -> Iterator[Stage]:
        prompt_s, generation_s = _seconds(timings, "prompt_ms"), _seconds(timings, "predicted_ms")
        prompt_tokens = {} if "prompt_tokens" not in usage else {"corral.prompt_tokens": usage["prompt_tokens"]}
        tokens = {} if "completion_tokens" not in usage else {"corral.generated_tokens": usage["completion_tokens"]}
        if self._ended_at_s is not None and prompt_s + generation_s > 0:
            measured = {"corral.measured_by": "worker"}
            last_s = min(max(start_s, self._ended_at_s), end_s)
            first_s = max(start_s, last_s - generation_s)
            yield Stage(PREFILL, max(start_s, first_s - prompt_s), first_s, measured | prompt_tokens)
            if generation_s > 0:
                yield Stage(GENERATION, first_s, last_s, measured | tokens)
        elif first_byte_at_s is not None:
            measured = {"corral.measured_by": "router"}
            first_s = min(max(start_s, first_byte_at_s), end_s)
            yield Stage(PREFILL, start_s, first_s, measured | prompt_tokens)
            yield Stage(GENERATION, first_s, end_s, measured | tokens)


def _stages_of(attempt: _Attempt, end_s: float, parts: tuple[Stage, ...], is_last: bool) -> Iterator[Stage]:
    granted_at_s = attempt.granted_at_s
    if granted_at_s is None:
        yield Stage(WAIT, attempt.asked_at_s, end_s, is_last=is_last)
        return
    load: tuple[Stage, ...] = ()
    if attempt.load_s > 0:
        load_end_s = max(attempt.asked_at_s, min(attempt.loaded_at_s, granted_at_s))
        load = (Stage(LOAD, max(attempt.asked_at_s, load_end_s - attempt.load_s), load_end_s),)
    if granted_at_s > attempt.asked_at_s or load:
        yield Stage(WAIT, attempt.asked_at_s, granted_at_s, parts=load)
    yield Stage(ANSWER, granted_at_s, end_s, attempt.by, parts, is_last)


def _seconds(timings: Mapping[str, Any], name: str) -> float:
    milliseconds = timings.get(name)
    return max(0.0, milliseconds / 1e3) if isinstance(milliseconds, int | float) else 0.0
