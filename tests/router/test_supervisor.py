"""The supervisor grants what the fleet decides and starts and stops real processes for it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest

from router import supervisor as supervisor_module
from router import worker_run
from router.errors import (
    ModelNotFound,
    ModelUnavailable,
    QueueTimeout,
    ShuttingDown,
    TooManyRequests,
)
from router.events import Action, Event, ExitReason, LeaseReleased
from router.fleet import Fleet
from router.lifecycle import WorkerState
from tests.support.stub_world import CHAT, World, ask, eventually, open_world, read_frames
from worker.contract import FrameType


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with open_world(tmp_path, monkeypatch) as world:
        yield world


async def test_deadlines_are_kept_although_the_handling_of_an_event_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "_AFTER_FAULT_S", 0.01)
    model = world.model(idle_unload_s=0.1)
    supervisor = await world.serve(model)
    handle = Fleet.handle

    def handle_and_fail(fleet: Fleet, event: Event, now_s: float) -> list[Action]:
        actions = handle(fleet, event, now_s)
        if isinstance(event, LeaseReleased):
            raise ZeroDivisionError("a fault of ours")
        return actions

    with monkeypatch.context() as patch:
        patch.setattr(Fleet, "handle", handle_and_fail)
        with pytest.raises(ZeroDivisionError):
            async with supervisor.lease(model) as lease:
                await ask(lease)
    await eventually(lambda: supervisor.snapshot().models["a"].state is WorkerState.UNLOADED)


# --- leases -----------------------------------------------------------------------------------------------


async def test_first_lease_starts_the_worker_and_its_request_is_answered(world: World) -> None:
    model = world.model()
    supervisor = await world.serve(model)
    assert supervisor.snapshot().models["a"].state is WorkerState.UNLOADED
    async with supervisor.lease(model) as lease:
        frames = await ask(lease, messages=[])
    assert [type_ for type_, _ in frames] == [FrameType.DATA, FrameType.END]
    assert json.loads(frames[0][1])["choices"][0]["message"]["content"] == "w0 w1 w2 w3 w4 "
    assert lease.load_s > 0
    assert lease.queue_s < 1


async def test_thirty_first_leases_start_one_process(world: World) -> None:
    model = world.model(env={"LOAD_S": "0.2"})
    supervisor = await world.serve(model)

    async def one() -> None:
        async with supervisor.lease(model) as lease:
            await ask(lease)

    await asyncio.gather(*(one() for _ in range(30)))
    assert len(world.pids()) == 1
    assert len(world.events("request")) == 30
    assert world.metric("corral_worker_starts_total", model="a") == 1
    assert world.metric("corral_queue_wait_seconds_count", model="a") == 30


async def test_more_leases_than_the_worker_takes_wait_for_earlier_ones_to_end(world: World) -> None:
    model = world.model(env={"MAX_LEASES": "2"})
    supervisor = await world.serve(model)
    async with AsyncExitStack() as held:
        first = await held.enter_async_context(supervisor.lease(model))
        await held.enter_async_context(supervisor.lease(model))
        third = asyncio.ensure_future(held.enter_async_context(supervisor.lease(model)))
        await eventually(lambda: supervisor.snapshot().models["a"].queue_length == 1)
        assert not third.done()
        assert first.worker == supervisor.snapshot().models["a"].residents[0].worker
    third_lease = await third
    assert third_lease.load_s == 0


async def test_cancel_while_queued_frees_the_place_in_the_queue(world: World) -> None:
    model = world.model(env={"MAX_LEASES": "1"})
    supervisor = await world.serve(model)
    async with supervisor.lease(model):
        waiter = asyncio.ensure_future(supervisor.lease(model).__aenter__())
        await eventually(lambda: supervisor.snapshot().models["a"].queue_length == 1)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert supervisor.snapshot().models["a"].queue_length == 0
    assert supervisor.snapshot().models["a"].residents[0].num_leases == 0


async def test_load_goes_on_when_the_client_that_caused_it_leaves(world: World) -> None:
    model = world.model(env={"LOAD_HOLD": str(world.release)})
    supervisor = await world.serve(model)
    waiter = asyncio.ensure_future(supervisor.lease(model).__aenter__())
    await eventually(lambda: world.events("started"))
    waiter.cancel()
    world.release.touch()
    await eventually(lambda: supervisor.snapshot().models["a"].state is WorkerState.READY)
    assert len(world.pids()) == 1


async def test_a_grant_whose_receiver_was_cancelled_in_the_same_moment_is_given_back(world: World) -> None:
    model = world.model(env={"MAX_LEASES": "1"})
    supervisor = await world.serve(model)
    holder = supervisor.lease(model)
    await holder.__aenter__()
    waiter = asyncio.ensure_future(supervisor.lease(model).__aenter__())
    await eventually(lambda: supervisor.snapshot().models["a"].queue_length == 1)
    await holder.__aexit__(None, None, None)  # grants the waiter, which has not run since
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert supervisor.snapshot().models["a"].residents[0].num_leases == 0
    async with supervisor.lease(model):
        pass


async def test_a_failing_request_gives_its_place_back(world: World) -> None:
    model = world.model(env={"MAX_LEASES": "1"})
    supervisor = await world.serve(model)
    with pytest.raises(ZeroDivisionError):
        async with supervisor.lease(model):
            raise ZeroDivisionError
    async with supervisor.lease(model):
        pass


async def test_refusals_become_the_errors_that_clients_see(world: World) -> None:
    model = world.model(env={"MAX_LEASES": "1"}, max_queue=1, queue_timeout_s=0.2)
    supervisor = await world.serve(model)
    with pytest.raises(ModelNotFound, match="'b'"):
        await supervisor.lease(world.model("b")).__aenter__()
    supervisor.load("a")
    await eventually(lambda: supervisor.snapshot().models["a"].state is WorkerState.READY)
    async with supervisor.lease(model):
        waiter = asyncio.ensure_future(supervisor.lease(model).__aenter__())
        await eventually(lambda: supervisor.snapshot().models["a"].queue_length == 1)
        with pytest.raises(TooManyRequests) as full:
            await supervisor.lease(model).__aenter__()
        assert full.value.retry_after_s
        with pytest.raises(QueueTimeout, match="queue_timeout_s"):
            await waiter
    await supervisor.close(0.0)
    with pytest.raises(ShuttingDown):
        await supervisor.lease(model).__aenter__()


# --- lives of workers -------------------------------------------------------------------------------------


async def test_idle_worker_is_unloaded_and_the_next_lease_starts_another(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "router")
    model = world.model(idle_unload_s=0.15)
    supervisor = await world.serve(model)
    async with supervisor.lease(model) as lease:
        await ask(lease, fake={"prefill_s": 0.3})  # longer than the idle limit, and not idle
        assert supervisor.snapshot().models["a"].state is WorkerState.READY
    await eventually(lambda: supervisor.snapshot().models["a"].state is WorkerState.UNLOADED)
    assert not psutil.pid_exists(world.pids()[0])
    async with supervisor.lease(model) as lease:
        assert lease.worker.incarnation == 2
    assert world.metric("corral_worker_exits_total", model="a", reason="stopped") == 1
    lines = "\n".join(caplog.messages)
    assert "a: loading (a.gguf, 0 MB, process " in lines
    assert "a: ready in 0." in lines
    assert "a: unloaded" in lines


async def test_crash_of_an_idle_worker_is_noticed_at_once_and_the_next_lease_is_served(world: World) -> None:
    model = world.model()
    supervisor = await world.serve(model)
    async with supervisor.lease(model):
        pass
    os.kill(world.pids()[0], signal.SIGSEGV)
    view = await eventually(lambda: (view := supervisor.snapshot().models["a"]).state is WorkerState.UNLOADED and view)
    assert view.last_exit.reason is ExitReason.CRASHED
    assert view.last_exit.detail == "killed by signal 11 (SIGSEGV); a crash in native code"
    assert view.last_exit.exit_code == -11
    async with supervisor.lease(model) as lease:
        await ask(lease)


async def test_failed_load_refuses_those_who_wait_with_the_workers_own_words(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    reason = "unknown model architecture: 'x'"
    broken = world.model(env={"FAIL_EXIT": "65", "FAIL_MESSAGE": reason, "LOAD_S": "0.1"})
    good = world.model("b")
    supervisor = await world.serve(broken, good)
    outcomes = await asyncio.gather(*(supervisor.lease(broken).__aenter__() for _ in range(3)), return_exceptions=True)
    assert all(isinstance(outcome, ModelUnavailable) and reason in outcome.message for outcome in outcomes)
    with pytest.raises(ModelUnavailable, match="architecture") as error:
        await supervisor.lease(broken).__aenter__()
    assert error.value.retry_after_s
    assert len(world.pids()) == 1
    async with supervisor.lease(good) as lease:
        await ask(lease)
    assert world.metric("corral_worker_exits_total", model="a", reason="bad_model") == 1
    assert f"a: failed: {reason}; tried again when the file or the configuration changes" in caplog.text


async def test_load_by_the_operator_lifts_a_remembered_failure(world: World) -> None:
    model = world.model(env={"FAIL_EXIT": "65", "UNTIL_INCARNATION": "1"})
    supervisor = await world.serve(model)
    supervisor.load("a")
    await eventually(lambda: supervisor.snapshot().models["a"].state is WorkerState.FAILED)
    supervisor.load("a")
    await eventually(lambda: supervisor.snapshot().models["a"].state is WorkerState.READY)


async def test_a_file_that_is_no_model_never_gets_a_process(world: World) -> None:
    model = world.model()
    (world.path / "a.gguf").write_bytes(b"<html>not found</html>")
    supervisor = await world.serve(model)
    with pytest.raises(ModelUnavailable, match="not a GGUF file"):
        await supervisor.lease(model).__aenter__()
    assert world.pids() == []


async def test_a_missing_file_is_named(world: World) -> None:
    model = world.model(source="./gone.gguf")
    supervisor = await world.serve(model)
    with pytest.raises(ModelUnavailable, match=r"gone\.gguf does not exist"):
        await supervisor.lease(model).__aenter__()


async def test_a_reference_that_cannot_be_is_the_models_fault(world: World) -> None:
    supervisor = await world.serve(model := world.model(source="pkg:"))
    with pytest.raises(ModelUnavailable, match="pkg:"):
        await supervisor.lease(model).__aenter__()
    last_exit = supervisor.snapshot().models["a"].last_exit
    assert last_exit is not None
    assert last_exit.reason is ExitReason.BAD_MODEL


async def test_a_fault_of_the_router_at_the_start_is_not_blamed_on_the_model(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(worker_run, "build_launch_spec", broken)
    supervisor = await world.serve(model := world.model())
    with pytest.raises(ModelUnavailable, match="the router failed to start it"):
        await supervisor.lease(model).__aenter__()
    last_exit = supervisor.snapshot().models["a"].last_exit
    assert last_exit is not None
    assert last_exit.reason is ExitReason.SPAWN_FAILED
    await eventually(lambda: "a fault of ours" in caplog.text)


async def test_a_command_that_cannot_be_started_is_named(world: World) -> None:
    model = world.model()
    supervisor = await world.serve(model, worker_command=["/nowhere/python"])
    with pytest.raises(ModelUnavailable, match="cannot start /nowhere/python"):
        await supervisor.lease(model).__aenter__()
    last_exit = supervisor.snapshot().models["a"].last_exit
    assert last_exit is not None
    assert last_exit.reason is ExitReason.SPAWN_FAILED


async def test_a_load_without_progress_is_given_up(world: World) -> None:
    model = world.model(env={"LOAD_HANG": "1"}, load_timeout_s=0.3)
    supervisor = await world.serve(model)
    with pytest.raises(ModelUnavailable, match="load_timeout_s"):
        await supervisor.lease(model).__aenter__()
    await eventually(lambda: not psutil.pid_exists(world.pids()[0]))
    assert world.metric("corral_worker_exits_total", model="a", reason="load_timeout") == 1


async def test_a_load_that_only_repeats_itself_makes_no_progress(world: World) -> None:
    env = {"LOAD_HANG": "1", "HEARTBEAT_S": "0.02", "STATUS_GARBAGE": "1"}
    supervisor = await world.serve(model := world.model(env=env, load_timeout_s=1.5))
    with pytest.raises(ModelUnavailable, match=r"load_timeout_s.*the worker was loading \d s after the start"):
        await supervisor.lease(model).__aenter__()


async def test_a_slow_load_that_comes_on_outlives_the_load_timeout(world: World) -> None:
    model = world.model(env={"LOAD_S": "2.0"}, load_timeout_s=1.2)
    supervisor = await world.serve(model)
    async with supervisor.lease(model) as lease:
        assert lease.load_s >= 2.0


async def test_unload_lets_the_running_request_finish_and_refuses_nobody(world: World) -> None:
    model = world.model()
    supervisor = await world.serve(model)
    async with supervisor.lease(model) as lease:
        answer = asyncio.ensure_future(ask(lease, fake={"hold": str(world.release)}))
        await eventually(lambda: world.events("generating"))
        supervisor.unload("a")
        assert supervisor.snapshot().models["a"].state is WorkerState.DRAINING
        later = asyncio.ensure_future(supervisor.lease(model).__aenter__())
        world.release.touch()
        assert (await answer)[-1][0] is FrameType.END
    assert (await later).worker.incarnation == 2


async def test_unload_kills_a_worker_that_ignores_term_with_its_children(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    model = world.model(env={"IGNORE_TERM": "1", "GRANDCHILD": "1"})
    supervisor = await world.serve(model)
    async with supervisor.lease(model):
        pass
    supervisor.unload("a")
    assert supervisor.snapshot().models["a"].state is WorkerState.STOPPING
    await eventually(lambda: supervisor.snapshot().models["a"].state is WorkerState.UNLOADED)
    (grandchild,) = world.events("grandchild")
    for pid in (world.pids()[0], grandchild["child"]):
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert world.metric("corral_worker_kills_total", model="a") == 1
    assert "did not stop in time" in caplog.text


async def test_with_room_for_one_model_an_idle_one_makes_way(world: World) -> None:
    first, second = world.model("a"), world.model("b")
    supervisor = await world.serve(first, second, max_loaded=1)
    async with supervisor.lease(first) as lease:
        await ask(lease)
    async with supervisor.lease(second) as lease:
        await ask(lease)
        assert not psutil.pid_exists(world.pids()[0])
    async with supervisor.lease(first) as lease:
        assert lease.worker.incarnation == 2


async def test_preload_starts_without_a_request(world: World) -> None:
    supervisor = await world.serve(world.model(preload=True))
    await eventually(lambda: supervisor.snapshot().models["a"].state is WorkerState.READY)


async def test_a_complete_reply_survives_the_worker_that_wrote_it(world: World) -> None:
    supervisor = await world.serve(model := world.model())
    async with supervisor.lease(model) as lease:
        reply = await lease.session.post(CHAT, b'{"stream": true, "fake": {"tokens": 50}}', {})
        await eventually(lambda: world.events("done"))
        os.kill(world.pids()[0], signal.SIGKILL)
        await eventually(lambda: not supervisor.snapshot().models["a"].residents)
        frames = await read_frames(reply)
        assert frames[-1].type is FrameType.END
        assert sum(frame.payload.startswith(b"data: {") for frame in frames) == 51


async def test_session_is_closed_once_the_dead_workers_leases_are_back(world: World) -> None:
    model = world.model()
    supervisor = await world.serve(model)
    async with supervisor.lease(model) as lease:
        os.kill(world.pids()[0], signal.SIGKILL)
        await eventually(lambda: not supervisor.snapshot().models["a"].residents)
        assert not lease.session.closed
    await eventually(lambda: lease.session.closed)
