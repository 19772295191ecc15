"""Processes that have started and imported everything, and wait to be told what to load.

Owns them until a start takes one. A start with a spare costs the loading of the model alone. Must not decide when a
worker starts (`fleet.py` does), nor take time from a load that somebody waits for: new ones are made afterwards.

A process cannot change the environment that it was started with, so a spare fits those starts alone whose
environment is the same: that of most of the last starts is what spares are made with.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from router.process import WorkerProcess
from worker.contract import SPARE_ARGUMENT

logger = logging.getLogger(__name__)

REFILL_AFTER_S = 0.5
"""From the end of the last load: the request that has caused it is being answered."""
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
"""Between attempts to make spares that die."""
_SETTLED_S = 10.0
"""A spare that dies after so long has not failed to start."""
_NUM_REMEMBERED = 8

_Environment = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Spare:
    process: WorkerProcess
    environment: _Environment
    watcher: asyncio.Task[None]


class SparePool:
    """As many spares as were asked for, most of the time. Everything is called from the event loop."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> None:
        """`command` is that of a worker. `env` is the environment of spares that are made before the first start.

        There is no spare before `resize`.
        """
        self._command = [*command, SPARE_ARGUMENT]
        self._cwd = cwd
        self._size = 0
        self._first = _frozen(env)
        self._asked: deque[_Environment] = deque(maxlen=_NUM_REMEMBERED)
        """The environments of the last starts, the last one at the end."""
        self._spares: list[_Spare] = []
        self._loads: set[Hashable] = set()
        self._num_failures = 0
        self._changed = asyncio.Event()
        self._filling: asyncio.Task[None] | None = None

    @property
    def num_ready(self) -> int:
        """Processes that could be taken. For whoever watches: `take` alone decides."""
        return len(self._spares)

    def resize(self, size: int) -> None:
        """There will be `size` spares; surplus ones go at once."""
        self._size = size
        for spare in self._spares[size:]:
            self._drop(spare)
        if size and self._filling is None:
            self._filling = asyncio.get_running_loop().create_task(self._keep_filled(), name="spare processes")
        self._changed.set()

    def take(self, env: Mapping[str, str]) -> WorkerProcess | None:
        """Return a process that was started with exactly this environment and is now the caller's; None = none is."""
        environment = _frozen(env)
        self._asked.append(environment)
        self._changed.set()
        for spare in self._spares:
            if spare.environment == environment and spare.process.is_running:
                self._spares.remove(spare)
                spare.watcher.cancel()
                self._num_failures = 0
                return spare.process
        return None

    def load_begins(self, load: Hashable) -> None:
        """No spare is made until `load_ends` was called for every load that has begun."""
        self._loads.add(load)

    def load_ends(self, load: Hashable) -> None:
        """See `load_begins`; may be called again."""
        self._loads.discard(load)
        self._changed.set()

    async def close(self) -> None:
        """No spare is left, and none will be made."""
        self._size = 0
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.gather(self._filling, return_exceptions=True)
        processes = [spare.process for spare in self._spares]
        for spare in list(self._spares):
            self._drop(spare)
        await asyncio.gather(*(process.wait() for process in processes))

    # --- making them ---

    async def _keep_filled(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while not self._loads and self._missing() is not None:
                await asyncio.sleep(max(REFILL_AFTER_S, self._pause_s()))
                missing = None if self._loads else self._missing()
                if missing is not None:
                    await self._make(missing)

    def _pause_s(self) -> float:
        if not self._num_failures:
            return 0.0
        return min(_FIRST_PAUSE_S * 2.0 ** min(self._num_failures - 1, 10), _LONGEST_PAUSE_S)

    def _missing(self) -> _Environment | None:
        """Return the environment of a spare that should be there and is not; None = all are."""
        left = Counter(self._wanted())
        left.subtract(spare.environment for spare in self._spares)
        return next((environment for environment, count in left.items() if count > 0), None)

    def _wanted(self) -> list[_Environment]:
        """Return the environments that the spares should have: those most often asked for, lately.

        Of two that were asked for equally often, the one that a spare has already: so that two models in turns do not
        make spares that neither gets.
        """
        present = {spare.environment for spare in self._spares}
        counts = Counter(reversed(self._asked or [self._first]))
        ranked = sorted(counts, key=lambda environment: (-counts[environment], environment not in present))
        return [ranked[index % len(ranked)] for index in range(self._size)]

    async def _make(self, environment: _Environment) -> None:
        """One more spare is there, in the place of one that is not wanted any more; or the failure is remembered."""
        wanted = Counter(self._wanted())
        for spare in list(self._spares):
            if wanted[spare.environment] > 0:
                wanted[spare.environment] -= 1
            else:
                self._drop(spare)
        try:
            process = await WorkerProcess.create(self._command, env=dict(environment), cwd=self._cwd, name="spare")
        except OSError as error:
            self._note_failure(f"cannot be started: {error}")
            return
        watcher = asyncio.get_running_loop().create_task(self._watch(process), name=f"spare {process.pid}")
        self._spares.append(_Spare(process, environment, watcher))

    async def _watch(self, process: WorkerProcess) -> None:
        """The end of a spare is noticed, and another one is made in its place."""
        born_s = time.monotonic()
        exit_ = await process.wait()
        self._spares = [spare for spare in self._spares if spare.process is not process]
        if time.monotonic() - born_s >= _SETTLED_S:
            self._num_failures = 0
        self._note_failure(exit_.detail)

    def _note_failure(self, what: str) -> None:
        self._num_failures += 1
        logger.warning(
            "a spare process is gone: %s; the next one will be made in %.0f s. Starts do without meanwhile",
            what,
            self._pause_s(),
        )
        self._changed.set()

    def _drop(self, spare: _Spare) -> None:
        """The spare is no longer one, and it was killed; it is reaped soon."""
        self._spares.remove(spare)
        spare.watcher.cancel()
        spare.process.kill()


def _frozen(env: Mapping[str, str]) -> _Environment:
    return frozenset(env.items())
