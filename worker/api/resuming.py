"""What a reply's RESUME frames say, so that another worker can go on with it: each step of the reply as it was told.

A reply is a function of its request and of the steps that it was told in. So whoever takes the same steps in the same
order stands where the lost worker stood: in the middle of a character, a stop string, a call or a thought. Owns the
form of a frame's payload, and what of an answer the engine is to go on from. Must not talk to the engine.

    [{"choice": 0, "token_ids": [97, 98], ...}, ...]        one JSON line a frame; only `choice` is always there
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from worker.api.logprobs import LEAST
from worker.engine.request import (
    Earlier,
    FinishReason,
    GenerationRequest,
    Output,
    Pick,
    PrefillProgress,
    RequestId,
    RequestTimings,
)
from worker.errors import CannotResume

Step = Sequence[tuple[int, Output]]
"""What one step has brought: choices by their index, with what there is of each."""

_NOBODY = RequestId(0)
_UNREADABLE = "What was kept of this answer cannot be read, so that it cannot go on. Please ask again."


def record_of(step: Step, generation_s: Mapping[int, float]) -> bytes:
    """Return the payload that tells a step, and how long each choice has generated."""
    return orjson.dumps([_told(index, output, generation_s.get(index)) for index, output in step])


def _told(index: int, output: Output, generation_s: float | None) -> dict[str, Any]:
    told: dict[str, Any] = {"choice": index}
    if output.tokens:
        told["token_ids"] = output.tokens
    if generation_s is not None:
        told["generation_s"] = round(generation_s, 3)
    if output.finish is not None:
        told["finish"] = output.finish
    if output.slot is not None:
        told["slot"] = output.slot
    if output.timings is not None:
        told["timings"] = dataclasses.asdict(output.timings)
    if output.progress is not None:
        told["progress"] = dataclasses.asdict(output.progress)
    if output.picks:
        told["picks"] = [_told_pick(one) for one in output.picks]
    if output.sampler_state:
        told["sampler_state"] = output.sampler_state
    return told


def _told_pick(pick: Pick) -> tuple[object, ...]:
    """Return it without numbers that JSON lacks: what is shown of them is `LEAST`, too."""
    logprob = None if pick.logprob is None else _shown(pick.logprob)
    return pick.token, logprob, [(token, _shown(value)) for token, value in pick.top], pick.is_last


def _shown(logprob: float) -> float:
    return LEAST if math.isnan(logprob) else max(logprob, LEAST)


def read_steps(lines: bytes, *, num_choices: int, num_vocab: int) -> list[list[tuple[int, Output, float | None]]]:
    """Return the steps that were told, one a line, each choice with the time that it had generated.

    Raises: CannotResume when they are none, or not of such a request and model: nothing of it may reach the model.
    """
    try:
        listed = [orjson.loads(line) for line in lines.splitlines()]
        if not all(isinstance(step, list) for step in listed):
            raise CannotResume(_UNREADABLE)
        steps = [[_read(told) for told in step] for step in listed]
    except (ValueError, TypeError, LookupError, AttributeError):
        raise CannotResume(_UNREADABLE) from None
    for step in steps:
        for index, output, _ in step:
            ids = [*output.tokens, *(one for pick in output.picks for one in (pick.token, *(t for t, _ in pick.top)))]
            is_sound = 0 <= index < num_choices and all(0 <= token < num_vocab for token in ids)
            if not is_sound or len(output.picks) not in (0, len(output.tokens)):
                raise CannotResume(_UNREADABLE)
    return steps


def _read(told: Mapping[str, Any]) -> tuple[int, Output, float | None]:
    finish, timings, progress = told.get("finish"), told.get("timings"), told.get("progress")
    output = Output(
        _NOBODY,
        tuple(map(int, told.get("token_ids", ()))),
        finish=None if finish is None else FinishReason(finish),
        timings=None if timings is None else RequestTimings(**timings),
        picks=tuple(
            Pick(int(token), logprob, tuple((int(other), value) for other, value in top), bool(is_last))
            for token, logprob, top, is_last in told.get("picks", ())
        ),
        progress=None if progress is None else PrefillProgress(**progress),
        slot=told.get("slot"),
        sampler_state=tuple(map(float, told.get("sampler_state", ()))),
    )
    return int(told["choice"]), output, told.get("generation_s")


@dataclasses.dataclass(slots=True)
class ChoiceSoFar:
    """What the engine has to know of one choice to go on with it."""

    tokens: list[int] = dataclasses.field(default_factory=list)
    timings: RequestTimings = dataclasses.field(default_factory=RequestTimings)
    generation_s: float = 0.0
    sampler_state: tuple[float, ...] = ()

    def add(self, output: Output, generation_s: float | None) -> None:
        """Take note of a step."""
        self.tokens += output.tokens
        self.timings = output.timings or self.timings
        self.generation_s = self.generation_s if generation_s is None else generation_s
        self.sampler_state = output.sampler_state or self.sampler_state

    @property
    def earlier(self) -> Earlier:
        """Return it as the engine takes it."""
        timings = dataclasses.replace(self.timings, generation_s=self.generation_s)
        return Earlier(tuple(self.tokens), timings, self.sampler_state)

    def continued(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request that goes on with the answer.

        A reproducible one is generated again from its start: other passes would have other last digits.
        """
        if not self.tokens or request.reproducible:
            return request
        return dataclasses.replace(request, earlier=self.earlier)
