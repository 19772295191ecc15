"""What API keys have used, and whether one may send another request now: the only place that decides it.

Per-minute limits are token buckets, a standard of network policing: a bucket holds one minute's worth, which a key may
use at once, and fills at the limit's rate. Kept as what is missing from the full bucket, so that a changed limit needs
no conversion. A request costs one of `requests_per_min` when it is admitted. What it costs of `tokens_per_min`, its
prompt and its answer, is known only at its end: it is admitted if anything is in the bucket and is charged then, so a
bucket may go below empty, and the next request waits until it has come up again.

Usage is by the id of a key and outlives changes of the configuration. Must not read a clock, nor know HTTP.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from router.api_keys import KeyLimits

MINUTE_S = 60.0
ENDS_SOON_S = 1.0
"""When to come back if too many requests run: nobody knows when one of them ends."""


class Limit(StrEnum):
    """The limits of a key that a request may run into; a metric label."""

    CONCURRENT = "max_concurrent"
    REQUESTS = "requests_per_min"
    TOKENS = "tokens_per_min"


@dataclass(frozen=True, slots=True)
class OverLimit:
    """Why a request is not admitted."""

    limit: Limit
    allowed: int
    retry_after_s: float

    @property
    def words(self) -> str:
        """What is used up, as a clause."""
        match self.limit:
            case Limit.CONCURRENT:
                return f"{self.allowed} of its requests run or wait already, and more may not at the same time"
            case Limit.REQUESTS:
                return f"it has sent its {self.allowed} requests a minute"
            case Limit.TOKENS:
                return f"it has used its {self.allowed} tokens a minute, prompts and answers together"


@dataclass(frozen=True, slots=True)
class Level:
    """How full one bucket is."""

    limit: int
    remaining: int
    """Whole units, at least 0."""
    full_in_s: float
    """When all of it is there again if nothing more is used."""


@dataclass(frozen=True, slots=True)
class UsageView:
    """One key at one instant. A level is None where there is no such limit."""

    num_running: int
    """Requests that run or wait."""
    num_requests: int
    """Admitted since the server started."""
    num_refused: int
    """Refused since then because of a limit."""
    num_tokens: int
    """Of prompts and answers since then."""
    requests: Level | None
    tokens: Level | None


@dataclass(slots=True)
class _Bucket:
    """What is missing from a full bucket, as of a moment."""

    missing: float = 0.0
    at_s: float = 0.0
    limit: int | None = None
    """As it was then."""

    def take(self, amount: float, limit: int | None, now_s: float) -> None:
        """So much more is missing."""
        self.missing = self.missing_at(limit, now_s) + amount
        self.at_s, self.limit = now_s, limit

    def missing_at(self, limit: int | None, now_s: float) -> float:
        """Return what is missing now; without a limit nothing ever is. A lower limit leaves it as full as it was."""
        if limit is None:
            return 0.0
        missing = self.missing if self.limit is None else self.missing * min(1.0, limit / self.limit)
        return max(0.0, missing - max(0.0, now_s - self.at_s) * limit / MINUTE_S)

    def wait_s(self, limit: int, now_s: float) -> float:
        """Return after how long one whole unit is there; 0 = now."""
        return max(0.0, (self.missing_at(limit, now_s) + 1 - limit) * MINUTE_S / limit)

    def level(self, limit: int | None, now_s: float) -> Level | None:
        """Return how full it is; None = it has no limit."""
        if limit is None:
            return None
        missing = self.missing_at(limit, now_s)
        return Level(limit, max(0, int(limit - missing)), missing * MINUTE_S / limit)


@dataclass(slots=True)
class _Usage:
    """All that is remembered of one key."""

    num_running: int = 0
    num_requests: int = 0
    num_refused: int = 0
    num_tokens: int = 0
    requests: _Bucket = field(default_factory=_Bucket)
    tokens: _Bucket = field(default_factory=_Bucket)


class KeyUsage:
    """What each key has used. Units: seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._usages: dict[str, _Usage] = {}

    def __len__(self) -> int:
        return len(self._usages)

    def __contains__(self, key_id: object) -> bool:
        return key_id in self._usages

    def begin(self, key_id: str, limits: KeyLimits, now_s: float) -> OverLimit | None:
        """Return why the key may not send a request now; None = it may, and `end` is due when the request is over.

        A refused request costs nothing, or a key that keeps asking would never be served again.
        """
        usage = self._usages.setdefault(key_id, _Usage())
        over = _over(usage, limits, now_s)
        if over is not None:
            usage.num_refused += 1
            return over
        usage.num_running += 1
        usage.num_requests += 1
        usage.requests.take(1, limits.requests_per_min, now_s)
        return None

    def end(self, key_id: str, limits: KeyLimits, tokens: int, now_s: float) -> None:
        """A request that was admitted is over and took so many tokens."""
        usage = self._usages[key_id]
        assert usage.num_running > 0, f"a request of {key_id} ends twice"
        usage.num_running -= 1
        usage.num_tokens += tokens
        usage.tokens.take(tokens, limits.tokens_per_min, now_s)

    def view(self, key_id: str, limits: KeyLimits, now_s: float) -> UsageView:
        """Return how the key stands; one that has sent nothing has used nothing."""
        usage = self._usages.get(key_id) or _Usage()
        return UsageView(
            num_running=usage.num_running,
            num_requests=usage.num_requests,
            num_refused=usage.num_refused,
            num_tokens=usage.num_tokens,
            requests=usage.requests.level(limits.requests_per_min, now_s),
            tokens=usage.tokens.level(limits.tokens_per_min, now_s),
        )

    def keep_only(self, key_ids: Collection[str]) -> None:
        """Other keys are forgotten, unless requests of theirs still run."""
        for key_id in [one for one, usage in self._usages.items() if one not in key_ids and not usage.num_running]:
            del self._usages[key_id]


def _over(usage: _Usage, limits: KeyLimits, now_s: float) -> OverLimit | None:
    """Return the limit that keeps the key waiting longest; None = none does."""
    found = []
    if limits.max_concurrent is not None and usage.num_running >= limits.max_concurrent:
        found.append(OverLimit(Limit.CONCURRENT, limits.max_concurrent, ENDS_SOON_S))
    for limit, allowed, bucket in (
        (Limit.REQUESTS, limits.requests_per_min, usage.requests),
        (Limit.TOKENS, limits.tokens_per_min, usage.tokens),
    ):
        if allowed is not None and (wait_s := bucket.wait_s(allowed, now_s)) > _ROUNDING_S:
            found.append(OverLimit(limit, allowed, wait_s))
    return max(found, key=lambda over: over.retry_after_s, default=None)


_ROUNDING_S = 1e-6
"""Who comes exactly when it was told to must not be a rounding error too early."""
