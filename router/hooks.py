"""Commands of a model's configuration, run at turns of its workers' lives.

Owns these processes: their environment is small, their time is limited, what they print goes to the log. Must not
decide what follows from a failure (`worker_run.py` does).

The hooks of one model run one after another, however quickly its workers come and go.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from router.catalog import ModelSpec
from router.launch import hook_environment
from router.log_tail import LogTail
from router.output_reader import OutputReader
from router.process_group import signal_group

logger = logging.getLogger(__name__)

HookEvent = Literal["before_load", "after_load", "after_unload"]

_PIPE_CLOSE_S = 0.5
"""How long the last words of a command may take; something it left running in the background may hold the pipe."""


class HookFailed(Exception):
    """The command did not do what it was for; says how it ended and what it printed last."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """What a hook is run for."""

    event: HookEvent
    spec: ModelSpec
    model_path: Path

    @property
    def command(self) -> tuple[str, ...]:
        """The words of the command; () = there is none."""
        return tuple(getattr(self.spec.hooks, self.event))


class HookRunner:
    """Runs the hooks of all models. Everything is called from the event loop."""

    def __init__(self) -> None:
        self._turns: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, occasion: Occasion, environ: Mapping[str, str]) -> None:
        """The command has succeeded, or there is none. Cancelling kills it.

        Raises: HookFailed.
        """
        if not occasion.command:
            return
        async with self._turns.setdefault(occasion.spec.name, asyncio.Lock()):
            started_s = time.monotonic()
            await _run(occasion, environ)
            model = occasion.spec.name
            logger.info("%s: hook `%s` took %.1f s", model, occasion.event, time.monotonic() - started_s)

    def run_later(self, occasion: Occasion, environ: Mapping[str, str]) -> None:
        """The command runs in the background; a failure is logged and changes nothing."""
        if occasion.command:
            task = asyncio.get_running_loop().create_task(self._run_quietly(self.run(occasion, environ), occasion))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self, patience_s: float = 5.0) -> None:
        """No hook runs any more; those in the background had `patience_s` to end by themselves."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @staticmethod
    async def _run_quietly(work: Coroutine[None, None, None], occasion: Occasion) -> None:
        model = occasion.spec.name
        try:
            await work
        except HookFailed as error:
            logger.warning("%s: %s", model, error)
        except asyncio.CancelledError:
            logger.warning("%s: the router stops, so its hook `%s` was killed", model, occasion.event)
            raise


async def _run(occasion: Occasion, environ: Mapping[str, str]) -> None:
    """The command has ended with success. If it took too long, its whole group was killed. Raises: HookFailed."""
    spec, event = occasion.spec, occasion.event
    log = LogTail()
    process, read_fd = await _start(occasion, environ)
    is_late = False
    try:
        output = await _HookOutput.open(read_fd, f"{spec.name}: {event}", log)
        try:
            async with asyncio.timeout(spec.hooks.timeout_s):
                await process.wait()
        except TimeoutError:
            is_late = True
    finally:
        await _end(process)
    await _close(output)
    if is_late:
        raise HookFailed(_explain(event, f"took longer than {spec.hooks.timeout_s:g} s and was killed", log))
    if process.returncode:
        raise HookFailed(_explain(event, _describe_end(process.returncode), log))


async def _start(occasion: Occasion, environ: Mapping[str, str]) -> tuple[asyncio.subprocess.Process, int]:
    """Return the process, and the pipe that it prints to. Raises: HookFailed."""
    spec, event = occasion.spec, occasion.event
    with ExitStack() as ours, ExitStack() as theirs:
        read_fd, write_fd = os.pipe()
        ours.callback(os.close, read_fd)
        theirs.callback(os.close, write_fd)
        try:
            process = await asyncio.create_subprocess_exec(
                *occasion.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_fd,
                stderr=write_fd,
                start_new_session=True,
                env=hook_environment(environ, event=event, model=spec.name, model_path=occasion.model_path),
                cwd=spec.base_dir,
            )
        except OSError as error:
            raise HookFailed(f"its hook `{event}` cannot be started: {error}") from None
        ours.pop_all()
    return process, read_fd


async def _end(process: asyncio.subprocess.Process) -> None:
    """The process is reaped; if it still ran, its group was killed."""
    if process.returncode is None:
        signal_group(process.pid, signal.SIGKILL)
        await process.wait()


async def _close(output: OutputReader) -> None:
    """What was printed has been read."""
    try:
        async with asyncio.timeout(_PIPE_CLOSE_S):
            await output.wait_closed()
    except TimeoutError:
        output.close()


class _HookOutput(OutputReader):
    """What an operator's own command prints is for the operator, as far as a person would read it."""

    logger = logger
    level = logging.INFO
    max_per_s = 50
    max_in_all = 200

    def judge(self, line: str) -> tuple[int, str]:
        """Return the level of a line in the log, and its text there."""
        return self.level, line


def _describe_end(exit_code: int) -> str:
    if exit_code > 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was ended by signal {-exit_code}"


def _explain(event: HookEvent, what: str, log: LogTail) -> str:
    spoken = [line.strip() for line in log.lines() if line.strip()]
    return f"its hook `{event}` {what}" + (f": {spoken[-1]}" if spoken else "")
