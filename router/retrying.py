"""A request that no worker has accepted: whether it may be sent once more.

Owns the rule alone; what was tried is told by `relay.py`. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.events import WorkerId

FRESH_WORKER_WITHIN_S = 5.0
"""How long a request that no worker has accepted waits for the fleet to notice that its worker is gone."""
MAX_SENT = 2
"""Times that a request's bytes may have left without any answer: a request that kills its worker must not go on."""


@dataclass(frozen=True, slots=True)
class Try:
    """One try that brought no headers of a reply."""

    worker: WorkerId
    at_s: float
    was_sent: bool
    """False when there was no connection at all: nothing has left then."""


def may_repeat(tries: Sequence[Try], *, is_resumed: bool) -> bool:
    """Return whether the request may be sent once more; `tries` are all since a worker has last accepted it.

    Its bytes may go to one other worker than the first that got them. Until the fleet has noticed that a worker is gone
    it may grant that one again: tries without a connection are free meanwhile. `is_resumed`: the answer has a deadline
    of its own for that.
    """
    sent = [one.worker for one in tries if one.was_sent]
    if len(sent) > MAX_SENT or len(set(sent)) > 1:
        return False
    last = tries[-1]
    since_s = next(one.at_s for one in tries if one.worker == last.worker)
    return is_resumed or last.at_s - since_s <= FRESH_WORKER_WITHIN_S
