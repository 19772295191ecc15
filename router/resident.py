"""What the fleet remembers: of each live worker (`Resident`) and of each configured model (`ModelRecord`).

Owns the bookkeeping and what an exit means for the next start. Must not decide who is served, started or
evicted: that needs all models together and is `fleet.py`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from router.departures import exit_in_words
from router.device import NOWHERE, Footprint, Placement
from router.events import Departure, ExitReason, LeaseId, ModelPolicy, StopCause, WorkerExit, WorkerId
from router.lifecycle import FAILED_COOL_DOWN_S, MAX_LOST_LOADS, STABLE_S, WorkerState, advance, backoff_s
from router.placement import Options
from router.prefix_memory import PrefixMemory
from router.waiting import WaitingLine

LEAVING = frozenset({WorkerState.DRAINING, WorkerState.STOPPING})
"""States in which a worker takes no new leases any more."""


@dataclass(slots=True)
class Resident:
    """One incarnation of a worker, from the decision to start it until its exit."""

    worker: WorkerId
    fingerprint: str
    """Of the configuration it was started with."""
    since_s: float
    """Of the present state."""
    last_sign_s: float
    """The last sign of progress while it loads."""
    last_used_s: float
    """Last grant or end of a lease; before the first one, when it became ready."""
    placement: Placement = NOWHERE
    is_preload: bool = False
    state: WorkerState = WorkerState.STARTING
    started_at_s: float = 0.0
    ready_at_s: float | None = None
    max_leases: int = 0
    slots: int = 0
    """Leases that it really serves at the same time; further ones wait right behind them."""
    leases: dict[LeaseId, str | None] = field(default_factory=dict)
    """Granted and not released yet, each with its key's id."""
    prefixes: PrefixMemory = field(default_factory=PrefixMemory)
    keep_alive_s: float | None = None
    """How long it stays when it is idle, as the last request said that said anything; negative = for good."""
    outdated_since_s: float | None = None
    """Since when the configuration is another one than it was started with."""
    must_leave: bool = False
    """Unloaded by the operator, removed from the configuration, or the router is shutting down."""
    is_evicting: bool = False
    """It was told to drain because another model needs its place."""
    is_retired: bool = False
    """It was told to drain because its configuration is outdated."""
    drain_until_s: float | None = None
    """When requests that still run are cut off; None = they may take as long as they need."""
    stop_reason: ExitReason = ExitReason.STOPPED
    departure: Departure | None = None
    """Why it was last sent off."""
    hung_detail: str | None = None
    """How it was seen that it gives no sign of life."""

    def move(self, new: WorkerState, now_s: float) -> None:
        """The resident is in state `new`. Raises: IllegalTransition."""
        self.state = advance(self.state, new)
        self.since_s = now_s

    @property
    def is_loading(self) -> bool:
        """It has never been ready and is on its way there."""
        return self.state in (WorkerState.STARTING, WorkerState.LOADING)

    @property
    def is_leaving(self) -> bool:
        """It takes no new leases any more."""
        return self.state in LEAVING

    @property
    def has_free_lease(self) -> bool:
        """One more request may go there now."""
        return self.state is WorkerState.READY and not self.must_leave and len(self.leases) < self.max_leases

    def can_take(self, num_replicas: int) -> bool:
        """Return whether one more request may go there now, if the model may have so many workers.

        Where another worker could serve it, a request does not go to wait behind the slots of this one: it could not
        be taken back.
        """
        return self.has_free_lease and (num_replicas == 1 or len(self.leases) < self.slots)

    def depart(self, why: Departure) -> None:
        """It is sent off; once it has to go, nothing that comes later is the cause."""
        if not self.must_leave:
            self.departure = why

    def leave_by(self, deadline_s: float, cause: StopCause) -> None:
        """It has to go, and what still runs on it then is cut off at the earliest deadline ever set."""
        self.depart(Departure(cause))
        self.must_leave = True
        self.drain_until_s = deadline_s if self.drain_until_s is None else min(self.drain_until_s, deadline_s)


@dataclass(slots=True)
class ModelRecord:
    """One configured model: its policy, its waiters, its workers and what became of earlier ones."""

    policy: ModelPolicy
    line: WaitingLine = field(default_factory=WaitingLine)
    residents: dict[int, Resident] = field(default_factory=dict)
    """By replica number."""
    rest: WorkerState = WorkerState.UNLOADED
    """What the model is while it has no resident: UNLOADED, BACKOFF or FAILED."""
    has_loaded: bool = False
    """With this configuration."""
    has_crashed: bool = False
    """What it rests from is a crash, and its workers can be loaded."""
    num_failed_loads: int = 0
    """Since the last worker that was ready."""
    num_failures: int = 0
    """In a row."""
    retry_at_s: float = 0.0
    """When BACKOFF or FAILED ends."""
    last_exit: WorkerExit | None = None
    last_to_exit: WorkerId | None = None
    last_exit_at_s: float = 0.0
    num_starts: int = 0
    wish_at_s: float | None = None
    """When somebody asked for a load without a request of its own; None once it is fulfilled or has failed."""
    is_preload_due: bool = False
    pin_order: bool | None = None
    """What somebody has ordered while it is served; None = nobody has, and the policy says whether it is pinned."""
    turn_ended_s: float | None = None
    """When its last worker was evicted: its waiters then stand behind those it was evicted for."""
    turned_away: str | None = None
    """Why all present waiters are to be refused."""
    is_removed: bool = False
    footprint: Footprint | None = None
    """What a worker needs; None = not known yet."""
    load_s: float = 1.0
    """How long its loads take, as far as it is known."""
    kept_view: tuple[tuple[object, ...], Any] | None = None
    """How it looked when it was last looked at and at rest, and what that depends on; for `fleet_views.py` alone."""
    options: Options | None = None
    """Where it could go, as it was last asked for."""

    @property
    def serving(self) -> Resident | None:
        """A resident that takes leases, or will once it has loaded; the newest configuration first."""
        return min(self.all_serving, key=self.is_outdated, default=None) if self.residents else None

    @property
    def all_serving(self) -> list[Resident]:
        """Residents that take leases, or will once they have loaded."""
        return [resident for resident in self.residents.values() if resident.state not in LEAVING]

    @property
    def current(self) -> list[Resident]:
        """Those of `all_serving` that were started with the present configuration."""
        return [resident for resident in self.all_serving if not self.is_outdated(resident)]

    @property
    def num_leases_by_key(self) -> Counter[str | None]:
        """How many leases each key holds on the model's workers."""
        return Counter(key_id for resident in self.residents.values() for key_id in resident.leases.values())

    @property
    def wants_another(self) -> bool:
        """One more worker would be of use beside those that are there, if there is room.

        A further replica when all others have work (or the model is to be preloaded), and the successor of a worker
        with an outdated configuration that does not become idle.
        """
        serving = self.all_serving
        if not serving or any(resident.is_loading for resident in serving):
            return False
        current = self.current
        if not current:
            return bool(self.line) or any(resident.leases for resident in serving)
        if len(current) >= self.policy.replicas or len(serving) > len(current):
            return False
        return self.is_preload_due or bool(self.line) or all(resident.leases for resident in current)

    def choose(self, free: Sequence[Resident], prefixes: tuple[int, ...]) -> Resident:
        """Return which of the workers with a free lease serves a conversation with these beginnings.

        The one that knows most of it, of those with a free slot; else the least loaded. Those that will stay before
        those with another configuration than the present one, or beyond `replicas`.
        """
        if len(free) == 1:
            return free[0]
        newest = [resident for resident in free if not self.is_outdated(resident)] or list(free)
        newest = [resident for resident in newest if not self.is_one_too_many(resident)] or newest
        least = min(newest, key=lambda resident: (len(resident.leases) / resident.slots, resident.worker))
        best = max(newest, key=lambda resident: (resident.prefixes.match(prefixes), -len(resident.leases)))
        return best if best.prefixes.match(prefixes) else least

    @property
    def is_awake(self) -> bool:
        """Something may still have to be decided about it."""
        return bool(self.line or self.residents or self.wish_at_s is not None or self.is_preload_due)

    @property
    def demand_since_s(self) -> float | None:
        """Since when somebody wants a worker that is not there; None = nobody, or one serves or loads."""
        oldest = self.line.oldest
        since_s = self.wish_at_s
        if oldest is not None:
            since_s = oldest.since_s if since_s is None else min(since_s, oldest.since_s)
        if since_s is None or self.serving is not None:
            return None
        if self.turn_ended_s is None:
            return since_s
        return max(since_s, self.turn_ended_s)

    @property
    def is_pausing(self) -> bool:
        """Its workers crash again and again, but they can be loaded: requests wait until a pause is over."""
        return self.rest is WorkerState.BACKOFF and self.has_crashed

    @property
    def queue_deadline_s(self) -> float | None:
        """When the oldest waiter is refused."""
        oldest = self.line.oldest
        return None if oldest is None else self._queue_deadline_s(oldest.since_s)

    @property
    def wish_deadline_s(self) -> float | None:
        """When a load that finds no place is given up."""
        return None if self.wish_at_s is None else self._queue_deadline_s(self.wish_at_s)

    def _queue_deadline_s(self, since_s: float) -> float | None:
        return since_s + self.policy.queue_timeout_s if self.policy.queue_timeout_s > 0 else None

    @property
    def is_pinned(self) -> bool:
        """Neither idleness nor another model unloads it."""
        return self.policy.pin if self.pin_order is None else self.pin_order

    def is_kept(self, resident: Resident) -> bool:
        """`resident` is pinned and holds its place for good, unless the operator says otherwise.

        One that drained for another model when it was pinned is kept as well: it will be opened again.
        """
        return self.is_pinned and not resident.must_leave and resident.state is not WorkerState.STOPPING

    @property
    def comes_back(self) -> bool:
        """It is loaded again at once after a restart that a new configuration demands."""
        return (self.is_pinned or self.policy.preload) and self.policy.unavailable is None

    def is_outdated(self, resident: Resident) -> bool:
        """`resident` was started with a configuration that has changed since."""
        return resident.fingerprint != self.policy.fingerprint

    def is_one_too_many(self, resident: Resident) -> bool:
        """`resident` is ready beyond `replicas`, which has been lowered: the latest replicas are."""
        ready = [other for other in self.current if other.state is WorkerState.READY]
        return resident in ready and sum(other.worker < resident.worker for other in ready) >= self.policy.replicas

    def is_idle(self, resident: Resident) -> bool:
        """`resident` is ready, serves nobody, and nobody waits for it."""
        return resident.state is WorkerState.READY and not resident.leases and not self.line

    def idle_unload_at_s(self, resident: Resident) -> float | None:
        """When idleness alone will unload `resident`; None = it will not."""
        limit_s = self.idle_limit_s(resident)
        return None if limit_s is None or not self.is_idle(resident) else resident.last_used_s + limit_s

    def idle_departure(self, resident: Resident) -> Departure:
        """Return why `resident`, which has been idle for too long, goes."""
        cause = StopCause.IDLE if resident.keep_alive_s is None else StopCause.KEEP_ALIVE
        return Departure(cause, self.idle_limit_s(resident))

    def idle_limit_s(self, resident: Resident) -> float | None:
        """How long `resident` may be idle; None = idleness alone does not unload it."""
        if self.is_pinned or self.policy.home:
            return None
        if resident.keep_alive_s is not None:
            return resident.keep_alive_s if resident.keep_alive_s >= 0 else None
        return self.policy.idle_unload_s if self.policy.idle_unload_s > 0 else None

    def replace_by_s(self, resident: Resident, max_wait_s: float) -> float | None:
        """When an outdated worker that does not become idle takes no new leases; None = it is not outdated."""
        if resident.state is not WorkerState.READY or resident.outdated_since_s is None or self.is_doomed:
            return None
        return resident.outdated_since_s + self.max_wait_s(max_wait_s)

    @property
    def is_doomed(self) -> bool:
        """A worker with the present configuration has just failed to start, or could not."""
        return self.rest is not WorkerState.UNLOADED or self.policy.unavailable is not None

    def max_wait_s(self, otherwise_s: float) -> float:
        """Return how long its requests wait before a busy model drains for them."""
        return otherwise_s if self.policy.max_wait_s is None else self.policy.max_wait_s

    def load_deadline_s(self, resident: Resident) -> float | None:
        """When a load without a further sign of progress is given up."""
        if not resident.is_loading or self.policy.load_timeout_s <= 0:
            return None
        return resident.last_sign_s + self.policy.load_timeout_s

    def adopt(self, policy: ModelPolicy) -> None:
        """`policy` is in force; a failure of another configuration is forgotten.

        A preload is due when the model had none to try before: it is new in this role, or could not start.
        """
        could_preload = self.policy.preload and self.policy.unavailable is None and not self.is_removed
        if policy.fingerprint != self.policy.fingerprint:
            could_preload = could_preload and self.rest is not WorkerState.FAILED
            self.forgive()
            self.has_loaded, self.footprint = False, None
        if not could_preload and self.serving is None and self.rest is not WorkerState.FAILED:
            self.is_preload_due = True
        self.is_preload_due = self.is_preload_due and policy.preload
        if policy.idle_unload_s != self.policy.idle_unload_s:  # the operator has spoken last
            for resident in self.residents.values():
                resident.keep_alive_s = None
        self.policy = policy
        self.is_removed = False

    def forgive(self) -> None:
        """Earlier failures no longer keep it from starting."""
        self.num_failures = 0
        self.end_pause()

    def end_pause(self) -> None:
        """It may start now, though the failures still count towards the next pause."""
        if self.rest is not WorkerState.UNLOADED:
            self.rest = advance(self.rest, WorkerState.UNLOADED)

    def end_pause_if_over(self, now_s: float) -> None:
        """It may start now if the time of its pause has passed."""
        if self.rest is not WorkerState.UNLOADED and now_s >= self.retry_at_s:
            self.end_pause()

    def rest_state(self, now_s: float) -> WorkerState:
        """Return what it is without a resident: a BACKOFF that is over counts as UNLOADED."""
        if self.rest is WorkerState.BACKOFF and now_s >= self.retry_at_s:
            return WorkerState.UNLOADED
        return self.rest

    def note_ready(self, resident: Resident, max_leases: int, slots: int, now_s: float) -> None:
        """`resident` takes leases, and every wish for a load is fulfilled."""
        if resident.state is WorkerState.STARTING:
            resident.move(WorkerState.LOADING, now_s)
        resident.move(WorkerState.READY, now_s)
        resident.ready_at_s = resident.last_used_s = now_s
        resident.max_leases = max(1, max_leases)  # with none at all its waiters would hang
        resident.slots = slots or resident.max_leases
        self.load_s = max(0.1, now_s - resident.started_at_s)
        self.wish_at_s, self.has_loaded = None, True
        self.is_preload_due = self.is_preload_due and len(self.current) < self.policy.replicas

    def note_exit(self, resident: Resident, exit_: WorkerExit, now_s: float) -> None:
        """`resident` is gone and `rest` says what that means for the next start.

        Asked for, or of an earlier configuration: UNLOADED. A failed load: FAILED if the file is bad, else BACKOFF.
        A crash or hang after it was ready: UNLOADED, and BACKOFF when it happens again at once.
        """
        is_timed_out = resident.stop_reason is ExitReason.LOAD_TIMEOUT
        exit_ = exit_in_words(
            exit_,
            timed_out_after_s=self.policy.load_timeout_s if is_timed_out else None,
            departure=resident.departure,
            hung_detail=resident.hung_detail,
        )
        was_asked = resident.state is WorkerState.STOPPING and not is_timed_out and resident.hung_detail is None
        is_stable = resident.ready_at_s is not None and now_s - resident.ready_at_s >= STABLE_S
        if is_stable:
            self.num_failures = 0
        after = WorkerState.UNLOADED
        if not (was_asked or self.is_outdated(resident) or self.is_removed or is_stable):
            self.num_failures += 1
            after = self._after_failure(exit_, resident.ready_at_s, now_s)
        resident.move(after, now_s)
        if after is not WorkerState.UNLOADED:  # else what another worker of the model has left behind still counts
            self.rest = after
        del self.residents[resident.worker.replica]
        self.last_exit, self.last_to_exit, self.last_exit_at_s = exit_, resident.worker, now_s
        self.turn_ended_s = now_s if resident.is_evicting else self.turn_ended_s

    def _after_failure(self, exit_: WorkerExit, ready_at_s: float | None, now_s: float) -> WorkerState:
        """Return BACKOFF, FAILED or UNLOADED, with the end of the pause noted, which begins when it was ready."""
        was_ready = ready_at_s is not None
        self.num_failed_loads = 0 if was_ready else self.num_failed_loads + 1
        can_load = self.has_loaded and exit_.reason is ExitReason.CRASHED and self.num_failed_loads <= MAX_LOST_LOADS
        self.has_crashed = was_ready or can_load
        if not was_ready and exit_.reason is ExitReason.BAD_MODEL:
            self.is_preload_due = False
            self.retry_at_s = now_s + FAILED_COOL_DOWN_S
            return WorkerState.FAILED
        since_s = now_s if ready_at_s is None else ready_at_s
        self.retry_at_s = since_s + backoff_s(self.num_failures - was_ready, is_crash=self.has_crashed)
        return WorkerState.BACKOFF if self.retry_at_s > now_s else WorkerState.UNLOADED
