"""The worker as an operating-system process: logging, event loop, and the last resort when something is wrong.

Owns what surrounds a life. Must not know its stages.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from worker.contract import ExitCode, Phase, WorkerStatus
from worker.life import Life
from worker.lifeline import Lifeline
from worker.reporter import StatusLink

log = logging.getLogger("worker")


def run(lifeline: Lifeline, started_at_s: float) -> NoReturn:
    """The worker's life is over and its process has ended with the life's exit code."""
    os.umask(0o077)
    try:
        spec = lifeline.wait_spec()
        link = StatusLink(spec.status_fd)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"worker: cannot start: {error}\n")
        _end(ExitCode.BAD_SPEC)
    link.send(WorkerStatus(phase=Phase.STARTING))
    logging.basicConfig(
        stream=sys.stderr, level=spec.log_level.upper(), format=f"%(asctime)s %(levelname)s {spec.model}: %(message)s"
    )
    life = Life(spec, lifeline, link, started_at_s)
    runner = asyncio.Runner(loop_factory=_loop_factory())
    try:
        code = runner.run(life.live())
    except BaseException as error:
        log.critical("unexpected error", exc_info=True)
        life.fail(f"unexpected error: {error!r}")
        code = ExitCode.ENGINE_FAILED
    _end(code)


def _end(code: ExitCode) -> NoReturn:
    """Not `sys.exit`: threads that load or compute, and destructors of native code, must not delay or spoil the end."""
    sys.stderr.flush()
    os._exit(code)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # not available for every interpreter
        return asyncio.new_event_loop
    return uvloop.new_event_loop
