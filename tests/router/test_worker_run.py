"""One start of a worker: what happens around its process, in which order, and what becomes of it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from router import spares as spares_module
from router import worker_run
from router.catalog import Hooks, ModelSpec
from router.device import NOWHERE, Device, DeviceKind, Placement
from router.events import (
    Event,
    ExitReason,
    StopWorker,
    WorkerExited,
    WorkerId,
    WorkerReady,
    WorkerStarted,
)
from router.ground import Ground
from router.launch import worker_environment
from router.metrics import RouterMetrics
from router.model_headers import ModelHeaders
from router.runtime_dir import RuntimeDir
from router.sources import ModelStore
from router.spares import SparePool
from router.worker_run import WorkerRun
from tests.fakes.worker import fake_worker_command, read_journal
from tests.support.gguf_bytes import gguf_bytes
from tests.support.stub_world import eventually
from worker.contract import WorkerStatus

GPU = Device("big", DeviceKind.GPU, 2**34, is_declared=True)
CUDA = Device("CUDA1", DeviceKind.GPU, 2**34, backend="CUDA", visible_as="GPU-b")
WORKER = WorkerId("m", 0, 1)


class FakeMachine:
    """The devices of a machine, on which every model fits where it is placed."""

    def __init__(self) -> None:
        self.devices: dict[str, Device] = {}
        self.on_size: Callable[[], None] = lambda: None

    async def size(self, worker: WorkerId, spec: ModelSpec, path: Path) -> None:
        self.on_size()

    def learn(self, worker: WorkerId, spec: ModelSpec, path: Path, status: WorkerStatus) -> None:
        """Nothing is remembered."""

    def context_cap(self, spec: ModelSpec) -> int | None:
        return None

    async def wait_for_memory(self, worker: WorkerId, placement: Placement) -> None:
        """It is back at once."""


class Stage:
    """A router's ground, on which runs are started one at a time."""

    def __init__(self, folder: Path, runtime: RuntimeDir) -> None:
        self.folder = folder
        self.journal = folder / "journal"
        self.events: list[Event] = []
        self.machine: Any = FakeMachine()
        self.on_event: Callable[[Event], None] = lambda event: None
        (folder / "m.gguf").write_bytes(gguf_bytes())
        store = ModelStore(folder / "cache", offline=True)
        self.env = {"FAKE_JOURNAL": str(self.journal)}
        self.spares = SparePool(fake_worker_command(), env=worker_environment(os.environ, self.env), cwd=runtime.path)
        self.ground = Ground(
            store=store,
            headers=ModelHeaders(store),
            metrics=RouterMetrics(),
            runtime=runtime,
            command=fake_worker_command(),
            environ=dict(os.environ),
            cache_dir=None,
            emit=self._emit,
            machine=self.machine,
            spares=self.spares,
        )
        self._tasks: list[tuple[WorkerRun, asyncio.Task[None]]] = []

    def _emit(self, event: Event) -> None:
        self.events.append(event)
        self.on_event(event)

    def run(self, *, placement: Placement = NOWHERE, env: dict[str, str] | None = None, **hooks: Any) -> WorkerRun:
        controls = {f"FAKE_{key}": value for key, value in (env or {}).items()}
        spec = ModelSpec(
            name="m", source="./m.gguf", base_dir=self.folder, slots=2, env=self.env | controls, hooks=Hooks(**hooks)
        )
        run = WorkerRun(WORKER, spec, self.ground, 1, placement)
        self._tasks.append((run, asyncio.get_running_loop().create_task(run.run())))
        return run

    async def until(self, kind: type[Event]) -> Any:
        return await eventually(lambda: next((event for event in self.events if isinstance(event, kind)), None))

    async def close(self) -> None:
        for run, task in self._tasks:
            run.stop(StopWorker(WORKER, 0.5))
            await asyncio.wait_for(task, 10)
        await self.ground.hooks.close()
        await self.spares.close()

    def started(self) -> list[dict[str, Any]]:
        return read_journal(self.journal, "started")

    def said(self) -> list[str]:
        path = self.folder / "said"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(spares_module, "REFILL_AFTER_S", 0.0)
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        stage = Stage(tmp_path, RuntimeDir.create(Path(parent)))
        yield stage
        await stage.close()
        stage.ground.runtime.remove()
    assert not any(psutil.pid_exists(entry["pid"]) for entry in stage.started())


def say(word: str) -> tuple[str, ...]:
    return ("sh", "-c", f"echo {word} >> said")


# --- spares -----------------------------------------------------------------------------------------------


async def test_a_start_takes_the_spare_and_another_one_is_made_once_it_is_ready(stage: Stage) -> None:
    stage.spares.resize(1)
    await eventually(lambda: stage.spares.num_ready)
    num_at_ready: list[int] = []
    stage.on_event = lambda event: num_at_ready.append(stage.spares.num_ready)
    run = stage.run()
    await stage.until(WorkerReady)
    assert set(num_at_ready) == {0}, "none is made beside the load"
    (started,) = stage.started()
    assert started["is_spare"]
    assert started["spec"]["model"] == "m"
    await eventually(lambda: stage.spares.num_ready == 1)
    assert run.log.lines() == []


async def test_a_start_with_an_env_of_its_own_makes_a_process_of_its_own(stage: Stage) -> None:
    stage.spares.resize(1)
    await eventually(lambda: stage.spares.num_ready)
    stage.run(env={"TOKENS": "3"})
    await stage.until(WorkerReady)
    (started,) = stage.started()
    assert not started["is_spare"]
    assert started["env"]["FAKE_TOKENS"] == "3"


async def test_a_start_that_fails_lets_spares_be_made_again(stage: Stage) -> None:
    stage.run(env={"FAIL_EXIT": "65"})
    stage.spares.resize(1)
    await stage.until(WorkerExited)
    await eventually(lambda: stage.spares.num_ready == 1)


# --- placement --------------------------------------------------------------------------------------------


async def test_a_placement_reaches_the_worker(stage: Stage) -> None:
    stage.machine.devices = {"CUDA1": CUDA}
    run = stage.run(placement=Placement({"CUDA1": 1}, ("CUDA1",), gpu_layers=7))
    await stage.until(WorkerReady)
    (started,) = stage.started()
    assert started["env"]["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert (started["spec"]["engine"]["device"], started["spec"]["engine"]["gpu_layers"]) == ("CUDA0", 7)
    assert run.mismatch is None


async def test_a_placement_may_change_until_the_process_is_told(stage: Stage) -> None:
    stage.machine.devices = {"CUDA1": CUDA, "big": GPU}
    run = stage.run(placement=Placement({"CUDA1": 1}, ("CUDA1",)))

    def place_elsewhere() -> None:
        run.placement = Placement({"big": 1}, ("big",))

    stage.machine.on_size = place_elsewhere
    await stage.until(WorkerReady)
    assert stage.started()[0]["spec"]["engine"]["device"] == "big"


async def test_a_start_that_is_stopped_for_its_size_makes_no_process(stage: Stage) -> None:
    run = stage.run(before_load=say("before"), after_unload=say("gone"))
    stage.machine.on_size = lambda: run.stop(StopWorker(WORKER, 5.0, ExitReason.NO_ROOM))
    exited = await stage.until(WorkerExited)
    assert exited.exit.reason is ExitReason.NO_ROOM
    assert stage.started() == []
    await eventually(lambda: stage.said() == ["before", "gone"])


async def test_what_a_worker_tells_of_its_devices_has_their_names_outside(stage: Stage) -> None:
    """It sees the second card alone, and calls it the first."""
    stage.machine.devices = {"CUDA1": CUDA}
    run = stage.run(placement=Placement({"CUDA1": 1}, ("CUDA1",)))
    await stage.until(WorkerReady)
    assert stage.started()[0]["spec"]["engine"]["device"] == "CUDA0"
    assert run.status is not None
    assert run.status.facts is not None
    assert run.status.facts.device == "CUDA1"
    assert run.mismatch is None


async def test_a_worker_that_runs_elsewhere_is_shown(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.machine.devices = {"CUDA1": CUDA}
    run = stage.run(placement=Placement({"CUDA1": 1}, ("CUDA1",)), env={"DEVICE": "CPU"})
    await stage.until(WorkerReady)
    assert run.mismatch == "it was placed on CUDA1 and runs on the CPU"
    assert [record.levelname for record in caplog.records if run.mismatch in record.getMessage()] == ["ERROR"]


# --- hooks ------------------------------------------------------------------------------------------------


async def test_hooks_run_around_a_worker_s_life(stage: Stage) -> None:
    run = stage.run(before_load=say("before"), after_load=say("ready"), after_unload=say("gone"))
    await stage.until(WorkerStarted)
    assert stage.said()[:1] == ["before"], "the process starts when `before_load` has succeeded"
    await stage.until(WorkerReady)
    run.stop(StopWorker(WORKER, 5.0))
    await stage.until(WorkerExited)
    await eventually(lambda: stage.said() == ["before", "ready", "gone"])


async def test_a_failed_before_load_is_the_reason_why_nothing_starts(stage: Stage) -> None:
    stage.run(before_load=("sh", "-c", "echo no such share; exit 4"), after_unload=say("gone"))
    exited = await stage.until(WorkerExited)
    assert exited.exit.reason is ExitReason.HOOK_FAILED
    assert exited.exit.detail == "its hook `before_load` ended with exit code 4: no such share"
    await stage.close()
    assert (stage.started(), stage.said()) == ([], [])


async def test_after_unload_follows_a_crash_too_and_a_failure_of_it_harms_nobody(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.run(env={"CRASH_ON_LOAD": "SIGABRT"}, after_unload=("sh", "-c", "echo gone >> said; exit 1"))
    exited = await stage.until(WorkerExited)
    assert exited.exit.reason is ExitReason.CRASHED
    await eventually(lambda: "hook `after_unload` ended with exit code 1" in caplog.text)
    assert stage.said() == ["gone"]


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_stop_during_before_load_kills_the_hook(stage: Stage, how: str) -> None:
    run = stage.run(before_load=("sh", "-c", "echo $$ >> said; sleep 60"))
    await eventually(stage.said)
    run.stop(StopWorker(WORKER, 5.0, ExitReason.LOAD_TIMEOUT))
    if how == "kill":
        run.kill()
    exited = await stage.until(WorkerExited)
    assert exited.exit.reason is ExitReason.LOAD_TIMEOUT
    assert "its hook `before_load` was running" in exited.exit.detail
    assert not psutil.pid_exists(int(stage.said()[0]))


# --- reading ahead ----------------------------------------------------------------------------------------


class RecordedReadAhead:
    """What a run asks of its read-ahead."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def start(self, paths: Any) -> None:
        self.calls.append(tuple(path.name for path in paths))

    def cancel(self) -> None:
        self.calls.append("cancel")


@pytest.mark.parametrize("end", ["ready", "failed"])
async def test_files_are_read_ahead_until_the_load_is_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    made: list[RecordedReadAhead] = []
    monkeypatch.setattr(worker_run, "ReadAhead", lambda: made.append(RecordedReadAhead()) or made[-1])
    stage.run(before_load=say("before"), env={"FAIL_EXIT": "65"} if end == "failed" else None)
    await eventually(stage.said)
    assert made[0].calls[0] == ("m.gguf",), "already while the hook runs"
    await stage.until(WorkerReady if end == "ready" else WorkerExited)
    assert set(made[0].calls[1:]) == {"cancel"}


async def test_a_line_that_is_one_or_two_seconds_old_is_kept_to_tell_speeds_by(stage: Stage) -> None:
    run = stage.run()
    await stage.until(WorkerReady)
    assert run.status is not None
    start_s = run.status.at_s + 10.0
    seen = []
    for tenths in range(0, 40, 4):
        run._on_status(dataclasses.replace(run.status, at_s=start_s + tenths / 10))
        assert run.earlier_status is not None
        seen.append(round(start_s + tenths / 10 - run.earlier_status.at_s, 1))
    assert all(1.0 <= age_s < 2.5 for age_s in seen[3:]), seen
