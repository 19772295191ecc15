"""A simulated machine for the fleet: it answers actions with processes that load, crash, hang and exit late.

The clock moves only when told. The world keeps books of its own and checks every action against them, so that
the fleet is never judged by its own memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace

from router.device import Placement
from router.events import (
    Action,
    CatalogChanged,
    DevicesChanged,
    DevicesMeasured,
    Event,
    ExitReason,
    FleetLimits,
    GrantLease,
    KeepAliveSet,
    LeaseId,
    LeaseReleased,
    LeaseRequested,
    LoadRequested,
    ModelPolicy,
    ModelSized,
    PinSet,
    PlaceWorker,
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
from tests.fakes.world_books import Books
from tests.fakes.world_parts import Behaviour, Fate, Outcome, Process, Request

__all__ = ["Behaviour", "Fate", "Outcome", "Process", "Request", "World"]


@dataclass
class World(Books):
    """A fleet, its processes and its clients, on a clock that only moves when told."""

    def __post_init__(self) -> None:
        self.fleet = Fleet(self.models, self.limits)
        self._agenda: list[tuple[float, int, Event]] = []
        self._num_planned = 0
        self.wished = {name for name, policy in self.models.items() if policy.preload}
        if self.devices:
            self.send(DevicesChanged(self.devices))
        self.send(Tick())

    # --- what a test does --------------------------------------------------------------------------------

    def request(
        self,
        model: str,
        *,
        priority: int = 0,
        key_id: str | None = None,
        keep_alive_s: float | None = None,
        weight: float = 1.0,
    ) -> Request:
        """Return a request for `model` that has just been made."""
        lease_id = LeaseId(len(self.requests) + 1)
        made = Request(lease_id, model, priority, key_id, self.now_s, keep_alive_s, weight)
        self.requests[lease_id] = self.open[lease_id] = made
        if self._may_wait(made):
            self.shares.arrive(made)
        self.send(LeaseRequested(lease_id, model, priority, key_id, keep_alive_s=keep_alive_s, weight=weight))
        return made

    def _may_wait(self, made: Request) -> bool:
        """Return whether it comes into the line at all: one of a model that is being removed leaves it at once."""
        policy = self.models.get(made.model)
        if policy is None:
            return bool(self.of(made.model))
        num_waiting = sum(other.model == made.model for other in self.with_fate(Fate.QUEUED)) - 1
        return policy.max_queue <= 0 or num_waiting < policy.max_queue

    def release(self, lease_id: LeaseId, tokens: int | None = None) -> None:
        """The client of this lease is gone; what it was given had so many tokens."""
        request = self.open.pop(lease_id, None)
        if request is not None:
            if request.worker in self.processes:
                self.processes[request.worker].last_used_s = self.now_s
            request.fate = Fate.RELEASED
        self.send(LeaseReleased(lease_id, tokens))

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
        self.wished.add(model)
        self.failed.discard(model)
        for process in self.of(model):
            if process.is_ready and process.go_by_s is None:
                process.last_used_s = self.now_s
        self.send(LoadRequested(model))

    def unload(self, model: str) -> None:
        """The operator wants `model` gone."""
        self.excuse(model, self.limits.drain_timeout_s)
        self.send(UnloadRequested(model))

    def keep_alive(self, model: str, seconds: float) -> None:
        """A client says how long `model` stays when it is idle."""
        self.send(KeepAliveSet(model, seconds))

    def pin(self, model: str, pin: bool | None) -> None:
        """The operator pins `model`, or not; None = its policy holds again."""
        self.send(PinSet(model, pin))

    def change(self, models: Mapping[str, ModelPolicy], limits: FleetLimits | None = None) -> None:
        """The configuration is another one."""
        limits = limits or self.limits
        for name in self.models.keys() - models.keys():
            self.excuse(name, limits.drain_timeout_s)
            self.pin_orders.pop(name, None)
        self.wished |= {name for name, policy in models.items() if policy.preload}
        self.failed -= {
            name
            for name, policy in models.items()
            if name not in self.models or self.models[name].fingerprint != policy.fingerprint
        }
        for process in self.processes.values():
            old, new = self.models.get(process.worker.model), models.get(process.worker.model)
            if old is not None and new is not None and old.idle_unload_s != new.idle_unload_s:
                process.keep_alive_s = None
        self.models, self.limits = models, limits
        self.send(CatalogChanged(models, limits))

    def shut_down(self, drain_s: float = 5.0) -> None:
        """The router is told to stop."""
        for process in self.processes.values():
            self.excuse(process.worker.model, drain_s)
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
        self.note(event)
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
        self.expect_nothing_overdue()

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
                resident.keep_alive_s,
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

    # --- actions, checked --------------------------------------------------------------------------------

    def _perform(self, action: Action) -> None:
        match action:
            case SpawnWorker(worker, placement):
                self._spawn(worker, placement)
            case PlaceWorker(worker, placement):
                self._replace(self.processes[worker], placement)
            case StopWorker(worker, _, reason):
                self._stop(worker, reason)
            case GrantLease(lease_id, worker):
                self._grant(self.requests[lease_id], self.processes[worker])
            case RefuseLease(lease_id):
                self.note_refusal(self.requests[lease_id], action)

    def _replace(self, process: Process, placement: Placement) -> None:
        if process.is_started or process.is_stopping:
            process.reserved = placement.reserved  # this is what it turned out to need, whether or not it fits
        else:
            self.place(process, placement)

    def _spawn(self, worker: WorkerId, placement: Placement) -> None:
        self.expect_spawn_is_right(worker)
        policy = self.models[worker.model]
        behaviour = self.behaviours.get(worker.model, Behaviour())
        self.spawns.append((self.now_s, worker))
        process = Process(worker, policy.fingerprint, behaviour, self.now_s, self.now_s)
        self.processes[worker] = process
        self.place(process, placement)
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
                is_on_cpu = policy.gpu_layers == 0 or not any(device.is_gpu for device in self.devices)
                if footprint is not None and behaviour.growth != 1.0 and is_on_cpu:
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

    def _stop(self, worker: WorkerId, reason: ExitReason) -> None:
        self.note_stop(worker, reason)
        self._plan_exit(self.processes[worker].behaviour.stop_s, worker, reason, "")

    def _grant(self, request: Request, process: Process) -> None:
        self.note_grant(request, process)
        if self.hold_s is not None:
            self._plan(self.hold_s, LeaseReleased(request.lease_id))

    # --- the machine -------------------------------------------------------------------------------------

    def _deliver(self, event: Event) -> None:
        match event:
            case LeaseReleased(lease_id, tokens):
                self.release(lease_id, tokens)
            case (
                WorkerStarted(worker)
                | WorkerProgressed(worker)
                | WorkerReady(worker)
                | WorkerSized(worker)
                | WorkerExited(worker)
            ):
                if worker in self.processes:
                    self.send(event)

    def _plan(self, after_s: float, event: Event) -> None:
        self._num_planned += 1
        heapq.heappush(self._agenda, (self.now_s + after_s, self._num_planned, event))

    def _plan_exit(self, after_s: float, worker: WorkerId, reason: ExitReason, detail: str) -> None:
        self._plan(after_s, WorkerExited(worker, WorkerExit(reason, detail)))
