"""Picks a token from one row of logits: penalties, top-k, top-p, min-p, temperature, then a seeded draw.

Exact on a prefiltered set of candidates: what the filter leaves out could not be chosen, or only with a
probability below 1e-7. The order of steps and their meaning are llama.cpp's (penalties, top-k, top-p, min-p,
temperature), so that clients of its server get what they are used to. Must not know sequences or grammars.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from worker.engine.batch import TokenArray
from worker.engine.request import SamplingParams

Row = npt.NDArray[np.float32]

TAIL = 30.0
"""Logits further below the maximum than this (times the temperature) weigh less than 1e-13 each."""


class Sampler:
    """One request's way of choosing. Stateless between tokens: the draw depends on (seed, choice, token index)."""

    def __init__(self, params: SamplingParams, num_vocab: int, end_tokens: frozenset[int]) -> None:
        self.params = params
        self._num_vocab = num_vocab
        banned = sorted(end_tokens) if params.ignore_eos else []
        self._banned = np.array(banned, dtype=np.int64)
        self._bias_ids = np.array([token for token, _ in params.logit_bias], dtype=np.int64)
        self._bias = np.array([bias for _, bias in params.logit_bias], dtype=np.float32)
        self._has_penalties = params.repeat_last_n != 0 and (
            params.repeat_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        )

    def sample(self, row: Row, tokens: TokenArray, index: int) -> int:
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
            return int(row.argmax())
        ids, logits = self._candidates(row)
        probabilities = _softmax(logits)
        keep = len(ids)
        if self.params.top_p < 1.0:
            keep = int(np.searchsorted(np.cumsum(probabilities), self.params.top_p)) + 1
        if self.params.min_p > 0.0:
            floor = probabilities[0] * self.params.min_p
            keep = min(keep, int(np.count_nonzero(probabilities >= floor)))
        keep = max(1, min(keep, len(ids)))
        weights = np.cumsum(_softmax(logits[:keep] / self.params.temperature))
        draw = uniform(self.params.seed, self.params.choice, index) * weights[-1]
        return int(ids[min(int(np.searchsorted(weights, draw, side="right")), keep - 1)])

    def _penalise(self, row: Row, tokens: TokenArray) -> None:
        """Lower the logits of tokens that occurred lately. Source: llama.cpp's penalties sampler."""
        params = self.params
        window = tokens if params.repeat_last_n < 0 else tokens[-params.repeat_last_n :]
        ids, counts = np.unique(window, return_counts=True)
        logits = row[ids]
        if params.repeat_penalty != 1.0:
            logits = np.where(logits <= 0, logits * params.repeat_penalty, logits / params.repeat_penalty)
        row[ids] = logits - counts * np.float32(params.frequency_penalty) - np.float32(params.presence_penalty)

    def _candidates(self, row: Row) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return ids and logits of all tokens that matter, most likely first."""
        top = float(row.max())
        if 0 < self.params.top_k < self._num_vocab:
            gap = 4.0
            ids = np.flatnonzero(row > top - gap)
            while len(ids) < self.params.top_k and gap < 512.0:
                gap *= 2
                ids = np.flatnonzero(row > top - gap)
            if len(ids) < self.params.top_k:
                ids = np.flatnonzero(row > -np.inf)
        else:
            ids = np.flatnonzero(row > top - TAIL * max(1.0, self.params.temperature))
        if len(ids) == 0:  # every logit is -inf or NaN: there is no right answer, but there must be an answer
            ids = np.array([int(np.nan_to_num(row, nan=-np.inf).argmax())])
        logits = row[ids].astype(np.float64)
        if 0 < self.params.top_k < len(ids):
            part = np.argpartition(-logits, self.params.top_k - 1)[: self.params.top_k]
            ids, logits = ids[part], logits[part]
        order = np.argsort(-logits, kind="stable")
        return ids[order], logits[order]


def _softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return probabilities. The first logit is the largest."""
    weights = np.exp(logits - logits[0])
    normalised: npt.NDArray[np.float64] = weights / weights.sum()
    return normalised


def uniform(seed: int, choice: int, index: int) -> float:
    """Return the number in [0, 1) that belongs to this token of this choice.

    A counter-based generator (Philox): any worker can go on at any token without state.
    """
    generator = np.random.Philox(key=[seed & (2**64 - 1), choice], counter=[index, 0, 0, 0])
    return float(generator.random_raw() >> 11) * 2.0**-53
