"""How the machine's CPU cores are shared out between workers.

Two workers that each use all cores slow each other down many times over, because their threads spin at
barriers. Must not know what a worker does: only whether it has work now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.events import WorkerId


def share_threads(num_cores: int, busy: Mapping[WorkerId, bool]) -> dict[WorkerId, int]:
    """Return how many threads each worker may use, at least one each.

    Those that are busy divide the cores without leaving one over. An idle worker gets what it would get if it
    became busy beside them, so its next pass is right even before it is told anything new.
    """
    workers_with_work = sorted(worker for worker, has_work in busy.items() if has_work)
    shares = _divide(num_cores, workers_with_work)
    for worker, has_work in busy.items():
        if not has_work:
            shares[worker] = _divide(num_cores, sorted([*workers_with_work, worker]))[worker]
    return shares


def _divide(num_cores: int, workers: Sequence[WorkerId]) -> dict[WorkerId, int]:
    """Return an even division of the cores; the first workers get what an even one leaves over."""
    if not workers:
        return {}
    share, rest = divmod(num_cores, len(workers))
    return {worker: max(1, share + (index < rest)) for index, worker in enumerate(workers)}
