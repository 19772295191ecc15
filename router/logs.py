"""Logging: lines for people on a terminal, one JSON object a line everywhere else.

Owns the two formats and the one place where logging is set up. What is passed as `extra=` becomes fields in both; what
is passed as `extra={"_fields": {...}}` becomes fields of the JSON line alone, because the message says it in words.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

from aiohttp import web
from aiohttp.http import HttpProcessingError

from router.recent_log import RecentLog
from router.settings import LogFormat

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

_COLOURS = {logging.WARNING: "\033[33m", logging.ERROR: "\033[31m", logging.CRITICAL: "\033[31m"}
_RESET = "\033[0m"


def set_up_logging(level: str, format_: LogFormat, stream: TextIO | None = None) -> None:
    """All log lines go to `stream` (standard output) from now on. Mutates: the root logger."""
    stream = stream if stream is not None else sys.stdout
    handler = logging.StreamHandler(stream)
    if is_for_people(format_, stream):
        handler.setFormatter(TextFormatter(has_colour=stream.isatty()))
    else:
        handler.setFormatter(JsonFormatter())
    handler.addFilter(_is_worth_a_line)
    recent = RecentLog()
    recent.setFormatter(TextFormatter(has_colour=False))
    recent.addFilter(_is_worth_a_line)
    logging.basicConfig(level=level.upper(), handlers=[handler, recent], force=True)
    logging.captureWarnings(True)
    if level != "debug":
        logging.getLogger("asyncio").setLevel(logging.WARNING)


def is_for_people(format_: LogFormat, stream: TextIO) -> bool:
    """Return True when lines on `stream` are read by somebody rather than collected."""
    return format_ is LogFormat.TEXT or (format_ is LogFormat.AUTO and stream.isatty())


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{_utc(record)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "_fields", {}) | dict(_extras(record))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


class TextFormatter(logging.Formatter):
    """`12:34:56 INFO  message key=value`, for eyes."""

    def __init__(self, *, has_colour: bool) -> None:
        super().__init__()
        self._has_colour = has_colour

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname:<7}"
        if self._has_colour and record.levelno in _COLOURS:
            level = f"{_COLOURS[record.levelno]}{level}{_RESET}"
        parts = [clock, level, _one_line(record.getMessage())]
        parts += [f"{name}={_shown(value)}" for name, value in _extras(record)]
        text = " ".join(parts)
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def _extras(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    for name, value in vars(record).items():
        if name not in _STANDARD and not name.startswith("_"):
            yield name, value


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Return False for what strangers can cause at will: bytes that are no HTTP or a broken body."""
    problem = record.exc_info[1] if record.exc_info else None
    return not (record.name == "aiohttp.server" and isinstance(problem, HttpProcessingError | web.RequestPayloadError))


def _utc(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _shown(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return json.dumps(text, ensure_ascii=False) if not text.isprintable() or " " in text or not text else text
