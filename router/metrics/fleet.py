"""How the fleet stands, as families of `/metrics`: states, queues, leases and devices, from a snapshot at each scrape.

Owns those names and labels. Must not change, decide or wake anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from router.catalog import Catalog
from router.fleet_views import DeviceView, FleetSnapshot, ModelView
from router.lifecycle import LIVE, WorkerState
from router.metrics.families import Block, Family, Kind, Number, Sample, gauge, gauge_of
from router.shown_states import UNAVAILABLE

WORKER_STATES = (*(state.value for state in WorkerState), UNAVAILABLE)
"""Downloads and models of other servers are no states of workers."""

LIVE_STATES = tuple(state.value for state in WorkerState if state in LIVE)
"""Of workers that exist."""

DEVICE_MEMORY_KINDS = ("total", "usable", "reserved", "used_by_others", "free")


class FleetFamilies:
    """Families that come from a snapshot of the fleet. Remembers the blocks of models that have not changed."""

    def __init__(self, snapshot: Callable[[], FleetSnapshot], catalog: Callable[[], Catalog] | None) -> None:
        self._snapshot = snapshot
        self._catalog = catalog
        self._of_models: dict[str, tuple[object, _ModelBlocks]] = {}

    def families(self) -> Iterator[Family]:
        """Yield them as they are now."""
        fleet = self._snapshot()
        catalog = None if self._catalog is None else self._catalog()
        unavailable: frozenset[str] = frozenset()
        if catalog is not None:
            unavailable = frozenset(name for name, spec in catalog.models.items() if spec.problem is not None)
        yield gauge_of(
            "corral_models",
            "Models in the configuration in force; aliases are not counted.",
            None if catalog is None else len(catalog.models),
        )
        yield from self._models(fleet.models, unavailable)
        yield from _workers(fleet.models)
        yield from _devices(fleet.devices)

    def _models(self, views: Mapping[str, ModelView], unavailable: frozenset[str]) -> Iterator[Family]:
        before, self._of_models = self._of_models, {}
        for name, view in sorted(views.items()):
            now = UNAVAILABLE if name in unavailable and view.state is WorkerState.UNLOADED else view.state.value
            # Of a thousand models most have never been started: their eight zeros would be most of the page.
            is_fresh = view.num_starts == 0 and view.state is WorkerState.UNLOADED
            shown = (now, is_fresh, view.queue_length, view.oldest_wait_s or 0.0)
            known = before.get(name)
            blocks = known[1] if known is not None and known[0] == shown else _ModelBlocks(name, *shown)
            self._of_models[name] = shown, blocks
        of_models = [blocks for _, blocks in self._of_models.values()]
        yield Family(
            "corral_worker_state",
            Kind.GAUGE,
            "1 for the state that the model is in, 0 for others; a model that was never started shows its state alone.",
            [one.state for one in of_models],
        )
        yield gauge(
            "corral_queue_length",
            "Requests that wait in the router for a place on a worker.",
            *(one.queue_length for one in of_models),
        )
        yield gauge(
            "corral_queue_oldest_seconds",
            "How long the oldest of these requests has waited, in seconds; 0 = none waits.",
            *(one.queue_oldest for one in of_models),
        )


class _OneOf(Block):
    """1 for one value of a label, 0 for the others."""

    __slots__ = ("_now", "_values")

    def __init__(self, name: str, labels: Mapping[str, str], values: Sequence[str], now: str) -> None:
        super().__init__(name, labels)
        self._values = values
        self._now = now

    def samples(self) -> Iterator[Sample]:
        for value in self._values:
            yield Sample(self.name, {**self.labels, "state": value}, float(value == self._now))


class _ModelBlocks:
    """What is shown of one model."""

    __slots__ = ("queue_length", "queue_oldest", "state")

    def __init__(self, name: str, now: str, is_fresh: bool, queue_length: int, oldest_wait_s: float) -> None:
        labels = {"model": name}
        self.state = _OneOf("corral_worker_state", labels, (now,) if is_fresh else WORKER_STATES, now)
        self.queue_length = Number("corral_queue_length", labels, queue_length)
        self.queue_oldest = Number("corral_queue_oldest_seconds", labels, oldest_wait_s)


def _workers(views: Mapping[str, ModelView]) -> Iterator[Family]:
    number, held, most, reserved = [], [], [], []
    for name, view in sorted(views.items()):
        if view.residents:
            states = [resident.state.value for resident in view.residents]
            counted = {state: states.count(state) for state in LIVE_STATES}
            number += [Number("corral_workers", {"model": name, "state": one}, n) for one, n in counted.items()]
        for resident in view.residents:
            labels = {"model": name, "replica": str(resident.worker.replica)}
            if resident.max_leases:  # 0 before it is ready
                held.append(Number("corral_leases_held", labels, resident.num_leases))
                most.append(Number("corral_leases_max", labels, resident.max_leases))
            for device, num_bytes in resident.placement.reserved.items():
                reserved.append(Number("corral_worker_reserved_bytes", {**labels, "device": device}, num_bytes))
    yield gauge("corral_workers", "Worker processes that exist, by state; models without one are left out.", *number)
    yield gauge("corral_leases_held", "Requests that hold a place on the worker.", *held)
    yield gauge(
        "corral_leases_max",
        "Requests that may hold a place on the worker at the same time: its slots and a few more.",
        *most,
    )
    yield gauge(
        "corral_worker_reserved_bytes",
        "Memory of each device that is reserved for the worker, in bytes. Tells on which devices it runs.",
        *reserved,
    )


def _devices(devices: Sequence[DeviceView]) -> Iterator[Family]:
    memory, facts = [], []
    for device in devices:
        sizes = (
            device.total_bytes,
            device.usable_bytes,
            device.reserved_bytes,
            device.used_by_others_bytes,
            device.free_bytes,
        )
        for kind, size in zip(DEVICE_MEMORY_KINDS, sizes, strict=True):
            if size is not None:
                memory.append(Number("corral_device_memory_bytes", {"device": device.id, "kind": kind}, size))
        labels = {"device": device.id, "kind": device.kind, "description": device.description}
        facts.append(Number("corral_device_info", labels, 1))
    yield gauge(
        "corral_device_memory_bytes",
        "Memory of each device in bytes, by kind: total; usable, which is the budget for models; reserved for workers; "
        "used_by_others; free, which is what further workers may get. What is not known is left out.",
        *memory,
    )
    yield gauge(
        "corral_device_info",
        "Always 1: the kind of each device (cpu, gpu, integrated), and what its driver calls it.",
        *facts,
    )
