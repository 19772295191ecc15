"""The work of constraints beside a pass: one after another on another thread, and waited for, but not for long.

A single step through a grammar can take seconds, and nothing can break it off: then its answer ends, and its thread is
left to itself. Must not know what the work is.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from worker.engine.rule_follower import RuleFollower

Beside = Callable[[Callable[[], None]], Callable[[], None]]
"""Begins work that may run beside a pass; what it returns waits until the work is done. Raises: TimeoutError, after
which the work may still go on, but not in the way of what is begun next."""

PATIENCE_S = 0.5
"""How long all others wait, behind a pass, until it is known what may come in a constrained answer."""

MOST_WAITS = 20
"""Where the machine is so busy that the work has hardly begun by then, so many times as long."""

Job = tuple[RuleFollower, Callable[[], None]]
"""Something to do for one answer."""


def nothing() -> None:
    """There is nothing to wait for."""


def at_once(work: Callable[[], None]) -> Callable[[], None]:
    """Do the work before the pass."""
    work()
    return nothing


class OtherThread:
    """Does work beside its caller; work that takes too long keeps its thread, and what comes next gets another."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._renew()

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        """Begin the work; what is returned waits for it. Raises: TimeoutError if it takes too long."""
        before_s = self._processor_s()
        future = self._thread.submit(work)

        def wait() -> None:
            for _ in range(MOST_WAITS):
                try:
                    return future.result(self._patience_s)
                except TimeoutError:
                    if self._processor_s() - before_s >= self._patience_s / 2:
                        break
            self.close()
            self._renew()
            raise TimeoutError

        return wait

    def close(self) -> None:
        """End the thread when its work is done."""
        self._thread.shutdown(wait=False)

    def _renew(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="beside")
        self._ident = self._thread.submit(threading.get_ident).result()

    def _processor_s(self) -> float:
        """Return how long the thread has run. Where nobody tells, all time counts."""
        if sys.platform != "linux":
            return time.monotonic()
        return time.clock_gettime(time.pthread_getcpuclockid(self._ident))


class RuleWork:
    """Has jobs done beside the engine's thread."""

    def __init__(self, beside: Beside) -> None:
        self._beside = beside

    def begin(self, jobs: Sequence[Job]) -> Callable[[], None]:
        """Have the jobs done in order; what is returned waits, and then gives up the answer that is waited for."""
        if not jobs:
            return nothing
        run = _Run(jobs)
        return partial(self._wait, run, self._beside(run))

    def _wait(self, run: _Run, is_done: Callable[[], None]) -> None:
        while True:
            try:
                return is_done()
            except TimeoutError:
                if not (rest := run.give_up()):
                    return None
                run = _Run(rest)
                is_done = self._beside(run)


class _Run:
    """Jobs in order, until they are given up."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._lock = threading.Lock()
        self._place = 0
        self._is_given_up = False

    def __call__(self) -> None:
        for place, (_, job) in enumerate(self._jobs):
            with self._lock:
                if self._is_given_up:
                    return
                self._place = place
            job()

    def give_up(self) -> Sequence[Job]:
        """The answer whose job is under way ends. Return the jobs behind it."""
        with self._lock:
            self._is_given_up = True
            rule, _ = self._jobs[self._place]
            rule.give_up()
            return self._jobs[self._place + 1 :]
