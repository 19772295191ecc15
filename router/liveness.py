"""Whether a worker is still alive, judged by the heartbeat of its engine and by its status link alone.

Owns that one rule. A worker hangs when its status link has been silent for `hang_timeout_s`, or when its engine has had
work for so long without completing a pass. A worker that loads is not judged here (`load_timeout_s` is), nor one that
has said that it failed. Must not kill anything, read a clock or ask a worker.

Three kinds of time never count against a worker:

- **The router's own sleep.** Who looks once a second and finds that the last look was longer ago has been blocked,
  stopped or suspended, and the lines of all workers lie unread in their pipes: every count starts anew.
- **Time without work.** The engine moves its clock when the first work comes.
- **A pass that is slow because all passes are.** A large model on a slow CPU, or read from a disk again for every pass,
  may take minutes for one. So a pass may take `PASS_FACTOR` times the longest one so far; before any has been seen, so
  many times the worker's own warm-up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from router.events import WorkerId
from worker.contract import Phase, WorkerStatus

LATE_S = 3.0
"""Between two looks, which are a second apart when all is well; after a longer pause no count can be believed."""

PASS_FACTOR = 40.0
"""How much longer than any before it a pass may take. The smallest pass that reads a prompt has 32 rows, whatever it
costs, and on a slow CPU takes 32 times as long as one that makes a single token."""

_JUDGED = frozenset({Phase.READY, Phase.DRAINING})


def why_hung(
    status: WorkerStatus,
    now_s: float,
    hang_timeout_s: float,
    *,
    since_s: float = -math.inf,
    longest_pass_s: float = 0.0,
) -> str | None:
    """Return why the worker that last said `status` hangs, for people; None while it may be believed.

    `since_s`: nothing that was earlier counts. Units: monotonic seconds, the clock that router and workers share;
    a `hang_timeout_s` of 0 = it never hangs.
    """
    if hang_timeout_s <= 0 or status.phase not in _JUDGED:
        return None
    silent_s = now_s - max(status.at_s, since_s)
    if silent_s >= hang_timeout_s:
        return f"it has not reported for {silent_s:.0f} s (hang_timeout_s is {hang_timeout_s:g})"
    stuck_s = now_s - max(status.step_at_s, since_s)
    if status.has_work and stuck_s >= max(hang_timeout_s, PASS_FACTOR * longest_pass_s):
        return (
            f"its engine has had work for {stuck_s:.0f} s and completed no pass "
            f"(hang_timeout_s is {hang_timeout_s:g}; set it higher if one pass can really take so long)"
        )
    return None


@dataclass(slots=True)
class _Watched:
    """One worker, as it was at the last look."""

    since_s: float
    last: WorkerStatus
    longest_s: float | None = None
    """Of the passes that have been seen."""
    hung: str | None = None

    @property
    def longest_pass_s(self) -> float:
        """The longest pass so far; the worker's own warm-up until one has been seen."""
        return self.longest_s if self.longest_s is not None else self.last.load_seconds.get("warmup", 0.0)

    def learn(self, status: WorkerStatus) -> None:
        """Note how long passes take. Several between two looks count as equally long."""
        num_passes = status.step - self.last.step
        if self.last.has_work and num_passes > 0:
            pass_s = (status.step_at_s - self.last.step_at_s) / num_passes
            self.longest_s = max(pass_s, self.longest_s or 0.0)


class LivenessWatch:
    """Looks at all workers again and again, and remembers what a single line cannot tell."""

    def __init__(self) -> None:
        self._watched: dict[WorkerId, _Watched] = {}
        self._looked_at_s: float | None = None

    @property
    def hung(self) -> Mapping[WorkerId, str]:
        """The workers that hang, as of the last look, each with the reason."""
        return {worker: watched.hung for worker, watched in self._watched.items() if watched.hung is not None}

    def look(
        self, now_s: float, runs: Iterable[tuple[WorkerId, WorkerStatus | None, float]]
    ) -> list[tuple[WorkerId, str]]:
        """Return the workers that hang since this look, each with the reason; none is returned twice.

        To be called once a second. `runs`: every process with its last status (None = none yet) and its model's
        `hang_timeout_s`; those left out are forgotten.
        """
        is_late = self._looked_at_s is None or not 0 <= now_s - self._looked_at_s <= LATE_S
        self._looked_at_s = now_s
        before, self._watched = self._watched, {}
        found = []
        for worker, status, hang_timeout_s in runs:
            if status is None:
                continue
            watched = before.get(worker)
            if watched is None:
                watched = _Watched(now_s, status)
            elif is_late:
                watched.since_s = now_s
            else:
                watched.learn(status)
            watched.last = status
            self._watched[worker] = watched
            if watched.hung is None:
                watched.hung = why_hung(
                    status, now_s, hang_timeout_s, since_s=watched.since_s, longest_pass_s=watched.longest_pass_s
                )
                if watched.hung is not None:
                    found.append((worker, watched.hung))
        return found
