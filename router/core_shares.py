"""Tells every worker that computes on the CPU how many threads it may use.

Owns when shares are due. Must not decide how cores are divided (`threads.py` does).
"""

from __future__ import annotations

from collections.abc import Mapping

from router.events import WorkerId
from router.threads import share_threads
from router.worker_run import WorkerRun


class CoreShares:
    """The shares of all workers of one router."""

    def __init__(self, num_cores: int, runs: Mapping[WorkerId, WorkerRun]) -> None:
        self.are_due = False
        """Something has changed that others' shares depend on."""
        self._num_cores = num_cores
        self._runs = runs

    def first_share(self, worker: WorkerId) -> int:
        """Return how many threads a worker that is about to start may use."""
        return share_threads(self._num_cores, self._busy() | {worker: False})[worker]

    def tell(self) -> None:
        """Every worker knows its share of the cores."""
        if not self.are_due:
            return
        self.are_due = False
        for worker, share in share_threads(self._num_cores, self._busy()).items():
            self._runs[worker].tell_threads(share)

    def _busy(self) -> dict[WorkerId, bool]:
        """Return which workers that compute on the CPU have work now."""
        return {worker: run.num_leases > 0 for worker, run in self._runs.items() if run.is_alive and run.uses_cpu}
