"""The last requests that have ended: who asked for what, how long each part took, how it went.

Owns the record of one and how many are kept. Holds no word of any prompt or answer. Must not read a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from router.account import Account, Outcome

MAX_KEPT: Final = 1000
"""Older ones are forgotten."""

Record = Mapping[str, Any]
"""One request as `GET /requests` shows it; docs/status.md tells the fields."""


def record_of(account: Account, *, now_s: float, at: float) -> Record:
    """Return what is told of a request that has ended; what is not known is null.

    Units: `now_s` of the account's clock, `at` in Unix seconds.
    """
    usage = account.usage
    details = usage.get("prompt_tokens_details")
    return {
        "request_id": account.request_id,
        "at": round(at, 3),
        "route": account.route,
        "model": account.model or None,
        "alias": account.alias,
        "key": account.key_id,
        "stream": account.is_stream,
        "status": account.status,
        "outcome": account.outcome.value,
        "code": account.code,
        "queue_s": round(account.queue_s, 3),
        "load_s": round(account.load_s, 3),
        "ttft_s": None if account.ttft_s is None else round(account.ttft_s, 3),
        "total_s": round(now_s - account.accepted_at_s, 3),
        "prompt_tokens": usage.get("prompt_tokens"),
        "cached_tokens": details.get("cached_tokens") if isinstance(details, Mapping) else None,
        "completion_tokens": usage.get("completion_tokens"),
        "tokens_per_second": _speed(account.timings),
        "finish": ",".join(account.finish_reasons) or None,
    }


def shown(record: Record, *, with_key: bool) -> Record:
    """Return the record as somebody may see it: whose key it was is for administrators."""
    return record if with_key or record["key"] is None else {**record, "key": None}


def _speed(timings: Mapping[str, Any]) -> float | None:
    """Return how many tokens a second were generated; None = none were, or nobody has measured it."""
    speed = timings.get("predicted_per_second")
    is_known = isinstance(speed, int | float) and bool(timings.get("predicted_n")) and bool(timings.get("predicted_ms"))
    return round(float(speed), 2) if is_known and speed is not None else None


class RecentRequests:
    """The records that are kept, and who is told of new ones."""

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._kept: deque[Record] = deque(maxlen=max_kept)
        self._listeners: list[Callable[[Record], None]] = []

    def note(self, record: Record) -> None:
        """The request of this record has ended."""
        self._kept.append(record)
        for listener in self._listeners:
            listener(record)

    def watch(self, listener: Callable[[Record], None]) -> Callable[[], None]:
        """Have `listener` called with every record from now on; returns how to stop it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def last(self, num: int) -> list[Record]:
        """Return the last `num` records, the oldest first."""
        return list(islice(self._kept, max(0, len(self._kept) - num), None))

    def find(self, *, model: str | None = None, outcome: Outcome | None = None) -> Iterator[Record]:
        """Yield the records of that model and outcome, the newest first; None = of any."""
        for record in reversed(self._kept):
            if model in (None, record["model"]) and outcome in (None, record["outcome"]):
                yield record
