"""Counters of workers, kept monotonic over the lives of worker processes.

Owns the sum per replica of each model: what dead workers had counted, and the last snapshot of each live one. Must not
know Prometheus or ask a worker for anything: it is fed with status lines.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from router.events import WorkerId
from worker.contract import EngineCounters, Histogram, WorkerStatus

Replica = tuple[str, str]
"""A model and the number of a replica; without a number what other servers did."""


@dataclass(frozen=True, slots=True)
class ReplicaTotals:
    """What all workers that were one replica of a model, dead and alive, have counted together."""

    counters: EngineCounters = field(default_factory=EngineCounters)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)

    def plus(self, status: WorkerStatus) -> ReplicaTotals:
        """Return these totals with one worker's snapshot added."""
        histograms = dict(self.histograms)
        for name, histogram in status.histograms.items():
            known = histograms.get(name)
            histograms[name] = histogram if known is None else add_histograms(known, histogram)
        return ReplicaTotals(add_counters(self.counters, status.counters), histograms)


class WorkerTotals:
    """Takes status lines in, gives totals per replica out.

    The number of a replica is the smallest that is free when it starts, so there are never more than lived at once.
    """

    def __init__(self) -> None:
        self._dead: dict[Replica, ReplicaTotals] = {}
        self._live: dict[WorkerId, WorkerStatus] = {}

    def update(self, worker: WorkerId, status: WorkerStatus) -> None:
        """Remember the last snapshot of a live worker."""
        self._live[worker] = status

    def retire(self, worker: WorkerId) -> None:
        """Add the worker's last snapshot to what the dead ones left; later snapshots start at zero."""
        if (last := self._live.pop(worker, None)) is not None:
            key = worker.model, str(worker.replica)
            self._dead[key] = self._dead.get(key, ReplicaTotals()).plus(last)

    def add(self, model: str, counters: EngineCounters) -> None:
        """Count what no worker of ours has done: the tokens of a model on another server."""
        known = self._dead.get((model, ""), ReplicaTotals())
        self._dead[model, ""] = ReplicaTotals(add_counters(known.counters, counters), known.histograms)

    def live(self) -> Mapping[WorkerId, WorkerStatus]:
        """Return the last snapshot of each live worker."""
        return self._live

    def by_replica(self) -> dict[Replica, ReplicaTotals]:
        """Return the totals of every replica that there ever was, by model and number in order."""
        totals = dict(self._dead)
        for worker, status in self._live.items():
            key = worker.model, str(worker.replica)
            totals[key] = totals.get(key, ReplicaTotals()).plus(status)
        return dict(sorted(totals.items()))


def add_counters(a: EngineCounters, b: EngineCounters) -> EngineCounters:
    """Return the sum, field by field."""
    names = (counter.name for counter in dataclasses.fields(EngineCounters))
    return EngineCounters(**{name: getattr(a, name) + getattr(b, name) for name in names})


def add_histograms(old: Histogram, new: Histogram) -> Histogram:
    """Return the sum in the buckets of `new`.

    Where the bounds differ (another number of slots, say), an old bucket goes into the smallest new one that
    surely holds it, so that counts and sum stay right and only the resolution suffers.
    """
    counts = list(new.counts)
    for index, count in enumerate(old.counts):
        is_last = index == len(old.bounds)
        counts[len(new.bounds) if is_last else bisect_left(new.bounds, old.bounds[index])] += count
    return Histogram(new.bounds, tuple(counts), old.total + new.total)
