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
from router.device import CPU, Device, Footprint, Placement
from router.devices import DeviceMonitor
from router.events import DevicesChanged, DevicesMeasured, Event, ModelSized, WorkerHung, WorkerId, WorkerSized
from router.footprints import CouldFit, Footprints, IsBusy, OnKnown
from router.liveness import LivenessWatch
from router.model_headers import Locator, ModelHeaders
from router.placement import candidates
from router.tasks import Tasks
from worker.contract import Phase, WorkerStatus

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
MEASURE_EVERY_S = 5.0
"""While nobody waits for memory; otherwise with every look."""
MEMORY_BACK_WITHIN_S = 3.0
"""How long a driver may take to give back the memory of a process that has ended."""
ASK_AGAIN_S = 60.0
"""For devices, while llama.cpp could not be asked for them."""
_LOADING = frozenset({Phase.STARTING, Phase.LOADING, Phase.WARMING})
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
        make_footprints: Callable[[OnKnown, CouldFit, IsBusy], Footprints],
        *,
        emit: Callable[[Event], None],
        runs: Callable[[], Iterable[Watched]],
        waits_for_room: Callable[[], bool],
    ) -> None:
        self._monitor = monitor
        self._footprints = make_footprints(self._tell, self._could_fit, self._is_loading)
        self._emit = emit
        self._runs = runs
        self._waits_for_room = waits_for_room
        self._liveness = LivenessWatch()
        self._used: Mapping[str, int] = {}
        self._measured_at_s = 0.0
        self._declared: object = None
        """The configured devices that `devices` were made with."""
        self._catalog: Catalog | None = None
        """The last one whose devices were asked for."""
        self._finding = asyncio.Lock()
        self._asked_at_s = 0.0
        self._asking: asyncio.Task[None] | None = None
        self._tasks = Tasks()
        self._timer: asyncio.TimerHandle | None = None
        self._is_known = asyncio.Event()
        self.on_lag: Callable[[float], None] = lambda _: None
        """Told once a second how late that second was."""
        self.devices: Mapping[str, Device] = {}
        """By id."""

    # --- life ---

    async def discover(self, catalog: Catalog) -> None:
        """The fleet knows the devices, with the bounds that `catalog` sets."""
        try:
            async with self._finding:
                self._catalog = catalog
                if self._declared != catalog.devices:
                    await self._find(catalog)
        finally:
            self._is_known.set()  # or never will be: workers wait no longer

    async def _find(self, catalog: Catalog, *, is_again: bool = False) -> None:
        found = await self._monitor.discover(catalog.devices, self._ours())
        self._declared = catalog.devices
        self._asked_at_s = time.monotonic()
        if is_again and self._monitor.warning is not None:
            return
        for problem in self._monitor.problems:
            logger.warning("%s", problem.describe(catalog.path))
        self.devices = {device.id: device for device in found}
        self._footprints.forget_fits()
        self._emit(DevicesChanged(found))
        self.measure()

    async def _ask_again(self) -> None:
        """The devices are known if the machine tells them now, and so is what models need on them."""
        async with self._finding:
            catalog = self._catalog
            if catalog is None or self._monitor.warning is None:
                return
            await self._find(catalog, is_again=True)
        if self._monitor.warning is None:
            await self.survey(catalog)

    async def survey(self, catalog: Catalog) -> None:
        """What is known, or can be found out without a start, of the needs of all models goes to the fleet."""
        gpu = next((device.id for device in self.devices.values() if device.is_gpu and not device.is_declared), None)
        await self._footprints.survey(catalog.models.values(), gpu)

    def start(self) -> None:
        """Memory and the workers' signs of life are looked at every second from now on."""
        self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look_around)

    def _look_around(self) -> None:
        if self._timer is not None:
            self.on_lag(asyncio.get_running_loop().time() - self._timer.when())
        self.start()  # first of all: a fault in one look must not end all later ones
        if self._waits_for_room() or time.monotonic() - self._measured_at_s >= MEASURE_EVERY_S:
            self.measure()
        self.look()
        if self._monitor.warning is not None and self._may_ask_again():
            self._asking = self._tasks.spawn(self._ask_again(), "asking for devices again")

    def _may_ask_again(self) -> bool:
        is_asking = self._asking is not None and not self._asking.done()
        return not is_asking and time.monotonic() - self._asked_at_s >= ASK_AGAIN_S

    def look(self) -> None:
        """The fleet knows of workers that give no sign of life any more. To be called once a second."""
        looked_at = [(run.worker, run.status, run.spec.hang_timeout_s) for run in self._runs() if run.is_alive]
        for worker, detail in self._liveness.look(time.monotonic(), looked_at):
            self._emit(WorkerHung(worker, detail))

    async def close(self) -> None:
        """Everything that was learnt is on the disk."""
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()
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

    def _ours(self, *, without: WorkerId | None = None) -> dict[str, int]:
        """Return the bytes of each device that our workers use out of what is reserved for them.

        What a worker uses beyond that counts as used by others, so that it is not promised to anybody.
        """
        ours: dict[str, int] = {}
        for run in self._runs():
            if run.worker == without:
                continue
            for device_id, reserved in run.placement.reserved.items():
                used = _private_bytes(run.pid) if device_id == CPU else _on_device(run.status, reserved)
                ours[device_id] = ours.get(device_id, 0) + min(used, reserved)
        return ours

    async def wait_for_memory(self, worker: WorkerId, placement: Placement) -> None:
        """What `worker`, whose process is gone, held of GPUs is free again, or the driver has had its time."""
        gpus = [id_ for id_ in placement.gpus if id_ in self.devices]
        if not gpus:
            return
        before = {id_: self._used.get(id_, 0) for id_ in gpus}
        give_up_at_s = time.monotonic() + MEMORY_BACK_WITHIN_S
        while time.monotonic() < give_up_at_s:
            used = self._monitor.measure(self._ours(without=worker))
            if all(used.get(id_, 0) <= before[id_] + _SLACK_BYTES for id_ in gpus):
                return
            await asyncio.sleep(0.05)

    # --- needs of models ---

    def context_cap(self, spec: ModelSpec) -> int | None:
        """Return the most tokens that an automatic context may have so that the model fits; None = no cap."""
        return self._footprints.context_cap(spec)

    def _could_fit(self, spec: ModelSpec, footprint: Footprint) -> bool:
        return bool(candidates(spec.policy(), footprint, tuple(self.devices.values())))

    def _is_loading(self) -> bool:
        """Return whether a worker is on its way, which needs the disk and the cores for itself."""
        return any(run.is_alive and (run.status is None or run.status.phase in _LOADING) for run in self._runs())

    def _tell(self, model: str, footprint: Footprint, load_s: float | None) -> None:
        """The fleet knows what a worker of `model` needs."""
        self._emit(ModelSized(model, footprint, load_s))

    async def size(self, worker: WorkerId, spec: ModelSpec, path: Path) -> None:
        """Right before its process starts, the fleet knows what the worker needs and what is free.

        Waits until the devices are known: a driver may take long to tell, right after the machine's start.
        """
        await self._is_known.wait()
        footprint = await self._footprints.size(spec, path)
        if footprint is not None:
            self.measure()
            self._emit(WorkerSized(worker, footprint))

    def learn(self, worker: WorkerId, spec: ModelSpec, path: Path, status: WorkerStatus) -> None:
        """What a worker that has just become ready uses is believed from now on."""
        footprint = self._footprints.learn(spec, path, status)
        if footprint is not None:
            self._emit(WorkerSized(worker, footprint))


def make_machine_watch(
    monitor: DeviceMonitor,
    *,
    cache_dir: Path | None,
    store: Locator,
    headers: ModelHeaders,
    emit: Callable[[Event], None],
    runs: Callable[[], Iterable[Watched]],
    waits_for_room: Callable[[], bool],
    may_probe: bool,
) -> MachineWatch:
    """Return a watch that keeps what models need in `cache_dir`; None = across restarts nothing is kept.

    Without `may_probe` llama.cpp is not asked what they need.
    """
    folder = None if cache_dir is None else cache_dir / "footprints"

    def make_footprints(on_known: OnKnown, could_fit: CouldFit, is_busy: IsBusy) -> Footprints:
        return Footprints(folder, store, headers, on_known, could_fit=could_fit, is_busy=is_busy, may_probe=may_probe)

    return MachineWatch(monitor, make_footprints, emit=emit, runs=runs, waits_for_room=waits_for_room)


def _on_device(status: WorkerStatus | None, reserved: int) -> int:
    """Return what the worker uses of a GPU: while it loads, as much of its reservation as it has read of the file.

    Afterwards all of it. What llama.cpp tells of its buffers is less: the driver's own part is not in it.
    """
    if status is None or status.phase is Phase.STARTING:
        return 0
    return int(reserved * (status.progress or 0.0)) if status.phase is Phase.LOADING else reserved


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
