"""Tells the fleet what the machine has: devices, how much of them others use, what models need, who hangs.

Owns asking and the moments for it. Must not decide anything (`fleet.py` does): what it finds becomes events.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import psutil

from router.catalog import Catalog, ModelSpec
from router.device import Device, Footprint, Placement
from router.devices import DeviceMonitor
from router.events import DevicesChanged, DevicesMeasured, Event, ModelSized, WorkerHung, WorkerId, WorkerSized
from router.footprints import CouldFit, Footprints, OnKnown
from router.liveness import LivenessWatch
from router.placement import CPU, candidates
from worker.contract import WorkerStatus

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
MEASURE_EVERY_S = 5.0
"""While nobody waits for memory; otherwise with every look."""
MEMORY_BACK_WITHIN_S = 3.0
"""How long a driver may take to give back the memory of a process that has ended."""
_SLACK_BYTES = 256 * 2**20
_PAGE_BYTES = resource.getpagesize()


class Watched(Protocol):
    """What is needed of a worker here."""

    worker: WorkerId
    spec: ModelSpec
    placement: Placement

    @property
    def status(self) -> WorkerStatus | None: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def is_alive(self) -> bool: ...


class MachineWatch:
    """To be used between `start` and `close`."""

    def __init__(
        self,
        monitor: DeviceMonitor,
        make_footprints: Callable[[OnKnown, CouldFit], Footprints],
        *,
        emit: Callable[[Event], None],
        runs: Callable[[], Iterable[Watched]],
        waits_for_room: Callable[[], bool],
    ) -> None:
        self._monitor = monitor
        self._footprints = make_footprints(self._tell, self._could_fit)
        self._emit = emit
        self._runs = runs
        self._waits_for_room = waits_for_room
        self._liveness = LivenessWatch()
        self._used: Mapping[str, int] = {}
        self._measured_at_s = 0.0
        self._declared: object = None
        self.devices: Mapping[str, Device] = {}
        """By id."""

    # --- life ---

    async def discover(self, catalog: Catalog) -> None:
        """The fleet knows the devices, with the bounds that `catalog` sets."""
        if self._declared == catalog.devices:
            return
        self._declared = catalog.devices
        found = await self._monitor.discover(catalog.devices, self._ours())
        for problem in self._monitor.problems:
            logger.warning("%s", problem.describe(catalog.path))
        self.devices = {device.id: device for device in found}
        self._footprints.forget_fits()
        self._emit(DevicesChanged(found))
        self.measure()

    async def survey(self, catalog: Catalog) -> None:
        """What is known, or can be found out without a start, of the needs of all models goes to the fleet."""
        gpu = next((device.id for device in self.devices.values() if device.is_gpu and not device.is_declared), None)
        await self._footprints.survey(catalog.models.values(), gpu)

    async def run(self) -> None:
        """Look at memory and at the workers' signs of life, for ever."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._waits_for_room() or time.monotonic() - self._measured_at_s >= MEASURE_EVERY_S:
                self.measure()
            self.look()

    def look(self) -> None:
        """The fleet knows of workers that give no sign of life any more. To be called once a second."""
        looked_at = [(run.worker, run.status, run.spec.hang_timeout_s) for run in self._runs() if run.is_alive]
        for worker, detail in self._liveness.look(time.monotonic(), looked_at):
            self._emit(WorkerHung(worker, detail))

    async def close(self) -> None:
        """Everything that was learnt is on the disk."""
        await self._footprints.close()

    @property
    def hung(self) -> Mapping[WorkerId, str]:
        """Workers that give no sign of life, with the reason."""
        return self._liveness.hung

    # --- memory ---

    def measure(self) -> None:
        """The fleet knows what others use now."""
        self._measured_at_s = time.monotonic()
        used = self._monitor.measure(self._ours())
        if used != self._used:
            self._used = used
            self._emit(DevicesMeasured(used))

    def _ours(self) -> dict[str, int]:
        """Return the bytes of each device that our workers use out of what is reserved for them.

        What a worker uses beyond that counts as used by others, so that it is not promised to anybody.
        """
        ours: dict[str, int] = {}
        for run in self._runs():
            for device_id, reserved in run.placement.reserved.items():
                used = _private_bytes(run.pid) if device_id == CPU else _on_device(run.status, device_id, reserved)
                ours[device_id] = ours.get(device_id, 0) + min(used, reserved)
        return ours

    async def wait_for_memory(self, placement: Placement) -> None:
        """What a dead worker held of GPUs is free again, or the driver has had its time."""
        gpus = [id_ for id_ in placement.gpus if id_ in self.devices]
        if not gpus:
            return
        before = {id_: self._used.get(id_, 0) for id_ in gpus}
        give_up_at_s = time.monotonic() + MEMORY_BACK_WITHIN_S
        while time.monotonic() < give_up_at_s:
            used = self._monitor.measure(self._ours())
            if all(used.get(id_, 0) <= before[id_] + _SLACK_BYTES for id_ in gpus):
                return
            await asyncio.sleep(0.05)

    # --- needs of models ---

    def context_cap(self, spec: ModelSpec) -> int | None:
        """Return the most tokens that an automatic context may have so that the model fits; None = no cap."""
        return self._footprints.context_cap(spec)

    def _could_fit(self, spec: ModelSpec, footprint: Footprint) -> bool:
        return bool(candidates(spec.policy(), footprint, tuple(self.devices.values())))

    def _tell(self, model: str, footprint: Footprint, load_s: float | None) -> None:
        """The fleet knows what a worker of `model` needs."""
        self._emit(ModelSized(model, footprint, load_s))

    async def size(self, worker: WorkerId, spec: ModelSpec, path: Path) -> None:
        """Right before its process starts, the fleet knows what the worker needs and what is free."""
        footprint = await self._footprints.size(spec, path)
        if footprint is not None:
            self.measure()
            self._emit(WorkerSized(worker, footprint))

    def learn(self, worker: WorkerId, spec: ModelSpec, path: Path, status: WorkerStatus) -> None:
        """What a worker that has just become ready uses is believed from now on."""
        footprint = self._footprints.learn(spec, path, status)
        if footprint is not None:
            self._emit(WorkerSized(worker, footprint))


def _on_device(status: WorkerStatus | None, device_id: str, reserved: int) -> int:
    """Return what the worker uses of a GPU; while it loads, as much of its reservation as it has progressed."""
    if status is None:
        return 0
    if status.device_bytes:
        return sum(status.device_bytes.get(device_id, {}).values()) or reserved
    return int(reserved * (status.progress or 0.0))


def _private_bytes(pid: int | None) -> int:
    """Return the memory that a process shares with nobody; 0 if it is gone. Source: proc(5), /proc/pid/statm."""
    if pid is None:
        return 0
    try:
        fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
        return (int(fields[1]) - int(fields[2])) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return _private_bytes_elsewhere(pid)


def _private_bytes_elsewhere(pid: int) -> int:
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss - getattr(memory, "shared", 0))
