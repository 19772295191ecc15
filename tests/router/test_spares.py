"""Spare processes are ready when a start wants one, fit it or are left alone, and never stand in anybody's way."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from router import spares as spares_module
from router.launch import worker_environment
from router.process import WorkerProcess
from router.spares import SparePool
from tests.fakes.worker import fake_worker_command
from tests.support.stub_world import eventually
from worker.contract import EngineOptions, LaunchSpec, Phase, WorkerStatus

PLAIN = worker_environment(os.environ, {})


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares_module, "REFILL_AFTER_S", 0.0)


class Pool(SparePool):
    """A pool whose processes the test can see."""

    def __init__(self, directory: Path, env: dict[str, str] | None = None) -> None:
        self.made: list[WorkerProcess] = []
        super().__init__(fake_worker_command(), env=PLAIN if env is None else env, cwd=directory)

    async def filled(self, size: int) -> list[WorkerProcess]:
        await eventually(lambda: self.num_ready == size)
        return [spare.process for spare in self._spares]

    def environments(self) -> list[frozenset[tuple[str, str]]]:
        return [spare.environment for spare in self._spares]


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    pool = Pool(tmp_path)
    yield pool
    processes = [spare.process for spare in pool._spares]
    await pool.close()
    assert not any(psutil.pid_exists(process.pid) for process in processes)


def spec(directory: Path, model: str = "m") -> LaunchSpec:
    return LaunchSpec(model, "/m.gguf", str(directory / "s"), -1, EngineOptions(context=64, slots=2))


async def launched(process: WorkerProcess, directory: Path, model: str = "m") -> WorkerStatus:
    """Tell the process what to load, and return its status once it is ready."""
    ready: asyncio.Future[WorkerStatus] = asyncio.get_running_loop().create_future()

    def on_status(status: WorkerStatus) -> None:
        if status.phase is Phase.READY and not ready.done():
            ready.set_result(status)

    process.launch(spec(directory, model), on_status)
    return await asyncio.wait_for(ready, 10)


async def test_a_spare_becomes_the_worker_of_whatever_it_is_told(
    pool: Pool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool.resize(1)
    (waiting,) = await pool.filled(1)
    assert waiting.status is None
    process = pool.take(PLAIN)
    assert process is waiting
    status = await launched(process, tmp_path, "late")
    assert status.facts is not None
    assert process.status is status
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    assert not [record for record in caplog.records if "spare" in record.getMessage()], "it is the model's now"


async def test_what_it_prints_belongs_to_the_model_once_it_has_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = PLAIN | {"FAKE_STDERR": "hello from here"}
    pool = Pool(tmp_path, env)
    pool.resize(1)
    await pool.filled(1)
    process = pool.take(env)
    assert process is not None
    with caplog.at_level("DEBUG", "router.worker_output"):
        await launched(process, tmp_path, "late")
    await process.stop(5.0)
    assert "late: hello from here" in caplog.messages
    assert process.log.lines() == ["hello from here"]
    await pool.close()


async def test_a_taken_spare_is_replaced_when_its_load_is_over_and_not_before(pool: Pool, tmp_path: Path) -> None:
    pool.resize(1)
    await pool.filled(1)
    pool.load_begins("load")
    process = pool.take(PLAIN)
    assert process is not None
    await launched(process, tmp_path)
    assert pool.num_ready == 0
    pool.load_ends("load")
    pool.load_ends("load")
    (other,) = await pool.filled(1)
    assert other.pid != process.pid
    await process.stop(5.0)


async def test_while_anything_loads_no_spare_is_made(pool: Pool) -> None:
    pool.load_begins("a")
    pool.load_begins("b")
    pool.resize(1)
    pool.load_ends("a")
    for _ in range(20):
        await asyncio.sleep(0)
    assert pool.num_ready == 0
    pool.load_ends("b")
    await pool.filled(1)


async def test_a_start_with_another_environment_gets_none(pool: Pool) -> None:
    pool.resize(1)
    (waiting,) = await pool.filled(1)
    assert pool.take(PLAIN | {"CUDA_VISIBLE_DEVICES": "GPU-b"}) is None
    assert pool.take({name: value for name, value in PLAIN.items() if name != "PATH"}) is None
    assert pool.take(dict(reversed(PLAIN.items()))) is waiting
    await waiting.stop(0.0)


async def test_the_first_start_decides_what_spares_are_made_with(pool: Pool) -> None:
    pool.resize(1)
    (first,) = await pool.filled(1)
    other = PLAIN | {"CUDA_VISIBLE_DEVICES": "GPU-b"}
    assert pool.take(other) is None
    await eventually(lambda: pool.environments() == [frozenset(other.items())])
    taken = pool.take(other)
    assert taken is not None
    await first.wait()
    await taken.stop(0.0)


async def test_spares_come_to_have_the_environment_that_most_starts_ask_for(pool: Pool) -> None:
    pool.resize(1)
    await pool.filled(1)
    used = pool.take(PLAIN)
    assert used is not None
    (first,) = await pool.filled(1)
    other = PLAIN | {"MY_FLAG": "1"}
    assert pool.take(other) is None
    await asyncio.sleep(0.05)
    assert await pool.filled(1) == [first], "asked for as often as the other: it stays"
    assert pool.take(other) is None
    await eventually(lambda: pool.environments() == [frozenset(other.items())])
    taken = pool.take(other)
    assert taken is not None
    assert taken.pid != first.pid
    await first.wait()
    for process in (used, taken):
        await process.stop(0.0)


async def test_two_spares_serve_two_environments(pool: Pool) -> None:
    pool.resize(2)
    await pool.filled(2)
    other = PLAIN | {"MY_FLAG": "1"}
    used = pool.take(PLAIN)
    assert used is not None
    assert pool.take(other) is None
    both = {frozenset(PLAIN.items()), frozenset(other.items())}
    await eventually(lambda: len(pool.environments()) == 2 and set(pool.environments()) == both)
    await used.stop(0.0)


async def test_a_dead_spare_is_replaced_with_growing_pauses(
    pool: Pool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares_module, "_FIRST_PAUSE_S", 0.01)
    pool.resize(1)
    pids = set()
    for _ in range(3):
        (process,) = await pool.filled(1)
        pids.add(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        await eventually(lambda gone=process: gone not in [spare.process for spare in pool._spares])
    await pool.filled(1)
    assert len(pids) == 3
    assert pool._pause_s() == pytest.approx(0.04)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 3
    assert "killed by signal 9" in told[0]


async def test_spares_that_cannot_live_cost_few_starts_and_a_start_does_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = PLAIN | {"FAKE_SPARE_EXIT": "3"}
    pool = Pool(tmp_path, env)
    pool.resize(1)
    await eventually(lambda: "exited with code 3" in caplog.text)
    assert pool.take(env) is None
    assert pool._pause_s() >= 1.0
    await pool.close()


async def test_a_command_that_does_not_exist_is_told_and_costs_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = SparePool(["/nowhere/python"], env=PLAIN, cwd=tmp_path)
    pool.resize(1)
    await eventually(lambda: "cannot be started" in caplog.text)
    assert (pool.num_ready, pool.take(PLAIN)) == (0, None)
    await pool.close()


async def test_a_spare_that_has_just_died_is_not_given_out(pool: Pool) -> None:
    pool.resize(1)
    (process,) = await pool.filled(1)
    os.kill(process.pid, signal.SIGKILL)
    await eventually(lambda: not process.is_running)
    assert pool.take(PLAIN) is None


async def test_the_pool_grows_and_shrinks(pool: Pool) -> None:
    pool.resize(2)
    both = await pool.filled(2)
    pool.resize(1)
    assert pool.num_ready == 1
    await both[1].wait()
    pool.resize(0)
    await both[0].wait()
    pool.resize(1)
    (third,) = await pool.filled(1)
    assert third not in both


async def test_close_ends_all_of_them_and_makes_no_more(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.resize(2)
    processes = await pool.filled(2)
    await pool.close()
    assert not any(psutil.pid_exists(process.pid) for process in processes)
    assert pool.num_ready == 0
    assert pool.take(PLAIN) is None
    await Pool(tmp_path).close()


ROUTER = """
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from router.spares import SparePool
from tests.fakes.worker import fake_worker_command

async def main():
    pool = SparePool(fake_worker_command(), env=dict(os.environ), cwd=Path({folder!r}))
    pool.resize(1)
    while not pool.num_ready:
        await asyncio.sleep(0.01)
    print(pool._spares[0].process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.slow
def test_spares_of_a_killed_router_exit_by_themselves(tmp_path: Path) -> None:
    code = ROUTER.format(root=str(Path(__file__).parents[2]), folder=str(tmp_path))
    router = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert router.stdout is not None
    with router.stdout:
        spare = psutil.Process(int(router.stdout.readline()))
        router.kill()
        router.wait()
    gone, alive = psutil.wait_procs([spare], timeout=10)
    assert gone or all(process.status() == psutil.STATUS_ZOMBIE for process in alive)
