"""llama.cpp's own words: its log, and what the errors in it mean when loading fails.

One of the `llama*` modules that may import llama_cpp. The C library has one log for the process.
"""

from __future__ import annotations

import ctypes
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from llama_cpp import llama_cpp as lib

from worker.engine.errors import BadModel, LoadFailed, OutOfMemory

log = logging.getLogger(__name__)

_LEVEL_WARN, _LEVEL_ERROR, _LEVEL_CONTINUED = 3, 4, 5
"""Source: ggml.h, ggml_log_level."""

_OF_INTERRUPTS = ("failed with error 1", "compute status: 1", "ret = 2")
"""How lines end that llama.cpp calls errors though we have asked it to break off a pass. Source: llama-context.cpp."""

_lines: deque[str] = deque(maxlen=200)
_recorded: deque[str] | None = None
_last_level = 0


def _on_log(level: int, text: bytes, _: object) -> None:
    """Keep warnings and errors for the load report and the log. Called from llama.cpp's own threads too."""
    global _last_level  # noqa: PLW0603 - the C library has one log for the process
    level = _last_level if level == _LEVEL_CONTINUED else level
    _last_level = level
    line = text.decode("utf-8", "replace").rstrip()
    if _recorded is not None:
        _recorded.append(line)
    if line and not line.endswith(_OF_INTERRUPTS) and level in {_LEVEL_WARN, _LEVEL_ERROR}:
        if level == _LEVEL_ERROR:
            _lines.append(line)
        log.log(logging.ERROR if level == _LEVEL_ERROR else logging.DEBUG, "llama.cpp: %s", line)


_log_callback = lib.llama_log_callback(_on_log)


def capture_log() -> deque[str]:
    """Return the place where llama.cpp's error lines will be kept, empty now."""
    lib.llama_log_set(_log_callback, ctypes.c_void_p(0))
    _lines.clear()
    return _lines


@contextmanager
def record_log() -> Iterator[deque[str]]:
    """Keep llama.cpp's last lines of every level meanwhile. For a process that does nothing else."""
    global _recorded  # noqa: PLW0603 - the C library has one log for the process
    capture_log()
    _recorded = deque(maxlen=2000)
    try:
        yield _recorded
    finally:
        _recorded = None


_OUT_OF_MEMORY_WORDS = ("failed to allocate", "out of memory", "unable to allocate", "cudaMalloc failed")


def load_error(lines: deque[str], what: str, *, default: type[LoadFailed] = BadModel) -> LoadFailed:
    """Return the error that llama.cpp's own words mean; the first line is the cause, later ones wrap it."""
    reasons = list(dict.fromkeys(lines))
    text = "; ".join(reasons[:3])
    if any(word.lower() in text.lower() for word in _OUT_OF_MEMORY_WORDS):
        default = OutOfMemory
    return default(f"{what}: {text}" if text else what)
