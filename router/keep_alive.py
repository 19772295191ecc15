"""The field `keep_alive`: how long a model stays loaded when nobody uses it. Numbers and Go's durations to seconds.

Pure. Must not know whose wish it is, nor what becomes of it.

    300, 1.5        seconds            "5m", "1h30m", "300ms"   durations as Go writes them
    0, "0"          gone when idle     -1, "-1", "-1m"          stays until it is unloaded otherwise

Source: Ollama's API; Go's `time.ParseDuration`.
"""

from __future__ import annotations

import json
import math
import re

MAX_S = 10 * 365 * 24 * 3600.0
"""Longer times count as this one: nobody lives to see the difference, and dates stay within what programs can show."""

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_CHARS = 40
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")


def read_keep_alive(value: object) -> float:
    """Return the seconds, -1 for all negative ones. Raises: ValueError, whose text says what it must be."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _wrong(value)
    seconds = _duration_s(value.strip()) if isinstance(value, str) else value
    if isinstance(seconds, float) and math.isnan(seconds):
        raise _wrong(value)
    return -1.0 if seconds < 0 else float(min(seconds, MAX_S))


def _wrong(value: object) -> ValueError:
    """Return the error that repeats the value, as far as it is short."""
    if isinstance(value, str):
        shown = json.dumps(value[:_MAX_CHARS], ensure_ascii=False)
    else:
        shown = _KINDS.get(type(value), "no number")
    return ValueError(f"is {shown}, but it {_ALLOWED}")


_KINDS = {bool: "true or false", list: "a list", dict: "an object"}
_ALLOWED = 'must be a number of seconds, or a duration such as "5m" or "1h30m"; negative = for good'


def _duration_s(text: str) -> float:
    if not text or len(text) > _MAX_CHARS:
        raise _wrong(text)
    sign = -1.0 if text[0] == "-" else 1.0
    amount = text.lstrip("+-") if text[:2] not in ("--", "++", "+-", "-+") else ""
    if _NUMBER.fullmatch(amount):
        return sign * float(amount)
    parts = list(_PART.finditer(amount))
    if not parts or "".join(part[0] for part in parts) != amount:
        raise _wrong(text)
    return sign * sum(float(part[1]) * _UNITS_S[part[2]] for part in parts)
