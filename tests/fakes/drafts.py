"""Guesses ahead for the fake backend that are mostly right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.fakes.backend import computed_with, next_token
from worker.engine.batch import TokenArray
from worker.engine.cost import CostTable
from worker.engine.drafting import NO_RULES, Drafting, Rules
from worker.engine.request import RequestId
from worker.engine.sequence import Sequence as TokenSequence


class OftenRight(Drafting):
    """Drafts what the fake model will say, with one mistake now and then."""

    def __init__(self, num_drafted: int, num_vocab: int) -> None:
        super().__init__(num_drafted, 3 * num_drafted)
        self._num_drafted = num_drafted
        self._num_vocab = num_vocab

    def propose(
        self,
        generating: Sequence[tuple[int, TokenSequence]],
        costs: CostTable,
        *,
        max_seconds: float,
        rules: Rules = NO_RULES,
    ) -> dict[RequestId, TokenArray]:
        drafts = {}
        for _, sequence in generating:
            tokens = sequence.tokens.tolist()
            for _ in range(self._num_drafted):
                seen = [computed_with(token, sequence.request.adapters) for token in tokens]
                tokens.append(next_token(seen, self._num_vocab))
            if len(tokens) % 3 == 0:
                tokens[-1 - len(tokens) % self._num_drafted] += 1
            drafts[sequence.request_id] = np.array(tokens[sequence.num_tokens :], dtype=np.int32) % self._num_vocab
        return drafts
