"""Numbers, times and texts of a server as people read them at a terminal.

Pure words. What is not known is None, and stays None: whoever prints it shows a dash, never a nought.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any

_LINE_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_TAB_WIDTH = 4
_COMMANDS = {
    "GET /v1/models lists them all": "`corral ps --all` lists them all",
    "POST /models/load": "`corral load`",
    "POST /models/unload": "`corral unload`",
    "POST /admin/pin": "`corral unpin` undoes that",
    "POST /admin/reload": "`corral reload`",
}
"""What a server says to its HTTP clients, and what it is here."""


def clean(text: str, *, keep_lines: bool = False) -> str:
    """Return `text` so that printing it moves no cursor, changes no colour and turns no direction of writing.

    Line breaks become blanks unless `keep_lines`, which keeps `\\n` and tabs; whatever else a terminal would obey
    shows as `\\x1b`.
    """
    if text.isprintable():
        return text
    return "".join(_shown(char, keep_lines=keep_lines) for char in text)


def as_commands(text: str) -> str:
    """Return a server's message with the commands of this program for the requests that it names."""
    for request, command in _COMMANDS.items():
        text = text.replace(request, command)
    return text


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return `value` as JSON in which whatever a terminal would obey, and what is no text, stands as `\\u202e`."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return "".join(_shown_in_json(char) for char in text) if not text.isprintable() else text


def size(num_bytes: float | None) -> str | None:
    """Return bytes such as `98 MB` or `1.3 GB`."""
    if num_bytes is None:
        return None
    if abs(num_bytes) >= 1e9:
        return f"{num_bytes / 1e9:.1f} GB"
    if abs(num_bytes) >= 1e6 or num_bytes == 0:
        return f"{num_bytes / 1e6:.0f} MB"
    return f"{num_bytes / 1e3:.0f} kB"


def duration(seconds: float | None) -> str | None:
    """Return a span of time in at most two units: `3 s`, `5 min`, `2 h 5 min`, `3 d 4 h`."""
    if seconds is None:
        return None
    whole = round(max(0.0, seconds))
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def latency(seconds: float | None) -> str | None:
    """Return a short time: `4.2 ms`, `310 ms`, `1.25 s`."""
    if seconds is None:
        return None
    if seconds < 0.01:
        return f"{1e3 * seconds:.1f} ms"
    return f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def rate(per_second: float | None) -> str | None:
    """Return tokens in a second, with a digit behind the point where there are few."""
    if per_second is None:
        return None
    return f"{per_second:.0f}" if per_second >= 100 or per_second == 0 else f"{per_second:.1f}"


def percent(fraction: float | None) -> str | None:
    """Return a share such as `40 %`; it is 100 % only when nothing is left."""
    return None if fraction is None else f"{int(100 * min(1.0, max(0.0, fraction)))} %"


def number(value: object) -> str | None:
    """Return a count."""
    return None if value is None else str(value)


def counted(num: int, one: str, many: str | None = None) -> str:
    """Return `1 model`, `2 models`."""
    return f"{num} {one}" if num == 1 else f"{num} {many or one + 's'}"


def _shown_in_json(char: str) -> str:
    if char == "\n" or _is_harmless(char):  # between values: within a text it is written as two letters
        return char
    return json.dumps(char)[1:-1]


def _is_harmless(char: str) -> bool:
    """Return whether it shows as what it is; kinds of blanks, and what joins emoji, do."""
    return char.isprintable() or unicodedata.category(char) == "Zs" or char == "\u200d"


def _shown(char: str, *, keep_lines: bool) -> str:
    if _is_harmless(char):
        return char
    if char == "\t":
        return char if keep_lines else " " * _TAB_WIDTH
    if char in _LINE_BREAKS:
        return char if keep_lines and char == "\n" else ("" if char == "\r" else " ")
    return repr(char)[1:-1]
