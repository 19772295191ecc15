"""The live workers of one supervisor, and what can be read off them.

Owns who is alive and the last words of the dead. Must not start or stop anybody: the supervisor does, as the fleet
decides.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from router.catalog import Catalog
from router.events import WorkerId
from router.fetch.protocol import FetchProgress
from router.log_tail import LogTail
from router.tasks import all_set
from router.worker_run import WorkerRun
from worker.contract import WorkerStatus

logger = logging.getLogger(__name__)

_REAP_MARGIN_S = 5.0
"""Beyond the time that they have, how long is waited for processes: to end, and once more after they were killed."""


class Runs(Mapping[WorkerId, WorkerRun]):
    """Each live worker's run, by its id."""

    def __init__(self) -> None:
        self._live: dict[WorkerId, WorkerRun] = {}
        self._last_logs: dict[str, list[tuple[WorkerId, LogTail]]] = {}
        """By model: what the last worker printed that is gone."""

    def __getitem__(self, worker: WorkerId) -> WorkerRun:
        return self._live[worker]

    def __iter__(self) -> Iterator[WorkerId]:
        return iter(self._live)

    def __len__(self) -> int:
        return len(self._live)

    def add(self, run: WorkerRun) -> None:
        """`run` is alive."""
        self._live[run.worker] = run

    def remove(self, worker: WorkerId) -> bool:
        """Return whether `worker` was alive; it is not any more, and its last words are kept."""
        run = self._live.pop(worker, None)
        if run is None:
            return False
        self._last_logs[worker.model] = [(worker, run.log)]
        return True

    def adopt(self, catalog: Catalog) -> None:
        """Every worker knows what `catalog` says of its model, and nothing is kept of models that are gone."""
        for name in self._last_logs.keys() - catalog.models.keys():
            del self._last_logs[name]
        for run in self._live.values():
            run.adopt(catalog.models.get(run.worker.model))

    def kill(self) -> None:
        """Every process is told to end at once."""
        for run in self._live.values():
            run.kill()

    async def wait_until_over(self, timeout_s: float) -> bool:
        """Return whether all workers that are alive now are gone in time."""
        return await all_set([run.is_over for run in self._live.values()], timeout_s)

    async def see_off(self, timeout_s: float | None) -> None:
        """No worker is alive any more, or the log names those that cannot be killed.

        They have been told to stop, and have `timeout_s` for it; None = they are killed at once.
        """
        if timeout_s is None or not await self.wait_until_over(timeout_s + _REAP_MARGIN_S):
            self.kill()
            if not await self.wait_until_over(_REAP_MARGIN_S):
                logger.error("giving up on workers that survive SIGKILL: %s", ", ".join(map(str, self)))

    def of(self, model: str) -> list[WorkerRun]:
        """Return the runs of one model."""
        return [run for worker, run in self._live.items() if worker.model == model]

    def status(self, worker: WorkerId) -> WorkerStatus | None:
        """Return the last line of a live worker's status link."""
        run = self._live.get(worker)
        return run.status if run is not None else None

    def earlier_status(self, worker: WorkerId) -> WorkerStatus | None:
        """Return a line of a live worker's status link that is one or two seconds older than the last one."""
        run = self._live.get(worker)
        return run.earlier_status if run is not None else None

    def fetches(self) -> dict[str, FetchProgress]:
        """Return how far each download is, by model."""
        return {run.worker.model: run.fetch_progress for run in self._live.values() if run.fetch_progress}

    def logs(self, model: str) -> list[tuple[WorkerId, LogTail]]:
        """Return what the model's live workers printed; that of the last dead one if none is alive."""
        return [(run.worker, run.log) for run in self.of(model)] or self._last_logs.get(model, [])
