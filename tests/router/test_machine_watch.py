"""What the fleet is told of the machine, and when."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from router.catalog import Catalog, DeviceSpec, ModelSpec
from router.device import NOWHERE, Device, DeviceKind, Footprint, FootprintSource, Placement
from router.events import DevicesChanged, DevicesMeasured, Event, ModelSized, WorkerHung, WorkerId, WorkerSized
from router.footprints import CouldFit, Footprints, IsBusy, OnKnown
from router.machine_watch import MachineWatch
from tests.support.stub_world import eventually
from worker.contract import Phase, WorkerStatus

A1 = WorkerId("a", 0, 1)
SPEC = ModelSpec("a", "a.gguf", Path("/models"))
GB = 10**9
CPU = Device("CPU", DeviceKind.CPU, 16 * GB)
GPU = Device("CUDA0", DeviceKind.GPU, 24 * GB)
NEEDS = Footprint(3 * GB, source=FootprintSource.PROBE)


class FakeMonitor:
    """A machine whose devices and their use a test sets."""

    def __init__(self) -> None:
        self.problems: tuple[Any, ...] = ()
        self.used: dict[str, int] = {"CPU": GB}
        self.told: list[dict[str, int]] = []
        self.num_discoveries = 0
        self.warning: str | None = None
        self.gate: asyncio.Event | None = None
        """Not set: the machine has not answered yet."""

    async def discover(self, declared: Mapping[str, DeviceSpec], ours: Mapping[str, int]) -> tuple[Device, ...]:
        self.num_discoveries += 1
        if self.gate is not None:
            await self.gate.wait()
        return (CPU, *(replace(GPU, id=id_) for id_ in declared))

    def measure(self, ours: Mapping[str, int]) -> dict[str, int]:
        self.told.append(dict(ours))
        return dict(self.used)


class FakeFootprints:
    """Knows what a test says."""

    def __init__(self, on_known: OnKnown, is_busy: IsBusy) -> None:
        self.on_known = on_known
        self.is_busy = is_busy
        self.known: Footprint | None = NEEDS
        self.surveys: list[str | None] = []
        """The GPU of each."""

    def forget_fits(self) -> None:
        pass

    async def survey(self, specs: Iterable[ModelSpec], gpu: str | None) -> None:
        self.surveys.append(gpu)

    async def close(self) -> None:
        pass

    async def size(self, spec: ModelSpec, path: Path) -> Footprint | None:
        return self.known

    def learn(self, spec: ModelSpec, path: Path, status: WorkerStatus) -> Footprint | None:
        return None if self.known is None else replace(self.known, source=FootprintSource.MEASURED)


@dataclass
class Run:
    """One worker as the watch sees it."""

    worker: WorkerId = A1
    spec: ModelSpec = SPEC
    placement: Placement = NOWHERE
    status: WorkerStatus | None = None
    pid: int | None = None
    is_alive: bool = True


@dataclass
class Scene:
    """A watch with everything around it."""

    monitor: FakeMonitor = field(default_factory=FakeMonitor)
    events: list[Event] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        def make(on_known: OnKnown, could_fit: CouldFit, is_busy: IsBusy) -> Footprints:
            self.footprints = FakeFootprints(on_known, is_busy)
            return cast("Footprints", self.footprints)

        self.watch = MachineWatch(
            cast("Any", self.monitor),
            make,
            emit=self.events.append,
            runs=lambda: self.runs,
            waits_for_room=lambda: False,
        )

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def catalog(**devices: DeviceSpec) -> Catalog:
    return Catalog({"a": SPEC}, devices=devices)


async def test_the_fleet_learns_the_devices_and_at_once_how_much_of_them_others_use(scene: Scene) -> None:
    await scene.watch.discover(catalog())
    assert scene.events == [DevicesChanged((CPU,)), DevicesMeasured({"CPU": GB})]


async def test_devices_are_looked_for_again_only_when_their_bounds_have_changed(scene: Scene) -> None:
    await scene.watch.discover(catalog())
    await scene.watch.discover(catalog())
    assert scene.monitor.num_discoveries == 1
    await scene.watch.discover(catalog(G=DeviceSpec("G", memory_bytes=GB)))
    assert [device.id for device in scene.of(DevicesChanged)[-1].devices] == ["CPU", "G"]


async def test_a_measurement_that_says_nothing_new_is_no_event(scene: Scene) -> None:
    scene.watch.measure()
    scene.watch.measure()
    scene.monitor.used = {"CPU": 2 * GB}
    scene.watch.measure()
    assert scene.of(DevicesMeasured) == [DevicesMeasured({"CPU": GB}), DevicesMeasured({"CPU": 2 * GB})]


async def test_what_a_worker_uses_beyond_its_reservation_counts_as_used_by_others(scene: Scene) -> None:
    scene.runs = [Run(placement=Placement({"CPU": 1000}), pid=os.getpid())]
    scene.watch.measure()
    assert scene.monitor.told == [{"CPU": 1000}], "this very process uses far more than the 1,000 bytes it was given"


async def test_a_reservation_that_is_not_used_yet_is_not_taken_off_what_others_use(scene: Scene) -> None:
    scene.runs = [Run(placement=Placement({"CPU": GB, "CUDA0": GB}, gpus=("CUDA0",)), pid=None)]
    scene.watch.measure()
    assert scene.monitor.told == [{"CPU": 0, "CUDA0": 0}]


@pytest.mark.parametrize(
    ("status", "used"),
    [
        (None, 0),
        (WorkerStatus(Phase.STARTING), 0),
        (WorkerStatus(Phase.LOADING), 0),
        (WorkerStatus(Phase.LOADING, progress=0.25), 250),
        (WorkerStatus(Phase.WARMING), 1000),
        (WorkerStatus(Phase.READY, device_bytes={"CUDA0": {"weights": 600, "kv": 300}}), 1000),
        (WorkerStatus(Phase.DRAINING), 1000),
    ],
)
async def test_what_a_worker_has_of_a_gpu_is_not_counted_twice(
    scene: Scene, status: WorkerStatus | None, used: int
) -> None:
    """Beside its reservation, in full once the file is read: the driver's part is not in what llama.cpp tells."""
    scene.runs = [Run(placement=Placement({"CUDA0": 1000}, gpus=("CUDA0",)), status=status)]
    scene.watch.measure()
    assert scene.monitor.told == [{"CUDA0": used}]


async def test_a_search_for_devices_that_was_broken_off_is_made_again(scene: Scene) -> None:
    scene.monitor.gate = asyncio.Event()
    first = asyncio.create_task(scene.watch.discover(catalog()))
    await eventually(lambda: scene.monitor.num_discoveries)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    scene.monitor.gate.set()
    await asyncio.wait_for(scene.watch.discover(catalog()), 5)
    assert scene.of(DevicesChanged) == [DevicesChanged((CPU,))]


async def test_a_machine_that_could_not_be_asked_is_asked_until_it_tells(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.machine_watch.LOOK_EVERY_S", 0.005)
    monkeypatch.setattr("router.machine_watch.ASK_AGAIN_S", 0.01)
    scene.monitor.warning = "the driver does not answer"
    declared = catalog(CUDA0=DeviceSpec("CUDA0"))
    await scene.watch.discover(declared)
    scene.watch.start()
    await eventually(lambda: scene.monitor.num_discoveries > 3)
    assert len(scene.of(DevicesChanged)) == 1, "nothing new is known"
    scene.monitor.warning = None
    scene.monitor.gate = asyncio.Event()  # whoever asks from now on waits
    await scene.watch.close()


async def test_it_tells_how_late_each_look_was(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.machine_watch.LOOK_EVERY_S", 0.001)
    told: list[float] = []
    scene.watch.on_lag = told.append
    scene.watch.start()
    await asyncio.sleep(0)
    time.sleep(0.05)  # noqa: ASYNC251 - the loop is held up, which is what the test is about
    await eventually(lambda: told)
    assert 0.045 <= told[0] < 5
    await scene.watch.close()


async def test_devices_that_are_told_late_go_to_the_fleet_and_models_are_planned_on_them(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.machine_watch.LOOK_EVERY_S", 0.005)
    monkeypatch.setattr("router.machine_watch.ASK_AGAIN_S", 0.01)
    declared = catalog(CUDA0=DeviceSpec("CUDA0"))
    await scene.watch.discover(declared)
    scene.monitor.warning = "the driver does not answer"
    discover = scene.monitor.discover

    async def answer(*args: Any) -> tuple[Device, ...]:
        scene.monitor.warning = None
        return await discover(*args)

    monkeypatch.setattr(scene.monitor, "discover", answer)
    scene.watch.start()
    await eventually(lambda: scene.footprints.surveys == ["CUDA0"])
    assert len(scene.of(DevicesChanged)) == 2
    assert scene.monitor.num_discoveries == 2
    await scene.watch.close()


@pytest.mark.parametrize(
    ("run", "is_busy"),
    [
        (Run(), True),
        (Run(status=WorkerStatus(Phase.LOADING)), True),
        (Run(status=WorkerStatus(Phase.WARMING)), True),
        (Run(status=WorkerStatus(Phase.READY)), False),
        (Run(is_alive=False), False),
    ],
)
async def test_llama_cpp_is_not_asked_while_a_worker_loads(scene: Scene, run: Run, is_busy: bool) -> None:
    assert not scene.footprints.is_busy()
    scene.runs = [Run(status=WorkerStatus(Phase.READY)), run]
    assert scene.footprints.is_busy() is is_busy


async def test_right_before_a_start_memory_is_measured_and_then_the_need_is_told(scene: Scene) -> None:
    await scene.watch.discover(catalog())
    scene.events.clear()
    scene.monitor.used = {"CPU": 2 * GB}
    await scene.watch.size(A1, SPEC, Path("/models/a.gguf"))
    assert scene.events == [DevicesMeasured({"CPU": 2 * GB}), WorkerSized(A1, NEEDS)]


async def test_a_start_waits_until_the_devices_are_known(scene: Scene) -> None:
    sizing = asyncio.create_task(scene.watch.size(A1, SPEC, Path("/models/a.gguf")))
    await asyncio.sleep(0.02)
    assert not sizing.done()
    await scene.watch.discover(catalog())
    await asyncio.wait_for(sizing, 2.0)
    assert isinstance(scene.events[-1], WorkerSized)


async def test_a_model_whose_needs_nobody_knows_starts_all_the_same(scene: Scene) -> None:
    await scene.watch.discover(catalog())
    scene.footprints.known = None
    await scene.watch.size(A1, SPEC, Path("/models/a.gguf"))
    assert not scene.of(WorkerSized)


async def test_what_was_measured_after_a_load_is_believed(scene: Scene) -> None:
    scene.watch.learn(A1, SPEC, Path("/models/a.gguf"), WorkerStatus(Phase.READY))
    assert scene.of(WorkerSized)[0].footprint.source is FootprintSource.MEASURED


async def test_what_a_survey_finds_out_goes_to_the_fleet(scene: Scene) -> None:
    scene.footprints.on_known("a", NEEDS, 2.5)
    assert scene.events == [ModelSized("a", NEEDS, 2.5)]


async def test_a_worker_that_gives_no_sign_of_life_is_told_once(scene: Scene) -> None:
    stuck = WorkerStatus(Phase.READY, at_s=time.monotonic(), step=1, step_at_s=time.monotonic(), has_work=True)
    scene.runs = [Run(spec=replace(SPEC, hang_timeout_s=0.001), status=stuck)]
    for _ in range(3):
        scene.watch.look()
        time.sleep(0.01)  # noqa: ASYNC251 - the watch compares its own looks with the clock
    (hung,) = scene.of(WorkerHung)
    assert hung.worker == A1
    assert hung.detail
    assert list(scene.watch.hung) == [A1]


DEAD = Run(placement=Placement({"CUDA0": 4 * GB}, gpus=("CUDA0",)), status=WorkerStatus(Phase.READY))


async def given_a_dead_worker_on_a_gpu(scene: Scene) -> None:
    """The process is gone, but the driver still counts its 4 GB, as used by others."""
    scene.monitor.used = {"CPU": 0, "CUDA0": 0}
    scene.runs = [DEAD]  # a run is there until its exit has been told
    await scene.watch.discover(catalog(CUDA0=DeviceSpec("CUDA0")))
    scene.monitor.used = {"CPU": 0, "CUDA0": 4 * GB}


async def test_the_memory_of_a_dead_worker_is_waited_for_until_the_driver_has_given_it_back(scene: Scene) -> None:
    await given_a_dead_worker_on_a_gpu(scene)
    waiting = asyncio.create_task(scene.watch.wait_for_memory(A1, DEAD.placement))
    await asyncio.sleep(0.12)
    assert not waiting.done()
    assert scene.monitor.told[-1] == {}, "a dead worker uses nothing of what is counted"
    scene.monitor.used = {"CPU": 0, "CUDA0": 0}
    await asyncio.wait_for(waiting, 2.0)


async def test_memory_that_a_driver_does_not_give_back_is_not_waited_for_for_ever(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.machine_watch.MEMORY_BACK_WITHIN_S", 0.2)
    await given_a_dead_worker_on_a_gpu(scene)
    await asyncio.wait_for(scene.watch.wait_for_memory(A1, DEAD.placement), 2.0)
    assert len(scene.monitor.told) > 2
