"""The last lines that a worker printed, and which of them tell why it died.

Owns a bounded buffer of text, and who wants to hear of new lines. Must not read pipes or write logs (`output_reader.py`
does), nor keep more than its bounds, however much a worker prints.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence

MAX_LINES = 200
MAX_BYTES = 64 * 1024
MAX_LINE_BYTES = 4096
"""A longer line is cut: it is a dump, not a message."""

MAX_SEEN = 1000
"""Warnings that are remembered; texts with figures in them must not fill the memory."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_MEANINGFUL = re.compile(
    r"error|fail|exception|fatal|abort|assert|invalid|unable|cannot|can't|could not|not found|not supported"
    r"|unsupported|unknown|out of memory|no space|missing|corrupt|terminat|refus",
    re.IGNORECASE,
)
_ORDINARY = re.compile(r"^\d{4}-\d\d-\d\d \S+ (DEBUG|INFO|WARNING) ")
"""A worker's own log line that it can go on."""
_LOGGED = re.compile(r"^\d{4}-\d\d-\d\d \S+ (WARNING|ERROR|CRITICAL) (?:.*?: )?(.*)$")
"""A worker's own log line that an operator should see: severity, model, message."""
_TRACEBACK_NOISE = re.compile(r"^(Traceback \(most recent call last\)|  File |    |\s*\^+\s*$)")


Listener = Callable[[Sequence[str]], None]
"""Gets lines as they come."""


class LineBuffer:
    """Keeps the last lines of a text that grows, within bounds, and passes new ones on."""

    def __init__(self, max_lines: int = MAX_LINES, max_bytes: int = MAX_BYTES) -> None:
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._lines: deque[str] = deque()
        self._num_bytes = 0
        self._listeners: tuple[Listener, ...] = ()

    def add(self, lines: Sequence[str]) -> None:
        """Keep `lines`, dropping the oldest ones beyond the bounds, and tell everybody who listens."""
        for line in lines:
            self._lines.append(line)
            self._num_bytes += len(line)
        while len(self._lines) > self._max_lines or self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._lines.popleft())
        for listener in self._listeners:
            listener(lines)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """From now on `listener` gets every new line, until what is returned is called. It must not raise or wait."""
        self._listeners = (*self._listeners, listener)

        def leave() -> None:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

        return leave

    def lines(self) -> list[str]:
        """Return the lines kept, oldest first."""
        return list(self._lines)

    def text(self) -> str:
        """Return the lines kept as one text."""
        return "\n".join(self._lines)


class LogTail(LineBuffer):
    """Cuts a byte stream into lines and keeps the last ones."""

    def __init__(self) -> None:
        super().__init__()
        self._partial = bytearray()
        self._is_skipping = False

    def feed(self, data: bytes) -> list[str]:
        """Keep the lines that `data` completes and return them, decoded and without control characters."""
        *ended, rest = data.split(b"\n")
        lines = []
        for part in ended:
            if not self._is_skipping:
                lines.append(_clean(bytes(self._partial) + part))
            self._partial.clear()
            self._is_skipping = False
        if not self._is_skipping:
            self._partial += rest
        if len(self._partial) > MAX_LINE_BYTES:
            lines.append(_clean(bytes(self._partial)))
            self._partial.clear()
            self._is_skipping = True
        if lines:
            self.add(lines)
        return lines

    def end(self) -> list[str]:
        """Keep the last line although no newline ended it; return it in a list, if there is one."""
        if not self._partial:
            return []
        line = _clean(bytes(self._partial))
        self._partial.clear()
        self.add([line])
        return [line]

    def last_words(self, max_lines: int = 3) -> str:
        """Return the last lines that look like a reason, else the very last one; "" when none can be a reason."""
        spoken = [line.strip() for line in self._lines if line.strip() and not _is_no_reason(line)]
        reasons = [line for line in spoken if _MEANINGFUL.search(line)]
        return " / ".join(reasons[-max_lines:] or spoken[-1:])


def _clean(raw: bytes) -> str:
    """Return one line as text that can neither drive a terminal nor forge lines of the router's log."""
    text = raw[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip("\r")
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", _ESCAPES.sub("", text))


def severity(line: str) -> tuple[str, str]:
    """Return the level at which the router should log a worker's line, and its text without the worker's prefix."""
    found = _LOGGED.match(line)
    return (found[1], found[2]) if found is not None else ("DEBUG", line)


class WarningsOnce:
    """Lets a warning pass once, whoever repeats it; later ones are for debugging. Errors always pass."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def severity(self, line: str) -> tuple[str, str]:
        """Return what `severity` does, but DEBUG for a warning that was seen before. Mutates: what has been seen."""
        level, text = severity(line)
        if level != "WARNING":
            return level, text
        if text in self._seen:
            return "DEBUG", text
        if len(self._seen) >= MAX_SEEN:
            self._seen.clear()
        self._seen.add(text)
        return level, text


def _is_no_reason(line: str) -> bool:
    return bool(_TRACEBACK_NOISE.match(line) or _ORDINARY.match(line))
