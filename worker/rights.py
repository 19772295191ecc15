"""What a worker may do to the rest of the machine: as little as Linux lets it promise.

Owns the promises, which nobody in the process can take back: no new privileges, no core dumps, writing in a few
folders only, no TCP connections, no signals to strangers. Must not know what a worker does. To be called before the
process has a second thread: what Landlock enforces, it enforces for the threads that come after.

All of it is best effort, because none of it may keep a model from running: where the kernel cannot do something, or a
graphics driver needs to be let, it is left out, and `held` says what holds.

Source: landlock(7), prctl(2).
"""

from __future__ import annotations

import ctypes
import os
import resource
import stat
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from worker.contract import WRITES_ARGUMENT

_PR_SET_NO_NEW_PRIVS = 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

_WRITE_FILE = 1 << 1
_IN_FOLDERS = sum(1 << bit for bit in range(4, 13))
"""REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM."""
_REFER = 1 << 13
_TRUNCATE = 1 << 14
_BIND_AND_CONNECT_TCP = 0b11
_SCOPE_SIGNAL = 0b10

_FOR_ALL = (Path("/tmp"), Path("/dev/shm"))
_DEVICES = (Path("/dev"), Path("/proc/self"))
"""Files there are written to and none are made: devices of graphics cards, names of threads."""
_DRIVER_CACHES = (
    ("/dev/nvidiactl", (".nv", ".cache/nvidia")),
    ("/dev/dxg", (".nv", ".cache/nvidia")),  # the card of a Windows machine, in its Linux
    ("/dev/kfd", (".cache/comgr", ".cache/AMD")),
    ("/dev/dri", (".cache/mesa_shader_cache", ".cache/mesa_shader_cache_db", ".cache/neo_compiler_cache")),
)
"""Where drivers keep compiled kernels, in the home folder: without them every load compiles again."""

_FOLDERS_OF_ENVIRONMENT = ("TMPDIR", "CUDA_CACHE_PATH", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
"""Name folders for what may be lost, and those in which programs that share a card talk to its daemon."""

_NVIDIA_MODPROBE = "/usr/bin/nvidia-modprobe"
_NVIDIA_MEMORY = "/dev/nvidia-uvm"

held: list[str] = []
"""What this process has promised so far, for its log."""


class _RulesetAttributes(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


_ATTRIBUTE_BYTES = {4: 16, 5: 16}
"""How much of the attributes a version knows: before 4 the first, from 6 on all."""


def give_up_privileges() -> None:
    """No program that this process starts gets rights that it has not, and it leaves no memory on the disk."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        held.append("no core dumps")
    if sys.platform != "linux":
        return
    if os.path.exists(_NVIDIA_MODPROBE) and not os.path.exists(_NVIDIA_MEMORY):
        return  # the driver's library starts that program to have its devices made, and it needs root's rights
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        held.append("no new privileges")


def folders_of(arguments: Sequence[str]) -> list[Path]:
    """Return the folders that the arguments name after `--writes=`."""
    return [Path(word.removeprefix(WRITES_ARGUMENT)) for word in arguments if word.startswith(WRITES_ARGUMENT)]


def restrict(folders: Sequence[Path]) -> None:
    """Files are written in `folders` (made if need be), in temporary ones and in drivers' caches; nowhere else.

    Nor does this process open TCP connections or send signals to others, where the kernel can see to it. It needs
    `give_up_privileges` first. No folders = nothing changes.
    """
    if not folders or sys.platform != "linux" or "no new privileges" not in held:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _RULESET_VERSION)
    if version < 1:
        return
    kinds = _WRITE_FILE | _IN_FOLDERS | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    attributes = _RulesetAttributes(
        kinds, _BIND_AND_CONNECT_TCP if version >= 4 else 0, _SCOPE_SIGNAL if version >= 6 else 0
    )
    num_bytes = 8 if version < 4 else _ATTRIBUTE_BYTES.get(version, ctypes.sizeof(attributes))
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(num_bytes), 0)
    if ruleset < 0:
        return
    try:
        for folder in (*_made(folders), *_FOR_ALL, *_temporary(), *_made(_driver_caches())):
            _allow(libc, ruleset, folder, kinds)
        for folder in _DEVICES:
            _allow(libc, ruleset, folder, kinds & (_WRITE_FILE | _TRUNCATE))
        if libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0:
            held.append(f"writes only in {', '.join(map(str, folders))}, temporary folders and drivers' caches")
            held.extend(["no TCP connections"] if version >= 4 else [])
            held.extend(["no signals to other programs"] if version >= 6 else [])
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, kinds: int) -> None:
    """Below `path` everything of `kinds` is allowed, if there is such a folder."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)  # type: ignore[attr-defined,unused-ignore]
    except OSError:
        return
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rule = _PathBeneath(kinds, descriptor)
            libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(descriptor)


def _made(folders: Iterable[Path]) -> Iterable[Path]:
    for folder in folders:
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield folder


def _temporary() -> Iterable[Path]:
    return [Path(found) for name in _FOLDERS_OF_ENVIRONMENT if (found := os.environ.get(name))]


def _driver_caches() -> Iterable[Path]:
    home = os.environ.get("HOME")
    if not home:
        return
    for device, folders in _DRIVER_CACHES:
        if os.path.exists(device):
            yield from (Path(home) / folder for folder in folders)
