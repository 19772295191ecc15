"""A command on a terminal of its own: what it prints, keys that are pressed, and the size of the window."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

WITHIN_S = 60.0
"""For a machine that is busy with other things too."""

_ROOT = Path(__file__).resolve().parents[2]
_START = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"
)
"""Makes stdin the terminal that Ctrl-C and new sizes come from."""


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, arguments: Sequence[str], columns: int, lines: int, env: Mapping[str, str]) -> None:
        self.ours, theirs = pty.openpty()
        self.resize(columns, lines)
        self.seen = b""
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, sys.executable, "-m", "router", *arguments],
            cwd=_ROOT,
            env=environ | {"TERM": "xterm-256color"} | env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self.ours, 65536):
                with self._news:
                    self.seen += data
                    self._news.notify_all()

    def wait_for(self, text: str, since: int = 0) -> int:
        """Return the place behind `text` once that has been printed behind `since`."""
        with self._news:
            done = self._news.wait_for(lambda: text.encode() in self.seen[since:], WITHIN_S)
            assert done, f"{text!r} was not printed: {self.seen[since:][-2000:]!r}"
            return self.seen.index(text.encode(), since) + len(text.encode())

    def press(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def end(self) -> int:
        """Return the exit code."""
        code = self.process.wait(WITHIN_S)
        self._reader.join(WITHIN_S)
        return code


@contextlib.contextmanager
def terminal(
    *arguments: str, columns: int = 100, lines: int = 30, env: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    """Run `corral ARGUMENTS` on a terminal until the end of the block."""
    found = Terminal(arguments, columns, lines, dict(env or {}))
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.process.kill()
            found.process.wait()
        os.close(found.ours)
