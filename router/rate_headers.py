"""The headers that tell a client how much of its API key's limits is left, as OpenAI and Anthropic write them.

    x-ratelimit-{limit,remaining,reset}-{requests,tokens}               reset: a duration such as 1m3s or 250ms
    anthropic-ratelimit-{requests,tokens}-{limit,remaining,reset}       reset: a time such as 2026-01-31T12:00:00Z

In both, `reset` is when all of the limit is there again, not when the next request may come: `Retry-After` tells that.
Must not know how limits are counted, nor read a clock.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

from router.dialects import Dialect
from router.key_usage import Level, UsageView


def rate_headers(dialect: Dialect, view: UsageView, unix_s: float) -> dict[str, str]:
    """Return the headers of the limits that there are. `unix_s` is the time now."""
    headers: dict[str, str] = {}
    for unit, level in (("requests", view.requests), ("tokens", view.tokens)):
        if level is None:
            continue
        if dialect is Dialect.ANTHROPIC:
            prefix = f"anthropic-ratelimit-{unit}-"
            headers[f"{prefix}limit"], headers[f"{prefix}remaining"] = str(level.limit), str(level.remaining)
            headers[f"{prefix}reset"] = _time(unix_s, level)
        else:
            headers[f"x-ratelimit-limit-{unit}"] = str(level.limit)
            headers[f"x-ratelimit-remaining-{unit}"] = str(level.remaining)
            headers[f"x-ratelimit-reset-{unit}"] = duration(level.full_in_s)
    return headers


def duration(seconds: float) -> str:
    """Return a duration as OpenAI writes it, in whole milliseconds rounded up: 0s, 250ms, 1.5s, 1m3s, 1h0m0s."""
    milliseconds = math.ceil(seconds * 1000 - 1e-6)
    if milliseconds <= 0:
        return "0s"
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:g}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text


_LONGEST_S = 10 * 365 * 86_400
"""Dates have four digits of a year."""


def _time(unix_s: float, level: Level) -> str:
    """Return when the bucket is full, in whole seconds rounded up."""
    return datetime.fromtimestamp(math.ceil(unix_s + min(level.full_in_s, _LONGEST_S)), UTC).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )
