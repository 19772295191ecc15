"""What somebody types in a conversation: one message over one or several lines, and the history of the line editor.

Owns the prompts, the rules for several lines and the file of past lines. Must not know a conversation.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PROMPT, MORE_PROMPT = ">>> ", "... "
BLOCK = '"""'
_MAX_LINES_KEPT = 1000


def read_message(read_line: Callable[[str], str]) -> str:
    """Return what is typed next: a line; lines that end with a backslash with the next; a block between three quotes.

    Raises: EOFError at the end of input, KeyboardInterrupt.
    """
    line = read_line(PROMPT)
    if line.lstrip().startswith(BLOCK):
        return _read_block(line.lstrip().removeprefix(BLOCK), read_line)
    lines = []
    while line.endswith("\\"):
        lines.append(line[:-1])
        line = read_line(MORE_PROMPT)
    return "\n".join([*lines, line]).strip()


def _read_block(line: str, read_line: Callable[[str], str]) -> str:
    lines = []
    while not line.rstrip().endswith(BLOCK):
        lines.append(line)
        line = read_line(MORE_PROMPT)
    lines.append(line.rstrip().removesuffix(BLOCK))
    return "\n".join(lines).strip("\n")


@contextmanager
def line_editor(*, keep_history: bool) -> Iterator[None]:
    """Inside the block `input` edits lines and knows those of earlier conversations, if they are kept.

    The file can be read by its owner alone.
    """
    try:
        import readline
    except ImportError:  # a Python without it: lines are then edited as the terminal does it
        yield
        return
    readline.set_auto_history(True)
    # Text that is pasted is one message, whatever line breaks are in it.
    readline.parse_and_bind("set enable-bracketed-paste on")
    file = history_file()
    if keep_history:
        with contextlib.suppress(OSError):
            readline.read_history_file(file)
    try:
        yield
    finally:
        if keep_history:
            with contextlib.suppress(OSError):
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
                readline.set_history_length(_MAX_LINES_KEPT)
                readline.write_history_file(file)


@contextmanager
def quiet_keys(fd: int | None = None) -> Iterator[None]:
    """Inside the block what is typed at the terminal `fd` (None = stdin) does not show; it waits for the next prompt.

    Ctrl-C still works. Afterwards the terminal is as it was, also where SIGTERM ends the program.
    """
    import signal
    import termios

    try:
        fd = sys.stdin.fileno() if fd is None else fd
        before = termios.tcgetattr(fd)
    except (AttributeError, OSError, ValueError, termios.error):  # no terminal: nothing would be echoed
        yield
        return
    quiet = [*before]
    quiet[3] &= ~(termios.ECHO | termios.ECHONL)

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGTERM, end) if is_main else None
    try:
        termios.tcsetattr(fd, termios.TCSADRAIN, quiet)
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal has gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
        if is_main:
            signal.signal(signal.SIGTERM, handler)


def history_file() -> Path:
    """Return where the lines of earlier conversations are."""
    state = os.environ.get("XDG_STATE_HOME", "").strip()
    return Path(state or Path.home() / ".local" / "state") / "corral" / "chat_history"


def read_piped() -> str:
    """Return all that comes on stdin; "" of one that is closed."""
    if sys.stdin is None:
        return ""
    return sys.stdin.buffer.read().decode("utf-8", "replace").strip()
