"""Picks a token from one row of logits: penalties, top-k, top-p, min-p, temperature, then a seeded draw.

Exact, but without sorting the row: a cheap bound picks the candidates that the steps then look at. The order of
steps and their meaning are llama.cpp's (penalties, top-k, top-p, min-p, temperature), so that clients of its
server get what they are used to. Must not know sequences or grammars.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from worker.engine.batch import TokenArray
from worker.engine.request import GenerationRequest, Pick

Row = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float64]


class Sampler:
    """One request's way of choosing. Stateless between tokens: the draw depends on (seed, choice, token index)."""

    def __init__(self, request: GenerationRequest, num_vocab: int, end_tokens: frozenset[int]) -> None:
        params = self.params = request.sampling
        self._num_vocab = num_vocab
        banned = sorted(end_tokens) if params.ignore_eos else []
        self._banned = np.array(banned, dtype=np.int64)
        self._bias_ids = np.array([token for token, _ in params.logit_bias], dtype=np.int64)
        self._bias = np.array([bias for _, bias in params.logit_bias], dtype=np.float32)
        self._has_penalties = params.repeat_last_n != 0 and (
            params.repeat_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        )

    def sample(self, row: Row, tokens: TokenArray, index: int) -> Pick:
        """Return the token to append.

        Shapes: row (num_vocab,), tokens (num_tokens,) = prompt and answer so far. Mutates: row.
        `index` is the number of tokens generated before this one.
        """
        if len(self._bias_ids):
            row[self._bias_ids] += self._bias
        if len(self._banned):
            row[self._banned] = -np.inf
        if self._has_penalties:
            self._penalise(row, tokens)
        if self.params.temperature <= 0.0:
            return Pick(int(row.argmax()))
        ids, logits = self._candidates(row)
        weights = np.cumsum(np.exp((logits - logits.max()) / self.params.temperature))
        draw = uniform(self.params.seed, self.params.choice, index) * weights[-1]
        return Pick(int(ids[min(int(np.searchsorted(weights, draw, side="right")), len(ids) - 1)]))

    def _penalise(self, row: Row, tokens: TokenArray) -> None:
        """Lower the logits of tokens that occurred lately. Source: llama.cpp's penalties sampler."""
        params = self.params
        window = tokens if params.repeat_last_n < 0 else tokens[-params.repeat_last_n :]
        ids, counts = np.unique(window, return_counts=True)
        logits = row[ids]
        if params.repeat_penalty != 1.0:
            logits = np.where(logits <= 0, logits * params.repeat_penalty, logits / params.repeat_penalty)
        row[ids] = logits - counts * np.float32(params.frequency_penalty) - np.float32(params.presence_penalty)

    def _candidates(self, row: Row) -> tuple[Ids, Logits]:
        """Return ids and logits of the tokens that may be drawn: after top-k, top-p and min-p, in this order.

        Probabilities are those at temperature 1, over what the step before has left. Source: llama.cpp's chain.
        """
        params = self.params
        top = float(row.max())
        if not np.isfinite(top):  # all logits are -inf, or one is NaN: there must be an answer all the same
            ids = np.array([int(np.nan_to_num(row, nan=-np.inf, posinf=np.inf).argmax())])
            return ids, np.zeros(1)
        if 0 < params.top_k < self._num_vocab:
            ids, logits = _largest(row, top, params.top_k)
            if params.top_p < 1.0:
                keep = _nucleus(np.exp(logits - top), params.top_p)
                ids, logits = ids[:keep], logits[:keep]
        elif params.top_p < 1.0:
            ids, logits = _nucleus_of_row(row, top, params.top_p)
        elif params.min_p > 0.0:
            ids = np.flatnonzero(row >= top + math.log(params.min_p))
            logits = row[ids].astype(np.float64)
        else:
            return np.arange(len(row)), row.astype(np.float64)
        if params.min_p > 0.0:
            likely = logits >= top + math.log(params.min_p)
            ids, logits = ids[likely], logits[likely]
        return ids, logits


def _largest(row: Row, top: float, count: int) -> tuple[Ids, Logits]:
    """Return the `count` largest logits and their ids, largest first, without sorting the row."""
    gap = 4.0
    ids = np.flatnonzero(row >= top - gap)
    while len(ids) < count and gap < 1000.0:
        gap *= 2
        ids = np.flatnonzero(row >= top - gap)
    if len(ids) < count:
        ids = np.flatnonzero(row > -np.inf)
    logits = row[ids].astype(np.float64)
    if count < len(ids):
        part = np.argpartition(-logits, count - 1)[:count]
        ids, logits = ids[part], logits[part]
    order = np.argsort(-logits, kind="stable")
    return ids[order], logits[order]


def _nucleus(weights: Logits, top_p: float) -> int:
    """Return how many of the weights, largest first, reach the share `top_p` of their sum; at least one."""
    sums = np.cumsum(weights)
    return min(int(np.searchsorted(sums, top_p * sums[-1])) + 1, len(weights))


def _nucleus_of_row(row: Row, top: float, top_p: float) -> tuple[Ids, Logits]:
    """Return the smallest set of most likely tokens whose probability in the whole row reaches `top_p`."""
    total = float(np.exp(row - np.float32(top)).sum(dtype=np.float64))
    gap = 3.0
    while True:
        ids = np.flatnonzero(row >= top - gap)
        logits = row[ids].astype(np.float64)
        weights = np.exp(logits - top)
        if weights.sum() >= top_p * total or gap > 100.0:
            break
        gap += 2.0
    order = np.argsort(-logits, kind="stable")
    sums = np.cumsum(weights[order])
    keep = order[: int(np.searchsorted(sums, top_p * total)) + 1]
    return ids[keep], logits[keep]


def uniform(seed: int, choice: int, index: int) -> float:
    """Return the number in [0, 1) that belongs to this token of this choice.

    A counter-based generator (Philox): any worker can go on at any token without state.
    """
    generator = np.random.Philox(key=np.array([seed & (2**64 - 1), choice], dtype=np.uint64), counter=[index, 0, 0, 0])
    return float(generator.random_raw() >> 11) * 2.0**-53
