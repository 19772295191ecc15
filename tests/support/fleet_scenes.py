"""Short ways to bring a fleet into a known situation, so that a test says only what it is about."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from router.events import (
    Action,
    Event,
    ExitReason,
    FleetLimits,
    LeaseId,
    LeaseReleased,
    LeaseRequested,
    ModelPolicy,
    RefuseLease,
    SpawnWorker,
    StopWorker,
    Tick,
    WorkerExit,
    WorkerExited,
    WorkerId,
    WorkerReady,
    WorkerStarted,
)
from router.fleet import Fleet

CRASH = WorkerExit(ExitReason.CRASHED, "signal 11", -11)
BAD_FILE = WorkerExit(ExitReason.BAD_MODEL, "invalid magic characters", 65)
STOPPED = WorkerExit(ExitReason.STOPPED, "", 0)
NO_MEMORY = WorkerExit(ExitReason.NO_MEMORY, "unable to allocate buffer", 66)

_lease_numbers = count(1000)


class CheckedFleet(Fleet):
    """A fleet that proves its books true after every event, and that nothing was left undecided."""

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Return what is to be done. Raises: AssertionError."""
        actions = super().handle(event, now_s)
        self.check_integrity()
        before = self.snapshot(now_s)
        assert super().handle(Tick(), now_s) == [], "one event leaves something undecided"
        assert self.snapshot(now_s) == before, "a worker changes its state although nothing has happened"
        return actions


def make_fleet(*models: str | ModelPolicy, **limits: Any) -> Fleet:
    """Return a fleet of these models, by name alone where their policy does not matter."""
    policies = [ModelPolicy(model) if isinstance(model, str) else model for model in models]
    return CheckedFleet({policy.name: policy for policy in policies}, FleetLimits(**limits))


def worker(model: str, incarnation: int = 1) -> WorkerId:
    """Return the id of a model's n-th start."""
    return WorkerId(model, 0, incarnation)


def ask(fleet: Fleet, lease_id: int, model: str, now_s: float, **fields: Any) -> list[Action]:
    """Return what a request for `model` leads to."""
    return fleet.handle(LeaseRequested(LeaseId(lease_id), model, **fields), now_s)


def release(fleet: Fleet, lease_id: int, now_s: float) -> list[Action]:
    """Return what the end of a lease leads to."""
    return fleet.handle(LeaseReleased(LeaseId(lease_id)), now_s)


def exits(fleet: Fleet, gone: WorkerId, now_s: float, how: WorkerExit = STOPPED) -> list[Action]:
    """Return what the end of a worker leads to."""
    return fleet.handle(WorkerExited(gone, how), now_s)


def ready(fleet: Fleet, loaded: WorkerId, now_s: float, max_leases: int = 6) -> list[Action]:
    """Return what the end of a load leads to."""
    fleet.handle(WorkerStarted(loaded), now_s)
    return fleet.handle(WorkerReady(loaded, max_leases), now_s)


def given_ready(
    fleet: Fleet, model: str, *, num_leases: int = 0, max_leases: int = 6, now_s: float = 0.0
) -> list[LeaseId]:
    """`model` is resident and has `num_leases` leases; returns their ids."""
    lease_ids = [LeaseId(next(_lease_numbers)) for _ in range(max(1, num_leases))]
    spawned: list[WorkerId] = []
    for lease_id in lease_ids:
        spawned += [act.worker for act in ask(fleet, lease_id, model, now_s) if isinstance(act, SpawnWorker)]
    ready(fleet, spawned[0], now_s, max_leases)
    if num_leases == 0:
        release(fleet, lease_ids.pop(), now_s)
    return lease_ids


def spawned_by(actions: Iterable[Action]) -> list[WorkerId]:
    """Return the workers that are started."""
    return [action.worker for action in actions if isinstance(action, SpawnWorker)]


def stopped_by(actions: Iterable[Action]) -> list[WorkerId]:
    """Return the workers that are stopped."""
    return [action.worker for action in actions if isinstance(action, StopWorker)]


def refusal(actions: list[Action]) -> RefuseLease:
    """Return the only action, which is a refusal."""
    (action,) = actions
    assert isinstance(action, RefuseLease)
    return action
