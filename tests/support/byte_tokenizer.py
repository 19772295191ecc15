"""A vocabulary of single bytes and of markers, to try out grammars without a model.

Outputs are written as in `answer_vectors`: markers stand in « and ».
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from worker.chat.marks import Markers, marked

_MARKER: Final = re.compile("«(.*?)»", re.DOTALL)
_NUM_BYTES: Final = 256
_END: Final = _NUM_BYTES
_FIRST_MARKER: Final = _NUM_BYTES + 1
_ENDERS: Final = frozenset(b"\"'}])>/")
"""What often ends something: a walk must come to an end."""
_MAX_STEPS: Final = 3000
_RUSH_AFTER: Final = 200


class Grammar:
    """One compiled grammar over bytes, in which some markers are tokens. Raises: ValueError where it is none."""

    def __init__(self, source: str, markers: Markers | None = None) -> None:
        self.markers = markers or Markers()
        self._texts = {number: text for text, number in self.markers.tokens.items()}
        assert sorted(self._texts) == list(range(_FIRST_MARKER, _FIRST_MARKER + len(self._texts))), "see `markers_of`"
        self._tokenizer = _tokenizer(tuple(self._texts[number] for number in sorted(self._texts)))
        self._source = source
        matcher = LLMatcher(self._tokenizer, source, log_level=0)
        if matcher.is_error():
            raise ValueError(f"{matcher.get_error()}\n{source}")

    def accepts(self, output: str) -> bool:
        """Return whether the output, with its markers in « and », may be written as a whole."""
        matcher = LLMatcher(self._tokenizer, self._source, log_level=0)
        return all(matcher.consume_token(token) for token in self._tokens(output)) and matcher.is_accepting()

    def refused_at(self, output: str) -> str:
        """Return what of the output cannot be written any more, for messages of tests; empty if all can."""
        matcher = LLMatcher(self._tokenizer, self._source, log_level=0)
        tokens = list(self._tokens(output))
        for place, token in enumerate(tokens):
            if not matcher.consume_token(token):
                return self._shown(tokens[place:])
        return "" if matcher.is_accepting() else "(it may not end here)"

    def walk(self, seed: int, *, phrases: Sequence[str] = ()) -> str:
        """Return an output that the grammar allows, as a parser reads it; the same for the same seed.

        It may take any of `phrases` (markers in « and ») as a whole where the grammar lets it.
        """
        dice = random.Random(seed)
        matcher = LLMatcher(self._tokenizer, self._source, log_level=0)
        tokens: list[int] = []
        hints = [list(self._tokens(phrase)) for phrase in phrases]
        while len(tokens) < _MAX_STEPS:
            allowed = _allowed(matcher, self._tokenizer.vocab_size)
            may_end = _END in allowed
            if not allowed or (may_end and dice.random() < (0.9 if len(tokens) > _RUSH_AFTER else 0.15)):
                break
            hint = dice.choice(hints) if hints and dice.random() < 0.3 else []
            if hint and matcher.validate_tokens(hint) == len(hint):
                tokens += hint
                assert matcher.consume_tokens(hint), matcher.get_error()
                continue
            if may_end:
                allowed.remove(_END)
            token = _pick(dice, allowed, is_rushed=len(tokens) > _RUSH_AFTER)
            if token is None:
                break
            tokens.append(token)
            assert matcher.consume_token(token), matcher.get_error()
        assert matcher.is_accepting(), f"the walk found no end: {self._shown(tokens)}"
        return self._shown(tokens)

    def _tokens(self, output: str) -> Iterator[int]:
        place = 0
        for match in _MARKER.finditer(output):
            yield from output[place : match.start()].encode()
            token = self.markers.tokens.get(match[1])
            yield from (match[1].encode() if token is None else [token])
            place = match.end()
        yield from output[place:].encode()

    def _shown(self, tokens: Sequence[int]) -> str:
        pieces = [marked(self._texts[one]).encode() if one in self._texts else bytes([one]) for one in tokens]
        return b"".join(pieces).decode(errors="replace")


def markers_of(texts: Sequence[str]) -> Markers:
    """Return these markers as tokens of the vocabulary."""
    return Markers({text: number for number, text in enumerate(dict.fromkeys(texts), _FIRST_MARKER)})


class _Bytes:
    """What the library asks a tokenizer for."""

    eos_token_id = _END
    bos_token_id = None

    def __init__(self, texts: Sequence[str]) -> None:
        self.tokens = [bytes([number]) for number in range(_NUM_BYTES)]
        self.tokens += [b"\xff<end>", *(b"\xff" + text.encode() for text in texts)]
        self.special_token_ids = list(range(_END, len(self.tokens)))

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@cache
def _tokenizer(texts: tuple[str, ...]) -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes(texts)), slices=[])


def _allowed(matcher: LLMatcher, num_tokens: int) -> list[int]:
    """Return the tokens that may come next, in order."""
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    found: list[int] = np.flatnonzero(bits[:num_tokens]).tolist()
    return found


def _pick(dice: random.Random, allowed: Sequence[int], *, is_rushed: bool) -> int | None:
    """Return one of the tokens: letters more often than control characters, and ends often if it `is_rushed`."""
    if not allowed:
        return None
    known = _weights(is_rushed)
    weights = [known[min(token, _FIRST_MARKER)] for token in allowed]
    return dice.choices(allowed, weights)[0]


@cache
def _weights(is_rushed: bool) -> list[float]:
    """Return the weight of each byte, of the end and of any marker."""
    return [_weight(token, is_rushed=is_rushed) for token in range(_FIRST_MARKER + 1)]


def _weight(token: int, *, is_rushed: bool) -> float:
    if token in _ENDERS or token >= _FIRST_MARKER:
        return 500.0 if is_rushed else 4.0
    if ord(" ") < token < 127:
        return 1.0
    return 0.05
