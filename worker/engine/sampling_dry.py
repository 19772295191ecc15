"""DRY: lowers the logit of a token that would go on repeating what stands earlier in the text.

Owns the search for repetitions, and what in a vocabulary ends them. Source of the rules: llama.cpp's DRY sampler.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import numpy as np

from worker.engine.batch import TokenArray
from worker.engine.request import Breakers, SamplingParams
from worker.engine.sampling_candidates import Candidates

DEFAULT_BREAKERS = ("\n", ":", '"', "*")
MAX_BREAKER_BYTES = 40
_MAX_TAIL = 20
_LOG_OF_LARGEST = np.float32(88.7228391)
"""Of the 32-bit floats; penalties are clipped there, in 32 bits as llama.cpp does it."""
_STRIDE = 64
_WORK_PER_TOKEN = 8


class Words(Protocol):
    """What breakers need of a vocabulary."""

    @property
    def num_vocab(self) -> int:
        """Token ids are 0 to `num_vocab - 1`."""
        ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return token ids."""
        ...

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of the token."""
        ...


class Dry:
    """The sampler of one request."""

    def __init__(self, params: SamplingParams) -> None:
        self._last_n = params.dry_penalty_last_n
        self._allowed = params.dry_allowed_length
        self._multiplier = params.dry_multiplier
        base = np.float32(params.dry_base)
        self._base = float(base)
        self._breakers = params.dry_breakers
        self._max_exponent = int(_LOG_OF_LARGEST / np.log(base)) if base > np.float32(1.000001) else 0

    def __call__(self, candidates: Candidates, tokens: TokenArray, index: int) -> None:
        """Lower the logits of tokens that would prolong a repetition."""
        lengths = self.repeats(tokens if self._last_n < 0 else tokens[-self._last_n :])
        for token in [one for one in lengths if () in self._breakers.get(one, ())]:
            del lengths[token]
        if not lengths:
            return
        ids, places = candidates.find(np.array(sorted(lengths), dtype=np.int64))
        penalties = [self._penalty(lengths[token]) for token in ids.tolist()]
        candidates.values[places] -= np.array(penalties, dtype=np.float32)
        candidates.changed()

    def repeats(self, window: TokenArray) -> dict[int, int]:
        """Return the tokens that have followed an earlier copy of the text's end, and the length of that copy."""
        allowed = self._allowed
        if len(window) <= allowed:
            return {}
        limit = self._limit(window)
        if limit < allowed:
            return {}
        if self._max_exponent:  # longer copies count no more
            limit = min(limit, allowed + self._max_exponent)
        ends = np.arange(len(window) - 1)
        found: dict[int, int] = {}
        work = _WORK_PER_TOKEN * len(window)
        for length in range(limit + 1):  # the copies that are still as long as this, and end at `ends`
            if length:
                ends = ends[ends >= length - 1]
                ends = ends[window[ends - (length - 1)] == window[-length]]
            if not len(ends):
                break
            work -= len(ends)
            if work < 0:  # the text repeats itself in so many places that counting all lengths is faster
                return _repeats_of_lengths(window, allowed, limit)
            if length >= allowed:
                found.update(dict.fromkeys(window[ends + 1].tolist(), length))
        return found

    def _limit(self, window: TokenArray) -> int:
        """Return how many tokens stand after the last breaker; no copy counts for more."""
        breakers = self._breakers
        if breakers:
            for start in range(0, len(window), _STRIDE):
                part = window[max(0, len(window) - start - _STRIDE) : len(window) - start]
                for back, token in enumerate(reversed(part.tolist()), start):
                    tails = breakers.get(token)
                    if tails is not None:
                        after = tuple(window[len(window) - back :][:_MAX_TAIL].tolist())
                        matching = [len(tail) for tail in tails if after[: len(tail)] == tail]
                        if matching:
                            return back - max(matching)
        return len(window)

    def _penalty(self, length: int) -> float:
        exponent = length - self._allowed
        if self._max_exponent:
            exponent = min(exponent, self._max_exponent)
        return float(min(self._multiplier * self._base**exponent, 3e38))


def _repeats_of_lengths(window: TokenArray, allowed: int, limit: int) -> dict[int, int]:
    """Return what `Dry.repeats` does, in a time that depends on the window's length alone.

    Source: the Z-algorithm, on the window read backwards.
    """
    text = window[::-1].tolist()
    size = len(text)
    lengths = [0] * size
    left = right = 0
    found: dict[int, int] = {}
    for place in range(1, size):
        length = min(right - place, lengths[place - left]) if place < right else 0
        while place + length < size and text[length] == text[place + length]:
            length += 1
        lengths[place] = length
        if place + length > right:
            left, right = place, place + length
        length = min(length, limit)
        following = text[place - 1]
        if length >= allowed and length >= found.get(following, 0):
            found[following] = length
    return found


def find_breakers(vocabulary: Words, texts: tuple[str, ...]) -> Breakers:
    """Return where each of `texts` can begin in tokens, and how it goes on.

    Reads the whole vocabulary for texts that were not asked for lately: not for the event loop.
    """
    words: Any = vocabulary  # as a key it stands for itself alone
    return _find_breakers(words, texts)


@functools.lru_cache(maxsize=8)
def _find_breakers(vocabulary: Any, texts: tuple[str, ...]) -> Breakers:
    pieces = _pieces(vocabulary)
    breakers: dict[int, list[tuple[int, ...]]] = {}
    for text in texts:
        raw = text.encode("utf-8", "replace")[:MAX_BREAKER_BYTES]
        for token in [token for token, piece in enumerate(pieces) if raw in piece]:
            breakers.setdefault(token, []).append(())
        begins = tuple(raw[:length] for length in range(1, len(raw)))
        tails = [_tail(vocabulary, raw[len(begin) :]) for begin in begins]
        for token in [token for token, piece in enumerate(pieces) if piece.endswith(begins) and raw not in piece]:
            found = [tail for begin, tail in zip(begins, tails, strict=True) if pieces[token].endswith(begin)]
            breakers.setdefault(token, []).extend(found)
    return {token: tuple(dict.fromkeys(found)) for token, found in breakers.items()}


@functools.lru_cache(maxsize=2)
def _pieces(vocabulary: Any) -> list[bytes]:
    """Return what each token says on its own: without the space that some vocabularies put in front of all texts."""
    pieces = [vocabulary.piece(token, special=True) for token in range(vocabulary.num_vocab)]
    first = vocabulary.tokenize("a", add_special=False, parse_special=False)[:1]
    if first and pieces[first[0]].startswith(b" "):
        return [piece.removeprefix(b" ") for piece in pieces]
    return pieces


def _tail(vocabulary: Words, raw: bytes) -> tuple[int, ...]:
    text = raw.decode("utf-8", "replace")
    return tuple(vocabulary.tokenize(text, add_special=False, parse_special=False)[:_MAX_TAIL])
