"""Drives the grammar library over single bytes: random answers of a grammar, and whether it takes a text."""

from __future__ import annotations

import functools
import random

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from worker.schemas.patterns import ByteVocabulary

END = ByteVocabulary.eos_token_id
_CLOSING = [ord(char) for char in '"}]']
_PLAIN = [*b"abcxyz0123456789.,: -_@/AZ"]


@functools.cache
def _tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(ByteVocabulary()))


def matcher_of(grammar: str) -> LLMatcher:
    """Return a matcher at the beginning of an answer; fails where the library makes none."""
    matcher = LLMatcher(_tokenizer(), grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def takes(grammar: str, text: str) -> bool:
    """Return whether `text` is a whole answer."""
    matcher = matcher_of(grammar)
    written = list(text.encode())
    return matcher.try_consume_tokens(written) == len(written) and matcher.is_accepting()


def random_answer(grammar: str, seed: int, num_bytes: int = 400) -> str | None:
    """Return a whole answer; None if there was none after twice `num_bytes`, towards the end of which it is hurried.

    Fails where the grammar leaves no way to go on: an answer would hang there.
    """
    matcher, chance = matcher_of(grammar), random.Random(seed)
    written = bytearray()
    while len(written) < 2 * num_bytes:
        mask = matcher.compute_logit_bias()
        assert not matcher.is_error(), matcher.get_error()
        allowed = [token for token in range(END + 1) if mask[token]]
        assert allowed, f"nothing may follow {bytes(written)!r}"
        is_late = len(written) > num_bytes
        token = _chosen(allowed, chance, is_late=is_late)
        if token == END:
            break
        assert matcher.consume_token(token), matcher.get_error()
        written.append(token)
        if matcher.is_stopped():
            break
    return written.decode("utf-8") if matcher.is_accepting() or matcher.is_stopped() else None


def _chosen(allowed: list[int], chance: random.Random, *, is_late: bool) -> int:
    if END in allowed and (is_late or len(allowed) == 1 or chance.random() < 0.2):
        return END
    without_end = [token for token in allowed if token != END]
    closing = [token for token in _CLOSING if token in without_end]
    if closing and chance.random() < (0.95 if is_late else 0.15):
        return chance.choice(closing)
    plain = [token for token in _PLAIN if token in without_end]
    if plain and chance.random() < 0.8:
        return int(chance.choice(plain))
    return chance.choice(without_end)
