"""The worker as an operating-system process: logging, event loop, and the last resort when something is wrong.

Owns what surrounds a life. Must not know its stages.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from worker import rights
from worker.birth import process_age_s
from worker.contract import ExitCode, Phase, WorkerStatus
from worker.life import IMPORTED_WHILE_READING, Life
from worker.lifeline import Lifeline
from worker.reporter import StatusLink

log = logging.getLogger("worker")

_NEEDED = (
    "uvloop",
    "worker.engine.llama",
    *IMPORTED_WHILE_READING,
    "encodings.unicode_escape",
    "worker.engine.calibrator",
    "worker.engine.draft_model",
)
"""What a worker imports sooner or later. None of it looks for devices: that would open contexts on all of them."""


def import_all(unless: Callable[[], bool] = lambda: False) -> None:
    """What a worker imports is imported; no more of it from the moment that `unless` is true."""
    for name in _NEEDED:
        if unless():
            break
        with contextlib.suppress(ImportError):  # who needs it will say so
            importlib.import_module(name)


def run_spare(lifeline: Lifeline) -> NoReturn:
    """As `run`, of a process that was started before anybody knew what it would load."""
    import_all(unless=lambda: lifeline.is_told)  # the rest is imported while the weights are read
    lifeline.wait_told()
    run(lifeline, lifeline.told_at_s, is_spare=True)


def run(lifeline: Lifeline, started_at_s: float, *, is_spare: bool = False) -> NoReturn:
    """The worker's life is over and its process has ended with the life's exit code.

    `started_at_s`: when this process began to work on it; a spare, when it was told what to load.
    """
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
    log.info("rights: %s", ", ".join(rights.held) or "those of the router")
    spawn_s = 0.0 if is_spare else max(0.0, process_age_s() - (time.monotonic() - started_at_s))
    life = Life(spec, lifeline, link, started_at_s, spawn_s=spawn_s)
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
