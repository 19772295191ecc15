"""A simulated machine for the fleet: it answers actions with processes that load, crash, hang and exit late.

The clock moves only when told. The world keeps books of its own and checks every action against them, so that
the fleet is never judged by its own memory.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from router.device import Device, Footprint, Placement
from router.events import (
    Action,
    CatalogChanged,
    DevicesChanged,
    DevicesMeasured,
    Event,
    ExitReason,
    FleetLimits,
    GrantLease,
    LeaseId,
    LeaseReleased,
    LeaseRequested,
    LoadRequested,
    ModelPolicy,
    ModelSized,
    PlaceWorker,
    RefusalKind,
    RefuseLease,
    ShutdownRequested,
    SpawnWorker,
    StopWorker,
    Tick,
    UnloadRequested,
    WorkerExit,
    WorkerExited,
    WorkerHung,
    WorkerId,
    WorkerProgressed,
    WorkerReady,
    WorkerSized,
    WorkerStarted,
)
from router.fleet import Fleet
from tests.fakes.world_parts import Behaviour, Fate, Outcome, Process, Request

__all__ = ["Behaviour", "Fate", "Outcome", "Process", "Request", "World"]


@dataclass
class World:
    """A fleet, its processes and its clients, on a clock that only moves when told."""

    models: Mapping[str, ModelPolicy]
    limits: FleetLimits
    hold_s: float | None = None
    """How long each granted lease is held; None = until it is released by hand."""
    devices: tuple[Device, ...] = ()
    footprints: dict[str, Footprint] = field(default_factory=dict)
    """What a worker of each model really needs; the fleet knows it when a start has found out, or before if told."""
    used_by_others: dict[str, int] = field(default_factory=dict)
    now_s: float = 100.0
    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    processes: dict[WorkerId, Process] = field(default_factory=dict)
    requests: dict[LeaseId, Request] = field(default_factory=dict)
    spawns: list[tuple[float, WorkerId]] = field(default_factory=list)
    history: list[Event] = field(default_factory=list)
    num_ticks: int = 0
    is_shutting_down: bool = False

    def __post_init__(self) -> None:
        self.fleet = Fleet(self.models, self.limits)
        self._agenda: list[tuple[float, int, Event]] = []
        self._open: dict[LeaseId, Request] = {}  # those that wait or run
        self._num_planned = 0
        self._wished: set[str] = {name for name, policy in self.models.items() if policy.preload}
        self._failed: set[str] = set()  # with their present configuration
        self._known: dict[str, Footprint] = {}  # what the fleet has been told last
        if self.devices:
            self.send(DevicesChanged(self.devices))
        self.send(Tick())

    # --- what a test does --------------------------------------------------------------------------------

    def request(self, model: str, *, priority: int = 0, key_id: str | None = None) -> Request:
        """Return a request for `model` that has just been made."""
        lease_id = LeaseId(len(self.requests) + 1)
        made = Request(lease_id, model, priority, key_id, self.now_s)
        self.requests[lease_id] = self._open[lease_id] = made
        self.send(LeaseRequested(lease_id, model, priority, key_id))
        return made

    def release(self, lease_id: LeaseId) -> None:
        """The client of this lease is gone."""
        request = self._open.pop(lease_id, None)
        if request is not None:
            if request.worker in self.processes:
                self.processes[request.worker].last_used_s = self.now_s
            request.fate = Fate.RELEASED
        self.send(LeaseReleased(lease_id))

    def crash(self, worker: WorkerId) -> None:
        """The process dies now."""
        self.send(WorkerExited(worker, WorkerExit(ExitReason.CRASHED, "signal 11", -11)))

    def hang(self, worker: WorkerId) -> None:
        """The process gives no sign of life any more, and somebody has noticed."""
        if self.processes[worker].is_ready:
            self.processes[worker].is_hung = True
        self.send(WorkerHung(worker, "no step for 60 s"))

    def tell_footprint(self, model: str) -> None:
        """The fleet knows what a worker of `model` needs."""
        if model in self.footprints:
            self.send(ModelSized(model, self.footprints[model]))

    def others_use(self, used: Mapping[str, int]) -> None:
        """Other programs use so much of the devices."""
        self.used_by_others = dict(used)
        self.send(DevicesMeasured(self.used_by_others))

    def load(self, model: str) -> None:
        """The operator asks for `model`."""
        self._wished.add(model)
        self._failed.discard(model)
        for process in self.of(model):
            if process.is_ready and process.go_by_s is None:
                process.last_used_s = self.now_s
        self.send(LoadRequested(model))

    def unload(self, model: str) -> None:
        """The operator wants `model` gone."""
        self._excuse(model, self.limits.drain_timeout_s)
        self.send(UnloadRequested(model))

    def change(self, models: Mapping[str, ModelPolicy], limits: FleetLimits | None = None) -> None:
        """The configuration is another one."""
        limits = limits or self.limits
        for name in self.models.keys() - models.keys():
            self._excuse(name, limits.drain_timeout_s)
        self._wished |= {name for name, policy in models.items() if policy.preload}
        self._failed -= {
            name
            for name, policy in models.items()
            if name not in self.models or self.models[name].fingerprint != policy.fingerprint
        }
        self.models, self.limits = models, limits
        self.send(CatalogChanged(models, limits))

    def shut_down(self, drain_s: float = 5.0) -> None:
        """The router is told to stop."""
        for process in self.processes.values():
            self._excuse(process.worker.model, drain_s)
        self.is_shutting_down = True
        self.send(ShutdownRequested(drain_s))

    def advance(self, by_s: float) -> None:
        """Everything that is due in the next `by_s` seconds has happened, in order."""
        end_s = self.now_s + by_s
        while True:
            planned_s = self._agenda[0][0] if self._agenda else None
            tick_s = self.fleet.next_deadline_s
            due_s = min((at_s for at_s in (planned_s, tick_s) if at_s is not None), default=None)
            if due_s is None or due_s > end_s:
                break
            assert due_s >= self.now_s, "a deadline lies in the past"
            self.now_s = due_s
            if planned_s == due_s:
                self._deliver(heapq.heappop(self._agenda)[2])
            else:
                self.num_ticks += 1
                self.send(Tick())
                next_s = self.fleet.next_deadline_s
                assert next_s is None or next_s > self.now_s, "a tick leaves its own deadline behind"
        self.now_s = end_s

    def send(self, event: Event) -> None:
        """The fleet knows of `event`, and what it asks for is checked and under way."""
        self._note(event)
        self.history.append(event)
        actions = self.fleet.handle(event, self.now_s)
        self.fleet.check_integrity()
        for action in actions:
            self._perform(action)
        look = self.fleet.snapshot if len(self.history) % 8 == 0 else self._state  # a snapshot costs more than events
        before = look(self.now_s)
        left_over = self.fleet.handle(Tick(), self.now_s)
        assert left_over == [], f"one event leaves something undecided: {left_over} after {event} and {actions}"
        assert look(self.now_s) == before, f"something changes although nothing happens after {event}"
        self._expect_nothing_overdue()

    def _state(self, _now_s: float) -> object:
        """Return whatever the fleet decides on."""
        ledger = self.fleet._ledger
        models = [
            (name, record.rest, len(record.line), record.wish_at_s, record.is_preload_due, record.turn_ended_s)
            for name, record in ledger.awake.items()
        ]
        workers = [
            (
                *(resident.worker, resident.state, resident.since_s, resident.last_used_s, resident.placement),
                *(len(resident.leases), resident.must_leave, resident.is_evicting, resident.is_retired),
                resident.drain_until_s,
            )
            for resident in ledger.residents
        ]
        return models, workers

    def hear_again(self, pick: int) -> None:
        """An old report about a worker that is gone arrives once more."""
        stale = [
            event
            for event in self.history
            if isinstance(event, WorkerStarted | WorkerProgressed | WorkerReady | WorkerSized | WorkerExited)
            and event.worker not in self.processes
        ]
        if stale:
            self.send(stale[pick % len(stale)])

    def peek(self, share: float = 0.5) -> None:
        """A tick before anything is due, `share` of the way there, changes nothing."""
        planned_s = self._agenda[0][0] if self._agenda else self.now_s + 1000.0
        due_s = min(planned_s, self.fleet.next_deadline_s or planned_s)
        self.now_s += (due_s - self.now_s) * share
        if self.now_s < due_s:
            assert self.fleet.handle(Tick(), self.now_s) == [], "a deadline was not announced"

    # --- what can be asked -------------------------------------------------------------------------------

    def of(self, model: str) -> list[Process]:
        """Return the live processes of `model`."""
        return [process for process in self.processes.values() if process.worker.model == model]

    def with_fate(self, fate: Fate) -> list[Request]:
        """Return the requests that wait, or those that run, oldest first."""
        assert fate in (Fate.QUEUED, Fate.GRANTED), "the others are in `requests`"
        return [request for request in self._open.values() if request.fate is fate]

    # --- actions, checked --------------------------------------------------------------------------------

    def _perform(self, action: Action) -> None:
        match action:
            case SpawnWorker(worker, placement):
                self._spawn(worker, placement)
            case PlaceWorker(worker, placement):
                self._place(self.processes[worker], placement)
            case StopWorker(worker, _, reason):
                self._stop(worker, reason)
            case GrantLease(lease_id, worker):
                self._grant(self.requests[lease_id], self.processes[worker])
            case RefuseLease(lease_id):
                self._refuse(self.requests[lease_id], action)

    def _spawn(self, worker: WorkerId, placement: Placement) -> None:
        assert not self.is_shutting_down, "a worker starts while the router stops"
        policy = self.models[worker.model]
        assert policy.unavailable is None, "a worker starts for a model that cannot start"
        own = self.of(worker.model)
        assert all(other.worker.replica != worker.replica for other in own), "two incarnations of one replica are alive"
        new = [other for other in own if other.fingerprint == policy.fingerprint and not other.is_stopping]
        assert len(new) < policy.replicas, "more workers than replicas"
        assert all(
            worker > earlier
            for _, earlier in self.spawns
            if earlier.model == worker.model
            if earlier.replica == worker.replica
        )
        if self.limits.max_loaded is not None:
            assert len(self.processes) < self.limits.max_loaded, "more workers than max_loaded"
        behaviour = self.behaviours.get(worker.model, Behaviour())
        self.spawns.append((self.now_s, worker))
        process = Process(worker, policy.fingerprint, behaviour, self.now_s, self.now_s)
        self.processes[worker] = process
        self._place(process, placement)
        load_s = behaviour.load_s
        ready = WorkerReady(worker, behaviour.max_leases)
        if behaviour.outcome is Outcome.SPAWN_FAILS:
            self._plan_exit(load_s, worker, ExitReason.SPAWN_FAILED, "no such program")
            return
        footprint = self.footprints.get(worker.model)
        if footprint is not None:
            self._plan(load_s / 8, WorkerSized(worker, footprint))
        self._plan(load_s / 4, WorkerStarted(worker))
        match behaviour.outcome:
            case Outcome.READY:
                if load_s > 1.0:
                    self._plan(load_s / 2, WorkerProgressed(worker))
                self._plan(load_s, ready)
                if footprint is not None and behaviour.growth != 1.0:
                    more = replace(footprint, cpu_bytes=int(footprint.cpu_bytes * behaviour.growth))
                    self._plan(load_s, WorkerSized(worker, more))
            case Outcome.SLOW:
                step_s = 0.8 * policy.load_timeout_s
                for step in range(1, 5):
                    self._plan(load_s / 4 + step * step_s, WorkerProgressed(worker))
                self._plan(load_s / 4 + 4.5 * step_s, ready)
            case Outcome.HANGS:
                pass
            case Outcome.CRASHES:
                self._plan_exit(load_s, worker, ExitReason.CRASHED, "signal 6")
            case Outcome.BAD_MODEL:
                self._plan_exit(load_s, worker, ExitReason.BAD_MODEL, "invalid magic characters")
            case Outcome.NO_MEMORY:
                self._plan_exit(load_s, worker, ExitReason.NO_MEMORY, "unable to allocate buffer")

    def _place(self, process: Process, placement: Placement) -> None:
        """The worker's room is its own: it is there, and nobody else has it."""
        process.reserved = {}
        policy = self.models[process.worker.model]
        for device in self.devices:
            taken = sum(other.reserved.get(device.id, 0) for other in self.processes.values())
            room = device.total_bytes - device.headroom_bytes - self.used_by_others.get(device.id, 0)
            room = min(room, device.usable_bytes) - taken
            assert placement.reserved.get(device.id, 0) <= max(0, room), f"{device.id} is promised twice"
        if placement.reserved and policy.devices:
            assert set(placement.gpus) == set(policy.devices) - {"CPU"}, "an explicit device is not obeyed"
        process.reserved = placement.reserved

    def _stop(self, worker: WorkerId, reason: ExitReason) -> None:
        process = self.processes[worker]
        policy = self.models.get(worker.model)
        assert not process.is_stopping, "a worker is stopped twice"
        process.is_stopping = True
        self._plan_exit(process.behaviour.stop_s, worker, reason, "")
        is_asked = process.go_by_s is not None
        is_outdated = policy is not None and policy.fingerprint != process.fingerprint
        if reason is ExitReason.HUNG:
            assert process.is_hung, "a worker that lives is killed"
        elif reason is ExitReason.NO_ROOM:
            assert not process.is_ready, "a ready worker has its room"
            assert self.devices, "memory is not looked at"
        elif reason is ExitReason.LOAD_TIMEOUT:
            assert policy is not None
            assert not process.is_ready, "a ready worker cannot run out of load time"
            assert self.now_s >= process.last_sign_s + policy.load_timeout_s, "its load made progress"
        elif self._leases_on(worker):
            assert process.go_by_s is not None, "a worker is stopped under its running requests"
            assert self.now_s >= process.go_by_s, "a worker is stopped before its requests had their time"
        elif not process.is_ready:
            assert is_asked or is_outdated, "a load that somebody pays for is stopped"
        elif not is_asked and not is_outdated and self._num_current(worker.model) < self.models[worker.model].replicas:
            assert policy is not None
            assert not policy.pin, "a pinned worker is stopped"
            idle_s = self.now_s - process.last_used_s
            is_idle_for_long = 0 < policy.idle_unload_s <= idle_s + 1e-6
            is_wanted = self._is_place_wanted(worker.model)
            assert is_idle_for_long or is_wanted, f"nobody asked for the place of {process}"
        if is_outdated and policy is not None and (policy.pin or policy.preload):
            self._wished.add(worker.model)

    def _num_current(self, model: str) -> int:
        """Return how many ready workers of `model` have the present configuration and may stay."""
        fingerprint = self.models[model].fingerprint
        ready = [process for process in self.of(model) if process.is_ready and not process.is_stopping]
        return sum(process.fingerprint == fingerprint and process.go_by_s is None for process in ready)

    def _is_place_wanted(self, by_others_than: str) -> bool:
        if self.limits.max_loaded is None and not self.devices:
            return False
        for device in self.devices:
            if sum(process.reserved.get(device.id, 0) for process in self.processes.values()) > device.usable_bytes:
                return True
        waiting = {request.model for request in self.with_fate(Fate.QUEUED)} | self._wished
        return bool(waiting - {by_others_than}) or len(self.processes) > (self.limits.max_loaded or 10_000)

    def _grant(self, request: Request, process: Process) -> None:
        worker = process.worker
        assert request.fate is Fate.QUEUED, "a lease ends twice"
        assert request.model == worker.model, "a request is answered by another model"
        assert process.is_ready, "a lease on a worker that is not ready"
        assert not process.is_stopping, "a lease on a worker that stops"
        assert process.go_by_s is None, "a lease on a worker that has to go"
        leases = self._leases_on(worker)
        assert len(leases) < process.behaviour.max_leases, "a worker is leased too often"
        granted = [other for other in self.with_fate(Fate.GRANTED) if other.model == request.model]
        shares = Counter(lease.key_id for lease in granted if lease.worker in self.processes)
        waiting = [other for other in self.with_fate(Fate.QUEUED) if other.model == request.model]
        first = min(waiting, key=lambda other: (-other.priority, shares[other.key_id]))
        assert request is first, "somebody else comes first"
        request.fate, request.worker, request.ended_s = Fate.GRANTED, worker, self.now_s
        process.last_used_s = self.now_s
        if self.hold_s is not None:
            self._plan(self.hold_s, LeaseReleased(request.lease_id))

    def _refuse(self, request: Request, refusal: RefuseLease) -> None:
        assert request.fate is Fate.QUEUED, "a lease ends twice"
        policy = self.models.get(request.model)
        match refusal.kind:
            case RefusalKind.UNKNOWN_MODEL:
                assert policy is None, "a known model is called unknown"
            case RefusalKind.QUEUE_FULL:
                assert policy is not None
                num_waiting = sum(other.model == request.model for other in self.with_fate(Fate.QUEUED))
                assert num_waiting > policy.max_queue > 0, "the queue is not full"
            case RefusalKind.QUEUE_TIMEOUT:
                assert policy is not None
                assert 0 < policy.queue_timeout_s <= self.now_s - request.since_s + 1e-6, "refused too early"
            case RefusalKind.SHUTTING_DOWN:
                assert self.is_shutting_down, "the router does not stop"
            case RefusalKind.UNAVAILABLE:
                assert policy is not None
            case RefusalKind.TOO_LARGE:
                needed = self._known[request.model].cpu_bytes
                assert self.devices, "memory is not looked at"
                has_gpus = any(device.is_gpu for device in self.devices)
                assert has_gpus or all(needed > device.usable_bytes for device in self.devices), "it would fit"
        assert refusal.detail.endswith("."), "a refusal is a sentence"
        del self._open[request.lease_id]
        request.fate, request.refusal, request.ended_s = Fate.REFUSED, refusal, self.now_s

    def _expect_nothing_overdue(self) -> None:
        """Nobody has been left waiting past a deadline, by the world's own reckoning."""
        for request in self.with_fate(Fate.QUEUED):
            policy = self.models[request.model]
            is_late = 0 < policy.queue_timeout_s < self.now_s - request.since_s - 1e-6
            assert not is_late, "a request waits longer than queue_timeout_s"
        for process in self.processes.values():
            process_policy = self.models.get(process.worker.model)
            if process_policy is None or process.is_stopping:
                continue
            has_leases = bool(self._leases_on(process.worker))
            if not process.is_ready:
                silent_s = self.now_s - process.last_sign_s
                assert silent_s < process_policy.load_timeout_s, "a load hangs and nobody stops it"
            if process.go_by_s is not None:
                assert has_leases, "nothing runs on a worker that has to go"
                assert self.now_s < process.go_by_s, "a worker that has to go is still there"
            is_doomed = process.worker.model in self._failed or process_policy.unavailable is not None
            if not has_leases and process.fingerprint != process_policy.fingerprint and not is_doomed:
                raise AssertionError("an idle worker keeps an old configuration")
            if not has_leases and process.is_ready and process.fingerprint == process_policy.fingerprint:
                num_too_many = self._num_current(process.worker.model) - process_policy.replicas
                assert num_too_many <= 0 or process.worker.replica == 0, "an idle worker beyond `replicas` stays"
            stays = process_policy.pin or process_policy.home
            if not has_leases and not stays and process_policy.idle_unload_s > 0 and process.is_ready:
                idle_s = self.now_s - process.last_used_s
                assert idle_s < process_policy.idle_unload_s, "an idle worker stays"

    # --- the machine -------------------------------------------------------------------------------------

    def _deliver(self, event: Event) -> None:
        match event:
            case LeaseReleased(lease_id):
                self.release(lease_id)
            case (
                WorkerStarted(worker)
                | WorkerProgressed(worker)
                | WorkerReady(worker)
                | WorkerSized(worker)
                | WorkerExited(worker)
            ):
                if worker in self.processes:
                    self.send(event)

    def _note(self, event: Event) -> None:
        """The world's own books hold what `event` changes."""
        match event:
            case WorkerStarted(worker) | WorkerProgressed(worker) if worker in self.processes:
                self.processes[worker].last_sign_s = self.now_s
            case WorkerReady(worker) if worker in self.processes:
                process = self.processes[worker]
                if not process.is_stopping and not process.is_ready:
                    process.is_ready = True
                    process.last_used_s = self.now_s
                    self._wished.discard(worker.model)
                    self._failed.discard(worker.model)
            case ModelSized(model, footprint):
                self._known[model] = footprint
            case WorkerSized(worker, footprint) if worker in self.processes:
                self._known[worker.model] = footprint
                process = self.processes[worker]
                if process.is_ready and process.reserved.keys() == {"CPU"}:
                    process.reserved = {"CPU": footprint.cpu_bytes}
            case WorkerExited(worker, exit_) if worker in self.processes:
                del self.processes[worker]
                if exit_.reason not in (ExitReason.STOPPED, ExitReason.NO_ROOM):
                    self._failed.add(worker.model)
            case _:
                pass

    def _excuse(self, model: str, drain_s: float) -> None:
        for process in self.of(model):
            go_by_s = self.now_s + drain_s
            process.go_by_s = go_by_s if process.go_by_s is None else min(process.go_by_s, go_by_s)

    def _leases_on(self, worker: WorkerId) -> list[Request]:
        return [request for request in self.with_fate(Fate.GRANTED) if request.worker == worker]

    def _plan(self, after_s: float, event: Event) -> None:
        self._num_planned += 1
        heapq.heappush(self._agenda, (self.now_s + after_s, self._num_planned, event))

    def _plan_exit(self, after_s: float, worker: WorkerId, reason: ExitReason, detail: str) -> None:
        self._plan(after_s, WorkerExited(worker, WorkerExit(reason, detail)))
