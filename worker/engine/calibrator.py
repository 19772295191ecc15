"""Measures what passes cost while the engine has nothing else to do, once for each model and machine.

Every measurement is an errand of the engine thread; a request that comes breaks it off and goes first. Must not
decide what is measured and what follows (`calibration.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from worker.contract import EngineOptions
from worker.engine.calibration import (
    Calibration,
    Measurements,
    Subject,
    Times,
    choose_flash_attn,
    fill_rows,
    passes,
    settings,
)
from worker.engine.calibration_files import read_calibration, write_calibration
from worker.engine.errors import EngineStopped, ForwardAborted, ForwardError, LoadFailed

log = logging.getLogger(__name__)

T = TypeVar("T")

QUIET_S = 0.5
"""Nobody has asked for anything for so long before a measurement begins: who asked once may go on."""
FIRST_ROWS = 8
"""Of a first pass, which tells how much a pass can hold."""


class Probe(Protocol):
    """A throw-away context: see `llama_probe.Probe`."""

    @property
    def cpu_share(self) -> float: ...
    def fill(self, num_rows: int) -> float: ...
    def seconds(self, num_rows: int) -> float: ...
    def interrupt(self) -> None: ...
    def close(self) -> None: ...


class IdleEngine(Protocol):
    """What is needed of an engine."""

    @property
    def num_threads(self) -> int: ...
    @property
    def is_idle(self) -> bool: ...
    async def drain(self) -> None: ...
    def call(self, work: Callable[[], T], interrupt: Callable[[], None] | None = None) -> asyncio.Future[T]: ...
    def seed_costs(self, seconds: Mapping[int, float]) -> None: ...


OpenProbe = Callable[[str, int], Probe]
"""Makes a context, given flash attention and the number of threads."""


class Calibrator:
    """One model's calibration."""

    def __init__(
        self, engine: IdleEngine, options: EngineOptions, subject: Subject, folder: Path, open_probe: OpenProbe
    ) -> None:
        """`options` are as configured: `flash_attn` is `auto` where it is to be chosen."""
        self._engine = engine
        self._options = options
        self._subject = subject
        self._folder = folder
        self._open_probe = open_probe

    async def run(self, flash_attn: str) -> Calibration | None:
        """Measure unless it is known already, keep it, and let the engine's cost table begin with it.

        `flash_attn` is the setting that the engine runs with. None if the model is too slow, cannot be measured, or
        the number of threads has changed meanwhile. Cancelling leaves nothing behind.
        """
        subject = replace(self._subject, num_threads=self._engine.num_threads)
        found = read_calibration(self._folder, subject)
        if found is None:
            try:
                measured = await self._measured(subject)
            except EngineStopped:
                return None
            except (LoadFailed, ForwardError, MemoryError) as error:
                log.info("calibration given up: %s", str(error) or "not enough memory")
                return None
            if measured is None or self._engine.num_threads != subject.num_threads:
                return None
            found = self._kept(Calibration(subject, measured.times()), flash_attn, measured)
        times = found.times.get("on" if flash_attn == "auto" else flash_attn, {})
        with contextlib.suppress(EngineStopped):
            await self._engine.call(partial(self._engine.seed_costs, times))
        return found

    def _kept(self, found: Calibration, flash_attn: str, measured: Measurements) -> Calibration:
        """Return what was found, after keeping it for later loads if it can be relied on."""
        for setting, times in found.times.items():
            log.info("calibrated with flash attention %s: %s", setting, _shown(times))
        if not measured.is_undisturbed:
            log.info("the machine was busy meanwhile: the calibration will be repeated after the next load")
            return found
        write_calibration(self._folder, found)
        chosen = choose_flash_attn(self._options, found)
        if chosen not in {"on" if flash_attn == "auto" else flash_attn, self._options.flash_attn}:
            log.info("flash attention %s is clearly faster here: it is used from the next load on", chosen)
        return found

    async def _measured(self, subject: Subject) -> Measurements | None:
        """Return all times; None for a model that is too slow. Raises: EngineStopped, LoadFailed, ForwardError."""
        measured = Measurements()
        await asyncio.sleep(QUIET_S)  # the request that has caused the load comes now
        async with contextlib.AsyncExitStack() as stack:
            probes = {}
            for setting in settings(self._options):
                probe = await self._undisturbed(partial(self._open_probe, setting, subject.num_threads), None)
                stack.push_async_callback(self._close, probe)
                filled_s = await self._fill(probe, subject.max_rows)
                if filled_s is not None:
                    measured.spent_s += filled_s
                    probes[setting] = probe
            for setting, rows in passes(self._options, subject.max_rows):
                if setting in probes and measured.is_affordable(setting, rows):
                    probe = probes[setting]
                    measured.note(setting, rows, await self._undisturbed(partial(probe.seconds, rows), probe.interrupt))
            measured.cpu_share = min((probe.cpu_share for probe in probes.values()), default=1.0)
        return measured if measured.times() else None

    async def _fill(self, probe: Probe, max_rows: int) -> float | None:
        """Return the seconds of the passes that it took; None for a model that is too slow."""
        num_first = min(FIRST_ROWS, max_rows)
        first_s = await self._undisturbed(partial(probe.seconds, num_first), probe.interrupt)
        num_filled = fill_rows(max_rows, (num_first, first_s))
        if num_filled is None:
            return None
        return first_s + await self._undisturbed(partial(probe.fill, num_filled), probe.interrupt)

    async def _close(self, probe: Probe) -> None:
        # On the engine thread, behind a measurement that may still run there. After the engine's end the weights are
        # gone, and soon the process: then the context is left alone.
        with contextlib.suppress(EngineStopped):
            await asyncio.shield(self._engine.call(probe.close))

    async def _undisturbed(self, work: Callable[[], T], interrupt: Callable[[], None] | None) -> T:
        """Return the result of `work`, tried while nobody wants anything, again and again if somebody comes."""
        while True:
            await self._quiet()
            try:
                return await self._engine.call(work, interrupt)
            except ForwardAborted:
                continue

    async def _quiet(self) -> None:
        while not self._engine.is_idle:
            await self._engine.drain()
            await asyncio.sleep(QUIET_S)


def _shown(times: Times) -> str:
    return ", ".join(f"{rows} rows {1e3 * seconds:.1f} ms" for rows, seconds in sorted(times.items()))
