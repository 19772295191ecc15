"""Whether the machine lets Corral work: folders, disk, limits of processes, memory, the clock.

Owns these looks. They change nothing but a file of no content that is written into the cache folder and removed.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from router.cache_folder import default_cache_dir
from router.doctor.findings import Finding, fail, ok, warn
from router.runtime_dir import MAX_SOCKET_PATH_BYTES, default_parents

_LITTLE_DISK: Final = 2 * 10**9
_LEAST_DISK: Final = 200 * 10**6
_FEW_FILES: Final = 4096
_LITTLE_MEMORY: Final = 2 * 10**9
_SOCKET_ROOM: Final = len("/corral-12345678/w1234567.sock")


def check_machine(environ: Mapping[str, str], cache: Path | None = None, *, wants_mlock: bool = False) -> list[Finding]:
    """Return what there is to say. `cache`: of the settings; None = the usual folder."""
    findings = [*_check_cache(environ, cache), check_runtime_dir(default_parents(environ)), *check_limits()]
    if wants_mlock:
        findings.append(check_memlock())
    return [*findings, *check_memory(), *check_clock(time.time(), Path(__file__))]


def _check_cache(environ: Mapping[str, str], cache: Path | None) -> list[Finding]:
    try:
        return check_cache_folder(default_cache_dir(environ) if cache is None else cache.expanduser())
    except RuntimeError:  # of a `~`, and of a user without a home
        text = "there is no folder for fetched models: the system does not know the home folder that it would be in"
        return [fail(text, "set CORRAL_CACHE to a folder that this user may write to")]


def check_cache_folder(folder: Path) -> list[Finding]:
    """Return whether fetched models can be kept, and how many more."""
    there = folder
    while not os.path.exists(there) and there != there.parent:  # Path's own raises where it may not look
        there = there.parent
    advice = "set CORRAL_CACHE to a folder that this user may write to"
    if there == folder and not os.path.isdir(folder):
        return [fail(f"{folder} is to hold fetched models, and is not a folder", advice)]
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        return [fail(f"{folder} is to hold fetched models, and cannot be written to: {error.strerror}", advice)]
    free = shutil.disk_usage(there).free
    room = f"{free / 1e9:.1f} GB free"
    if free < _LEAST_DISK:
        return [fail(f"{folder}: the disk is full ({room}): no model can be fetched", "$ corral cache clean --unused")]
    if free < _LITTLE_DISK:
        return [warn(f"{folder}: the disk is nearly full ({room})", "$ corral cache list")]
    return [ok(f"{folder} holds fetched models, {room}")]


def check_runtime_dir(places: list[Path]) -> Finding:
    """Return whether workers' sockets have a place."""
    reasons = []
    for place in places:
        if len(os.fsencode(place)) + _SOCKET_ROOM > MAX_SOCKET_PATH_BYTES:
            reasons.append(f"{place} is too long for the name of a Unix socket")
        elif not os.path.isdir(place):
            reasons.append(f"{place} is not there, or is hidden from this user")
        elif not os.access(place, os.W_OK | os.X_OK):
            reasons.append(f"{place} cannot be written to")
        else:
            return ok(f"{place} holds the workers' sockets")
    advice = "set XDG_RUNTIME_DIR to a short path that this user may write to"
    return fail(f"there is no place for the workers' sockets: {'; '.join(reasons)}", advice)


def check_limits() -> list[Finding]:
    """Return whether enough files may be open at the same time: each stream takes two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _FEW_FILES:
        streams = max(1, (hard - 100) // 2)
        text = f"a process may have {hard} open files, enough for some {streams} streams at the same time"
        return [warn(text, "raise it: `ulimit -Hn 65536`, or LimitNOFILE=65536 of the service")]
    return []


def check_memlock() -> Finding:
    """Return whether `mlock` can work, which a model of the configuration asks for."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if hard == resource.RLIM_INFINITY or os.geteuid() == 0:
        return ok("memory may be locked, as `mlock` asks")
    return warn(
        f"a model has `mlock: true`, and this user may lock {hard / 1e6:.0f} MB of memory only",
        "raise it: LimitMEMLOCK=infinity of the service, or memlock in /etc/security/limits.conf",
    )


def check_memory() -> list[Finding]:
    """Return how much memory models can have."""
    try:
        from router.cores import count_cores
        from router.devices import MachineMemory
    except ImportError:
        return []  # told as a library that cannot be imported
    memory = MachineMemory()
    total, free, cores = memory.total_bytes(), memory.free_bytes(), count_cores()
    text = f"{total / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB free; {cores} {'core' if cores == 1 else 'cores'}"
    if free < _LITTLE_MEMORY:
        return [warn(f"{text}: little room for models", "`corral fit MODEL` tells what one needs")]
    return [ok(text)]


def check_clock(now_s: float, own_file: Path) -> list[Finding]:
    """Return whether the clock can be right: with a wrong one no server's certificate is believed."""
    try:
        made_s = own_file.stat().st_mtime
    except OSError:
        return []
    if now_s < made_s - 86_400:
        shown = time.strftime("%Y-%m-%d", time.gmtime(now_s))
        text = f"the clock says {shown}, which is before this program was installed: downloads will fail"
        return [warn(text, "$ sudo timedatectl set-ntp true")]
    return []
