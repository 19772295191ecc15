"""Model files on their way into the page cache while a worker's process starts.

Owns the reading, in a thread. Must not hold a start up nor fill memory that others need: what does not fit is left to
the worker, which maps the file and reads what it uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from router.devices import MachineMemory

logger = logging.getLogger(__name__)

_readers = ThreadPoolExecutor(2, thread_name_prefix="readahead")
"""Reading may take as long as a disk is slow: it must not take threads that requests and starts need."""
_CHUNK_BYTES = 128 * 1024
"""Of one request to the kernel, which silently cuts off what is longer than its own window. Source:
mm/readahead.c, force_page_cache_ra."""
_NUM_SAMPLES = 64
_MOSTLY = 0.9


class ReadAhead:
    """One start's files. `start` and `cancel`, called from the event loop, return at once."""

    def __init__(self, available: Callable[[], int] | None = None) -> None:
        """`available` returns how many bytes may be read; None = what is free on this machine or in this container."""
        self._available = available or _free_bytes
        self._is_cancelled = threading.Event()
        self._reading: asyncio.Future[None] | None = None

    def start(self, paths: Sequence[Path]) -> None:
        """The files are being read in this order, where the system can do that. To be called once."""
        if hasattr(os, "posix_fadvise") and hasattr(os, "RWF_NOWAIT"):  # not on macOS
            self._reading = asyncio.get_running_loop().run_in_executor(_readers, self._run, list(paths))

    def cancel(self) -> None:
        """Soon nothing more is read."""
        self._is_cancelled.set()

    async def wait(self) -> None:
        """Nothing is being read any more."""
        if self._reading is not None:
            await self._reading

    def _run(self, paths: list[Path]) -> None:
        with contextlib.ExitStack() as stack:
            files = []
            for path in paths:
                with contextlib.suppress(OSError):  # the worker will say what is wrong with it
                    files.append(stack.enter_context(path.open("rb", buffering=0)).fileno())
            try:
                missing = [fd for fd in files if cached_share(fd) < _MOSTLY]
                num_bytes = sum(os.fstat(fd).st_size for fd in missing)
                if missing and num_bytes <= self._available():
                    for fd in missing:
                        self._read(fd)
            except OSError as error:
                logger.debug("reading ahead is given up: %s", error)

    def _read(self, fd: int) -> None:
        for offset in range(0, os.fstat(fd).st_size, _CHUNK_BYTES):
            if self._is_cancelled.is_set():
                return
            os.posix_fadvise(fd, offset, _CHUNK_BYTES, os.POSIX_FADV_WILLNEED)


def cached_share(fd: int) -> float:
    """Return roughly which share of the file is in the page cache; 1.0 where that cannot be told. Takes 0.1 ms."""
    size, buffer, num_cached = os.fstat(fd).st_size, bytearray(1), 0
    for sample in range(_NUM_SAMPLES):
        try:
            os.preadv(fd, [buffer], sample * size // _NUM_SAMPLES, os.RWF_NOWAIT)
            num_cached += 1
        except BlockingIOError:
            continue
        except OSError:
            return 1.0
    return num_cached / _NUM_SAMPLES


def _free_bytes() -> int:
    return MachineMemory().free_bytes()
