"""What the engine counts. Written by the engine thread alone, read from others as single fields."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Sequence

from worker.contract import EngineCounters, Histogram
from worker.engine.batch import StepPlan
from worker.engine.request import FinishReason, Output, RequestId

FIRST_TOKEN_BOUNDS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""From a cached prompt on a GPU to a long one on a CPU."""

INTER_TOKEN_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1),
    *(0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
"""Close to each other where a reader begins to notice: at 10 to 200 ms."""

BATCH_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0)
SLOT_BOUNDS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0, 256.0)


class _Buckets:
    """A histogram that is cheap to feed."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def report(self) -> Histogram:
        return Histogram(self._bounds, tuple(self._counts), self._total)


class Statistics:
    """Totals and histograms since the engine's start."""

    def __init__(self) -> None:
        self.finished = 0
        self.aborted = 0
        self.failed_steps = 0
        """Passes and KV operations that were refused or failed, whatever became of them."""
        self.parked = 0
        self.demoted = 0
        self.dropped = 0
        self.step_seconds = 0.0
        """Whole turns of the engine's loop that had a step; errands are not counted."""
        self.drafted = 0
        self.accepted = 0
        self._forwards = 0
        self._forward_seconds = 0.0
        self._rows = 0
        self._prompt_computed = 0
        self._prompt_cached = 0
        self._generated = 0
        self._prefill_seconds = 0.0
        self._generation_seconds = 0.0
        self._prefix_hits = 0
        self._prefix_misses = 0
        self._first_token = _Buckets(FIRST_TOKEN_BOUNDS_S)
        self._inter_token = _Buckets(INTER_TOKEN_BOUNDS_S)
        self._batch_rows = _Buckets(BATCH_BOUNDS)
        self._busy_slots = _Buckets(SLOT_BOUNDS)
        self._last_token_s: dict[RequestId, float] = {}

    def observe_forward(self, plan: StepPlan, seconds: float) -> None:
        """Count one successful pass; its time is split between prefill and generation by rows."""
        rows = plan.num_rows
        prompt_rows = sum(chunk.num_prompt_rows for chunk in plan.chunks)
        self._forwards += 1
        self._forward_seconds += seconds
        self._rows += rows
        self._prompt_computed += prompt_rows
        self._prefill_seconds += seconds * prompt_rows / rows
        self._generation_seconds += seconds * (rows - prompt_rows) / rows
        self._batch_rows.observe(rows)
        self._busy_slots.observe(len(plan.chunks))

    def observe_pooled(self, num_rows: int, seconds: float) -> None:
        """Count one pass over texts to embed or rank."""
        self._forwards += 1
        self._forward_seconds += seconds
        self.step_seconds += seconds
        self._rows += num_rows
        self._prompt_computed += num_rows
        self._prefill_seconds += seconds
        self._batch_rows.observe(num_rows)

    def observe_outputs(self, outputs: Sequence[Output], now_s: float) -> None:
        """Count tokens, ends and the gaps between tokens."""
        for output in outputs:
            previous_s = self._last_token_s.get(output.request_id)
            if output.tokens:
                self._generated += len(output.tokens)
                if previous_s is not None:
                    self._inter_token.observe(now_s - previous_s)
            is_first = previous_s is None and not output.is_continued
            if is_first and output.timings is not None and output.error is None:
                self._prompt_cached += output.timings.cached_tokens
                if output.timings.cached_tokens:
                    self._prefix_hits += 1
                else:
                    self._prefix_misses += 1
                if output.tokens or output.finish is not FinishReason.LENGTH:  # else no token was asked for
                    self._first_token.observe(output.timings.queue_s + output.timings.prompt_s)
            if output.finish is None:
                if output.tokens:  # not how far a prompt is
                    self._last_token_s[output.request_id] = now_s
            else:
                self._last_token_s.pop(output.request_id, None)
                self.finished += 1

    def forget(self, request_id: RequestId) -> None:
        """Drop what is remembered of a request that ended outside a step."""
        self._last_token_s.pop(request_id, None)

    def counters(self) -> EngineCounters:
        """Return the totals."""
        return EngineCounters(
            forwards=self._forwards,
            forward_seconds=self._forward_seconds,
            step_seconds=self.step_seconds,
            rows=self._rows,
            prompt_tokens_computed=self._prompt_computed,
            prompt_tokens_cached=self._prompt_cached,
            generated_tokens=self._generated,
            prefill_seconds=self._prefill_seconds,
            generation_seconds=self._generation_seconds,
            finished=self.finished,
            aborted=self.aborted,
            failed_steps=self.failed_steps,
            parked=self.parked,
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
            prefix_hits=self._prefix_hits,
            prefix_misses=self._prefix_misses,
            prefixes_demoted=self.demoted,
            prefixes_dropped=self.dropped,
        )

    def histograms(self) -> dict[str, Histogram]:
        """Return the histograms by metric name."""
        return {
            "time_to_first_token_seconds": self._first_token.report(),
            "inter_token_seconds": self._inter_token.report(),
            "batch_rows": self._batch_rows.report(),
            "batch_busy_slots": self._busy_slots.report(),
        }


def total(reports: Sequence[Statistics]) -> EngineCounters:
    """Return the counters of several cores as one."""
    counters = [statistics.counters() for statistics in reports]
    names = [field.name for field in dataclasses.fields(EngineCounters)]
    return EngineCounters(**{name: sum(getattr(one, name) for one in counters) for name in names})


def merged(reports: Sequence[Statistics]) -> dict[str, Histogram]:
    """Return the histograms of several cores as one: all have the same names and bounds."""
    first, *others = (statistics.histograms() for statistics in reports)
    for other in others:
        for name, histogram in other.items():
            mine = first[name]
            counts = tuple(map(sum, zip(mine.counts, histogram.counts, strict=True)))
            first[name] = Histogram(mine.bounds, counts, mine.total + histogram.total)
    return first
