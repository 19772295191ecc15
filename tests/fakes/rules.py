"""A constraint that is a pure function of the answer so far, and asserts that the engine uses it as it may."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.fakes.backend import END, computed_with, next_token
from worker.engine.constraint import Allowed, ConstraintFailed
from worker.engine.request import AdapterSet, FinishReason


@dataclass(frozen=True)
class Law:
    """What may follow an answer: a few tokens, one, or any; sometimes the end; nothing after `over_at` tokens."""

    seed: int
    num_vocab: int
    over_at: int | None = None
    fails_at: int | None = None

    def after(self, answer: Sequence[int]) -> frozenset[int] | int | None:
        """Return the tokens that may come: a set, exactly one, or None for any."""
        seen = [self.seed, len(answer), *answer[-3:]]
        digest = hashlib.blake2b(np.asarray(seen, dtype=np.int64).tobytes(), digest_size=16).digest()
        kind, chosen = digest[0] % 8, [1 + byte % (self.num_vocab - 1) for byte in digest[1:9]]
        if kind == 0:
            return None
        if kind == 1:
            return chosen[0]
        if kind < 4:  # this one text is forced for a while
            return frozenset(chosen[:1])
        return frozenset(chosen) | ({END} if kind == 4 else set())

    def is_over(self, answer: Sequence[int]) -> bool:
        """Whether nothing but the end may follow."""
        return self.over_at is not None and len(answer) >= self.over_at

    def may_come(self, answer: Sequence[int], token: int) -> bool:
        """Whether `token` may follow."""
        allowed = self.after(answer)
        return allowed is None or (token == allowed if isinstance(allowed, int) else token in allowed)

    def start(self) -> Rule:
        """Return the constraint of one answer."""
        return Rule(self)


@dataclass
class Rule:
    """A `Constraint` that follows a law."""

    law: Law
    answer: list[int] = field(default_factory=list)

    def allowed(self, drafts: Sequence[int]) -> list[Allowed]:
        masks, answer = [self._mask(self.answer)], list(self.answer)
        for draft in drafts:
            assert draft != END, "nothing can follow the end"
            if self.law.is_over(answer) or not self.law.may_come(answer, draft):
                break
            answer.append(draft)
            if self.law.fails_at == len(answer):  # which it tells when the answer is there
                break
            masks.append(self._mask(answer))
        return masks

    def _mask(self, answer: Sequence[int]) -> Allowed:
        if self.law.fails_at == len(answer):
            raise ConstraintFailed("the law has ended")
        allowed = self.law.after(answer)
        if not isinstance(allowed, frozenset):
            return allowed
        mask = np.zeros(self.law.num_vocab, dtype=np.bool_)
        mask[sorted(allowed)] = True
        return mask

    def accept(self, token: int) -> None:
        assert token != END, "an end token is no part of an answer"
        assert not self.law.is_over(self.answer), "a token after the last"
        if not self.law.may_come(self.answer, token):
            raise ConstraintFailed(f"{token} may not come")
        self.answer.append(token)

    def rollback(self, num_tokens: int) -> None:
        assert 0 < num_tokens <= len(self.answer)
        del self.answer[len(self.answer) - num_tokens :]

    def forced(self, most: int) -> Sequence[int]:
        found: list[int] = []
        while len(found) < most:
            allowed = self.law.after([*self.answer, *found])
            if isinstance(allowed, frozenset) and len(allowed) == 1:
                (allowed,) = allowed
            if not isinstance(allowed, int) or self.law.is_over([*self.answer, *found]):
                break
            found.append(allowed)
        return found

    def num_allowed(self, tokens: Sequence[int]) -> int:
        for count, token in enumerate(tokens):
            if token == END or not self.law.may_come([*self.answer, *tokens[:count]], token):
                return count
        return len(tokens)

    @property
    def is_over(self) -> bool:
        return self.law.is_over(self.answer)


def lawful_answer(
    prompt: Sequence[int],
    max_tokens: int,
    law: Law,
    *,
    context: int,
    adapters: AdapterSet = (),
    min_tokens: int = 0,
    banned: frozenset[int] = frozenset(),
) -> tuple[list[int], FinishReason]:
    """Return the answer of a lone greedy request on the fake backend, and how it ends."""
    answer: list[int] = []
    while True:
        if law.fails_at == len(answer):
            return answer, FinishReason.ERROR
        seen = [computed_with(one, adapters) for one in [*prompt, *answer]]
        best, allowed = next_token(seen, law.num_vocab), law.after(answer)
        if isinstance(allowed, int):
            token = allowed
        else:
            possible = set(range(law.num_vocab)) if allowed is None else set(allowed)
            left = possible - banned - ({END} if len(answer) < min_tokens else set())
            if not left and END in possible:
                left = {END}
            if not left:
                return answer, FinishReason.ERROR
            token = best if best in left else min(left)  # all others are equally likely: greedy takes the first
        if token == END:
            return answer, FinishReason.STOP
        answer.append(token)
        if law.is_over(answer):
            return answer, FinishReason.STOP
        if len(answer) >= max_tokens or len(prompt) + len(answer) >= context:
            return answer, FinishReason.LENGTH
