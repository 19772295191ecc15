"""Log-probabilities of an answer's tokens: which of them belong to the text that is out, and OpenAI's two shapes.

Must not know how they were computed, nor how replies are sent.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from worker.api.ports import Vocabulary
from worker.engine.detokenizer import Pieces
from worker.engine.request import Pick

MAX_TOP = 20
"""Most alternatives for each token, as OpenAI's chat has it."""

LEAST = -9999.0
"""Stands for minus infinity, which JSON lacks, as with OpenAI."""


@dataclass(frozen=True, slots=True)
class PlacedPick:
    """A token of the answer and where its text begins."""

    pick: Pick
    offset: int
    """Characters of the answer before the one in which it begins."""


Shape = Callable[[Sequence[PlacedPick]], dict[str, Any]]
"""Turns picks into the `logprobs` of one dialect."""


class PickQueue:
    """The picks of one choice, each held until the whole text of its token has been shown."""

    def __init__(self, vocabulary: Pieces) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = 0
        self._num_shown = 0
        self._held: deque[tuple[int, PlacedPick]] = deque()
        self._ready: list[PlacedPick] = []

    def __bool__(self) -> bool:
        """Whether there is a pick that was not taken yet."""
        return bool(self._held or self._ready)

    def push(self, picks: Sequence[Pick]) -> None:
        """Add the picks of tokens that count."""
        for pick in picks:
            placed = PlacedPick(pick, self._num_chars)
            self._num_chars += len(self._decoder.decode(self._vocabulary.piece(pick.token)))
            is_unfinished = bool(self._decoder.getstate()[0])
            self._held.append((self._num_chars + is_unfinished, placed))

    def show(self, num_chars: int, *, is_over: bool) -> None:
        """So many more characters are shown; when it `is_over` no more will be, and nothing is held any longer."""
        self._num_shown += num_chars
        while self._held and (is_over or self._held[0][0] <= self._num_shown):
            self._ready.append(self._held.popleft()[1])

    def take(self) -> list[PlacedPick]:
        """Return the picks, not returned before, whose text is shown."""
        ready, self._ready = self._ready, []
        return ready


def chat_logprobs(vocabulary: Vocabulary, picks: Sequence[PlacedPick]) -> dict[str, Any]:
    """Return them as chat has them. `bytes` are those of a token's text, so a control token has none."""

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        raw = vocabulary.piece(token)
        name = raw or vocabulary.piece(token, special=True)
        return {"token": name.decode("utf-8", "replace"), "logprob": _number(logprob), "bytes": list(raw)}

    content = [
        entry(one.pick.token, one.pick.logprob) | {"top_logprobs": [entry(*other) for other in one.pick.top]}
        for one in picks
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(vocabulary: Vocabulary, picks: Sequence[PlacedPick]) -> dict[str, Any]:
    """Return them as completions have them: parallel lists, the token itself always among the most likely ones."""
    names = [_name(vocabulary, one.pick.token) for one in picks]
    numbers = [_number(one.pick.logprob) for one in picks]
    top: list[dict[str, float]] = []
    for one, name, number in zip(picks, names, numbers, strict=True):
        likely: dict[str, float] = {}
        for token, logprob in one.pick.top:
            likely.setdefault(_name(vocabulary, token), _number(logprob))  # two tokens may have one text
        likely[name] = number
        top.append(likely)
    offsets = [one.offset for one in picks]
    return {"tokens": names, "token_logprobs": numbers, "top_logprobs": top, "text_offset": offsets}


def _name(vocabulary: Vocabulary, token: int) -> str:
    """Return the token's text, or OpenAI's way to write bytes that are none: distinct for distinct bytes."""
    raw = vocabulary.piece(token) or vocabulary.piece(token, special=True)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _number(logprob: float | None) -> float:
    assert logprob is not None, "picks have log-probabilities when the request asks for them"
    return max(LEAST, logprob)
