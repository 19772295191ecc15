"""What a dialect is given to turn into bytes: pieces of an answer while it grows, how it ended, or all of it at once.

Plain data, and the base of every dialect's formatter. Must not know a dialect, nor where the answer comes from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from worker.api.answer_wishes import Verdict
from worker.api.logprobs import PlacedPick
from worker.api.usage import Totals
from worker.chat.deltas import Delta, goes_on, join_run, text_of
from worker.engine.request import FinishReason, PrefillProgress, RequestTimings


class Piece(NamedTuple):
    """More of one choice, as it may be shown. Of several made of one token only the first has the rest.

    A tuple because there is one for every token: it is made three times as fast as a frozen dataclass.
    """

    delta: Delta
    tokens: tuple[int, ...] = ()
    """Sampled since the last piece; text that is held back comes later than its tokens."""
    picks: Sequence[PlacedPick] = ()
    """Of the tokens whose text this piece completes, if the request asks for log-probabilities."""
    totals: Totals | None = None
    """So far; only for requests that want timings with every token."""
    slot: int | None = None
    """The slot that the choice runs in."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How one choice ended."""

    finish: FinishReason
    stop_string: str | None = None
    """The one that was found; None = an end token, or the length."""
    has_calls: bool = False
    """There are calls, and all of them are whole."""
    tokens: tuple[int, ...] = ()
    """In a stream: those that came with no piece. Else all of the answer's."""
    picks: Sequence[PlacedPick] = ()
    """As for `tokens`."""
    slot: int | None = None
    """The slot that the choice ran in last."""
    num_tokens: int = 0
    """Tokens of this choice's answer."""
    timings: RequestTimings | None = None
    """Of this choice alone."""
    verdict: Verdict | None = None
    """Set where not all of what was asked for could be enforced."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished choice of a reply that is sent as a whole."""

    deltas: Sequence[Delta]
    """In order, joined where two of a kind follow each other."""
    ending: Ending
    picks: Sequence[Sequence[PlacedPick]] = ()
    """Those of `ending`, by the delta that they belong to; what is left belongs to none. Empty = there are none."""

    @property
    def text(self) -> str:
        """The visible text."""
        return text_of(self.deltas)


def told_verdict(ending: Ending) -> dict[str, Any]:
    """Return what is to be said of an answer that could not be held to all that was asked for, under our own name."""
    return {} if ending.verdict is None else {"corral_format": ending.verdict.told}


def join_pieces(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the same in as few pieces as possible, each with what all of those in it had."""
    if len(pieces) < 2:
        return list(pieces)
    runs: list[list[Piece]] = []
    for piece in pieces:
        if runs and goes_on(runs[-1][0].delta, piece.delta):
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return [_join(run) for run in runs]


def _join(run: Sequence[Piece]) -> Piece:
    return run[0]._replace(
        delta=join_run([one.delta for one in run]),
        tokens=tuple(token for one in run for token in one.tokens),
        picks=[pick for one in run for pick in one.picks],
    )


class Formatter(ABC):
    """Turns an answer into one dialect's bytes, for one request. Streamed bytes may be joined freely.

    Each dialect has its own; what it does not override it does without.
    """

    def first(self, choice: int, totals: Totals) -> bytes:
        """Return what opens a choice; `totals` knows the prompt, and what of it was cached as soon as that is known."""
        return b""

    def progress(self, choice: int, progress: PrefillProgress) -> bytes:
        """Return what tells how far a choice's prompt is, for requests that want it; the choice is open."""
        return b""

    @abstractmethod
    def piece(self, choice: int, piece: Piece) -> bytes:
        """Return one more piece of an answer."""

    @abstractmethod
    def last(self, choice: int, ending: Ending, totals: Totals | None) -> bytes:
        """Return what closes a choice; `totals` comes with the last choice to close."""

    @abstractmethod
    def closing(self, totals: Totals) -> bytes:
        """Return what ends the stream."""

    @abstractmethod
    def whole(self, answers: Sequence[Answer], totals: Totals) -> bytes:
        """Return the whole reply of a request that is not streamed."""

    def stored(self) -> bytes | None:
        """Return what the router keeps of the finished reply, as a `STORE` frame has it; None = nothing. Asked last."""
        return None
