"""The samplers that remember what was picked before: Mirostat 1 and 2, and adaptive-p.

Each prepares the candidates and then learns from the token that was taken. Source of the rules: llama.cpp's
samplers of the same names. Must not draw the token itself.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from worker.engine.request import SamplerKind, SamplingParams
from worker.engine.sampling_candidates import Candidates, Ids, Logits, Row

_LOG_2 = math.log(2.0)
_NUM_ESTIMATED = 100
"""Best tokens that Mirostat 1 estimates the distribution from."""
_INVERSE_WIDTH, _PEAK, _SHARPNESS = 1.0 / 0.3, 5.0, 10.0
"""The shape of adaptive-p's curve."""

State = tuple[float, ...]


class Feedback(Protocol):
    """A sampler with memory."""

    state: State
    """All that it remembers."""

    def prepare(self, candidates: Candidates) -> None:
        """Leave the tokens that may be drawn, with the logits that count for it."""
        ...

    def learn(self, candidates: Candidates, token: int) -> None:
        """Take note of the token that was drawn of these candidates."""
        ...


def feedback(params: SamplingParams, num_vocab: int) -> Feedback | None:
    """Return the sampler that ends the chain, if it is another than a plain draw."""
    if params.mirostat == 1:
        return Mirostat1(params.mirostat_tau, params.mirostat_eta, num_vocab)
    if params.mirostat == 2:
        return Mirostat2(params.mirostat_tau, params.mirostat_eta)
    if SamplerKind.ADAPTIVE_P in params.samplers and params.adaptive_target >= 0.0:
        return AdaptiveP(params.adaptive_target, params.adaptive_decay)
    return None


class _Mirostat:
    """Keeps the surprise of the drawn tokens near `tau` bits. The state is mu, the most that may surprise."""

    def __init__(self, tau: float, eta: float) -> None:
        self._tau, self._eta = tau, eta
        self.state: State = (2.0 * tau,)

    def learn(self, candidates: Candidates, token: int) -> None:
        """Move mu by the error."""
        surprise = -candidates.logprob(token) / _LOG_2
        self.state = (self.state[0] - self._eta * (surprise - self._tau),)


class Mirostat1(_Mirostat):
    """Estimates from the best tokens how many of them surprise no more than mu."""

    def __init__(self, tau: float, eta: float, num_vocab: int) -> None:
        super().__init__(tau, eta)
        self._num_vocab = num_vocab

    def prepare(self, candidates: Candidates) -> None:
        """Keep the best tokens."""
        best = np.array([logprob for _, logprob in candidates.best(_NUM_ESTIMATED)])
        candidates.keep_largest(self._count(best, candidates.size))

    def _count(self, best: np.ndarray[tuple[int], np.dtype[np.float64]], size: int) -> int:
        if len(best) < 2:
            return 1
        steps = np.log(np.arange(2, len(best) + 1) / np.arange(1, len(best)))
        slope = float((steps * -np.diff(best)).sum() / (steps * steps).sum())
        excess = slope - 1.0
        if slope <= 0.0:
            return 1
        try:
            count = (excess * 2.0 ** self.state[0] / (1.0 - self._num_vocab**-excess)) ** (1.0 / slope)
        except (OverflowError, ZeroDivisionError):
            return size
        return int(min(max(count, 1.0), size))  # llama.cpp's count overflows on flat rows; then it takes the best


class Mirostat2(_Mirostat):
    """Cuts off every token that would surprise more than mu."""

    def prepare(self, candidates: Candidates) -> None:
        """Keep the tokens that are likely enough, at least one."""
        row = candidates.whole()
        threshold = candidates.top + candidates.log_total - self.state[0] * _LOG_2
        if row is None:
            candidates.keep_largest(max(1, int(np.count_nonzero(candidates.logits >= threshold))))
        elif threshold > candidates.top:
            candidates.keep_best()
        else:
            candidates.keep_ids(candidates.ids_above(threshold))


class AdaptiveP:
    """Prefers tokens whose probability is near a target, which moves so that the average reaches the asked one.

    The state is the weighted sum of the probabilities of the drawn tokens, and the sum of the weights.
    """

    def __init__(self, target: float, decay: float) -> None:
        self._target = min(max(target, 0.0), 1.0)
        self._decay = min(max(decay, 0.0), 0.99)
        self.state: State = (target / (1.0 - self._decay), 1.0 / (1.0 - self._decay))
        self._probabilities: Row | Logits = np.empty(0)
        self._ids: Ids | None = None

    def prepare(self, candidates: Candidates) -> None:
        """Give each token a logit by its probability's distance from the target."""
        weighted_sum, weight = self.state
        target = min(max(2.0 * self._target - weighted_sum / weight, 0.0), 1.0)
        self._ids = None if candidates.whole() is not None else candidates.ids
        weights, values = candidates.weights(), candidates.values
        self._probabilities = probabilities = weights / float(weights.sum())
        distances = np.abs(probabilities - np.float32(target)) * np.float32(_INVERSE_WIDTH)
        possible = values > -np.inf
        values[possible] = (_PEAK - _SHARPNESS * distances * distances / (1.0 + distances))[possible]
        candidates.changed()

    def learn(self, candidates: Candidates, token: int) -> None:
        """Add the token's own probability to the average."""
        place = token if self._ids is None else int(np.flatnonzero(self._ids == token)[0])
        weighted_sum, weight = self.state
        probability = float(self._probabilities[place])
        self.state = (probability + self._decay * weighted_sum, 1.0 + self._decay * weight)
