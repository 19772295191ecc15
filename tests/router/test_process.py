"""A worker process is started as agreed, spoken to, stopped with all it started, and explained."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from router import process as process_module
from router.events import ExitReason
from router.launch import worker_environment
from router.process import WorkerProcess
from router.process_group import living_members
from tests.fakes.worker import fake_worker_command, read_journal
from worker.contract import Control, ControlOp, EngineOptions, ExitCode, LaunchSpec, Phase, WorkerStatus

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def _loop_factories() -> list[Any]:
    import uvloop

    return [
        pytest.param(asyncio.new_event_loop, id="asyncio"),
        pytest.param(uvloop.new_event_loop, id="uvloop"),
    ]


@pytest.fixture(params=_loop_factories())
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Run a scenario on plain asyncio and on uvloop, whose subprocess code is another one."""

    def runner(scenario: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as loop_runner:
            loop_runner.run(asyncio.wait_for(scenario, 20))

    return runner


def is_gone(pid: int) -> bool:
    """Return whether nothing runs under this id; an orphan's zombie waits for an init that may not exist."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Stub:
    """Starts stub workers and remembers what they reported."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.journal = directory / "journal"
        self.phases: list[Phase] = []
        self._waiters: list[tuple[Phase, asyncio.Future[None]]] = []
        self.processes: list[WorkerProcess] = []

    async def spawn(self, command: list[str] | None = None, **controls: str) -> WorkerProcess:
        launch = LaunchSpec("m", "/model.gguf", str(self.directory / "s"), -1, EngineOptions(context=64, slots=2))
        env = {f"FAKE_{name}": value for name, value in controls.items()}
        process = await WorkerProcess.spawn(
            command or fake_worker_command(),
            launch,
            env=worker_environment(os.environ, {"FAKE_JOURNAL": str(self.journal)} | env),
            cwd=self.directory,
            on_status=self._on_status,
        )
        self.processes.append(process)
        return process

    def _on_status(self, status: WorkerStatus) -> None:
        self.phases.append(status.phase)
        for phase, waiter in self._waiters:
            if phase == status.phase and not waiter.done():
                waiter.set_result(None)

    async def reached(self, phase: Phase) -> None:
        if phase not in self.phases:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append((phase, waiter))
            await waiter


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    stub = Stub(tmp_path)
    yield stub
    for process in stub.processes:
        assert living_members(process.pid) == []


def test_worker_reads_its_launch_spec_and_reports_ready(stub: Stub, run: Any) -> None:
    async def scenario() -> None:
        process = await stub.spawn()
        await stub.reached(Phase.READY)
        (started,) = read_journal(stub.journal, "started")
        assert started["pid"] == process.pid
        assert started["spec"]["engine"]["context"] == 64
        assert started["cwd"] == str(stub.directory)
        assert os.getpgid(process.pid) == process.pid
        assert process.status is not None
        assert process.status.facts is not None
        await process.stop(5.0)

    run(scenario())


def test_controls_reach_the_worker_in_order(stub: Stub, run: Any) -> None:
    async def scenario() -> None:
        process = await stub.spawn()
        await stub.reached(Phase.READY)
        process.send(Control(ControlOp.THREADS, 3))
        process.send(Control(ControlOp.DRAIN))
        exit_ = await process.wait()
        assert [e["num_threads"] for e in read_journal(stub.journal, "threads")] == [3]
        assert exit_.exit_code == ExitCode.OK
        process.send(Control(ControlOp.THREADS, 1))  # it is gone: nothing happens

    run(scenario())


def test_stop_ends_an_obedient_worker_with_term_alone(stub: Stub, run: Any) -> None:
    async def scenario() -> None:
        process = await stub.spawn()
        await stub.reached(Phase.READY)
        exit_ = await process.stop(5.0)
        assert (exit_.reason, exit_.exit_code) == (ExitReason.STOPPED, 0)
        assert not process.is_escalated
        assert not psutil.pid_exists(process.pid)

    run(scenario())


def test_stop_kills_a_worker_that_ignores_term_after_the_grace(stub: Stub, run: Any) -> None:
    async def scenario() -> None:
        process = await stub.spawn(IGNORE_TERM="1")
        await stub.reached(Phase.READY)
        exit_ = await process.stop(0.2, ExitReason.LOAD_TIMEOUT, "too slow")
        assert (exit_.reason, exit_.detail, exit_.exit_code) == (ExitReason.LOAD_TIMEOUT, "too slow", -9)
        assert process.is_escalated
        assert read_journal(stub.journal, "term")

    run(scenario())


def test_stop_kills_a_stopped_process(stub: Stub, run: Any) -> None:
    async def scenario() -> None:
        process = await stub.spawn()
        await stub.reached(Phase.READY)
        os.kill(process.pid, signal.SIGSTOP)
        exit_ = await process.stop(0.1)
        assert exit_.reason is ExitReason.STOPPED

    run(scenario())


def test_second_stop_with_a_shorter_grace_hastens_the_end_and_keeps_the_reason(stub: Stub, run: Any) -> None:
    async def scenario() -> None:
        process = await stub.spawn(IGNORE_TERM="1")
        await stub.reached(Phase.READY)
        first = asyncio.ensure_future(process.stop(60.0, ExitReason.LOAD_TIMEOUT))
        await asyncio.sleep(0)
        second = await process.stop(0.0)
        assert await first == second
        assert second.reason is ExitReason.LOAD_TIMEOUT

    run(scenario())


@pytest.mark.parametrize("end", ["term", "ignored_term", "crash"])
def test_grandchildren_die_with_the_worker(stub: Stub, run: Any, end: str) -> None:
    async def scenario() -> None:
        process = await stub.spawn(GRANDCHILD="1", IGNORE_TERM="1" if end == "ignored_term" else "")
        await stub.reached(Phase.READY)
        (entry,) = read_journal(stub.journal, "grandchild")
        assert psutil.pid_exists(entry["child"])
        if end == "crash":
            os.kill(process.pid, signal.SIGKILL)
            exit_ = await process.wait()
            assert exit_.reason is ExitReason.CRASHED
        else:
            await process.stop(0.3)
        assert living_members(process.pid) == []
        assert is_gone(entry["child"])

    run(scenario())


def test_exit_is_noticed_although_a_process_outside_the_group_holds_the_pipes(stub: Stub, run: Any) -> None:
    code = (
        "import subprocess, sys;"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(30)'], start_new_session=True);"
        "print(p.pid, flush=True)"
    )

    async def scenario() -> None:
        process = await stub.spawn([sys.executable, "-c", code])
        exit_ = await process.wait()
        assert exit_.exit_code == 0
        os.kill(int(process.log.lines()[0]), signal.SIGKILL)

    run(scenario())


def test_crash_is_noticed_without_a_request_and_names_the_signal(stub: Stub, run: Any) -> None:
    async def scenario() -> None:
        process = await stub.spawn()
        await stub.reached(Phase.READY)
        os.kill(process.pid, signal.SIGKILL)
        exit_ = await process.wait()
        assert exit_.reason is ExitReason.CRASHED
        assert exit_.detail == "killed by signal 9 (SIGKILL); often the system was out of memory"

    run(scenario())


def test_failed_load_carries_the_error_of_the_status_link(stub: Stub, run: Any) -> None:
    async def scenario() -> None:
        process = await stub.spawn(FAIL_EXIT="65", FAIL_MESSAGE="tensor 'x' is cut off")
        exit_ = await process.wait()
        assert (exit_.reason, exit_.detail) == (ExitReason.BAD_MODEL, "tensor 'x' is cut off")

    run(scenario())


def test_without_a_status_error_the_last_printed_words_are_the_reason(stub: Stub, run: Any) -> None:
    async def scenario() -> None:
        process = await stub.spawn(STDERR="CUDA error: no device", CRASH_ON_LOAD="SIGABRT")
        exit_ = await process.wait()
        assert exit_.detail == "CUDA error: no device (killed by signal 6 (SIGABRT); native code gave up)"

    run(scenario())


def test_worker_exits_by_itself_when_the_router_closes_stdin(stub: Stub, run: Any) -> None:
    async def scenario() -> None:
        process = await stub.spawn()
        await stub.reached(Phase.READY)
        process._stdin.close()
        exit_ = await process.wait()
        assert exit_.exit_code == 0

    run(scenario())


def test_a_launch_spec_longer_than_a_pipe_holds_arrives_whole(stub: Stub, run: Any) -> None:
    async def scenario() -> None:
        launch = LaunchSpec(
            "m", "/m.gguf", str(stub.directory / "s"), -1, EngineOptions(64), chat_template="é" * 300_000
        )
        process = await WorkerProcess.spawn(
            fake_worker_command(),
            launch,
            env=worker_environment(os.environ, {"FAKE_JOURNAL": str(stub.journal)}),
            cwd=stub.directory,
            on_status=stub._on_status,
        )
        await stub.reached(Phase.READY)
        assert read_journal(stub.journal, "started")[0]["spec"]["chat_template"] == "é" * 300_000
        await process.stop(5.0)

    run(scenario())


def test_a_command_that_does_not_exist_raises_and_leaks_no_pipe(stub: Stub, run: Any) -> None:
    async def scenario() -> None:
        before = psutil.Process().num_fds()
        with pytest.raises(OSError, match="No such file"):
            await stub.spawn(["/nowhere/python"])
        assert psutil.Process().num_fds() == before

    run(scenario())


@pytest.mark.parametrize("step", ["StatusLink", "OutputReader", "launch", "cancel"])
def test_a_start_that_breaks_off_leaves_neither_process_nor_descriptor(
    stub: Stub, run: Any, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    create = asyncio.create_subprocess_exec

    async def create_and_note(*args: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await create(*args, **options)
        pids.append(process.pid)
        return process

    async def refuse(fd: int, *_: Any) -> None:
        os.close(fd)
        if step == "cancel":
            raise asyncio.CancelledError
        raise OSError("refused")

    def refuse_line(_: LaunchSpec) -> bytes:
        raise OSError("refused")

    async def scenario() -> None:
        await (await stub.spawn()).stop(5.0)  # what the loop opens once for all processes is open now
        await asyncio.sleep(0)
        before = psutil.Process().num_fds()
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "create_subprocess_exec", create_and_note)
            if step == "launch":
                patch.setattr(LaunchSpec, "to_line", refuse_line)
            else:
                patch.setattr(getattr(process_module, {"cancel": "StatusLink"}.get(step, step)), "open", refuse)
            with pytest.raises((OSError, asyncio.CancelledError)):
                await stub.spawn(IGNORE_TERM="1")
        await asyncio.sleep(0)
        assert psutil.Process().num_fds() == before
        assert is_gone(pids[0])
        assert living_members(pids[0]) == []

    run(scenario())


def test_no_file_descriptor_is_left_after_a_worker_is_gone(stub: Stub, run: Any) -> None:
    async def scenario() -> None:
        first = await stub.spawn()
        await first.stop(5.0)
        await asyncio.sleep(0)  # transports close in the turn after
        before = psutil.Process().num_fds()
        for _ in range(3):
            process = await stub.spawn()
            await process.stop(5.0)
            await asyncio.sleep(0)
        assert psutil.Process().num_fds() == before

    run(scenario())


def test_printed_lines_are_kept_and_logged_at_debug_with_the_models_name(
    stub: Stub, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        process = await stub.spawn(STDERR="hello")
        await stub.reached(Phase.READY)
        await process.stop(5.0)
        assert process.log.lines() == ["hello"]

    with caplog.at_level("DEBUG", "router.worker_output"):
        run(scenario())
    assert "m: hello" in caplog.messages
