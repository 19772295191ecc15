"""From an exit code or signal to the reason that operators and the next client read.

Owns that mapping. Must not look at processes: code, status error and last words are passed in.
"""

from __future__ import annotations

import signal

from router.events import ExitReason, WorkerExit
from worker.contract import ExitCode

_REASONS = {
    ExitCode.BAD_SPEC: ExitReason.BAD_MODEL,
    ExitCode.BAD_MODEL: ExitReason.BAD_MODEL,
    ExitCode.NO_MEMORY: ExitReason.NO_MEMORY,
}

_ASKED = {
    ExitReason.STOPPED: "stopped by the router",
    ExitReason.LOAD_TIMEOUT: "it made no progress while loading (load_timeout_s)",
    ExitReason.HUNG: "it gave no sign of life and was killed (hang_timeout_s)",
    ExitReason.NO_ROOM: "it needs more memory than is free and is placed again",
    ExitReason.HOOK_FAILED: "its before_load command did not succeed",
}
"""What to say of a stop for which the router has no words of the moment."""

NO_FAILURES = frozenset({ExitReason.STOPPED, ExitReason.NO_ROOM})
"""Ends that are as they should be: the router asked for them."""

_SIGNAL_HINTS = {
    signal.SIGKILL: "often the system was out of memory",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGABRT: "native code gave up",
    signal.SIGILL: "this llama.cpp was built for another CPU",
    signal.SIGBUS: "the model file may have been changed or cut while it was in use",
}


def explain_exit(
    exit_code: int,
    *,
    asked: ExitReason | None = None,
    asked_detail: str = "",
    error: str | None = None,
    last_words: str = "",
) -> WorkerExit:
    """Return why a worker ended.

    `asked` is the router's own reason for stopping it, `error` what it reported on its status link, `last_words`
    what it printed. A negative `exit_code` is a signal's number.
    """
    if asked is not None:
        return WorkerExit(asked, asked_detail or _ASKED.get(asked, _ASKED[ExitReason.STOPPED]), exit_code)
    reason = _REASONS.get(ExitCode(exit_code), ExitReason.CRASHED) if exit_code in _known() else ExitReason.CRASHED
    return WorkerExit(reason, error or _without_status(exit_code, last_words), exit_code)


def _without_status(exit_code: int, last_words: str) -> str:
    """Return what happened to a worker that did not report an error itself."""
    if exit_code < 0:
        manner = _describe_signal(-exit_code)
    elif exit_code == ExitCode.OK:
        manner = "ended although nobody asked it to"
    else:
        manner = f"exited with code {exit_code}"
    if not last_words:
        return manner
    return f"{last_words} ({manner})"


def signal_name(exit_code: int | None) -> str | None:
    """Return the name of the signal that a negative exit code stands for (`SIGSEGV`); None for any other code."""
    if exit_code is None or exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def _describe_signal(number: int) -> str:
    try:
        name = signal.Signals(number)
    except ValueError:
        return f"killed by signal {number}"
    hint = _SIGNAL_HINTS.get(name)
    return f"killed by signal {number} ({name.name})" + (f"; {hint}" if hint else "")


def _known() -> frozenset[int]:
    return frozenset(code.value for code in ExitCode)
