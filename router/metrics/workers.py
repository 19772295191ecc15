"""What workers count and use, as families of `/metrics`: from their status links, over the lives of their processes.

Owns those names and labels. Must not ask a worker for anything: it shows what `worker_totals.py` has been fed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from router.events import WorkerId
from router.metrics.families import Block, Buckets, Family, Kind, Number, gauge
from router.worker_totals import Replica, ReplicaTotals, WorkerTotals
from worker.contract import EngineCounters, Phase, SlotState, WorkerStatus

SOURCES = {"computed": "prompt_tokens_computed", "cached": "prompt_tokens_cached"}
RESULTS = {"hit": "prefix_hits", "miss": "prefix_misses"}
EVICTED = {"cells": "prefixes_demoted", "host": "prefixes_dropped"}
SLOT_STATES = tuple(state.value.lower() for state in SlotState)

_TOKENS = (
    (
        "prompt_tokens",
        "Prompt tokens, by where their KV came from: computed in a forward pass, or cached: what the prefix cache had.",
        ("source", SOURCES),
    ),
    ("generated_tokens", "Tokens generated.", "generated_tokens"),
)
"""The only counters of models on other servers, which have no replica."""

_COUNTERS = (
    ("prefill_seconds", "Time in forward passes spent on prompts, in seconds.", "prefill_seconds"),
    ("generation_seconds", "Time in forward passes spent on tokens of answers, in seconds.", "generation_seconds"),
    ("forward", "Forward passes.", "forwards"),
    ("forward_seconds", "Time in forward passes, in seconds.", "forward_seconds"),
    (
        "step_seconds",
        "Time in whole steps, in seconds: forward passes and the work around them, such as sampling.",
        "step_seconds",
    ),
    (
        "prefix_cache_requests",
        "Requests by whether a part of their prompt was cached (hit) or nothing was (miss).",
        ("result", RESULTS),
    ),
    (
        "prefix_cache_evictions",
        "Finished prompts that had to go: they lost their KV cells (cells) or their place in host memory (host).",
        ("kind", EVICTED),
    ),
    ("parked_sequences", "Running answers that had to make room for others and went on later.", "parked"),
    ("failed_steps", "Forward passes and KV operations that failed and were made good.", "failed_steps"),
    ("drafted_tokens", "Tokens that were drafted ahead and verified in a forward pass.", "drafted_tokens"),
    ("accepted_tokens", "Drafted tokens that were right.", "accepted_tokens"),
)
"""Name without prefix, help, and the field of `EngineCounters`, or a label with a field for each of its values."""

_HISTOGRAMS = {
    "time_to_first_token_seconds": "From a request's arrival at the worker to its first token, in seconds: the wait "
    "for a slot, and the prompt.",
    "inter_token_seconds": "Between two tokens of one answer, in seconds.",
    "batch_rows": "Rows of a forward pass: a row is one token of a prompt or of an answer.",
    "batch_busy_slots": "Slots that had rows in a forward pass. Passes of embeddings have no slots.",
}


def _stuck_s(status: WorkerStatus, now_s: float) -> float | None:
    if status.phase not in {Phase.READY, Phase.DRAINING}:
        return None
    return max(0.0, now_s - status.step_at_s) if status.has_work else 0.0


_GAUGES: Mapping[str, tuple[str, Callable[[WorkerStatus, float], float | None]]] = {
    "batch_rows_max": (
        "Rows that a forward pass can have; corral_batch_rows against it is how full passes are.",
        lambda status, _: status.max_rows or None,
    ),
    "worker_queue_length": (
        "Requests inside the worker that hold no slot yet.",
        lambda status, _: status.queue_length if status.facts else None,
    ),
    "worker_threads": ("CPU threads that the worker may use now.", lambda status, _: status.num_threads or None),
    "worker_context_tokens": (
        "Tokens that one request may have, prompt and answer together.",
        lambda status, _: status.facts.context if status.facts else None,
    ),
    "worker_status_age_seconds": (
        "Since the worker last reported on its status link, in seconds; it does so once a second.",
        lambda status, now_s: max(0.0, now_s - status.at_s),
    ),
    "worker_stuck_seconds": (
        "For how long the worker's engine has had work without completing a pass, in seconds; 0 = it has no work.",
        _stuck_s,
    ),
}

_BY_KIND = {
    "slots": "Slots of loaded models, by state.",
    "kv_cells": "KV cells of loaded models, by kind: used, of which shared by several sequences and idle (kept for "
    "later prompts alone); total.",
    "worker_memory_bytes": "Memory of worker processes in bytes, by kind: rss, pss; private is what no other process "
    "could share, process the part of it that llama.cpp has not allocated; weights is the size of the model.",
    "worker_device_bytes": "Memory that workers have allocated on each device in bytes, by kind: weights, kv, compute.",
}


class WorkerFamilies:
    """Families that come from the status links. Remembers the blocks of workers that are gone."""

    def __init__(self, totals: WorkerTotals, clock: Callable[[], float] = time.monotonic) -> None:
        self._totals = totals
        self._clock = clock
        self._kept: dict[Replica, tuple[ReplicaTotals, dict[str, list[Block]]]] = {}

    def families(self) -> Iterator[Family]:
        """Yield them as they are now."""
        found = [self._blocks(key, totals) for key, totals in self._totals.by_replica().items()]
        for name, documentation, _ in (*_TOKENS, *_COUNTERS):
            blocks = [block for one in found for block in one.get(name, ())]
            yield Family(f"corral_{name}", Kind.COUNTER, documentation, blocks)
        for name, documentation in _HISTOGRAMS.items():
            blocks = [block for one in found for block in one.get(name, ())]
            yield Family(f"corral_{name}", Kind.HISTOGRAM, documentation, blocks)
        yield from _gauges(self._totals.live(), self._clock())

    def _blocks(self, key: Replica, totals: ReplicaTotals) -> dict[str, list[Block]]:
        kept = self._kept.get(key)
        if kept is None or kept[0] is not totals:
            kept = self._kept[key] = totals, _blocks_of(key, totals)
        return kept[1]


def _blocks_of(key: Replica, totals: ReplicaTotals) -> dict[str, list[Block]]:
    """Return what is shown of one replica, by the family's name without prefix."""
    model, replica = key
    labels = _labels_of(model, replica)
    found: dict[str, list[Block]] = {}
    for name, _, source in (*_TOKENS, *_COUNTERS) if replica else _TOKENS:
        if isinstance(source, str):
            found[name] = [_count(name, labels, totals.counters, source)]
        else:
            label, fields = source
            found[name] = [
                _count(name, {**labels, label: value}, totals.counters, field) for value, field in fields.items()
            ]
    for name, one in totals.histograms.items():
        found[name] = [Buckets(f"corral_{name}", labels, one.bounds, one.counts, one.total)]
    return found


def _labels_of(model: str, replica: str) -> dict[str, str]:
    return {"model": model, "replica": replica} if replica else {"model": model}


def _count(name: str, labels: Mapping[str, str], counters: EngineCounters, field: str) -> Number:
    return Number(f"corral_{name}", labels, getattr(counters, field), "_total")


def _gauges(live: Mapping[WorkerId, WorkerStatus], now_s: float) -> Iterator[Family]:
    workers = [(_labels_of(worker.model, str(worker.replica)), live[worker]) for worker in sorted(live)]
    for name, (documentation, value_of) in _GAUGES.items():
        values = [(labels, value_of(status, now_s)) for labels, status in workers]
        blocks = [Number(f"corral_{name}", labels, value) for labels, value in values if value is not None]
        yield gauge(f"corral_{name}", documentation, *blocks)
    found: dict[str, list[Number]] = {name: [] for name in _BY_KIND}
    for labels, status in workers:
        states = [slot.state.value.lower() for slot in status.slots]
        for state in SLOT_STATES if states else ():
            found["slots"].append(Number("corral_slots", {**labels, "state": state}, states.count(state)))
        for name, sizes in (("kv_cells", status.kv_cells), ("worker_memory_bytes", status.memory_bytes)):
            found[name] += [Number(f"corral_{name}", {**labels, "kind": kind}, size) for kind, size in sizes.items()]
        for device, sizes in status.device_bytes.items():
            of_device = {**labels, "device": device}
            found["worker_device_bytes"] += [
                Number("corral_worker_device_bytes", {**of_device, "kind": kind}, size) for kind, size in sizes.items()
            ]
    for name, documentation in _BY_KIND.items():
        yield gauge(f"corral_{name}", documentation, *found[name])
