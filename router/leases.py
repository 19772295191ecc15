"""The requests that wait for a lease or hold one, and what the holder of a lease gets.

Owns the futures that they wait on. Must not decide who is granted or refused (`fleet.py` does).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import count

from router.events import LeaseId, RefuseLease, WorkerId
from router.lease_errors import lease_error
from router.worker_run import WorkerRun
from router.worker_session import WorkerSession


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to send one request to a worker."""

    worker: WorkerId
    session: WorkerSession
    """Over that worker's Unix socket."""
    queue_s: float
    """How long the request waited for other requests or models."""
    load_s: float
    """How long it waited for this worker to load."""
    ready_ago_s: float = 0.0
    """How long before the grant the worker had loaded."""


@dataclass(slots=True)
class Ticket:
    """A lease that was asked for and not given back yet."""

    lease_id: LeaseId
    asked_at_s: float
    granted: asyncio.Future[WorkerRun]
    run: WorkerRun | None = None

    def lease(self, run: WorkerRun) -> Lease:
        """Return the lease on `run`, which is ready."""
        assert run.session is not None, "granted before it was ready"
        assert run.ready_at_s is not None, "granted before it was ready"
        now_s = time.monotonic()
        wait_s = now_s - self.asked_at_s
        load_s = max(0.0, run.ready_at_s - max(self.asked_at_s, run.spawned_at_s))
        ready_ago_s = max(0.0, now_s - run.ready_at_s)
        return Lease(run.worker, run.session, max(0.0, wait_s - load_s), load_s, ready_ago_s)


class Tickets:
    """Those of one supervisor."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._open: dict[LeaseId, Ticket] = {}

    def open(self) -> Ticket:
        """Return a new ticket, which must be closed."""
        lease_id = LeaseId(next(self._ids))
        ticket = Ticket(lease_id, time.monotonic(), asyncio.get_running_loop().create_future())
        self._open[lease_id] = ticket
        return ticket

    def close(self, ticket: Ticket) -> None:
        """Nobody waits for the ticket any more, and its worker has one request less."""
        del self._open[ticket.lease_id]
        if ticket.run is not None:
            ticket.run.take_back()

    def grant(self, lease_id: LeaseId, run: WorkerRun) -> bool:
        """Return whether somebody still wants the lease; whoever waits for it goes on."""
        ticket = self._open.get(lease_id)
        if ticket is None:
            return False
        if not ticket.granted.done():  # else its receiver was cancelled and is about to release it
            run.lend()
            ticket.run = run
            ticket.granted.set_result(run)
        return True

    def refuse(self, refused: RefuseLease) -> None:
        """Whoever waits for the lease gets the error."""
        ticket = self._open.get(refused.lease_id)
        if ticket is not None and not ticket.granted.done():
            ticket.granted.set_exception(lease_error(refused))
