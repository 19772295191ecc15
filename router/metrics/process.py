"""The router's own process, under the names that Prometheus' clients use everywhere.

Owns those names. Works wherever psutil does: what a system does not tell is left out.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator

import psutil

from router.metrics.families import Family, counter_of, gauge_of


class OwnProcess:
    """Families of this process."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def families(self) -> Iterator[Family]:
        """Yield them, measured now."""
        process = self._process
        with process.oneshot():
            times, memory = process.cpu_times(), process.memory_info()
            cpu_s = times.user + times.system
            start_s, num_fds, num_threads = process.create_time(), process.num_fds(), process.num_threads()
        max_fds = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        yield counter_of(
            "process_cpu_seconds", "User and system CPU time of the router, in seconds. Workers are not in it.", cpu_s
        )
        yield gauge_of("process_resident_memory_bytes", "Resident memory of the router, in bytes.", memory.rss)
        yield gauge_of("process_virtual_memory_bytes", "Virtual memory of the router, in bytes.", memory.vms)
        yield gauge_of(
            "process_start_time_seconds", "When the router started, in seconds since the Unix epoch.", start_s
        )
        yield gauge_of("process_open_fds", "File descriptors that the router has open.", num_fds)
        yield gauge_of(
            "process_max_fds",
            "File descriptors that it may have open; left out when there is no limit.",
            None if max_fds == resource.RLIM_INFINITY else max_fds,
        )
        yield gauge_of("process_threads", "Threads of the router.", num_threads)
