"""What lies around a worker's life: its file, environment and threads, configuration changes, shutdown."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from router.catalog import Catalog
from router.errors import (
    ModelNotFound,
    ModelUnavailable,
    ShuttingDown,
)
from router.events import ExitReason, FleetLimits
from router.fetch.protocol import FetchProgress, SourceError
from router.lifecycle import WorkerState
from router.runtime_dir import RuntimeDir
from router.worker_session import ConnectionCut
from tests.support.gguf_bytes import LLAMA, U32, gguf_bytes
from tests.support.stub_world import ScriptedStore, World, ask, eventually, open_world
from worker.contract import FrameType


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with open_world(tmp_path, monkeypatch) as world:
        yield world


# --- files ------------------------------------------------------------------------------------------------


async def test_fetch_shows_its_progress_and_keeps_the_load_alive(world: World) -> None:
    model = world.model(load_timeout_s=1.0)
    store = ScriptedStore(world.path / "a.gguf")
    supervisor = await world.serve(model, store=store)
    waiter = asyncio.ensure_future(supervisor.lease(model).__aenter__())
    await eventually(lambda: store.on_progress)
    assert store.on_progress is not None
    for done in range(10):
        store.on_progress(FetchProgress("downloading", done, 10))
        assert supervisor.fetches() == {"a": FetchProgress("downloading", done, 10)}
        await asyncio.sleep(0.15)
    assert not waiter.done()
    store.outcome.set_result(None)
    await waiter
    assert supervisor.fetches() == {}
    assert world.metric("corral_load_seconds_count", model="a", phase="fetch") == 1


async def test_unload_during_the_fetch_ends_the_wait(world: World) -> None:
    model = world.model()
    store = ScriptedStore(world.path / "a.gguf")
    supervisor = await world.serve(model, store=store)
    waiter = asyncio.ensure_future(supervisor.lease(model).__aenter__())
    await eventually(lambda: store.on_progress)
    supervisor.unload("a")
    with pytest.raises(ModelUnavailable, match="unloaded by request"):
        await waiter
    await eventually(lambda: supervisor.snapshot().models["a"].state is WorkerState.UNLOADED)
    assert store.is_cancelled
    assert world.pids() == []


async def test_a_failed_fetch_refuses_with_its_reason_and_is_tried_again_later(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "router")
    model = world.model()
    store = ScriptedStore(world.path / "a.gguf")
    store.outcome.set_exception(SourceError("the network is down", details="ERROR: in /home/me\nno route"))
    supervisor = await world.serve(model, store=store)
    with pytest.raises(ModelUnavailable, match="could not be fetched: the network is down") as refused:
        await supervisor.lease(model).__aenter__()
    assert not any(words in str(refused.value) for words in ("crashed", "corrected", "/home/me"))
    assert "a: what its download printed: ERROR: in /home/me / no route" in caplog.messages
    view = supervisor.snapshot().models["a"]
    assert view.state is WorkerState.BACKOFF
    assert view.last_exit is not None
    assert view.last_exit.reason is ExitReason.SOURCE_FAILED


async def test_a_fetch_that_can_never_succeed_is_not_tried_again_by_itself(world: World) -> None:
    model = world.model()
    store = ScriptedStore(world.path / "a.gguf")
    store.outcome.set_exception(SourceError("no such package", is_permanent=True))
    supervisor = await world.serve(model, store=store)
    with pytest.raises(ModelUnavailable, match=r"no such package\. Put it right, then POST"):
        await supervisor.lease(model).__aenter__()
    assert supervisor.snapshot().models["a"].state is WorkerState.FAILED


async def test_context_is_known_before_any_worker(world: World) -> None:
    (world.path / "long.gguf").write_bytes(
        gguf_bytes([key if key[0] != "llama.context_length" else (key[0], U32, 131072) for key in LLAMA])
    )
    auto, capped, fixed = world.model("a"), world.model("long"), world.model("c", context=100)
    gone = world.model("d", source="./gone.gguf")
    supervisor = await world.serve(auto, capped, fixed, gone)
    assert [supervisor.context_of(spec) for spec in (auto, capped, fixed, gone)] == [2048, 8192, 100, None]
    async with supervisor.lease(auto):
        assert world.events("started")[0]["spec"]["engine"]["context"] == 2048
    assert len(world.pids()) == 1


# --- environment, threads, output -------------------------------------------------------------------------


async def test_workers_see_only_the_environment_they_may(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_API_KEYS", "sk-secret")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    model = world.model()
    supervisor = await world.serve(model)
    async with supervisor.lease(model) as lease:
        status = supervisor.status(lease.worker)
    (started,) = world.events("started")
    env = started["env"]
    assert "secret" not in json.dumps(started)
    assert env["CUDA_VISIBLE_DEVICES"] == "1,0"
    assert (env["GGML_NO_BACKTRACE"], env["GOMP_SPINCOUNT"]) == ("1", "10000")
    assert Path(started["cwd"]).name.startswith("corral-")
    assert status is not None
    assert not Path(started["spec"]["model_path"]).is_relative_to(started["cwd"])


async def test_busy_workers_share_the_cores_and_a_lone_one_gets_them_all(world: World) -> None:
    first, second = world.model("a"), world.model("b")
    supervisor = await world.serve(first, second, num_cores=4)

    def told(model: str) -> list[int]:
        return [e["num_threads"] for e in world.events("threads") if e["model"] == model]

    async with supervisor.lease(first):
        assert world.events("started")[0]["spec"]["num_threads"] == 4
        async with supervisor.lease(second):
            assert world.events("started")[1]["spec"]["num_threads"] == 2
            await eventually(lambda: told("a") == [2])
        await eventually(lambda: told("a") == [2, 4])
    async with supervisor.lease(second):
        await eventually(lambda: told("b")[-1:] == [4])


async def test_a_models_own_thread_limit_caps_its_share(world: World) -> None:
    model = world.model(engine={"threads": 3})
    supervisor = await world.serve(model, num_cores=8)
    async with supervisor.lease(model):
        assert world.events("started")[0]["spec"]["num_threads"] == 3
    assert world.events("threads") == []


async def test_what_two_workers_warn_of_is_shown_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "router.worker_output")
    text = f"this machine lacks something ({world.path})"
    models = [
        world.model(name, env={"STDERR": f"2026-01-02 03:04:05,678 WARNING {name}: {text}"}) for name in ("a", "b")
    ]
    supervisor = await world.serve(*models)
    for model in models:
        async with supervisor.lease(model):
            pass
    await supervisor.close()
    told = [(record.levelname, record.getMessage()) for record in caplog.records if text in record.getMessage()]
    assert told == [("WARNING", f"a: {text}"), ("DEBUG", f"b: {text}")]


async def test_last_output_of_a_dead_worker_is_kept(world: World) -> None:
    model = world.model(env={"STDERR": "ggml: error: no kernel", "CRASH_ON_LOAD": "SIGABRT"})
    supervisor = await world.serve(model)
    assert supervisor.logs("a") == []
    with pytest.raises(ModelUnavailable, match="no kernel"):
        await supervisor.lease(model).__aenter__()
    ((_, log),) = supervisor.logs("a")
    assert log.text() == "ggml: error: no kernel"


# --- configuration and shutdown ---------------------------------------------------------------------------


async def test_a_new_catalog_leaves_unchanged_workers_alone_and_drains_removed_ones(world: World) -> None:
    kept, removed = world.model("a"), world.model("b")
    supervisor = await world.serve(kept, removed)
    async with supervisor.lease(kept), supervisor.lease(removed):
        pass
    added = world.model("c")
    supervisor.set_catalog(Catalog({"a": kept, "c": added}))
    with pytest.raises(ModelNotFound):
        await supervisor.lease(removed).__aenter__()
    await eventually(lambda: "b" not in supervisor.snapshot().models)
    async with supervisor.lease(kept) as lease:
        assert lease.worker.incarnation == 1
    async with supervisor.lease(added) as lease:
        await ask(lease)
    assert supervisor.context_of(added) == 2048


async def test_a_changed_model_is_restarted_with_its_new_options(world: World) -> None:
    supervisor = await world.serve(model := world.model())
    async with supervisor.lease(model):
        pass
    changed = world.model(slots=3)
    supervisor.set_catalog(Catalog({"a": changed}))
    async with supervisor.lease(changed) as lease:
        assert lease.worker.incarnation == 2
    assert world.events("started")[1]["spec"]["engine"]["slots"] == 3


async def test_close_lets_a_running_request_finish_and_leaves_nothing_behind(world: World) -> None:
    model = world.model()
    supervisor = await world.serve(model, world.model("b", preload=True))
    async with supervisor.lease(model) as lease:
        answer = asyncio.ensure_future(ask(lease, fake={"hold": str(world.release)}))
        await eventually(lambda: world.events("generating"))
        closing = asyncio.ensure_future(supervisor.close(drain_s=10.0))
        await asyncio.sleep(0)
        world.release.touch()
        assert (await answer)[-1][0] is FrameType.END
    await closing
    assert not any(psutil.pid_exists(pid) for pid in world.pids())
    assert not os.path.exists(world.events("started")[0]["cwd"])  # noqa: ASYNC240


async def test_close_cuts_off_what_does_not_finish_in_time(world: World) -> None:
    model = world.model(env={"IGNORE_TERM": "1"})
    supervisor = await world.serve(model)
    async with supervisor.lease(model) as lease:
        answer = asyncio.ensure_future(ask(lease, fake={"hold": "/nowhere"}))
        await eventually(lambda: world.events("generating"))
        started_s = time.monotonic()
        await supervisor.close(drain_s=0.2)
        assert 0.6 < time.monotonic() - started_s < 4
        with pytest.raises(ConnectionCut):
            await answer
    assert not psutil.pid_exists(world.pids()[0])


async def test_close_ends_a_load_and_refuses_who_waits_for_it(world: World) -> None:
    model = world.model(env={"LOAD_HANG": "1"})
    supervisor = await world.serve(model)
    waiter = asyncio.ensure_future(supervisor.lease(model).__aenter__())
    await eventually(lambda: world.events("started"))
    await supervisor.close()
    with pytest.raises(ShuttingDown):
        await waiter


async def test_close_that_was_cancelled_can_be_hurried(world: World) -> None:
    supervisor = await world.serve(model := world.model())
    async with supervisor.lease(model) as lease:
        answer = asyncio.ensure_future(ask(lease, fake={"hold": "/nowhere"}))
        await eventually(lambda: world.events("generating"))
        patient = asyncio.ensure_future(supervisor.close(drain_s=60.0))
        await asyncio.sleep(0)
        patient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await patient
        await asyncio.wait_for(supervisor.close(drain_s=0.0), 5)
        with pytest.raises(ConnectionCut):
            await answer


async def test_a_hurried_close_gives_no_grace_and_complains_of_nothing(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Catalog, "fleet_limits", lambda catalog: FleetLimits(stop_grace_s=60.0))
    supervisor = await world.serve(model := world.model(env={"IGNORE_TERM": "1"}))
    async with supervisor.lease(model) as lease:
        answer = asyncio.ensure_future(ask(lease, fake={"hold": "/nowhere"}))
        await eventually(lambda: world.events("generating"))
        await asyncio.wait_for(supervisor.close(0.0, is_hurried=True), 5)
        with pytest.raises(ConnectionCut):
            await answer
    assert not psutil.pid_exists(world.pids()[0])
    assert [record for record in caplog.records if record.levelname != "INFO"] == []
    assert world.metric("corral_worker_kills_total", model="a") == 0


async def test_close_before_start_does_nothing(world: World) -> None:
    supervisor = await world.serve(world.model(), start=False)
    await supervisor.close()


ROUTER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from router.catalog import Catalog, ModelSpec
from router.metrics import RouterMetrics
from router.sources import ModelStore
from router.supervisor import Supervisor
from tests.fakes.worker import fake_worker_command

async def main():
    model = ModelSpec(name="a", source="./a.gguf", base_dir=Path({folder!r}), env={{"FAKE_JOURNAL": {journal!r}}})
    supervisor = Supervisor(
        Catalog({{"a": model}}), store=ModelStore(Path({folder!r})), num_cores=1, metrics=RouterMetrics(),
        runtime_dir=Path({parent!r}), worker_command=fake_worker_command(),
    )
    await supervisor.start()
    async with supervisor.lease(model):
        print("ready", flush=True)
        await asyncio.Event().wait()

if {loop!r} == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""


@pytest.mark.parametrize("loop", [pytest.param("asyncio", marks=pytest.mark.slow), "uvloop"])
def test_workers_of_a_killed_router_exit_by_themselves(world_files: World, loop: str) -> None:
    world = world_files
    world.model()
    parent = Path(world.path)
    code = ROUTER.format(
        root=str(Path(__file__).parents[2]), folder=str(world.path), journal=str(world.journal), loop=loop,
        parent="/tmp",
    )  # fmt: skip
    router = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, cwd=parent)
    assert router.stdout is not None
    with router.stdout:
        assert router.stdout.readline() == b"ready\n"
        (pid,) = world.pids()
        router.kill()
        router.wait()
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=5)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    left_behind = Path(world.events("started")[0]["cwd"])
    RuntimeDir.create(Path("/tmp")).remove()
    assert not left_behind.exists()


@pytest.fixture
def world_files(tmp_path: Path) -> World:
    return World(tmp_path)
