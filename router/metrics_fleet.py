"""How the fleet stands, as families of `/metrics`: states, queues and devices, from a snapshot at each scrape.

Owns those names and labels. Must not change, decide or wake anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.catalog import Catalog
from router.fleet_views import DeviceView, FleetSnapshot, ModelView
from router.lifecycle import WorkerState
from router.shown_states import UNAVAILABLE

WORKER_STATES = (*(state.value for state in WorkerState), UNAVAILABLE)
"""Downloads and models of other servers are no states of workers."""


class FleetCollector(Collector):
    """Families that come from a snapshot of the fleet."""

    def __init__(self, snapshot: Callable[[], FleetSnapshot], catalog: Callable[[], Catalog] | None) -> None:
        self._snapshot = snapshot
        self._catalog = catalog

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the fleet may not be there yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        fleet = self._snapshot()
        yield from _models(fleet.models, self._unavailable())
        yield _devices(fleet.devices)

    def _unavailable(self) -> frozenset[str]:
        if self._catalog is None:
            return frozenset()
        return frozenset(name for name, spec in self._catalog().models.items() if spec.problem is not None)


def _models(views: Mapping[str, ModelView], unavailable: frozenset[str]) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "corral_worker_state",
        "1 for the state that the model is in, 0 for the others; a model that was never started shows its one state.",
        labels=["model", "state"],
    )
    length = GaugeMetricFamily("corral_queue_length", "Requests that wait for a place on a worker.", labels=["model"])
    oldest = GaugeMetricFamily(
        "corral_queue_oldest_seconds", "How long the oldest of them has waited; 0 = none waits.", labels=["model"]
    )
    for name, view in sorted(views.items()):
        now = UNAVAILABLE if name in unavailable and view.state is WorkerState.UNLOADED else view.state.value
        # Of a thousand models most have never been started: their eight zeros would be most of the page.
        is_fresh = view.num_starts == 0 and view.state is WorkerState.UNLOADED
        for each in (now,) if is_fresh else WORKER_STATES:
            state.add_metric([name, each], float(each == now))
        length.add_metric([name], view.queue_length)
        oldest.add_metric([name], view.oldest_wait_s or 0.0)
    yield from (state, length, oldest)


def _devices(devices: Sequence[DeviceView]) -> Metric:
    family = GaugeMetricFamily(
        "corral_device_memory_bytes",
        "Memory of each device, by kind: total, usable for models, reserved for workers, used_by_others.",
        labels=["device", "kind"],
    )
    for device in devices:
        family.add_metric([device.id, "total"], device.total_bytes)
        family.add_metric([device.id, "usable"], device.usable_bytes)
        family.add_metric([device.id, "reserved"], device.reserved_bytes)
        family.add_metric([device.id, "used_by_others"], device.used_by_others_bytes)
    return family
