"""Known faults of llama.cpp builds that would kill the process, and how to tell them before they do.

Pure but for reading the library's own file. Must not import llama_cpp.
"""

from __future__ import annotations

import re
from pathlib import Path

_COMPILER = re.compile(rb"GCC: \([^)\0]*\) (\d+)\.(\d+)")

_FIXED_IN = {11: 5, 12: 4, 13: 3}
"""First minor release of each GCC series without the fault; 14 and later never had it."""


def has_broken_amx(system_info: str, library: Path) -> bool:
    """Whether this build would die in its first forward pass on a processor with AMX.

    GCC before 11.5, 12.4 and 13.3 drops most of the tile configuration that `_tile_loadconfig` reads, so that
    the processor refuses it. Source: GCC bug 114098.
    """
    if "AMX_INT8 = 1" not in system_info:
        return False
    try:
        binary = library.read_bytes()
    except OSError:
        return False
    if b"clang version" in binary:
        return False
    compilers = [(int(major), int(minor)) for major, minor in _COMPILER.findall(binary)]
    return any(major < 14 and minor < _FIXED_IN.get(major, 99) for major, minor in compilers)
