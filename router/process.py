"""One worker process: started, spoken to over three pipes, stopped with everything it started, reaped.

Owns the operating system's side of a worker: process group, stdin, status pipe, what it prints. Must not know
models, leases or the fleet. A process counts as gone only when it is reaped and nobody of its group is left.

    router                                   worker (own session, own process group)
      launch spec, controls  ── stdin ──▶    end of file = exit
      StatusLink             ◀─ status fd ─  JSON lines
      OutputReader           ◀─ stdout+err ─ text

A process may exist for long before it is told what to load: then it is a spare.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Self

from router.events import ExitReason, WorkerExit
from router.exits import explain_exit
from router.log_tail import LogTail
from router.output_reader import OutputReader
from router.process_group import living_members, signal_group
from router.status import StatusLink
from worker.contract import Control, LaunchSpec, WorkerStatus

logger = logging.getLogger(__name__)

_PIPES_CLOSE_S = 1.0
"""After the process is gone, how long its last words may take to be read. Only a process that left the group
can hold a pipe open longer."""

_GROUP_WARN_S = 5.0


class WorkerProcess:
    """A running (or ended) worker process. Made by `create`, told what to load by `launch`; `spawn` does both."""

    def __init__(self, process: asyncio.subprocess.Process, name: str, status_fd: int) -> None:
        self.pid = process.pid
        self.log = LogTail()
        self.is_escalated = False
        """SIGTERM was not enough."""
        self._process = process
        self._name = name
        self._status_fd = status_fd
        """The number of the worker's end of the status pipe, in the worker."""
        self._on_status: Callable[[WorkerStatus], None] | None = None
        self._stop: tuple[ExitReason, str] | None = None
        self._status: StatusLink
        self._output: OutputReader
        self._stdin: asyncio.WriteTransport
        self._gone: asyncio.Task[WorkerExit]

    @classmethod
    async def spawn(
        cls,
        command: Sequence[str],
        launch: LaunchSpec,
        *,
        env: Mapping[str, str],
        cwd: Path,
        on_status: Callable[[WorkerStatus], None],
    ) -> Self:
        """Start the process and send it `launch`, with the real `status_fd` filled in.

        Raises: OSError when the system refuses. Whatever is raised, nothing is left behind then.
        """
        worker = await cls.create(command, env=env, cwd=cwd, name=launch.model)
        try:
            worker.launch(launch, on_status)
        except BaseException:
            worker.kill()
            await worker.wait()
            raise
        return worker

    @classmethod
    async def create(cls, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, name: str) -> Self:
        """Start the process, which waits for `launch`; `name` stands for it in the log until then.

        Raises: OSError when the system refuses. Whatever is raised, nothing is left behind then.
        """
        with ExitStack() as ours, ExitStack() as theirs:
            # Pipes of our own instead of asyncio's: its `wait()` would also wait for a grandchild that holds them.
            stdin_read, stdin_write = _pipe(theirs, ours)
            output_read, output_write = _pipe(ours, theirs)
            status_read, status_write = _pipe(ours, theirs)
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=stdin_read,
                stdout=output_write,
                stderr=output_write,
                pass_fds=(status_write,),
                start_new_session=True,
                env=dict(env),
                cwd=cwd,
            )
            ours.pop_all()
        worker = cls(process, name, status_write)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(_end_group, process)
            unowned = {status_read, output_read, stdin_write}
            undo.callback(_close_all, unowned)
            unowned.remove(status_read)
            worker._status = await StatusLink.open(status_read, worker._take_status)
            undo.callback(worker._status.close)
            unowned.remove(output_read)
            worker._output = await OutputReader.open(output_read, name, worker.log)
            undo.callback(worker._output.close)
            unowned.remove(stdin_write)
            worker._stdin = await _open_stdin(stdin_write)
            undo.pop_all()
        worker._gone = asyncio.get_running_loop().create_task(worker._reap(), name=f"reap process {process.pid}")
        return worker

    def launch(self, spec: LaunchSpec, on_status: Callable[[WorkerStatus], None]) -> None:
        """The process is told what to load; from now on it is the worker of that model. To be called once."""
        line = dataclasses.replace(spec, status_fd=self._status_fd).to_line()
        self._name = self._output.name = spec.model
        self._on_status = on_status
        self._write(line)

    @property
    def is_running(self) -> bool:
        """No end of it is known."""
        return self._process.returncode is None and not self._stdin.is_closing()

    @property
    def status(self) -> WorkerStatus | None:
        """The last line of the status link."""
        return self._status.last

    def send(self, control: Control) -> None:
        """Write one line to its stdin; a process that is about to end may not read it."""
        self._write(control.to_line())

    async def wait(self) -> WorkerExit:
        """Return how it ended, once it is reaped and its process group is empty."""
        return await asyncio.shield(self._gone)

    async def stop(self, grace_s: float, reason: ExitReason = ExitReason.STOPPED, detail: str = "") -> WorkerExit:
        """Return once the process is gone: SIGTERM to its group, after `grace_s` SIGKILL.

        A second call with a shorter grace hastens the end; the first call's reason stays. Without any grace nothing
        is late, so nothing is said about it.
        """
        if self._stop is None and self._process.returncode is None:
            self._stop = (reason, detail)
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                return await self.wait()
        except TimeoutError:
            if grace_s > 0 and self._process.returncode is None:
                self.is_escalated = True
                logger.warning("%s: process %d did not stop in time; killing its process group", self._name, self.pid)
            self.kill()
            return await self.wait()

    def kill(self) -> None:
        """Send SIGKILL to the whole group now; `wait` tells when it is gone. That is a stop, not a crash."""
        if self._stop is None:
            self._stop = (ExitReason.STOPPED, "")
        self._signal(signal.SIGKILL)

    def _write(self, line: bytes) -> None:
        if not self._stdin.is_closing():
            self._stdin.write(line)

    def _take_status(self, status: WorkerStatus) -> None:
        if self._on_status is not None:
            self._on_status(status)

    def _signal(self, number: signal.Signals) -> None:
        # Once it is reaped, its id may belong to somebody else; `_reap` deals with the rest of the group.
        if self._process.returncode is None:
            signal_group(self.pid, number)

    async def _reap(self) -> WorkerExit:
        exit_code = await self._process.wait()
        signal_group(self.pid, signal.SIGKILL)
        await self._wait_for_empty_group()
        if not self._stdin.is_closing():
            self._stdin.abort()
        try:
            async with asyncio.timeout(_PIPES_CLOSE_S):
                await self._status.wait_closed()
                await self._output.wait_closed()
        except TimeoutError:
            self._status.close()
            self._output.close()
        asked, detail = self._stop or (None, "")
        return explain_exit(
            exit_code,
            asked=asked,
            asked_detail=detail,
            error=self._status.error,
            last_words=self.log.last_words(),
        )

    async def _wait_for_empty_group(self) -> None:
        """Return when nobody of the group runs. The system sends no notice of it, so this must ask."""
        pause_s, waited_s = 0.005, 0.0
        while members := living_members(self.pid):
            await asyncio.sleep(pause_s)
            if waited_s < _GROUP_WARN_S <= waited_s + pause_s:
                logger.warning("%s: processes %s survive SIGKILL; still waiting", self._name, members)
            waited_s += pause_s
            pause_s = min(2 * pause_s, 1.0)


async def _open_stdin(fd: int) -> asyncio.WriteTransport:
    """Return a transport that writes to `fd`, which it owns: it is closed even when this fails."""
    with ExitStack() as undo:
        pipe = undo.enter_context(os.fdopen(fd, "wb", buffering=0))
        transport, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.BaseProtocol, pipe)
        undo.pop_all()
    return transport


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """The process is reaped and its group has got SIGKILL."""
    signal_group(process.pid, signal.SIGKILL)
    await process.wait()


def _close_all(fds: set[int]) -> None:
    for fd in fds:
        os.close(fd)


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """Return a pipe whose ends are closed with the stack of the side that uses them."""
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write
