"""What workers count and use, as families of `/metrics`: from their status links, over the lives of their processes.

Owns those names and labels. Must not ask a worker for anything: it shows what `worker_totals.py` has been fed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from router.worker_totals import WorkerTotals
from worker.contract import Histogram as WorkerHistogram
from worker.contract import SlotState

_WORKER_HISTOGRAMS = {
    "time_to_first_token_seconds": "From a request's arrival at the worker to its first token.",
    "inter_token_seconds": "Between two tokens of one request.",
    "batch_rows": "Rows (tokens) of one forward pass.",
}


class WorkerCollector(Collector):
    """Families that come from the status links."""

    def __init__(self, totals: WorkerTotals) -> None:
        self._totals = totals

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the names are fixed, and asking would cost a collection at start."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._counters()
        yield from self._histograms()
        yield from self._gauges()

    def _counters(self) -> Iterator[Metric]:
        prompt = CounterMetricFamily(
            "corral_prompt_tokens",
            "Prompt tokens, by where their KV came from: computed, or cached from an earlier request.",
            labels=["model", "source"],
        )
        generated = CounterMetricFamily("corral_generated_tokens", "Tokens generated.", labels=["model"])
        prefill = CounterMetricFamily(
            "corral_prefill_seconds", "Time in forward passes that computed prompts.", labels=["model"]
        )
        generation = CounterMetricFamily(
            "corral_generation_seconds", "Time in forward passes that generated tokens.", labels=["model"]
        )
        forward = CounterMetricFamily("corral_forward", "Forward passes.", labels=["model"])
        forward_seconds = CounterMetricFamily("corral_forward_seconds", "Time in forward passes.", labels=["model"])
        step_seconds = CounterMetricFamily(
            "corral_step_seconds", "Time in whole steps: forward passes and the work around them.", labels=["model"]
        )
        parked = CounterMetricFamily(
            "corral_parked_sequences",
            "Running answers that had to make room for others and went on later.",
            labels=["model"],
        )
        failed = CounterMetricFamily(
            "corral_failed_steps", "Forward passes and KV operations that failed and were made good.", labels=["model"]
        )
        drafted = CounterMetricFamily(
            "corral_drafted_tokens", "Tokens that were drafted ahead and verified in a forward pass.", labels=["model"]
        )
        accepted = CounterMetricFamily("corral_accepted_tokens", "Drafted tokens that were right.", labels=["model"])
        for model, totals in self._totals.by_model().items():
            counters = totals.counters
            prompt.add_metric([model, "computed"], counters.prompt_tokens_computed)
            prompt.add_metric([model, "cached"], counters.prompt_tokens_cached)
            generated.add_metric([model], counters.generated_tokens)
            prefill.add_metric([model], counters.prefill_seconds)
            generation.add_metric([model], counters.generation_seconds)
            forward.add_metric([model], counters.forwards)
            forward_seconds.add_metric([model], counters.forward_seconds)
            step_seconds.add_metric([model], counters.step_seconds)
            parked.add_metric([model], counters.parked)
            failed.add_metric([model], counters.failed_steps)
            drafted.add_metric([model], counters.drafted_tokens)
            accepted.add_metric([model], counters.accepted_tokens)
        yield from (prompt, generated, prefill, generation, forward, forward_seconds, step_seconds, parked, failed)
        yield from (drafted, accepted)

    def _histograms(self) -> Iterator[Metric]:
        totals_by_model = self._totals.by_model()
        for name, documentation in _WORKER_HISTOGRAMS.items():
            family = HistogramMetricFamily(f"corral_{name}", documentation, labels=["model"])
            for model, totals in totals_by_model.items():
                if (histogram := totals.histograms.get(name)) is not None:
                    family.add_metric([model], list(_cumulative(histogram)), histogram.total)
            yield family

    def _gauges(self) -> Iterator[Metric]:
        slots: dict[tuple[str, ...], float] = {}
        cells: dict[tuple[str, ...], float] = {}
        memory: dict[tuple[str, ...], float] = {}
        on_devices: dict[tuple[str, ...], float] = {}
        for worker, status in self._totals.live().items():
            if status.slots:
                for state in SlotState:
                    slots.setdefault((worker.model, state.value.lower()), 0)
            for slot in status.slots:
                slots[worker.model, slot.state.value.lower()] += 1
            for kind, count in status.kv_cells.items():
                cells[worker.model, kind] = cells.get((worker.model, kind), 0) + count
            for kind, size in status.memory_bytes.items():
                memory[worker.model, kind] = memory.get((worker.model, kind), 0) + size
            for device, sizes in status.device_bytes.items():
                for kind, size in sizes.items():
                    key = (worker.model, device, kind)
                    on_devices[key] = on_devices.get(key, 0) + size
        yield _gauge("corral_slots", "Slots of loaded models, by state.", ["model", "state"], slots)
        yield _gauge("corral_kv_cells", "KV cells of loaded models, by kind.", ["model", "kind"], cells)
        yield _gauge(
            "corral_worker_memory_bytes",
            "Memory of worker processes, by kind: `private` is what no other process could share.",
            ["model", "kind"],
            memory,
        )
        yield _gauge(
            "corral_worker_device_bytes",
            "Memory that workers have allocated on each device, by kind: weights, kv, compute.",
            ["model", "device", "kind"],
            on_devices,
        )


def _gauge(
    name: str, documentation: str, labels: list[str], values: Mapping[tuple[str, ...], float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, documentation, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(list(key), value)
    return family


def _cumulative(histogram: WorkerHistogram) -> Iterator[tuple[str, float]]:
    """Yield upper bounds and running sums, as Prometheus wants them."""
    running = 0
    for bound, count in zip((*map(str, map(float, histogram.bounds)), "+Inf"), histogram.counts, strict=True):
        running += count
        yield bound, running
