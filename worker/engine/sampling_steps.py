"""The samplers without memory, each as one step over the candidates.

Their order and meaning are llama.cpp's, so that clients of its server get what they are used to; probabilities are
those over what the steps before have left. `chain` leaves out what is off. Must not draw the token itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from worker.engine.batch import TokenArray
from worker.engine.request import SamplerKind, SamplingParams
from worker.engine.sampling_candidates import MAX_LISTED, Candidates, Ids, Logits, Row
from worker.engine.sampling_chance import uniform
from worker.engine.sampling_dry import Dry

Values = Row | Logits

Step = Callable[[Candidates, TokenArray, int], None]
"""Takes the candidates, the text so far, and the number of tokens generated before this one."""

XTC_DRAW = 1
"""Which of the draws of one token is XTC's; the token's own is 0."""
_CUTS_FROM_BELOW = {SamplerKind.TOP_N_SIGMA, SamplerKind.TOP_K, SamplerKind.TOP_P, SamplerKind.MIN_P}
"""Whatever they cut off, the best token stays."""


_BINS_PER_UNIT, _NUM_BINS = 32.0, 4096.0
"""Of distances between logits; further away no weight is left in 32 bits."""
_NO_IDS = np.empty(0, dtype=np.int64)


def chain(params: SamplingParams, infill: Step | None = None) -> list[Step]:
    """Return the steps that do something, in order. A greedy one is the last. `infill` knows the vocabulary."""
    steps: list[tuple[SamplerKind, Step]] = []
    for kind in params.samplers:
        step = infill if kind is SamplerKind.INFILL else _MAKERS[kind](params) if kind in _MAKERS else None
        if step is not None:
            if step is take_the_best:
                while steps and steps[-1][0] in _CUTS_FROM_BELOW:
                    steps.pop()
                return [*(one for _, one in steps), step]
            steps.append((kind, step))
    return [step for _, step in steps]


def temperature_step(params: SamplingParams) -> list[Step]:
    """Return the only step before Mirostat: a plain temperature."""
    step = _temperature(replace(params, dynatemp_range=0.0))
    return [] if step is None else [step]


def take_the_best(candidates: Candidates, tokens: TokenArray, index: int) -> None:
    """Temperature 0."""
    candidates.keep_best()


def _penalties(params: SamplingParams) -> Step | None:
    repeat = np.float32(params.repeat_penalty)
    frequency, presence = np.float32(params.frequency_penalty), np.float32(params.presence_penalty)
    last_n = params.repeat_last_n
    if last_n == 0 or (repeat == 1.0 and frequency == 0.0 and presence == 0.0):
        return None

    def step(candidates: Candidates, tokens: TokenArray, index: int) -> None:
        window = tokens if last_n < 0 else tokens[-last_n:]
        unique, counts = np.unique(window, return_counts=True)
        ids, places = candidates.find(unique)
        if len(ids) < len(unique):
            counts = counts[np.searchsorted(unique, ids)]
        values = candidates.values
        logits = values[places]
        if repeat != 1.0:
            logits = np.where(logits <= 0, logits * repeat, logits / repeat)
        values[places] = logits - (counts.astype(np.float32) * frequency + presence)
        candidates.changed()

    return step


def _dry(params: SamplingParams) -> Step | None:
    is_on = params.dry_multiplier != 0.0 and params.dry_base >= 1.0 and params.dry_penalty_last_n != 0
    return Dry(params) if is_on else None


def _top_n_sigma(params: SamplingParams) -> Step | None:
    factor = params.top_n_sigma
    if factor <= 0.0:
        return None

    def step(candidates: Candidates, tokens: TokenArray, index: int) -> None:
        row = candidates.whole()
        if candidates.size <= 1:
            return
        if row is None:
            threshold = candidates.top - factor * float(candidates.logits.std())
            candidates.keep(candidates.logits >= threshold, size=candidates.size)
        else:
            threshold = candidates.top - factor * _deviation(row)
            candidates.keep_ids(candidates.ids_above(threshold), size=candidates.size)

    return step


def _deviation(row: Row) -> float:
    """Return the standard deviation of the logits that are not banned."""
    centred = row - row.mean()
    deviation = math.sqrt(float(np.square(centred, out=centred).mean()))
    return deviation if math.isfinite(deviation) else float(row[row > -np.inf].std(dtype=np.float64))


def _top_k(params: SamplingParams) -> Step | None:
    count = params.top_k
    if count <= 0:
        return None
    return lambda candidates, tokens, index: candidates.keep_largest(count)


def _typical_p(params: SamplingParams) -> Step | None:
    share, min_keep = params.typical_p, params.min_keep
    if share >= 1.0:
        return None

    def step(candidates: Candidates, tokens: TokenArray, index: int) -> None:
        row = candidates.whole()
        log_total = candidates.log_total
        # Below the top, in which no weight is left in 32 bits: such tokens must not make the sum NaN.
        depth = np.maximum((candidates.logits if row is None else row) - np.float32(candidates.top), -110.0)
        weights = candidates.weights()
        total = float(weights.sum())
        entropy = log_total - float((weights * depth).sum()) / total
        distances = np.abs(log_total - depth - entropy)
        where = _nearest(distances, weights, share, min_keep, more=True)
        if row is None:
            candidates.keep(where)
        else:
            candidates.keep_ids(where)

    return step


def _top_p(params: SamplingParams) -> Step | None:
    share, min_keep = params.top_p, params.min_keep
    if share >= 1.0:
        return None

    def step(candidates: Candidates, tokens: TokenArray, index: int) -> None:
        if candidates.whole() is None:
            sums = candidates.weights().cumsum()
            candidates.keep_largest(max(int(sums.searchsorted(share * sums[-1])) + 1, min_keep))
        else:
            candidates.keep_ids(_nucleus(candidates, share, min_keep))

    return step


def _nucleus(candidates: Candidates, share: float, min_keep: int) -> Ids:
    """Return the fewest best tokens of the row, in order, whose probability reaches `share`."""
    weights = candidates.weights()
    target = share * float(weights.sum())
    for count in (256, 2048):
        if count * 8 < len(weights):
            ids = candidates.ids_of_largest(count)
            sums = weights[ids].cumsum(dtype=np.float64)
            if sums[-1] >= target and min_keep <= len(ids):
                return np.sort(ids[: max(int(sums.searchsorted(target)) + 1, min_keep)])
    row = candidates.whole()
    assert row is not None
    return _nearest(np.float32(candidates.top) - row, weights, share, min_keep, more=False)


def _nearest(distances: Values, weights: Values, share: float, min_keep: int, *, more: bool) -> Ids:
    """Return the fewest places, in order, that are nearest and reach the share of all weights, or `more` than it."""
    target = share * float(weights.sum())
    side: Literal["left", "right"] = "right" if more else "left"
    sure, before = _NO_IDS, 0.0
    if len(weights) <= MAX_LISTED:
        band = np.flatnonzero(weights > 0.0)
    else:  # find the bin of distances in which the share is reached, and sort only that
        bins = np.minimum(distances * _BINS_PER_UNIT, _NUM_BINS).astype(np.intp)
        in_bins = np.cumsum(np.bincount(bins, weights))
        last = int(np.searchsorted(in_bins, target, side=side))
        if min_keep > 1:
            last = max(last, int(np.searchsorted(np.cumsum(np.bincount(bins)), min_keep)))
        last = min(last, len(in_bins) - 1)
        sure, before = np.flatnonzero(bins < last), float(in_bins[last - 1]) if last else 0.0
        band = np.flatnonzero((bins == last) & (weights > 0.0))
    order = np.argsort(distances[band], kind="stable")
    sums = before + np.cumsum(weights[band[order]], dtype=np.float64)
    count = int(np.searchsorted(sums, target, side=side)) + 1
    band = np.sort(band[order[: max(count, min_keep - len(sure))]])
    return np.sort(np.concatenate([sure, band]), kind="stable")  # which merges what is in order


def _min_p(params: SamplingParams) -> Step | None:
    if params.min_p <= 0.0:
        return None
    depth, min_keep = math.log(params.min_p), params.min_keep

    def step(candidates: Candidates, tokens: TokenArray, index: int) -> None:
        threshold = candidates.top + depth
        if candidates.whole() is None:
            num_likely = int(np.count_nonzero(candidates.logits >= threshold))
            candidates.keep_largest(max(num_likely, min_keep, 1))
        else:
            ids = candidates.ids_above(threshold)
            if len(ids) >= min_keep:
                candidates.keep_ids(ids)
            else:
                candidates.keep_ordered(candidates.ids_of_largest(min_keep))

    return step


def _xtc(params: SamplingParams) -> Step | None:
    probability, threshold, min_keep = params.xtc_probability, params.xtc_threshold, params.min_keep
    if probability <= 0.0 or threshold > 0.5:
        return None

    def step(candidates: Candidates, tokens: TokenArray, index: int) -> None:
        row = candidates.whole()
        if candidates.size < 2 or uniform(params.seed, params.choice, index, XTC_DRAW) > probability:
            return
        weights = candidates.weights()
        likely = np.flatnonzero(weights >= threshold * float(weights.sum()))
        num_dropped = len(likely) - 1
        if num_dropped < 1 or candidates.size - num_dropped < min_keep:
            return
        if row is None:
            candidates.keep(slice(num_dropped, None), size=candidates.size - num_dropped)
        else:
            logits = row[likely]
            likely = likely[logits > -np.inf]
            last = likely[np.flatnonzero(row[likely] == row[likely].min())[-1]]
            candidates.ban(likely[likely != last])

    return step


def _temperature(params: SamplingParams) -> Step | None:
    temperature = float(np.float32(params.temperature))
    if params.dynatemp_range > 0.0:
        return _dynamic_temperature(params)
    if temperature <= 0.0:
        return take_the_best
    if temperature == 1.0:
        return None
    return lambda candidates, tokens, index: candidates.divide(temperature)


def _dynamic_temperature(params: SamplingParams) -> Step:
    low = max(0.0, params.temperature - params.dynatemp_range)
    high, exponent = params.temperature + params.dynatemp_range, params.dynatemp_exponent

    def step(candidates: Candidates, tokens: TokenArray, index: int) -> None:
        row = candidates.whole()
        if candidates.size <= 1:
            return
        depth = np.maximum((candidates.logits if row is None else row) - np.float32(candidates.top), -110.0)
        weights = candidates.weights()
        entropy = candidates.log_total - float((weights * depth).sum()) / float(weights.sum())
        temperature = low + (high - low) * min(max(entropy, 0.0) / math.log(candidates.size), 1.0) ** exponent
        if float(np.float32(temperature)) <= 0.0:
            candidates.keep_best()
        else:
            candidates.divide(temperature)

    return step


_MAKERS: dict[SamplerKind, Callable[[SamplingParams], Step | None]] = {
    SamplerKind.PENALTIES: _penalties,
    SamplerKind.DRY: _dry,
    SamplerKind.TOP_N_SIGMA: _top_n_sigma,
    SamplerKind.TOP_K: _top_k,
    SamplerKind.TYPICAL_P: _typical_p,
    SamplerKind.TOP_P: _top_p,
    SamplerKind.MIN_P: _min_p,
    SamplerKind.XTC: _xtc,
    SamplerKind.TEMPERATURE: _temperature,
}
